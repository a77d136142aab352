"""Changes of the roster that do not happen: why, and that nothing of them stays (P11, P23)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    changing,
    entry_of,
    next_view,
    queued,
    sent,
    tail_of,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.changes import unsafe
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, SendEpochMessage, TellChange, TellPhase
from sparktxlog.protocol.messages.balloting import Decide, Prepare, Probe
from sparktxlog.protocol.messages.events import ChangeRequested, ForceRequested
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader
from sparktxlog.protocol.messages.view import Phase, Seat, View

Roster = tuple[Seat, ...]
A, B, C = (Seat(node_id=NodeId(name)) for name in "abc")
D = Seat(node_id=NodeId("d"), url="http://d")
WITHOUT_C = (A, B)


def lone(own: str = "a", votes: dict[str, int] | None = None) -> Lone:
    return Lone(Master, own, votes, suspect_us=SECOND_US)


def ask(node: Lone, roster: Roster, ticket: int = 1) -> list[Action]:
    return node.feed(ChangeRequested(ticket=ticket, roster=roster))


def told(actions: list[Action]) -> list[tuple[int, int | None, str]]:
    return [(a.ticket, a.epoch, a.text) for a in actions if isinstance(a, TellChange)]


def refusal(actions: list[Action], ticket: int = 1) -> str:
    """Return why one request was refused: the only answer of a batch."""
    ((answered, epoch, text),) = told(actions)
    assert (answered, epoch) == (ticket, None)
    return text


def assert_unchanged(node: Lone, view: View, phase: Phase = Phase.NORMAL) -> None:
    """Check that nothing of a request is left: nobody is asked, and no wish waits."""
    assert not node.master._succession.changes.pending
    later = node.wait(SECOND_US)
    if phase is Phase.NORMAL:
        assert not [action for action in later if isinstance(action, SendEpochMessage)]
    assert (node.master.view, node.master.phase) == (view, phase)


# -- rosters that must not be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roster", "reason"),
    [
        ((A, B, C, replace(B, url="http://b")), "a node id stands twice in the roster"),
        ([replace(seat, weight=0) for seat in (A, B, C)], "no node would have a vote"),
        ([], "no node would have a vote"),
        ((A, B, replace(C, weight=-1)), "a weight is negative"),
        (
            (A, replace(B, witness=True), C),
            "b is a member and cannot become a witness before it is removed",
        ),
        ((D, replace(D, node_id=NodeId("e"))), "no member would be left"),
        ((A, B, replace(C, incarnation=2)), "the incarnation of c is not an operator's to change"),
        ((A, B, C), "the roster is so already"),
    ],
)
def test_a_roster_that_must_not_be_is_refused(roster: Roster, reason: str) -> None:
    node = lone()
    actions = ask(node, tuple(roster))
    assert refusal(actions) == reason
    assert not sent(actions, Probe)
    assert_unchanged(node, node.view)


@pytest.mark.parametrize(
    "roster",
    [
        (A, B, replace(C, weight=0)),
        (A, B, replace(C, url="http://c")),
        (A, B, C, D),
        (A, B, C, replace(D, witness=True)),
        (B, A, C),
        WITHOUT_C,
        (A, D, C),
        (A, B, C, replace(D, incarnation=7)),
    ],
)
def test_other_rosters_may_be(roster: Roster) -> None:
    """Votes, address, a place more or less, precedence; a new node comes as it is."""
    assert unsafe(lone().view, roster) == ""


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("default", "the quorum is so already"),
        ("4", "a quorum of 4 cannot be reached by 3 masters"),
        ("0", "'0' is no quorum"),
        ("most", "'most' is no quorum"),
        ("all", ""),
        ("majority", ""),
        ("3", ""),
    ],
)
def test_quorums_that_may_be(rule: str, reason: str) -> None:
    assert unsafe(lone().view, (A, B, C), rule) == reason
    assert unsafe(lone().view, WITHOUT_C, "default") == ""


def test_a_node_that_is_no_member_may_become_a_witness() -> None:
    view = next_view(lone().view, "a", "b")
    assert unsafe(view, (A, B, replace(C, witness=True))) == ""


# -- who is asked, and when ------------------------------------------------------------------------


def test_a_second_change_waits_for_the_first_one() -> None:
    node = lone()
    assert told(ask(node, WITHOUT_C)) == []
    assert refusal(ask(node, (A, B, C, D), ticket=2), ticket=2) == "another change is being decided"
    assert node.master._succession.changes.roster == WITHOUT_C


def test_a_node_that_is_no_member_sends_to_one() -> None:
    node = lone()
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
    view = node.master.view
    assert refusal(ask(node, WITHOUT_C)) == "this node is JOINING: ask a member"
    assert_unchanged(node, view, Phase.JOINING)


def test_a_witness_sends_to_a_member() -> None:
    node = lone("w", {"a": 1, "b": 1, "w": 1})
    assert refusal(ask(node, (A, B))) == "this node is WITNESS: ask a member"
    assert_unchanged(node, node.view, Phase.WITNESS)


def test_a_node_that_halted_changes_nothing() -> None:
    node = lone()
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(31) + b"x")
    ask(node, WITHOUT_C)
    halted = refusal(node.feed(tail_of(LOG_ID, entry)))
    assert halted.startswith("this node halted: ")
    assert "b has another queue after position 0" in halted
    assert refusal(ask(node, (A, B, C, D), ticket=2), ticket=2) == halted


# -- changes that waited ---------------------------------------------------------------------------


def decide(node: Lone, view: View) -> list[Action]:
    return node.hear(Decide(sender=NodeId("b"), view=view))


def test_a_change_of_a_roster_that_another_one_changed_does_not_happen() -> None:
    node = lone()
    ask(node, WITHOUT_C)
    other = replace(next_view(node.view, "a", "b", "c"), roster=(A, B, C, D))
    reason = refusal(decide(node, other))
    assert reason == "the roster changed meanwhile, in epoch 2"
    assert_unchanged(node, other)


@pytest.mark.parametrize(
    ("rule", "holders"),
    [
        ("default", (1, 2, 2, 3)),
        ("all", (1, 2, 3, 4)),
        ("majority", (1, 2, 2, 3)),
        ("2", (1, 2, 2, 2)),
    ],
)
def test_the_quorum_counts_the_members_of_the_epoch(rule: str, holders: tuple[int, ...]) -> None:
    """A member that is evicted holds no copy of what comes next; so a lone one promises one."""
    names = [NodeId(name) for name in "abcd"]
    seats = tuple(Seat(node_id=name) for name in names)
    for members, copy in enumerate(holders, start=1):
        view = View(
            log_id="l", epoch=1, roster=seats, members=tuple(names[:members]), quorum_rule=rule
        )
        assert view.quorum == copy


def test_a_change_of_the_quorum_holds_once_a_view_has_it() -> None:
    node = lone()
    wanted = ChangeRequested(ticket=1, roster=node.view.roster, quorum_rule="all")
    node.feed(wanted)
    as_it_was = next_view(node.view, "a", "b", "c")
    assert told(decide(node, as_it_was)) == []  # it is proposed again
    changed = replace(next_view(as_it_was, "a", "b", "c"), quorum_rule="all")
    assert told(decide(node, changed)) == [(1, 3, "")]
    node.feed(replace(wanted, ticket=2, quorum_rule="2"))
    other = replace(next_view(changed, "a", "b", "c"), quorum_rule="majority")
    reason = refusal(decide(node, other), ticket=2)
    assert reason == "the quorum changed meanwhile, in epoch 4"


def test_a_change_that_another_node_decided_is_answered() -> None:
    node = lone()
    ask(node, WITHOUT_C)
    same = replace(next_view(node.view, "a", "b"), roster=WITHOUT_C)
    assert told(decide(node, same)) == [(1, 2, "")]
    assert_unchanged(node, same)


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_change_outlives_an_epoch_that_leaves_the_places(incarnation: int) -> None:
    """An incarnation changes by itself; it is no other roster."""
    node = lone()
    ask(node, WITHOUT_C)
    roster = (A, replace(B, incarnation=incarnation), C)
    actions = decide(node, replace(next_view(node.view, "a", "b", "c"), roster=roster))
    assert told(actions) == []
    assert node.master._succession.changes.roster == WITHOUT_C
    assert sent(actions + node.wait(SECOND_US), Probe), "it is not tried again"


def test_force_in_between_ends_a_change() -> None:
    node = lone()
    ask(node, WITHOUT_C)
    actions = node.feed(ForceRequested(ticket=2, log_id="forced"))
    assert told(actions) == [(1, None, "the node was forced to go on alone"), (2, 2, "")]
    assert [seat.node_id for seat in node.master.view.roster] == ["a", "b", "c"]
    assert_unchanged(node, node.master.view)


# -- who answers -----------------------------------------------------------------------------------


def wait_for_answer(node: Lone, answering: str) -> tuple[str, int]:
    """Return with what reason a change is given up, and after how many microseconds."""
    begun = node.now
    for _ in range(100):
        node.now += SECOND_US // 10
        number = node.master._succession.suspicion.number
        actions = node.hear(*(node.answer(peer, number, ("a",)) for peer in answering))
        assert not sent(actions, Prepare)
        if told(actions):
            return refusal(actions), node.now - begun
    raise AssertionError("the operator gets no answer")


def test_too_few_answers_decide_nothing() -> None:
    node = lone()
    ask(node, (A, B, C, D))
    assert wait_for_answer(node, "") == ("too few nodes answer to decide it", 4 * SECOND_US)
    assert_unchanged(node, node.view)


def test_those_that_answer_must_have_a_majority_with_the_new_roster() -> None:
    node = lone()
    ask(node, (A, B, replace(C, weight=5)))
    reason, after_us = wait_for_answer(node, "b")
    assert reason == "with this roster, those that answer would have no majority"
    assert after_us == SECOND_US
    assert_unchanged(node, node.view)


def test_with_all_answers_the_same_change_is_decided() -> None:
    """What the two above wait for in vain."""
    node = lone()
    roster = (A, B, replace(C, weight=5))
    ballot = changing(node, roster)
    node.hear(node.promise("b", ballot), node.promise("c", ballot))
    actions = node.hear(node.accepted("b", ballot))
    assert told(actions) == [(1, 2, "")]
    assert node.master.view.roster == roster


# -- force (P23) -----------------------------------------------------------------------------------

ONLY_A_MEMBER = "only a member can go on alone, under a new log id"
NOT_ALL_HELD = "this node does not hold all of the accepted final queue yet; try again"


def force(node: Lone, log_id: str = "forced") -> list[Action]:
    return node.feed(ForceRequested(ticket=1, log_id=log_id))


def evicted() -> Lone:
    node = lone()
    decide(node, next_view(node.view, "b", "c"))
    return node


@pytest.mark.parametrize("outside", ["evicted", "witness"])
def test_only_a_member_is_forced(outside: str) -> None:
    node = evicted() if outside == "evicted" else lone("w", {"a": 1, "w": 1})
    view, phase = node.master.view, node.master.phase
    actions = force(node)
    assert refusal(actions) == ONLY_A_MEMBER
    assert not [a for a in actions if isinstance(a, TellPhase)]
    assert_unchanged(node, view, phase)


@pytest.mark.parametrize("log_id", [LOG_ID, "forced"])
def test_a_log_id_is_forced_once(log_id: str) -> None:
    """Neither the name of this log nor that of one that it continues."""
    node = lone(votes={"a": 1, "b": 1})
    force(node)
    view = node.master.view
    assert (view.log_id, view.ancestors) == ("forced", ((LOG_ID, 1),))
    assert refusal(force(node, log_id)) == ONLY_A_MEMBER
    assert_unchanged(node, view)
    assert told(force(node, "again")) == [(1, 3, "")]


def accepting(node: Lone, *runs: RunHeader) -> View:
    """Let a node accept a final queue that it does not hold; it acquired nothing of it."""
    view = replace(next_view(node.view, "b"), tail=runs, end=end_of(MergeBase(), runs))
    node.hear(node.accept("b", 1, view))
    return view


def test_a_node_without_all_of_what_it_accepted_waits_for_it() -> None:
    """The others may have decided that: without it this node would be a fork."""
    node = lone(votes={"a": 1, "b": 1})
    first, second = node.run_of("b", 1, 7), node.run_of("b", 2, 9)
    accepting(node, first, second)
    for run in (first, second):
        actions = force(node)
        assert refusal(actions) == NOT_ALL_HELD
        assert_unchanged(node, node.view, Phase.WEDGED)
        assert not queued(actions + node.push(run))
    actions = force(node)
    assert told(actions) == [(1, 3, "")]
    (written,) = queued(actions)
    assert [entry.header for entry in written.entries] == [first, second]
    assert node.master.view.members == ("a",)


def test_a_refused_force_leaves_the_node_to_the_others() -> None:
    """They decide what this node accepted, and it goes on with them."""
    node = lone(votes={"a": 1, "b": 1})
    run = node.run_of("b", 1, 7)
    view = accepting(node, run)
    assert refusal(force(node)) == NOT_ALL_HELD
    decided = replace(view, members=(NodeId("a"), NodeId("b")))
    decide(node, decided)
    assert node.master.view == node.view, "it lacks a payload"
    node.push(run)
    assert (node.master.view, node.master.phase) == (decided, Phase.NORMAL)
