"""The table of phases: what events take which way, and that there is no other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.verification.mutation.lone import SECOND_US, Lone, entry_of, next_view, sent, tail_of

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, TellPhase
from sparktxlog.protocol.messages.balloting import Decide
from sparktxlog.protocol.messages.events import ForceRequested, LinkChanged, PostReceived, Tick
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import TRANSITIONS, Phase, View

#: In the table, and never taken: a node in IDLE turns to JOINING, or FOLLOWING, before it handles
#: anything else.
NEVER_TAKEN = {(Phase.IDLE, Phase.NORMAL), (Phase.IDLE, Phase.FAULT)}


def normal() -> Lone:
    node = Lone(Master, suspect_us=SECOND_US)
    for peer in "bc":
        node.feed(PostReceived(post=node.post_of(peer, node.now)))
    return node


def suspect() -> Lone:
    node = normal()
    node.feed(LinkChanged(peer=NodeId("c"), up=False))
    return node


def wedged() -> Lone:
    node = normal()
    node.hear(node.prepare("b", 1))
    return node


def joining() -> Lone:
    node = normal()
    decide(node, "b", "c")
    return node


def witness() -> Lone:
    return Lone(Master, "w", {"a": 1, "b": 1, "w": 1}, suspect_us=SECOND_US)


def following() -> Lone:
    return Lone(Master, "f", {"a": 1, "b": 1, "c": 1, "f": 0}, suspect_us=SECOND_US)


def decide(node: Lone, *members: str, **changes: object) -> list[Action]:
    """Let a node learn of the next epoch."""
    view: View = replace(next_view(node.master.view, *members), **changes)  # type: ignore[arg-type]
    return node.hear(Decide(sender=NodeId("b"), view=view))


def contradict(node: Lone) -> list[Action]:
    """Let a node learn that the next epoch begins behind another queue."""
    other = MergeBase(chain_hash=bytes(31) + b"x")
    return decide(node, "a", "b", "c", base=other, end=other)


def two_decisions(node: Lone) -> list[Action]:
    """Let a node learn of two outcomes for one epoch."""
    old = node.master.view
    actions = node.hear(Decide(sender=NodeId("b"), view=next_view(old, "a", "b")))
    return actions + node.hear(Decide(sender=NodeId("b"), view=next_view(old, "a")))


def start_a_ballot(node: Lone) -> list[Action]:
    """Let a node leave out `c`, `b` answering its probes."""
    actions: list[Action] = []
    for _ in range(12):
        node.now += SECOND_US // 10
        actions += node.feed(Tick())
        answer = node.answer("b", node.master._succession.suspicion.number, ("a",))
        actions += node.hear(answer)
    return actions


def heard_again(node: Lone) -> list[Action]:
    return node.feed(PostReceived(post=node.post_of("c", node.now)))


def lose_a_link(node: Lone) -> list[Action]:
    return node.feed(LinkChanged(peer=NodeId("c"), up=False))


def be_asked_for_a_promise(node: Lone) -> list[Action]:
    return node.hear(node.prepare("b", 1))


def be_asked_for_a_vote(node: Lone) -> list[Action]:
    return node.hear(node.accept("b", 1, next_view(node.view, "a", "b")))


def be_forced(node: Lone) -> list[Action]:
    return node.feed(ForceRequested(ticket=1, log_id="forced"))


def go_on_with_it(node: Lone) -> list[Action]:
    return decide(node, "a", "b", "c")


def go_on_without_it(node: Lone) -> list[Action]:
    return decide(node, "b", "c")


def be_made_a_member(node: Lone) -> list[Action]:
    seats = (replace(one, follower=False) for one in node.master.view.roster)
    return decide(node, "a", "b", "c", roster=tuple(seats))


def be_made_a_follower(node: Lone) -> list[Action]:
    seats = node.master.view.roster
    own, others = replace(seats[0], follower=True, weight=0), seats[1:]
    return decide(node, "b", "c", roster=(own, *others))


def get_another_tail(node: Lone) -> list[Action]:
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(31) + b"x")
    return node.feed(tail_of(node.master.view.log_id, entry))


Begin = Callable[[], Lone]
Happens = Callable[[Lone], list[Action]]

OUT = [Phase.IDLE, Phase.JOINING]
IN_FORCE = [Phase.WEDGED, Phase.NORMAL]

#: Where it begins, what happens, and the phases that the node tells of.
WAYS: list[tuple[Begin, Happens, list[Phase]]] = [
    (normal, lose_a_link, [Phase.SUSPECT]),
    (normal, be_asked_for_a_promise, [Phase.WEDGED]),
    (normal, be_asked_for_a_vote, [Phase.WEDGED]),
    (normal, go_on_without_it, OUT),
    (normal, get_another_tail, [Phase.FAULT]),
    (normal, contradict, [Phase.WEDGED, Phase.FAULT]),
    (normal, be_forced, IN_FORCE),
    (normal, go_on_with_it, IN_FORCE),
    (suspect, heard_again, [Phase.NORMAL]),
    (suspect, be_asked_for_a_promise, [Phase.WEDGED]),
    (suspect, start_a_ballot, [Phase.WEDGED]),
    (suspect, go_on_without_it, OUT),
    (suspect, get_another_tail, [Phase.FAULT]),
    (suspect, be_forced, IN_FORCE),
    (wedged, go_on_with_it, [Phase.NORMAL]),
    (wedged, go_on_without_it, OUT),
    (wedged, contradict, [Phase.FAULT]),
    (wedged, be_forced, [Phase.NORMAL]),
    (joining, go_on_with_it, [Phase.NORMAL]),
    (joining, go_on_without_it, OUT),
    (joining, get_another_tail, [Phase.FAULT]),
    (joining, contradict, [Phase.FAULT]),
    (normal, be_made_a_follower, [Phase.IDLE, Phase.FOLLOWING]),
    (following, be_made_a_member, OUT),
    (following, get_another_tail, [Phase.FAULT]),
    (witness, two_decisions, [Phase.FAULT]),
]


def phases_of(actions: list[Action]) -> list[Phase]:
    """Return the phases that a node told of; a witness tells of each epoch as well."""
    told = [action.phase for action in actions if isinstance(action, TellPhase)]
    return [phase for phase in told if phase is not Phase.WITNESS]


@pytest.mark.parametrize(("begin", "happens", "told"), WAYS)
def test_events_lead_from_phase_to_phase(begin: Begin, happens: Happens, told: list[Phase]) -> None:
    node = begin()
    assert node.master.phase.name.lower() == begin.__name__
    assert phases_of(happens(node)) == told
    assert node.master.phase is told[-1]


def test_every_way_of_the_table_is_taken() -> None:
    taken = set[tuple[Phase, Phase]]()
    for begin, happens, _ in WAYS:
        node = begin()
        before = node.master.phase
        taken |= set(pairwise([before, *phases_of(happens(node))]))
    table = {(source, target) for source, targets in TRANSITIONS.items() for target in targets}
    assert table - taken == NEVER_TAKEN
    assert taken <= table


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (source, target)
        for source in Phase
        for target in Phase
        if target is not source and target not in TRANSITIONS[source]
    ],
)
def test_there_is_no_other_way(source: Phase, target: Phase) -> None:
    master = normal().master
    master._current.phase = source
    with pytest.raises(AssertionError, match=f"{source} → {target}"):
        master._enter(target, "because")
    assert master.phase is source
    assert not phases_of(master._outbox.take())


def test_nothing_comes_between_idle_and_joining() -> None:
    """So in IDLE a node handles no event: what the table lets it do there it never does."""
    for begin in (normal, suspect, wedged, joining):
        told = phases_of(go_on_without_it(begin()))
        assert told[-2:] == [Phase.IDLE, Phase.JOINING]


@pytest.mark.parametrize("happens", [go_on_with_it, go_on_without_it, heard_again, be_forced])
def test_a_node_in_fault_stays_there(happens: Happens) -> None:
    node = normal()
    contradict(node)
    assert not phases_of(happens(node))
    assert node.master.phase is Phase.FAULT
    assert node.master.next_deadline() is None


@pytest.mark.parametrize("happens", [go_on_with_it, be_asked_for_a_promise, be_forced])
def test_a_witness_stays_one(happens: Happens) -> None:
    """Decisions and votes change nothing of its part, and no operator makes it go on alone."""
    node = witness()
    assert not phases_of(happens(node))
    assert node.master.phase is Phase.WITNESS


def test_a_joiner_that_votes_does_not_stop_being_one() -> None:
    """It has a place and a vote, and nothing to freeze."""
    node = joining()
    actions = node.hear(
        replace(node.prepare("b", 1), view=node.master.view),
        replace(node.accept("b", 1, next_view(node.master.view, "b")), view=node.master.view),
    )
    assert sent(actions, object), "it does not vote"
    assert not phases_of(actions)
    assert node.master.phase is Phase.JOINING


@pytest.mark.parametrize(
    ("begin", "phase"),
    [
        (normal, Phase.NORMAL),
        (suspect, Phase.NORMAL),
        (wedged, Phase.WEDGED),
        (joining, Phase.JOINING),
        (witness, Phase.WITNESS),
        (following, Phase.FOLLOWING),
    ],
)
def test_what_is_durable_says_the_phase_after_a_restart(begin: Begin, phase: Phase) -> None:
    node = begin()
    node.start()
    assert node.master.phase is phase
