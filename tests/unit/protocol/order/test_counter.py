"""Counter and log clock: what gives timestamps, whatever the wall clock does (P1, P2, C1, C3)."""

from __future__ import annotations

import pytest

from sparktxlog.protocol.order.counter import TimestampCounter

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
YEAR_US = 8_766 * HOUR_US
#: A wall clock that is right.
NOW = 1_790_000_000 * SECOND_US


def counter(
    *, reserved: int = 0, floor: int = 0, wall: int = 0, believed: bool = False
) -> TimestampCounter:
    made = TimestampCounter(
        reserved=reserved, floor=floor, reserve_us=10, lead_us=24 * HOUR_US, now=0, wall=wall
    )
    if believed:
        made.clock.believe()
    return made


def test_stamps_rise_even_when_the_clock_stands() -> None:
    made = counter(wall=5)
    assert [made.stamp(), made.stamp()] == [5, 6]
    made.clock.read(0, 4)
    assert made.stamp() == 7


def test_a_stamp_exceeds_what_was_promised_or_used() -> None:
    made = counter(wall=100)
    assert made.promise() == 100
    assert made.stamp() == 101
    made.use(300)
    assert made.stamp() == 301


def test_each_start_is_above_the_reservation_and_reserves_anew() -> None:
    made = counter(reserved=50, floor=20, wall=7)
    assert made.promise() == 51
    assert made.reservation() == 61
    assert made.reservation() is None


def test_learning_raises_the_log_clock_and_nothing_lowers_it() -> None:
    made = counter(wall=100)
    made.learn(1_000)
    assert made.log_time == 1_000
    made.learn(500)
    assert made.log_time == 1_000


def test_ahead_of_the_wall_clock_it_runs_at_half_its_speed_until_that_has_caught_up() -> None:
    made = counter(wall=NOW)
    made.learn(NOW + HOUR_US)
    times = []
    for passed in range(0, 5 * HOUR_US, HOUR_US // 2):
        made.clock.read(passed, NOW + passed)
        times.append((made.log_time - NOW) / HOUR_US)
    assert times == [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5]


def test_what_was_stamped_with_a_clock_a_year_ahead_is_never_fallen_below() -> None:
    made = counter(wall=NOW + YEAR_US)
    first = made.stamp()
    made.clock.read(SECOND_US, NOW)
    assert made.log_time == first + SECOND_US // 2
    assert made.stamp() == first + SECOND_US // 2
    assert made.promise() == first + SECOND_US // 2


@pytest.mark.parametrize(
    ("set_by", "was_set"),
    [(0, False), (SECOND_US, False), (120_000_000, True), (-2 * SECOND_US, True)],
)
def test_a_clock_that_was_set_is_noticed(set_by: int, was_set: bool) -> None:
    made = counter(wall=NOW)
    assert made.clock.read(10 * SECOND_US, NOW + 10 * SECOND_US + set_by) == was_set
    assert not made.clock.read(20 * SECOND_US, NOW + 20 * SECOND_US + set_by)


def test_a_clock_that_was_set_forward_counts_only_when_it_is_believed() -> None:
    """Until then time goes on from the reservation by the steady clock."""
    made = counter(reserved=NOW, wall=NOW + YEAR_US)
    assert made.stamp() == NOW + 2
    made.clock.read(5 * SECOND_US, NOW + YEAR_US + 5 * SECOND_US)
    assert made.stamp() == NOW + 5 * SECOND_US
    made.clock.believe()
    assert made.stamp() == NOW + YEAR_US + 5 * SECOND_US


def test_a_clock_that_is_set_while_the_node_runs_moves_no_stamps_either() -> None:
    made = counter(wall=NOW, believed=True)
    made.clock.read(SECOND_US, NOW + YEAR_US)
    assert made.stamp() == NOW + SECOND_US
    made.clock.read(2 * SECOND_US, NOW + 2 * SECOND_US)
    assert made.stamp() == NOW + 2 * SECOND_US


def test_the_very_first_start_has_nothing_to_compare_with() -> None:
    assert counter(wall=NOW + YEAR_US).stamp() == NOW + YEAR_US


def test_timestamps_of_peers_are_bounded_by_the_clock_not_by_what_they_pushed() -> None:
    made = counter(wall=NOW, believed=True)
    assert made.clock.limit == NOW + 24 * HOUR_US
    for _ in range(5):
        made.learn(made.clock.limit)
    assert made.log_time == NOW + 24 * HOUR_US
    assert made.clock.limit == NOW + 24 * HOUR_US


@pytest.mark.parametrize("off_us", [YEAR_US, -YEAR_US])
def test_a_wrong_clock_does_not_widen_or_narrow_the_bound(off_us: int) -> None:
    """It is what the node knew before, and what passed since."""
    made = counter(reserved=NOW, wall=NOW + off_us)
    made.clock.read(HOUR_US, NOW + off_us + HOUR_US)
    assert made.clock.limit == NOW + 25 * HOUR_US


def test_a_log_that_is_ahead_of_all_clocks_can_be_joined() -> None:
    """It was founded with a wrong clock, which was set right since."""
    made = counter(wall=NOW)
    made.clock.begin_at(NOW + YEAR_US)
    assert made.clock.limit == NOW + YEAR_US + 24 * HOUR_US
    assert made.stamp() == NOW
