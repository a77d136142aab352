"""How long writes take: the last ones count, and one that hangs."""

from __future__ import annotations

from contextlib import suppress

from sparktxlog.storage.journal.write_pace import WritePace


class _Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _write(pace: WritePace, time: _Time, *seconds: float) -> None:
    for one in seconds:
        with pace.timing():
            time.now += one


def test_the_median_of_the_last_writes_counts() -> None:
    pace = WritePace(time := _Time())
    _write(pace, time, *(2.0,) * 4)
    assert pace.seconds is None, "too few"
    _write(pace, time, 2.0)
    assert pace.seconds == 2.0
    _write(pace, time, *(0.01,) * 4, 3.0)
    assert pace.seconds == 2.0
    _write(pace, time, *(0.01,) * 4)
    assert round(pace.seconds or 0, 3) == 0.01
    time.now += 61
    assert pace.seconds is None, "nothing was written for a minute"


def test_a_write_that_hangs_counts_and_one_that_fails_does_not() -> None:
    pace = WritePace(time := _Time())
    _write(pace, time, *(0.01,) * 5)
    with suppress(OSError), pace.timing():
        time.now += 5
        assert pace.seconds is not None and pace.seconds < 0.011
        time.now += 10
        assert pace.seconds == 15
        raise OSError("no space left")
    assert pace.seconds is not None and pace.seconds < 0.011
