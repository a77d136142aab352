"""Directed traces of runs that nobody can deliver, and that an operator has voided (P32)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.clock_traces import YEAR_US
from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_ballot,
    next_view,
    queued,
    sent,
    tail_of,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    CheckFiles,
    FetchPayload,
    PersistForeignRun,
    PersistVoid,
    TellChange,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    Flushed,
    Prepare,
    Probe,
    Promise,
)
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    FilesHeld,
    FilesLost,
    LinkChanged,
    PayloadArrived,
)
from sparktxlog.protocol.messages.posts import MergeBase, Rejection, RunHeader
from sparktxlog.protocol.messages.view import Ballot, Phase, View, Voided


def _staged(node: Lone, origin: str = "a") -> RunHeader:
    """Return a run with staged files: the node's own, or another one's that is not here."""
    if origin != node.config.node_id:
        return replace(node.run_of(origin, 1, 7, n=2), staged_bytes=1_000)
    actions = node.submit(n=2, staged_bytes=1_000)
    (header,) = [a.header for a in actions if hasattr(a, "header") and hasattr(a, "ticket")][:1]
    assert isinstance(header, RunHeader)
    return header


def _void(node: Lone, header: RunHeader) -> Voided:
    facts = replace(node.facts[header.digest], voided=True)
    voided = replace(header, digest=b"void " + header.digest[:16], staged_bytes=0)
    node.facts[voided.digest] = facts
    return Voided(header=voided, facts=facts, digest=header.digest)


def _ask(node: Lone, void: Voided, *without: str) -> tuple[Ballot, list[Action]]:
    """Let an operator ask, `b` and `c` answering the probes; return the ballot."""
    void = replace(void, without=tuple(NodeId(name) for name in without))
    actions = node.feed(ChangeRequested(ticket=1, roster=node.view.roster, void=void))
    if node.master.phase is not Phase.WEDGED:
        probes = sent(actions, Probe)
        actions += node.hear(*(node.answer(p, probes[-1].number, ("a", "b", "c")) for p in "bc"))
    actions += node.wait(SECOND_US * 2 // 5)
    started = sent(actions, Prepare)
    assert started, "no ballot is started for a void"
    return started[-1].ballot, actions


def _answers(actions: list[Action]) -> list[TellChange]:
    return [action for action in actions if isinstance(action, TellChange)]


def _candidate(node: Lone, void: Voided) -> View:
    tail = (void.header,)
    return replace(
        next_view(node.view, "a", "b", "c"),
        tail=tail,
        end=end_of(MergeBase(), tail),
        voided=(void,),
    )


def _flush(node: Lone, number: int, candidate: View) -> Flush:
    return Flush(
        sender=NodeId("a"),
        incarnation=1,
        view=node.view,
        candidate=candidate,
        ballot=Ballot(number=number, node="a"),
        holder=NodeId("a"),
    )


def lost_runs_are_voided(core: type[Master]) -> None:
    """P32: once its holder found the files lost, and nobody else has them, the run is void."""
    node = Lone(core)
    run = _staged(node)
    void = _void(node, run)
    ballot, _ = _ask(node, void)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
    assert [a.header for a in actions if isinstance(a, CheckFiles)] == [run]
    assert {flush.candidate.voided for flush in sent(actions, Flush)} == {(void,)}
    actions = node.hear(node.flushed("b", ballot, 0), node.flushed("c", ballot, 0))
    assert not sent(actions, Accept), "it has not looked at its own files yet"
    assert sent(node.feed(FilesLost(digest=run.digest, text="damaged")), Accept)
    actions = node.hear(node.accepted("b", ballot))
    assert [a.voided for a in actions if isinstance(a, PersistVoid)] == [void]
    _is_void(actions, void)
    assert [(told.ticket, told.epoch) for told in _answers(actions)] == [(1, 2)]
    base = node.master.base
    node.start()
    assert (node.master.base, node.master.status().busy) == (base, False)
    assert node.master.locate(void.facts.ids[:16]) == 1


def _is_void(actions: list[Action], void: Voided) -> None:
    entries = [entry for action in queued(actions) for entry in action.entries]
    assert [entry.header for entry in entries] == [void.header]
    rejected = [(one.index, one.code) for entry in entries for one in entry.rejections]
    assert rejected == [(0, "voided"), (1, "voided")]


def whole_runs_are_not_voided(core: type[Master]) -> None:
    """P32: a member that holds the run vetoes it, be it this one or another."""
    for holder in ("a", "c"):
        node = Lone(core)
        run = _staged(node)
        ballot, _ = _ask(node, _void(node, run))
        node.hear(node.promise("b", ballot), node.promise("c", ballot))
        if holder == "a":
            actions = node.feed(FilesHeld(digest=run.digest))
        else:
            actions = node.hear(replace(node.flushed("c", ballot, 1), whole=(run.digest,)))
        told = [(told.epoch, told.text) for told in _answers(actions)]
        assert told == [(None, f"{holder} holds the run: it can be delivered")]
        node.feed(FilesLost(digest=run.digest, text="damaged"))
        assert not sent(
            node.hear(node.flushed("b", ballot, 0), node.flushed("c", ballot, 0)), Accept
        )
        ballot = next_ballot(node)
        actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
        candidates = [flush.candidate for flush in sent(actions, Flush)]
        assert {(view.tail, view.voided) for view in candidates} == {((run,), ())}


def who_is_silent_may_hold_it(core: type[Master]) -> None:
    """P32: a member that does not answer may hold the run; only an operator can give it up."""
    for without in ((), ("c",)):
        node = Lone(core)
        void = _void(node, _staged(node))
        ballot, _ = _ask(node, void, *without)
        actions = node.hear(node.promise("b", ballot)) + node.wait(2 * SECOND_US)
        texts = [told.text for told in _answers(actions)]
        flushed = {one.header for f in sent(actions, Flush) for one in f.candidate.voided}
        if without:
            assert (texts, flushed) == ([], {void.header})
        else:
            assert texts == ["c may hold the run, and does not answer"]
            assert not flushed


def whose_answer_cannot_be_right_may_hold_it(core: type[Master]) -> None:
    """C3, P32: a member that stamped too late is not believed; an operator looks at its disk."""
    for without in ((), ("c",)):
        node = Lone(core)
        void = _void(node, _staged(node))
        ballot, _ = _ask(node, void, *without)
        late = node.run_of("c", 1, node.now + YEAR_US)
        actions = node.hear(node.promise("b", ballot), node.promise("c", ballot, late))
        actions += node.wait(2 * SECOND_US)
        texts = [told.text for told in _answers(actions)]
        flushed = {one.header for f in sent(actions, Flush) for one in f.candidate.voided}
        if without:
            assert (texts, flushed) == ([], {void.header})
        else:
            assert texts == ["c may hold the run, and its answer cannot be right"]
            assert not flushed


def ordered_runs_are_not_voided(core: type[Master]) -> None:
    """P32: what stands in a queue was told as ordered: its outcome stays."""
    node = Lone(core)
    run = _staged(node)
    void = _void(node, run)
    ballot, _ = _ask(node, void)
    promise = node.promise("b", ballot)
    assert promise.state is not None
    base = end_of(MergeBase(), (run,))
    state = replace(promise.state, base=base, key=run.key, watermarks={"a": run.last})
    actions = node.hear(replace(promise, state=state), node.promise("c", ballot))
    told = [(told.epoch, told.text) for told in _answers(actions)]
    assert told == [(None, "the run is ordered: a quorum held it, and its outcome stays")]


def a_void_begins_anew_where_a_flush_hangs(core: type[Master]) -> None:
    """P32: an epoch change may wait for the very run; an operator's wish ends that wait."""
    node = Lone(core)
    run = _staged(node)
    node.hear(node.prepare("b", 1))
    plain = replace(_candidate(node, _void(node, run)), tail=(run,), voided=())
    plain = replace(plain, end=end_of(MergeBase(), plain.tail))
    before = Ballot(number=1, node="b")
    node.hear(replace(_flush(node, 1, plain), sender=NodeId("b"), ballot=before))
    ballot, actions = _ask(node, _void(node, run))
    assert ballot > before
    assert not _answers(actions)


def a_failed_void_changes_nothing(core: type[Master]) -> None:
    """P32: until it is decided each says what it holds, and wants what it lacks."""
    holder, other = Lone(core), Lone(core, "b")
    run = _staged(holder)
    other.facts.update(holder.facts)
    voided = _candidate(holder, _void(holder, run))
    plain = replace(voided, tail=(run,), voided=(), end=end_of(MergeBase(), (run,)))
    for node in (holder, other):
        node.hear(node.prepare("c", 1))
        actions = node.hear(replace(_flush(node, 2, voided), sender=NodeId("c")))
        missing = [flushed.missing for flushed in sent(actions, Flushed)]
        assert missing == [1 if node is holder else 0]
        assert not [a for a in actions if isinstance(a, FetchPayload)]
        promises = sent(node.hear(node.prepare("c", 3)), Promise)
        shown = [promise.state.acquired for promise in promises if promise.state]
        assert shown == [(run,) if node is holder else ()]
        actions = node.hear(replace(_flush(node, 4, plain), sender=NodeId("c")))
        missing = [flushed.missing for flushed in sent(actions, Flushed)]
        fetched = [a.header for a in actions if isinstance(a, FetchPayload)]
        assert (missing, fetched) == (([0], []) if node is holder else ([1], [run]))


def a_void_survives_a_restart(core: type[Master]) -> None:
    """P32: a voter knows after a crash what is void; a late payload changes nothing."""
    node = Lone(core, "b")
    run = _staged(node)
    run = replace(node.run_of("a", 1, 7, n=2), staged_bytes=1_000)
    void = _void(node, run)
    candidate = _candidate(node, void)
    node.hear(node.prepare("a", 1))
    node.hear(_flush(node, 1, candidate), node.accept("a", 1, candidate))
    node.start()
    assert node.master.accepted == candidate
    actions = node.hear(Decide(sender=NodeId("a"), view=candidate))
    _is_void(actions, void)
    assert views(actions) == [candidate]
    node.start()
    late = PayloadArrived(header=run, facts=node.facts[run.digest])
    assert not [a for a in node.feed(late) if isinstance(a, PersistForeignRun)]
    assert node.master.base == candidate.end


def a_lagging_node_takes_the_void(core: type[Master]) -> None:
    """P32, P9: who comes later takes what stands in the run's place, though it holds the run."""
    for held in (True, False):
        node = Lone(core)
        node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
        run = replace(node.run_of("b", 1, 7, n=2), epoch=2, staged_bytes=1_000)
        void = _void(node, run)
        if held:
            node.push(run)
        rejections = tuple(Rejection(index=i, code="voided", text="") for i in range(2))
        entry = replace(entry_of(void.header, 1, bytes(32)), rejections=rejections)
        assert not queued(node.feed(tail_of(LOG_ID, entry)))
        _is_void(node.push(void.header), void)
        node.start()
        assert node.master.base.position == 2


def an_own_run_stays_until_its_void_is_durable(core: type[Master]) -> None:
    """P20, P32: an own run whose void is on its way is still on disk; later ones follow it."""
    node = Lone(core)
    run = _staged(node)
    node.submit()
    void = _void(node, run)
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
    rejections = tuple(Rejection(index=i, code="voided", text="") for i in range(2))
    entry = replace(entry_of(void.header, 1, bytes(32)), rejections=rejections)
    node.feed(tail_of(LOG_ID, entry))
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.master.view, "b", "c")))
    assert node.master.phase is Phase.JOINING
    node.feed(tail_of(LOG_ID, entry))
    _is_void(node.push(void.header), void)


def a_decided_void_outlives_an_older_flush(core: type[Master]) -> None:
    """P32: a flush of a ballot that came to nothing takes nothing back of what a tail has told."""
    node = Lone(core)
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "b", "c")))
    node.view = node.master.view
    run = replace(node.run_of("b", 1, 7, n=2), epoch=2, staged_bytes=1_000)
    void = _void(node, run)
    plain = replace(next_view(node.view, "b", "c"), tail=(run,), end=end_of(MergeBase(), (run,)))
    node.hear(replace(_flush(node, 1, plain), sender=NodeId("b")))
    rejections = tuple(Rejection(index=i, code="voided", text="") for i in range(2))
    entry = replace(entry_of(void.header, 1, bytes(32)), rejections=rejections)
    node.feed(tail_of(LOG_ID, entry))
    node.hear(replace(_flush(node, 1, plain), sender=NodeId("b")))
    assert node.master.phase is Phase.JOINING
    _is_void(node.push(void.header), void)


def all_wishes_count(core: type[Master]) -> None:
    """P32: runs lost at several nodes stand in each other's way: one decision voids them all."""
    node = Lone(core)
    mine, other = _staged(node), replace(node.run_of("b", 1, 7, n=2), staged_bytes=1_000)
    voids = _void(node, mine), _void(node, other)
    ballot, _ = _ask(node, voids[0])
    promise = replace(node.promise("b", ballot, other), voids=(voids[1],))
    actions = node.hear(promise, node.promise("c", ballot))
    for flush in sent(actions, Flush):
        assert set(flush.candidate.voided) == set(voids)


def a_void_waits_for_a_suspect(core: type[Master]) -> None:
    """P32: the answer of a suspect counts, if it comes: it is suspected for what all lack."""
    node = Lone(core, suspect_us=SECOND_US)
    void = _void(node, _staged(node))
    node.hear(node.prepare("b", 1))
    node.feed(LinkChanged(peer=NodeId("c"), up=False))
    node.wait(5 * SECOND_US)
    asked = node.feed(ChangeRequested(ticket=1, roster=node.view.roster, void=void))
    ballot = sent(asked, Prepare)[-1].ballot
    actions = node.hear(node.promise("b", ballot)) + node.hear(node.promise("c", ballot))
    assert not _answers(actions)
    flushed = {one.header for f in sent(actions, Flush) for one in f.candidate.voided}
    assert flushed == {void.header}
