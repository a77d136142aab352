"""First guesses, what is learned from measurements, and what a changed parameter touches."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.msgpack import decode, encode

from sparktxlog.catchup.estimates import (
    MAX_CORRECTION,
    SPEED_FROM_BYTES,
    WINDOW,
    ReplayPace,
    TransferPace,
    Workload,
)
from sparktxlog.model.report import ReplayCost

PLAIN = Workload(batches=10, transactions=100_000)
KEYED = Workload(batches=1, merges=4, transactions=10)
GIB = 1 << 30


def learned(pace: ReplayPace, workload: Workload, *factors: float) -> ReplayPace:
    first = ReplayPace()
    for factor in factors:
        pace = pace.learn(workload, first.estimate(workload) * factor)
    return pace


# -- replay ----------------------------------------------------------------------------------------


def test_the_first_guess_adds_up_what_was_measured() -> None:
    pace = ReplayPace()
    assert pace.estimate(Workload()) == 0
    assert pace.estimate(PLAIN) == pytest.approx(10 * 0.05 + 100_000 * 45e-6)
    assert pace.estimate(KEYED) == pytest.approx(0.05 + 4 * 3.0 + 10 * 45e-6)
    assert pace.estimate(Workload(batches=2, appended_bytes=1)) == pytest.approx(0.11)
    assert pace.estimate(Workload(merged_bytes=100_000_000)) == pytest.approx(2.0)


def test_the_pace_follows_what_is_measured() -> None:
    pace = learned(ReplayPace(), PLAIN, *[2.0] * 5)
    assert pace.estimate(PLAIN) == pytest.approx(2 * ReplayPace().estimate(PLAIN))
    # And forgets: a machine that became faster is believed after half a window.
    pace = learned(pace, PLAIN, *[0.5] * WINDOW)
    assert pace.estimate(PLAIN) == pytest.approx(0.5 * ReplayPace().estimate(PLAIN))
    assert len(pace.plain) == WINDOW


@pytest.mark.parametrize("before", [(), (1.1,), (1.1, 0.9), (1.0, 1.1, 0.9, 1.0, 1.1)])
@pytest.mark.parametrize("outlier", [50.0, 0.01, 1e9])
def test_one_odd_measurement_does_not_spoil_it(before: tuple[float, ...], outlier: float) -> None:
    ratio = learned(ReplayPace(), PLAIN, *before, outlier).estimate(PLAIN) / ReplayPace().estimate(
        PLAIN
    )
    assert 0.85 < ratio < 1.15


def test_appending_says_nothing_about_merging() -> None:
    pace = learned(ReplayPace(), PLAIN, *[3.0] * 6)
    merges = Workload(merges=10)
    assert pace.estimate(merges) == ReplayPace().estimate(merges)
    pace = learned(ReplayPace(), KEYED, *[3.0] * 6)
    assert pace.estimate(merges) == pytest.approx(3 * ReplayPace().estimate(merges), rel=0.01)
    assert pace.estimate(PLAIN) == ReplayPace().estimate(PLAIN)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_measurement_changes_nothing(seconds: float) -> None:
    assert ReplayPace().learn(PLAIN, seconds) == ReplayPace()
    assert TransferPace().learn(GIB, seconds, "B") == TransferPace()
    assert ReplayPace().learn(Workload(batches=1, transactions=1), 7.0) == ReplayPace()


def test_a_measurement_is_bounded() -> None:
    pace = learned(ReplayPace(), PLAIN, *[1e9] * 6)
    assert pace.plain == (MAX_CORRECTION,) * 6


def test_both_paces_survive_as_bytes() -> None:
    pace = learned(learned(ReplayPace(), PLAIN, 2.0, 3.0), KEYED, 4.0)
    assert decode(encode(pace), type=ReplayPace) == pace
    transfers = TransferPace().learn(GIB, 10.0, "B").learn(5, 1.0, "C").configured(1_000)
    assert decode(encode(transfers), type=TransferPace) == transfers

    for kind in (ReplayPace, TransferPace):
        # Values of another release: what is missing has its default, what is unknown is left out.
        assert decode(encode({"later": 1}), type=kind) == kind()
        with pytest.raises(msgspec.MsgspecError):
            decode(b"no pace", type=kind)


def test_work_is_what_a_report_says() -> None:
    cost = ReplayCost(
        batches=1, merges=2, transactions=3, appended_bytes=4, merged_bytes=5, seconds=6.0
    )
    assert Workload.of(cost) == Workload(
        batches=1, merges=2, transactions=3, appended_bytes=4, merged_bytes=5
    )


def test_an_estimate_says_where_it_comes_from() -> None:
    assert ReplayPace().describe(KEYED).basis == (
        "10 transactions in 1 batch with 4 merges (first guess)"
    )
    assert "learned from 1 replay)" in learned(ReplayPace(), PLAIN, 2.0).describe(PLAIN).basis


# -- copy ------------------------------------------------------------------------------------------


def test_the_default_speed_gives_the_documented_estimate() -> None:
    estimate = TransferPace().describe(41_000_000_000, "B")
    # 328 x 10^9 bits / 104,857,600 = 3,128.05 s.
    assert estimate.seconds == pytest.approx(3_128.05, abs=0.01)
    assert round(estimate.seconds) == 3_128
    assert estimate.basis == "41,000,000,000 bytes at 104.9 Mbit/s (as configured)"


def test_speed_is_learned_for_each_donor() -> None:
    pace = TransferPace().learn(GIB, 2.0, "B")
    assert pace.estimate(10 * GIB, "B") == pytest.approx(20.0)
    assert pace.estimate(GIB, "C") == TransferPace().estimate(GIB)
    assert "(learned from 1 transfer)" in pace.describe(GIB, "B").basis
    slow = pace.learn(GIB, 200.0, "B").learn(GIB, 2.0, "B")
    assert slow.estimate(GIB, "B") == pytest.approx(2.0)
    assert "(learned from 3 transfers)" in slow.describe(GIB, "B").basis


def test_small_transfers_tell_what_comes_besides() -> None:
    pace = TransferPace()
    for seconds in (90.0, 5.0, 4.5):
        pace = pace.learn(5_000, seconds, "B", fetch_s=0.5)
    assert pace.estimate(0, "B") == pytest.approx(4.0)
    # They leave the speed alone, or 10 kB in 4 s would forbid every copy.
    assert pace.bytes_per_s("B") == TransferPace().bytes_per_s("B")
    assert "4.0 s more (learned from 3 small transfers)" in pace.describe(1, "B").basis
    pace = pace.learn(SPEED_FROM_BYTES, 6.0, "B", fetch_s=1.5)
    assert pace.estimate(SPEED_FROM_BYTES, "B") == pytest.approx(6.0)
    for size, seconds, fetch in ((-1, 1.0, 1.0), (GIB, 1.0, 0.0), (GIB, math.nan, 1.0)):
        assert pace.learn(size, seconds, "B", fetch_s=fetch) == pace
    assert pace.learn(GIB, 1.0, "B", fetch_s=-1.0) == pace


def test_the_start_of_a_jvm_is_no_pace() -> None:
    cold = TransferPace().learn(5_000, 26.0, "B", fetch_s=0.01)
    assert cold.estimate(5_000, "B") == TransferPace().estimate(5_000, "B")
    # 100 MB in one second and 25 s of Spark: the next, larger copy is not made 26 times longer.
    cold = cold.learn(100_000_000, 26.0, "B", fetch_s=1.0)
    assert cold.estimate(10_000_000_000, "B") == pytest.approx(200.0)
    # Once copies in a warm JVM told what they take besides, the rest is that of the bytes.
    warm = cold
    for _ in range(3):
        warm = warm.learn(5_000, 4.0, "B", fetch_s=0.01).learn(GIB, 15.0, "B", fetch_s=8.0)
    assert warm.estimate(10 * GIB, "B") == pytest.approx(4.0 + 110, rel=0.01)


@pytest.mark.parametrize("spark_s", [0.0, 4.0, 9.0])
def test_estimates_of_whole_copies_stay_within_twice_the_actual(spark_s: float) -> None:
    """100 MB/s, and a recount at twice the speed; the first copy of all starts cold."""

    def actual(size: int) -> float:
        return spark_s + size / 100e6 + size / 200e6

    pace = TransferPace()
    for number, size in enumerate((GIB, 5_000, 5_000, 10 * GIB, GIB // 4)):
        cold = 20.0 if number == 0 else 0.0
        pace = pace.learn(size, actual(size) + cold, "B", fetch_s=size / 100e6)
    for size in (GIB // 4, GIB, 40 * GIB):
        assert 0.5 <= pace.estimate(size, "B") / actual(size) <= 2


def test_a_changed_parameter_resets_the_guess_only() -> None:
    pace = TransferPace().learn(GIB, 2.0, "B").configured(8_000_000)
    assert pace.estimate(GIB, "B") == pytest.approx(2.0)
    assert pace.estimate(1_000_000, "C") == pytest.approx(1.0)
