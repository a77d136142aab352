"""The clock of a node: it never falls and never stands."""

from __future__ import annotations

from functools import partial

from sparktxlog.runtime.clock import Clock


def test_the_log_clock_starts_at_the_greater_and_never_falls_or_stands() -> None:
    steady = [7_000_000]
    for floor, wall in ((5_000, 9_000), (9_000, 5_000)):
        clock = Clock(floor, wall=partial(int, wall), steady_ns=lambda: steady[0])
        assert clock.now() == 9_000
        steady[0] += 2_000_000
        assert clock.now() == 11_000
        assert clock.seconds_until(1_011_000) == 1.0
        assert clock.seconds_until(0) == 0.0
