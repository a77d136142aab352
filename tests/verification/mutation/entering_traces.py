"""Directed traces of how an epoch is entered, left and forced (protocol P18–P23)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_ballot,
    next_view,
    proposing,
    queued,
    sent,
    tail_of,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.action_order import ActionStream
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistBallot,
    PersistQueue,
    PersistRestamp,
    PersistView,
    SendEpochMessage,
    SendPost,
    TellChange,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    JoinRequest,
    Prepare,
    Probe,
    Standing,
)
from sparktxlog.protocol.messages.events import ChangeRequested, ForceRequested, Greeted
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Phase, View


def tail_of_another_log_id_is_ignored(core: type[Master]) -> None:
    """P23: what another log id has ordered is nothing to this one."""
    node = Lone(core)
    entry = entry_of(node.run_of("b", 1, node.now), 1, bytes(32))
    actions = node.feed(tail_of("forked", entry)) + node.push(entry.header)
    assert node.master.phase is Phase.NORMAL
    assert not queued(actions)


def _admitting(core: type[Master]) -> tuple[Lone, Ballot]:
    """Let a node propose to admit `c` under its next incarnation."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 1}, suspect_us=10 * SECOND_US)
    asks = JoinRequest(
        log_id=LOG_ID, epoch=1, sender=NodeId("c"), incarnation=2, base=MergeBase(), ts=0
    )
    probes = sent(node.hear(asks) + node.wait(SECOND_US), Probe)
    answers = [node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc"]
    actions = node.hear(*answers, asks) + node.wait(SECOND_US)
    return node, sent(actions, Prepare)[-1].ballot


def joiner_flushes_too(core: type[Master]) -> None:
    """P21: a joiner is admitted when it holds the final queue, not before."""
    node, ballot = _admitting(core)
    actions = node.hear(node.promise("b", ballot))
    assert {f.candidate.members for f in sent(actions, Flush)} == {("a", "b", "c")}
    assert not sent(node.hear(node.flushed("b", ballot, 0)), Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0, incarnation=2)), Accept)


def what_it_was_before_is_no_joiner(core: type[Master]) -> None:
    """P21: the disk was found: what a node says as it was does not admit it as another."""
    node, ballot = _admitting(core)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
    assert not sent(actions + node.hear(node.flushed("b", ballot, 0)), Accept)
    assert not sent(node.hear(node.flushed("c", ballot, 0)), Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0, incarnation=2)), Accept)


def what_it_was_before_joins_no_more(core: type[Master]) -> None:
    """P21: a wish to join ends when its node greets as what it was before."""
    for incarnation, left in ((1, False), (2, True)):
        node, ballot = _admitting(core)
        shown = Standing(incarnation=incarnation, start=3, boot="found", epoch=1)
        node.feed(Greeted(peer=NodeId("c"), standing=shown))
        node.hear(node.refusal("b", ballot, Ballot(number=7, node="b")))
        ballot = next_ballot(node)
        actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
        views = [m.candidate for m in sent(actions, Flush) + sent(actions, Accept)]
        assert {view.is_current("c", 2) for view in views} == {left}


def another_final_queue_halts(core: type[Master]) -> None:
    """P18: a final queue that does not continue the own queue is not installed."""
    node = Lone(core)
    other = MergeBase(chain_hash=bytes(31) + b"x")
    decided = replace(next_view(node.view, "a", "b", "c"), base=other, end=other)
    node.hear(Decide(sender=NodeId("b"), view=decided))
    assert node.master.phase is Phase.FAULT


def a_tail_ends_with_the_epoch(core: type[Master]) -> None:
    """P9, P18: a tail that goes on into the next epoch does not lengthen the final queue."""
    node = Lone(core)
    last = entry_of(node.run_of("b", 1, node.now), 1, bytes(32))
    later = replace(node.run_of("c", 1, node.now + 1), epoch=2)
    entries = (last, entry_of(later, 2, last.chain_hash))
    end = MergeBase(position=1, chain_hash=last.chain_hash, origin=NodeId("b"), seq=1)
    decided = replace(next_view(node.view, "a", "b", "c"), tail=(last.header,), end=end)
    node.hear(Decide(sender=NodeId("b"), view=decided))
    node.feed(tail_of(LOG_ID, *entries))
    node.push(later)
    node.push(last.header)
    assert node.master.phase is Phase.NORMAL
    assert node.master.view.epoch == 2


def evicted_is_silent(core: type[Master]) -> None:
    """P19, P20: without this node in the view it neither posts nor stamps nor takes anything."""
    node = Lone(core)
    node.submit()
    actions = node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
    actions += node.wait(2 * SECOND_US)
    refused = node.submit()
    assert not [a for a in actions + refused if isinstance(a, SendPost)]
    assert [a for a in refused if isinstance(a, TellRejected)]
    assert {header.epoch for header in node.disk.incoming.values()} == {1}


def only_own_runs_are_restamped(core: type[Master]) -> None:
    """P20: a run that the final queue does not hold is stamped again by its origin alone."""
    node = Lone(core)
    node.submit()
    node.push(node.run_of("b", 1, node.now))
    actions = node.hear(Decide(sender=NodeId("c"), view=next_view(node.view, "a", "c")))
    stamped = [action.header for action in actions if isinstance(action, PersistRestamp)]
    assert [(header.origin, header.epoch) for header in stamped] == [("a", 2)]


def amnesiac_does_not_vote(core: type[Master]) -> None:
    """P21: a voter without its memory neither promises nor accepts, and is not counted."""
    votes = {"a": 1, "b": 1, "w": 1}
    witness = Lone(core, "w", votes, incarnation=2)
    candidate = next_view(witness.view, "b")
    actions = witness.hear(witness.prepare("b", 4), witness.accept("b", 4, candidate))
    assert not [a for a in actions if isinstance(a, SendEpochMessage | PersistBallot)]
    node = Lone(core, "a", votes)
    ballot = proposing(node)
    actions = node.hear(node.promise("w", ballot, incarnation=2)) + node.wait(SECOND_US // 2)
    assert not sent(actions, Flush)


def _force(node: Lone, log_id: str) -> list[Action]:
    return node.feed(ForceRequested(ticket=9, log_id=log_id))


def _forced(node: Lone, log_id: str) -> View:
    found = views(_force(node, log_id))
    assert len(found) == 1, f"{len(found)} views came into force"
    return found[0]


def force_takes_the_accepted_value(core: type[Master]) -> None:
    """P23: what the survivor accepted may be decided elsewhere: it is forced, nothing else."""
    node = Lone(core, votes={"a": 1, "b": 1})
    node.submit()
    node.hear(node.accept("b", 1, next_view(node.view, "b")))
    view = _forced(node, "forced")
    assert (view.log_id, view.members, view.tail) == ("forced", ("a",), ())
    assert (view.epoch, view.ancestors) == (3, ((LOG_ID, 1), (LOG_ID, 2)))


def force_makes_one_voter(core: type[Master]) -> None:
    """P23: the survivor is the only member and the only voter."""
    node = Lone(core, votes={"a": 1, "b": 1, "w": 1})
    view = _forced(node, "forced")
    assert view.elects({"a"})
    assert not view.elects({"b", "w"})


def a_waiting_change_brings_nobody_back(core: type[Master]) -> None:
    """P21: c lost its disk, and is admitted again, while a change of another weight waits."""
    node = Lone(core)
    heavy, b, c = node.view.roster
    heavy, admitted = replace(heavy, weight=2), replace(c, incarnation=2)
    node.feed(ChangeRequested(ticket=1, roster=(heavy, b, c)))
    view = next_view(node.view, "a", "b", "c")
    view = replace(view, roster=(node.view.roster[0], b, admitted))
    actions = node.hear(Decide(sender=NodeId("b"), view=view)) + node.wait(SECOND_US)
    probes = sent(actions, Probe)
    assert probes, "the change is forgotten"
    answer = replace(node.answer("b", probes[-1].number, ("a", "b", "c")), epoch=2)
    actions = node.hear(answer, replace(answer, sender=c.node_id, incarnation=2))
    started = sent(actions + node.wait(SECOND_US // 10), Prepare)
    assert started, "the change is forgotten"
    ballot = started[-1].ballot
    promises = (node.promise("b", ballot), node.promise("c", ballot, incarnation=2))
    actions = node.hear(*(replace(promise, epoch=2) for promise in promises))
    assert {accept.candidate.roster for accept in sent(actions, Accept)} == {(heavy, b, admitted)}


def a_kill_tears_no_force(core: type[Master]) -> None:
    """P23: what `force` appends and its view are durable together, however small batches are."""
    node = Lone(core, votes={"a": 1, "b": 1})
    node.push(node.run_of("b", 1, 7))
    stream: ActionStream[Action] = ActionStream(max_batch=1)
    stream.put(_force(node, "forced"))
    batches = []
    while stream:
        batches.append({type(action) for action in stream.take()})
    assert [PersistView in kinds for kinds in batches if PersistQueue in kinds] == [True]


def force_needs_a_new_log_id(core: type[Master]) -> None:
    """P23: the others may live: a fork never bears the name of the log it leaves."""
    node = Lone(core, votes={"a": 1, "b": 1})
    actions = _force(node, LOG_ID)
    assert not views(actions)
    assert [a.epoch for a in actions if isinstance(a, TellChange)] == [None]


def who_was_away_longer_follows_a_fork(core: type[Master]) -> None:
    """P23: a log that was forced on continues all epochs of the one before, not only its last."""
    for epoch in (1, 2):
        node = Lone(core, "b", {"a": 1, "b": 1})
        forced = replace(
            next_view(node.view, "a"), log_id="forced", epoch=3, ancestors=((LOG_ID, epoch),)
        )
        node.hear(Decide(sender=NodeId("a"), view=forced))
        assert node.master.view == forced


def forced_on_both_sides(core: type[Master]) -> None:
    """P23: two forks refuse each other; an operator chooses, no node does."""
    sides = {own: Lone(core, own, {"a": 1, "b": 1}) for own in "ab"}
    forced = {own: _forced(side, f"forced-{own}") for own, side in sides.items()}
    later = replace(forced["b"], epoch=7)
    for view in (forced["b"], later):
        sides["a"].hear(Decide(sender=NodeId("b"), view=view))
    assert sides["a"].master.view == forced["a"]
    assert sides["a"].master.phase is Phase.NORMAL
