"""What one ballot waits for, and which members the next epoch gets (P14–P16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.proposer import Intent, Proposer, Stage
from sparktxlog.protocol.epoch.union import final_queue
from sparktxlog.protocol.messages.balloting import MemberState, Promise
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader
from sparktxlog.protocol.messages.view import Ballot, Seat, View

PATIENCE_US = 1_000_000
ROSTER = tuple(Seat(node_id=NodeId(name)) for name in "abc")
VIEW = View(log_id="log", epoch=1, roster=ROSTER, members=(NodeId("a"), NodeId("b")))
BALLOT = Ballot(number=1, node="a")


def run(origin: str, seq: int, ts: int, epoch: int = 1) -> RunHeader:
    return RunHeader(
        epoch=epoch,
        ts=ts,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=1,
        digest=bytes(32),
        size_bytes=10,
    )


def state(*acquired: RunHeader, **marks: int) -> MemberState:
    return MemberState(
        base=MergeBase(position=sum(marks.values())),
        key=(1, 0, "", 0),
        watermarks=marks,
        acquired=acquired,
    )


def promise(sender: str, held: MemberState | None) -> Promise:
    return Promise(
        log_id="log", epoch=1, sender=NodeId(sender), incarnation=1, ballot=BALLOT, state=held
    )


def proposer(**intent: object) -> Proposer:
    return Proposer(VIEW, BALLOT, Intent(**intent), 0, PATIENCE_US)  # type: ignore[arg-type]


def test_the_own_promise_is_the_last_one() -> None:
    ballot = proposer()
    assert not ballot.is_ripe(NodeId("a"), 0), "b is worth waiting for"
    ballot.take_promise(promise("b", state()))
    assert ballot.is_ripe(NodeId("a"), 0)
    assert not ballot.choose(0), "not without the own one"
    ballot.take_promise(promise("a", state()))
    assert ballot.choose(0)


@pytest.mark.parametrize(("waited_us", "ripe"), [(249_999, False), (250_000, True)])
def test_a_joiner_that_votes_is_waited_for_a_while(waited_us: int, ripe: bool) -> None:
    ballot = proposer(joiners={NodeId("c"): 1})
    ballot.take_promise(promise("b", state()))
    assert ballot.is_ripe(NodeId("a"), waited_us) == ripe
    ballot.take_promise(promise("c", state()))
    assert ballot.is_ripe(NodeId("a"), 0)


def test_a_joiner_that_cannot_answer_is_not_waited_for() -> None:
    """Under its new incarnation it has no place yet, so it gives no promise."""
    ballot = proposer(joiners={NodeId("c"): 2})
    ballot.take_promise(promise("b", state()))
    assert ballot.is_ripe(NodeId("a"), 0)


def test_only_those_flush_that_show_no_whole_queue() -> None:
    first, second = run("a", 1, 5), run("b", 1, 7)
    ballot = proposer(joiners={NodeId("c"): 1})
    ballot.take_promise(promise("a", state(first)))
    ballot.take_promise(promise("b", state(first, second)))
    ballot.take_promise(promise("c", state(second)))
    assert ballot.choose(0)
    assert (ballot.stage, ballot.flushed) == (Stage.FLUSH, {"b"})
    assert not ballot.take_flushed("a", 0, 0)
    assert ballot.take_flushed("c", 0, 0)


def test_nobody_is_left_out_if_everybody_was_silent() -> None:
    """A view without members could never be followed by another one."""
    ballot = proposer(excluded=frozenset("ab"))
    for name in "ab":
        ballot.take_promise(promise(name, state()))
    assert ballot.choose(0)
    assert ballot.candidate is not None
    assert ballot.candidate.members == ("a", "b")


def test_a_roster_of_before_brings_no_former_incarnation_back() -> None:
    """P21: it was asked for when c had not lost its disk yet (simulation, seed 2655)."""
    a, b, c = (Seat(node_id=NodeId(name)) for name in "abc")
    view = replace(VIEW, roster=(a, b, replace(c, incarnation=2)))
    ballot = Proposer(view, BALLOT, Intent(roster=(c, b, a)), 0, PATIENCE_US)
    for name in "ab":
        ballot.take_promise(promise(name, state()))
    assert ballot.choose(PATIENCE_US)
    assert ballot.candidate is not None
    assert ballot.candidate.roster == (replace(c, incarnation=2), b, a)


def test_a_roster_without_those_that_hold_the_log_is_not_proposed() -> None:
    ballot = proposer(roster=(Seat(node_id=NodeId("x")),))
    for name in "ab":
        ballot.take_promise(promise(name, state()))
    assert not ballot.choose(0)
    assert ballot.stage is Stage.PREPARE


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        (state(a=2, b=1), True),
        (state(run("a", 2, 9), a=1, b=1), True),
        (state(a=1, b=1), False),
        (state(a=2), False),
        (state(run("b", 1, 7, epoch=0), a=2), False),
        (state(run("b", 1, 7), a=2), True),
    ],
)
def test_what_a_promise_shows_of_the_final_queue(held: MemberState, whole: bool) -> None:
    """Two runs of `a` in the longest queue, one of `b` acquired behind it."""
    queue = final_queue({NodeId("a"): state(run("b", 1, 7), a=2)})
    assert queue.watermarks == {"a": 2, "b": 1}
    assert queue.is_held(held) == whole


def test_a_promise_of_a_joiner_adds_nothing_to_the_final_queue() -> None:
    ballot = proposer(joiners={NodeId("c"): 1})
    ballot.take_promise(promise("a", state()))
    ballot.take_promise(promise("b", state()))
    ballot.take_promise(promise("c", state(run("c", 1, 5))))
    assert ballot.choose(0)
    assert ballot.candidate == replace(
        VIEW, epoch=2, members=(NodeId("a"), NodeId("b"), NodeId("c"))
    )
