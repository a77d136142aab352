"""Directed traces: histories that chance does not find, one rule each.

A trace drives one core by hand and asserts what the rule demands; it passes with the real core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.actions import (
    Action,
    PersistBallot,
    PersistForeignRun,
    PersistQueue,
    SendEpochMessage,
    SendPost,
    SendPush,
    TellAccepted,
    TellChange,
    TellRejected,
)
from sparktxlog.protocol.balloting import (
    Accept,
    Decide,
    Flush,
    JoinRequest,
    Prepare,
    Probe,
    Promise,
    Refusal,
    Vote,
)
from sparktxlog.protocol.chain import chain_hash
from sparktxlog.protocol.events import (
    ChangeRequested,
    ForceRequested,
    LinkChanged,
    PostReceived,
    TailReceived,
)
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages import MergeBase, QueueEntry, RunHeader, Tail
from sparktxlog.protocol.phases import Phase
from sparktxlog.protocol.view import Ballot, Seat, View
from sparktxlog.testing.mutation.lone import LINEAGE, SECOND_US, Lone, sent, views

Trace = Callable[[type[Master]], None]


def _next(view: View, *members: str) -> View:
    """Return a view of the next epoch whose final queue is empty."""
    return replace(view, epoch=view.epoch + 1, members=tuple(NodeId(m) for m in members))


def _proposing(node: Lone, number: int = 1) -> Ballot:
    """Let a node propose by itself, behind a ballot of `b` that came to nothing."""
    node.hear(node.prepare("b", number))
    for _ in range(100):
        started = sent(node.wait(SECOND_US // 10), Prepare)
        if started:
            return started[0].ballot
    raise AssertionError("a wedged node does not try by itself")


def _changing(node: Lone, roster: tuple[Seat, ...]) -> Ballot:
    """Let a node propose a roster, `b` and `c` answering its probes."""
    probes = sent(node.feed(ChangeRequested(ticket=1, roster=roster)), Probe)
    assert probes
    actions = node.hear(*(node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc"))
    actions += node.wait(SECOND_US // 10)
    return sent(actions, Prepare)[-1].ballot


# -- P9, P10: what contradicts the queue or a promise ----------------------------------------------


def broken_promise_halts(core: type[Master]) -> None:
    """P10: a header below a promise that did not announce it stops the node."""
    node = Lone(core)
    node.feed(PostReceived(post=node.post_of("b", node.now + 100)))
    node.push(node.run_of("b", 1, node.now + 50))
    assert node.master.phase is Phase.FAULT


def _entry(header: RunHeader, position: int, previous: bytes) -> QueueEntry:
    return QueueEntry(
        position=position, header=header, previous_hash=previous,
        chain_hash=chain_hash(previous, header),
    )  # fmt: skip


def _tail(lineage: str, entry: QueueEntry) -> TailReceived:
    return TailReceived(
        tail=Tail(
            lineage=lineage, epoch=1, sender=NodeId("b"), previous_hash=entry.previous_hash,
            entries=(entry,),
        )
    )  # fmt: skip


def _queue(actions: list[Action]) -> list[PersistQueue]:
    return [action for action in actions if isinstance(action, PersistQueue)]


def tail_of_another_queue_halts(core: type[Master]) -> None:
    """P9: a tail that does not continue this queue's hash is not appended."""
    node = Lone(core)
    entry = _entry(node.run_of("b", 1, node.now), 1, bytes(31) + b"x")
    actions = node.feed(_tail(LINEAGE, entry)) + node.push(entry.header)
    assert node.master.phase is Phase.FAULT
    assert not _queue(actions)


def tail_of_another_lineage_is_ignored(core: type[Master]) -> None:
    """P23: what another lineage has ordered is nothing to this one."""
    node = Lone(core)
    entry = _entry(node.run_of("b", 1, node.now), 1, bytes(32))
    actions = node.feed(_tail("forked", entry)) + node.push(entry.header)
    assert node.master.phase is Phase.NORMAL
    assert not _queue(actions)


# -- P2, P6: counters ------------------------------------------------------------------------------


def stamps_behind_its_queue(core: type[Master]) -> None:
    """P2: a timestamp used in an own ADD is never stamped again."""
    node = Lone(core)
    entry = _entry(node.run_of("b", 1, node.now + 100), 1, bytes(32))
    actions = node.feed(_tail(LINEAGE, entry)) + node.push(entry.header)
    assert _queue(actions)
    told = [a.header for a in node.submit() if isinstance(a, TellAccepted)]
    assert told[0] is not None
    assert told[0].key > entry.header.key


def log_clock_follows(core: type[Master]) -> None:
    """P6: a run from an hour ahead does not wait for an hour: the own promise reaches it soon."""
    node = Lone(core)
    ahead = node.run_of("b", 1, node.now + 3_600 * SECOND_US)
    actions = node.push(ahead) + node.wait(3 * SECOND_US)
    assert max(a.post.counter for a in actions if isinstance(a, SendPost)) >= ahead.ts


# -- P11–P13: who decides --------------------------------------------------------------------------


def old_voters_decide(core: type[Master]) -> None:
    """P11: the voters of the epoch before decide, also on a roster that gives `a` all votes."""
    node = Lone(core)
    roster = tuple(replace(s, weight=3 if s.node_id == "a" else 1) for s in node.view.roster)
    ballot = _changing(node, roster)
    node.hear(node.promise("b", ballot), node.promise("c", ballot))
    actions = node.hear(node.flushed("b", ballot, 0), node.flushed("c", ballot, 0))
    assert sent(actions, Accept), "no vote was asked for"
    assert not views(actions), "decided by the votes it gives itself"
    assert views(node.hear(node.accepted("b", ballot)))


def half_of_the_votes_is_too_few(core: type[Master]) -> None:
    """P12: one of two equal voters decides nothing."""
    node = Lone(core, votes={"a": 1, "b": 1})
    actions = node.hear(node.prepare("b", 1)) + node.wait(10 * SECOND_US)
    assert sent(actions, Prepare)
    assert not sent(actions, Flush)
    assert not sent(actions, Accept)


def alone_it_stays_suspicious(core: type[Master]) -> None:
    """P13: without quorums in reach nothing is started: starting wedges."""
    node = Lone(core, suspect_us=SECOND_US)
    node.feed(*(LinkChanged(peer=NodeId(peer), up=False) for peer in "bc"))
    actions = node.wait(60 * SECOND_US)
    assert not sent(actions, Prepare)
    assert node.master.phase is Phase.SUSPECT


def a_short_silence_evicts_nobody(core: type[Master]) -> None:
    """P13: a suspect is tried for a while before an epoch change is started."""
    node = Lone(core, suspect_us=4 * SECOND_US)
    for peer in "bc":
        node.feed(PostReceived(post=node.post_of(peer, node.now)))
    actions = node.feed(LinkChanged(peer=NodeId("c"), up=False))
    for _ in range(6):
        probes = sent(actions, Probe)
        actions = node.hear(*(node.answer("b", p.number, ("a",)) for p in probes))
        actions += node.wait(SECOND_US // 2)
        assert not sent(actions, Prepare)


def data_quorum_is_needed(core: type[Master]) -> None:
    """P12: a majority of votes with too few of the members that hold the data decides nothing."""
    node = Lone(core, votes=dict.fromkeys(("a", "b", "c", "w", "w2"), 1))
    ballot = _proposing(node)
    actions = node.hear(node.promise("w", ballot), node.promise("w2", ballot))
    assert not sent(actions + node.wait(SECOND_US // 2), Flush)
    assert sent(node.hear(node.promise("b", ballot)) + node.wait(SECOND_US // 5), Flush)


# -- P14: the wedge --------------------------------------------------------------------------------


def promise_stops_everything(core: type[Master]) -> None:
    """P14: behind a promise nothing is stamped, acquired, added or promised to peers."""
    node = Lone(core)
    waiting = node.run_of("c", 1, node.now)
    node.push(waiting)
    before = max(a.post.counter for a in node.wait(2 * SECOND_US) if isinstance(a, SendPost))
    promise = sent(node.hear(node.prepare("b", 1)), Promise)
    assert promise
    assert promise[0].state is not None
    assert [run.origin for run in promise[0].state.acquired] == ["c"]
    actions = node.submit()
    actions += node.push(node.run_of("b", 1, node.now))
    late = node.now + 10
    node.feed(*(PostReceived(post=node.post_of(p, late, last_seq=p == "c")) for p in "bc"))
    actions += node.wait(SECOND_US // 2)
    assert node.master.phase is Phase.WEDGED
    told = [a for a in actions if isinstance(a, TellAccepted) and a.header is not None]
    spoken = [a for a in actions if isinstance(a, SendPush)]
    spoken += [a for a in actions if isinstance(a, SendPost) and a.post.counter > before]
    assert not (told or spoken or _queue(actions))
    assert not [a for a in actions if isinstance(a, PersistForeignRun)]


def promise_is_durable_first(core: type[Master]) -> None:
    """P14, P17: promises and votes leave behind the write that keeps them."""
    node = Lone(core)
    for question in (node.prepare("b", 1), node.accept("b", 1, _next(node.view, "a", "b"))):
        actions = node.hear(question)
        kinds = [type(a) for a in actions if isinstance(a, PersistBallot | SendEpochMessage)]
        assert kinds == [PersistBallot, SendEpochMessage]


def no_lower_promise(core: type[Master]) -> None:
    """P14: who promised ballot 5 refuses ballot 3, also after a restart, and stays wedged."""
    node = Lone(core)
    assert sent(node.hear(node.prepare("b", 5)), Promise)
    for _ in range(2):
        actions = node.hear(node.prepare("c", 3))
        assert sent(actions, Refusal)
        assert not sent(actions, Promise)
        node.start()
        assert node.master.phase is Phase.WEDGED


# -- P15: the choice -------------------------------------------------------------------------------


def highest_accepted_ballot_counts(core: type[Master]) -> None:
    """P15: of two accepted values the one of the higher ballot may be decided, and is proposed."""
    node = Lone(core)
    ballot = _proposing(node, 3)
    low, high = _next(node.view, "a", "b"), _next(node.view, "a", "c")
    actions = node.hear(
        node.promise("b", ballot, accepted=Vote(ballot=Ballot(number=2, node="b"), view=high)),
        node.promise("c", ballot, accepted=Vote(ballot=Ballot(number=1, node="c"), view=low)),
    )
    assert {accept.candidate.members for accept in sent(actions, Accept)} == {("a", "c")}


def everything_acquired_survives(core: type[Master]) -> None:
    """P15: a run that any answering member acquired is in the final queue, whole and in order."""
    node = Lone(core)
    ballot = _proposing(node)
    runs = (node.run_of("c", 1, 7, n=4), node.run_of("b", 1, 9))
    actions = node.hear(node.promise("b", ballot, runs[1]), node.promise("c", ballot, runs[0]))
    assert {flush.candidate.tail for flush in sent(actions, Flush)} == {runs}


# -- P16, P17: flush and vote ----------------------------------------------------------------------


def everybody_flushes_first(core: type[Master]) -> None:
    """P16: no vote is asked for until every member-to-be holds the whole final queue."""
    node = Lone(core)
    ballot = _proposing(node)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
    actions += node.hear(node.flushed("b", ballot, 0), node.flushed("c", ballot, 1))
    assert not sent(actions, Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0)), Accept)


def joiner_flushes_too(core: type[Master]) -> None:
    """P21: a joiner is admitted when it holds the final queue, not before."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 1}, suspect_us=10 * SECOND_US)
    asks = JoinRequest(
        lineage=LINEAGE, epoch=1, sender=NodeId("c"), incarnation=2, base=MergeBase()
    )
    probes = sent(node.hear(asks) + node.wait(SECOND_US), Probe)
    answers = [node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc"]
    actions = node.hear(*answers, asks) + node.wait(SECOND_US)
    ballot = sent(actions, Prepare)[-1].ballot
    actions = node.hear(node.promise("b", ballot))
    assert {f.candidate.members for f in sent(actions, Flush)} == {("a", "b", "c")}
    assert not sent(node.hear(node.flushed("b", ballot, 0)), Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0, incarnation=2)), Accept)


def no_vote_below_a_promise(core: type[Master]) -> None:
    """P17: who promised ballot 5, or accepted in it, takes no part in ballot 3."""
    for five in ("prepare", "accept"):
        node = Lone(core)
        candidate = _next(node.view, "a", "b")
        node.hear(
            node.prepare("b", 5) if five == "prepare" else node.accept("b", 5, candidate)
        )  # fmt: skip
        other = _next(node.view, "a", "c")
        actions = node.hear(node.prepare("c", 3), node.accept("c", 3, other))
        assert len(sent(actions, Refusal)) == 2
        assert not sent(actions, Promise)
        accepted = node.master._succession.voter.accepted
        assert accepted is None or accepted.view == candidate


def accepted_value_survives_a_crash(core: type[Master]) -> None:
    """P17: an accepted value is in every later promise, also after a restart."""
    node = Lone(core)
    candidate = _next(node.view, "a", "b")
    node.hear(node.accept("b", 1, candidate))
    node.start()
    promises = sent(node.hear(node.prepare("c", 2)), Promise)
    assert promises[0].accepted is not None
    assert promises[0].accepted.view == candidate


def every_vote_is_needed(core: type[Master]) -> None:
    """P12: in five votes, two are no majority."""
    node = Lone(core, votes=dict.fromkeys("abcde", 1))
    ballot = _proposing(node)
    node.hear(*(node.promise(peer, ballot) for peer in "bcde"))
    actions = node.hear(*(node.flushed(peer, ballot, 0) for peer in "bcde"))
    assert sent(actions, Accept)
    assert not views(actions + node.hear(node.accepted("b", ballot)))
    assert views(node.hear(node.accepted("c", ballot)))


# -- P18–P20: into the next epoch ------------------------------------------------------------------


def another_final_queue_halts(core: type[Master]) -> None:
    """P18: a final queue that does not continue the own queue is not installed."""
    node = Lone(core)
    other = MergeBase(chain_hash=bytes(31) + b"x")
    decided = replace(_next(node.view, "a", "b", "c"), base=other, end=other)
    node.hear(Decide(sender=NodeId("b"), view=decided))
    assert node.master.phase is Phase.FAULT


def evicted_is_silent(core: type[Master]) -> None:
    """P19, P20: without this node in the view it neither posts nor stamps nor takes anything."""
    node = Lone(core)
    node.submit()
    actions = node.hear(Decide(sender=NodeId("b"), view=_next(node.view, "b", "c")))
    actions += node.wait(2 * SECOND_US)
    refused = node.submit()
    assert not [a for a in actions + refused if isinstance(a, SendPost)]
    assert [a for a in refused if isinstance(a, TellRejected)]
    assert {header.epoch for header in node.disk.incoming.values()} == {1}


# -- P21: amnesia ----------------------------------------------------------------------------------


def amnesiac_does_not_vote(core: type[Master]) -> None:
    """P21: a voter without its memory neither promises nor accepts, and is not counted."""
    votes = {"a": 1, "b": 1, "w": 1}
    witness = Lone(core, "w", votes, incarnation=2)
    candidate = _next(witness.view, "b")
    actions = witness.hear(witness.prepare("b", 4), witness.accept("b", 4, candidate))
    assert not [a for a in actions if isinstance(a, SendEpochMessage | PersistBallot)]
    node = Lone(core, "a", votes)
    ballot = _proposing(node)
    actions = node.hear(node.promise("w", ballot, incarnation=2)) + node.wait(SECOND_US // 2)
    assert not sent(actions, Flush)


# -- P23: force ------------------------------------------------------------------------------------


def _force(node: Lone, lineage: str) -> list[Action]:
    return node.feed(ForceRequested(ticket=9, lineage=lineage))


def force_takes_the_accepted_value(core: type[Master]) -> None:
    """P23: what the survivor accepted may be decided elsewhere: it is forced, nothing else."""
    node = Lone(core, votes={"a": 1, "b": 1})
    node.submit()
    node.hear(node.accept("b", 1, _next(node.view, "b")))
    forced = views(_force(node, "forced"))
    assert [(view.lineage, view.members, view.tail) for view in forced] == [("forced", ("a",), ())]


def force_makes_one_voter(core: type[Master]) -> None:
    """P23: the survivor is the only member and the only voter."""
    node = Lone(core, votes={"a": 1, "b": 1, "w": 1})
    view = views(_force(node, "forced"))[0]
    assert view.elects({"a"})
    assert not view.elects({"b", "w"})


def force_needs_a_new_lineage(core: type[Master]) -> None:
    """P23: the others may live: a fork never bears the name of the log it leaves."""
    node = Lone(core, votes={"a": 1, "b": 1})
    actions = _force(node, LINEAGE)
    assert not views(actions)
    assert [a.epoch for a in actions if isinstance(a, TellChange)] == [None]


def forced_on_both_sides(core: type[Master]) -> None:
    """P23: two forks refuse each other; an operator chooses, no node does."""
    sides = {own: Lone(core, own, {"a": 1, "b": 1}) for own in "ab"}
    forced = {own: views(_force(side, f"forced-{own}"))[0] for own, side in sides.items()}
    later = replace(forced["b"], epoch=7)
    for view in (forced["b"], later):
        sides["a"].hear(Decide(sender=NodeId("b"), view=view))
    assert sides["a"].master.view == forced["a"]
    assert sides["a"].master.phase is Phase.NORMAL


TRACES: tuple[Trace, ...] = (
    stamps_behind_its_queue,
    log_clock_follows,
    broken_promise_halts,
    tail_of_another_queue_halts,
    tail_of_another_lineage_is_ignored,
    alone_it_stays_suspicious,
    old_voters_decide,
    data_quorum_is_needed,
    half_of_the_votes_is_too_few,
    every_vote_is_needed,
    a_short_silence_evicts_nobody,
    promise_stops_everything,
    promise_is_durable_first,
    no_lower_promise,
    highest_accepted_ballot_counts,
    everything_acquired_survives,
    everybody_flushes_first,
    joiner_flushes_too,
    no_vote_below_a_promise,
    accepted_value_survives_a_crash,
    another_final_queue_halts,
    evicted_is_silent,
    amnesiac_does_not_vote,
    force_takes_the_accepted_value,
    force_makes_one_voter,
    force_needs_a_new_lineage,
    forced_on_both_sides,
)
