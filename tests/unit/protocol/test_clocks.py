"""A clock that differs from the others' warns, and far away stops submits (C3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.verification.mutation.lone import LOG_ID, SECOND_US, Lone

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    SendPost,
    TellAccepted,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import JoinRequest
from sparktxlog.protocol.messages.events import PostReceived
from sparktxlog.protocol.messages.posts import MergeBase

#: So many posts say how far a clock is away; the largest offset counts, as posts may be delayed.
SAMPLES = 4


class Skewed:
    """A node whose two peers post; their clocks are right, its own is so far off."""

    def __init__(self) -> None:
        self.node = Lone(Master)
        self.round = 0

    def posts(
        self, off_us: int, *, rounds: int = SAMPLES, peers: str = "bc", counter_us: int = 0
    ) -> list[Action]:
        """Let peers post, whose clocks are `off_us` ahead of the right time."""
        node, actions = self.node, list[Action]()
        for _ in range(rounds):
            self.round += 1
            node.now += SECOND_US
            for peer in peers:
                post = node.post_of(peer, node.now + counter_us)
                post = replace(post, round=self.round, wall=node.now + off_us)
                actions += node.feed(PostReceived(post=post))
        return actions


def alarms(actions: list[Action]) -> list[tuple[str, str, bool]]:
    return [(a.code, a.text, a.fatal) for a in actions if isinstance(a, Alarm)]


def refused(actions: list[Action]) -> list[tuple[str, str]]:
    return [(a.code, a.text) for a in actions if isinstance(a, TellRejected)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("off_us", [900_000, 999_999])
def test_less_than_a_second_is_silent(off_us: int, sign: int) -> None:
    skewed = Skewed()
    assert not alarms(skewed.posts(sign * off_us, rounds=20))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("off_us", "shown"), [(1_000_000, "1.0"), (1_100_000, "1.1")])
def test_from_a_second_on_one_alarm_is_given(off_us: int, shown: str, sign: int) -> None:
    skewed = Skewed()
    text = f"this node's clock is {shown} s off the members' median"
    assert alarms(skewed.posts(sign * off_us, rounds=20)) == [("clock-skew", text, False)]
    assert not refused(skewed.node.submit())


def test_a_clock_that_was_right_meanwhile_gives_another_alarm() -> None:
    skewed = Skewed()
    assert len(alarms(skewed.posts(1_100_000))) == 1
    assert not alarms(skewed.posts(0))
    assert not alarms(skewed.posts(0))
    assert len(alarms(skewed.posts(1_100_000))) == 1


def test_one_measurement_is_none() -> None:
    """The first post may have waited for long."""
    skewed = Skewed()
    assert not alarms(skewed.posts(-50 * SECOND_US, rounds=1))
    assert skewed.node.master.status().clock_distance_us == 0


def test_a_delayed_post_is_no_skew() -> None:
    skewed = Skewed()
    skewed.posts(0)
    assert not alarms(skewed.posts(-5 * SECOND_US, rounds=SAMPLES - 1))
    assert len(alarms(skewed.posts(-5 * SECOND_US, rounds=1))) == 1


def test_the_median_counts_not_one_node() -> None:
    """Of three clocks the one that is far off is wrong, and only its node says so."""
    skewed = Skewed()
    for _ in range(SAMPLES):
        skewed.posts(0, rounds=1, peers="b")
        assert not alarms(skewed.posts(90 * SECOND_US, rounds=1, peers="c"))
    assert not refused(skewed.node.submit())


@pytest.mark.parametrize("sign", [1, -1])
def test_above_a_minute_submits_are_refused(sign: int) -> None:
    skewed = Skewed()
    ((code, text, fatal),) = alarms(skewed.posts(sign * 61_500_000))
    assert (code, text.split()[4], fatal) == ("clock-skew", "61.5", False)
    actions = skewed.node.submit()
    assert refused(actions) == [("clock-skew", "this node's clock is 61 s off the members' median")]
    assert not [a for a in actions if isinstance(a, TellAccepted)]
    assert not skewed.node.disk.incoming, "nothing of it is durable"


@pytest.mark.parametrize(("off_us", "taken"), [(60_000_000, True), (60_000_001, False)])
def test_a_minute_is_the_limit(off_us: int, taken: bool) -> None:
    skewed = Skewed()
    skewed.posts(off_us)
    assert bool(refused(skewed.node.submit())) == (not taken)


def test_a_skewed_node_goes_on_ordering_what_others_took() -> None:
    """Order never depends on clocks."""
    skewed = Skewed()
    skewed.posts(61 * SECOND_US)
    node = skewed.node
    run = node.run_of("b", 1, node.now + 61 * SECOND_US)
    node.push(run)
    later = node.now + 70 * SECOND_US
    actions: list[Action] = []
    for peer in "bc":
        post = replace(node.post_of(peer, later, last_seq=peer == "b"), acquired={"b": 1})
        actions += node.feed(PostReceived(post=post))
    told = [entry.header for a in actions if isinstance(a, TellOrdered) for entry in a.entries]
    assert told == [run]


def test_a_clock_that_was_set_right_takes_submits_again() -> None:
    skewed = Skewed()
    skewed.posts(61 * SECOND_US)
    assert refused(skewed.node.submit())
    skewed.posts(0, rounds=SAMPLES)
    assert not refused(skewed.node.submit())


# -- a clock that was wrong once -------------------------------------------------------------------

HOUR_US = 3_600 * SECOND_US


def walls(actions: list[Action]) -> list[int]:
    return [action.post.wall for action in actions if isinstance(action, SendPost)]


def test_a_clock_that_was_ahead_once_stops_no_submits_for_ever() -> None:
    """The log clock stays ahead, also after restarts; posts tell the wall clock, and only wall
    clocks are compared."""
    skewed = Skewed()
    node = skewed.node
    node.off_us = HOUR_US
    skewed.posts(-HOUR_US)
    assert refused(node.submit())
    node.wait(2 * SECOND_US)
    ahead = node.master._counter.value
    assert ahead >= HOUR_US
    node.off_us = 0
    node.start()
    actions = skewed.posts(0)
    assert max(walls(actions)) <= node.now, "posts tell the wall clock"
    accepted = node.submit()
    assert not refused(accepted)
    (header,) = (a.header for a in accepted if isinstance(a, TellAccepted) and a.header)
    assert header.ts > ahead, "and what was promised stays true"


def test_two_masters_take_submits_again_when_the_clock_of_one_was_set_right() -> None:
    """Seen from the other one."""
    skewed = Skewed()
    skewed.posts(HOUR_US)
    assert refused(skewed.node.submit())
    for wall_us in (0, 0, 0, 0):
        skewed.posts(wall_us, rounds=1, counter_us=HOUR_US)
    assert not refused(skewed.node.submit())


def test_a_machine_that_slept_for_two_minutes_recovers_by_itself() -> None:
    """Its steady clock stood still, its wall clock was set by its host."""
    skewed = Skewed()
    node = skewed.node
    skewed.posts(0)
    node.off_us = 120 * SECOND_US
    # What waited in the network is old; then the others post as ever.
    skewed.posts(0, rounds=1)
    actions = skewed.posts(120 * SECOND_US, rounds=2)
    assert not alarms(actions)
    accepted = node.submit()
    assert not refused(accepted)
    (header,) = (a.header for a in accepted if isinstance(a, TellAccepted) and a.header)
    assert header.ts >= node.now + 120 * SECOND_US - SECOND_US


@pytest.mark.parametrize("hours", [1, 8_766])
def test_a_node_that_returns_with_a_clock_far_ahead_promises_nothing_far_ahead(hours: int) -> None:
    """The others would have to refuse it, and an epoch change would move all of them."""
    skewed = Skewed()
    node = skewed.node
    skewed.posts(0)
    node.off_us = hours * HOUR_US
    node.start()
    actions = skewed.posts(0)
    counters = [a.post.counter for a in actions if isinstance(a, SendPost)]
    assert counters
    assert max(counters) <= node.now + 10 * SECOND_US
    assert refused(node.submit())


def test_a_cluster_that_was_stopped_for_days_goes_on_with_the_time_of_now() -> None:
    """All clocks agree, so no operator is needed."""
    skewed = Skewed()
    node = skewed.node
    skewed.posts(0)
    node.now += 60 * HOUR_US
    node.start()
    skewed.posts(0, rounds=2)
    (header,) = (a.header for a in node.submit() if isinstance(a, TellAccepted) and a.header)
    assert header.ts - node.now in (0, 1)


def test_a_node_alone_goes_on_with_the_time_of_now() -> None:
    node = Lone(Master, votes={"a": 1})
    node.submit()
    node.now += 60 * HOUR_US
    node.start()
    (header,) = (a.header for a in node.submit() if isinstance(a, TellAccepted) and a.header)
    assert header.ts - node.now in (0, 1)


def test_who_admits_nobody_judges_no_wish_to_join() -> None:
    """A witness that was started again has no time of its own, and blamed every joiner."""
    node = Lone(Master, "w", {"a": 1, "b": 1, "w": 1})
    asked = JoinRequest(
        log_id=LOG_ID,
        epoch=1,
        sender=NodeId("b"),
        incarnation=2,
        base=MergeBase(),
        ts=0,
        counter=node.now + 48 * 3_600 * SECOND_US,
    )
    assert not alarms(node.hear(asked))
