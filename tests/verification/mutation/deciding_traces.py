"""Directed traces of how an epoch is decided (protocol P11–P17)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    SECOND_US,
    Lone,
    changing,
    next_view,
    proposing,
    queued,
    sent,
    views,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistBallot,
    PersistForeignRun,
    PersistQueue,
    PersistView,
    SendEpochMessage,
    SendPost,
    SendPush,
    TellAccepted,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    Flushed,
    Prepare,
    Probe,
    Promise,
    Refusal,
    Vote,
)
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    LinkChanged,
    PostReceived,
)
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Phase, Seat


def old_voters_decide(core: type[Master]) -> None:
    """P11: the voters of the epoch before decide, also on a roster that gives `a` all votes."""
    node = Lone(core)
    roster = tuple(replace(s, weight=3 if s.node_id == "a" else 1) for s in node.view.roster)
    ballot = changing(node, roster)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
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


def a_complaint_is_looked_into(core: type[Master]) -> None:
    """P13: a node that others complain of is suspected and tried, unless it was just heard."""
    node = Lone(core, suspect_us=4 * SECOND_US)

    def complain() -> list[Action]:
        return node.hear(
            Probe(
                log_id=node.view.log_id,
                epoch=1,
                sender=NodeId("b"),
                incarnation=1,
                number=1,
                suspects=(NodeId("c"),),
            )
        )

    for peer in "bc":
        node.feed(PostReceived(post=node.post_of(peer, node.now)))
    assert not sent(complain(), Probe)
    node.hear(node.answer("c", 0))
    node.wait(8 * SECOND_US)
    phases = [node.master.phase]
    actions = complain()
    tried = [
        a.peer for a in actions if isinstance(a, SendEpochMessage) and isinstance(a.message, Probe)
    ]
    assert "c" in tried
    phases.append(node.master.phase)
    node.hear(node.answer("c", sent(actions, Probe)[0].number))
    assert [*phases, node.master.phase] == [Phase.NORMAL, Phase.SUSPECT, Phase.NORMAL]


def a_retry_leaves_the_roster(core: type[Master]) -> None:
    """P12, P13: after a wedge no node knows whether a new roster would leave a majority."""
    node = Lone(core)
    heavy = Seat(node_id=NodeId("d"), url="http://d", weight=5)
    roster = (*node.view.roster, heavy)
    node.feed(ChangeRequested(ticket=1, roster=roster, quorum_rule="all"))
    ballot = proposing(node)
    actions = node.hear(node.promise("b", ballot), node.promise("c", ballot))
    asked = {accept.candidate for accept in sent(actions, Accept)}
    assert asked
    assert {candidate.roster for candidate in asked} == {node.view.roster}
    assert {candidate.quorum_rule for candidate in asked} == {node.view.quorum_rule}


def another_decision_halts(core: type[Master]) -> None:
    """P17, I5: a node that learns of a second decision for its epoch halts."""
    node = Lone(core)
    decided = next_view(node.view, "a", "b")
    phases = []
    for view in (decided, decided, next_view(node.view, "a", "c")):
        node.hear(Decide(sender=NodeId("c"), view=view))
        phases.append(node.master.phase)
    assert phases == [Phase.NORMAL, Phase.NORMAL, Phase.FAULT]


def the_old_quorum_counts_the_answers(core: type[Master]) -> None:
    """P12: what was acquired by the old quorum is in the answers, also where a new one is decided.

    Of three members two must answer while two acquire; where all three do, one would be enough.
    """
    node = Lone(core, votes=dict.fromkeys(("a", "b", "c", "w", "w2"), 1))
    ballot = changing(node, node.view.roster, quorum_rule="all")
    actions = node.hear(node.promise("w", ballot), node.promise("w2", ballot))
    actions += node.wait(SECOND_US // 2)
    assert not sent(actions, Accept), "decided without a member that may hold what was acquired"
    actions = node.hear(node.promise("b", ballot)) + node.wait(SECOND_US // 5)
    assert {accept.candidate.quorum_rule for accept in sent(actions, Accept)} == {"all"}
    decided = views(node.hear(node.accepted("b", ballot), node.accepted("w", ballot)))
    assert [(view.quorum_rule, view.quorum) for view in decided] == [("all", 2)]


def data_quorum_is_needed(core: type[Master]) -> None:
    """P12: a majority of votes with too few of the members that hold the data decides nothing."""
    node = Lone(core, votes=dict.fromkeys(("a", "b", "c", "w", "w2"), 1))
    ballot = proposing(node)
    actions = node.hear(node.promise("w", ballot), node.promise("w2", ballot))
    assert not sent(actions + node.wait(SECOND_US // 2), Accept)
    assert sent(node.hear(node.promise("b", ballot)) + node.wait(SECOND_US // 5), Accept)


def promise_stops_everything(core: type[Master]) -> None:
    """P14: after a promise nothing is stamped, acquired, added or promised to peers."""
    node = Lone(core)
    waiting = node.run_of("c", 1, node.now)
    node.push(waiting)
    counters = [a.post.counter for a in node.wait(2 * SECOND_US) if isinstance(a, SendPost)]
    assert counters
    promise = sent(node.hear(node.prepare("b", 1)), Promise)
    assert promise
    assert promise[0].state is not None
    assert [run.origin for run in promise[0].state.acquired] == ["c"]
    actions = node.submit()
    actions += node.push(node.run_of("b", 1, node.now))
    late = node.now + 10
    posts = (node.post_of(peer, late, last_seq=peer == "c") for peer in "bc")
    actions += node.feed(*(PostReceived(post=post) for post in posts))
    actions += node.wait(SECOND_US // 2)
    assert node.master.phase is Phase.WEDGED
    told = [a for a in actions if isinstance(a, TellAccepted) and a.header is not None]
    pushed = [a for a in actions if isinstance(a, SendPush)]
    posted = [a for a in actions if isinstance(a, SendPost) and a.post.counter > max(counters)]
    assert not (told or pushed or posted or queued(actions))
    # What is pushed now is kept, and neither a promise nor a post calls it acquired.
    again = sent(node.hear(node.prepare("b", 2)), Promise)
    assert again[0].state == promise[0].state


def promise_is_durable_first(core: type[Master]) -> None:
    """P14, P17: promises and votes leave behind the write that keeps them."""
    node = Lone(core)
    for question in (node.prepare("b", 1), node.accept("b", 1, next_view(node.view, "a", "b"))):
        actions = node.hear(question)
        kinds = [type(a) for a in actions if isinstance(a, PersistBallot | SendEpochMessage)]
        assert kinds == [PersistBallot, SendEpochMessage]


def no_lower_promise(core: type[Master]) -> None:
    """P14: a promise of ballot 5 refuses ballot 3, also after a restart, and stays wedged."""
    node = Lone(core)
    assert sent(node.hear(node.prepare("b", 5)), Promise)
    for _ in range(2):
        actions = node.hear(node.prepare("c", 3))
        assert sent(actions, Refusal)
        assert not sent(actions, Promise)
        node.start()
        assert node.master.phase is Phase.WEDGED


def highest_accepted_ballot_counts(core: type[Master]) -> None:
    """P15: of two accepted values the one of the higher ballot may be decided, and is proposed."""
    node = Lone(core)
    ballot = proposing(node, 3)
    low, high = next_view(node.view, "a", "b"), next_view(node.view, "a", "c")
    actions = node.hear(
        node.promise("b", ballot, accepted=Vote(ballot=Ballot(number=2, node="b"), view=high)),
        node.promise("c", ballot, accepted=Vote(ballot=Ballot(number=1, node="c"), view=low)),
    )
    assert {accept.candidate.members for accept in sent(actions, Accept)} == {("a", "c")}


def everything_acquired_survives(core: type[Master]) -> None:
    """P15: a run that any answering member acquired is in the final queue, whole and in order."""
    node = Lone(core)
    ballot = proposing(node)
    runs = (node.run_of("c", 1, 7, n=4), node.run_of("b", 1, 9, n=2))
    actions = node.hear(node.promise("b", ballot, runs[1]), node.promise("c", ballot, runs[0]))
    assert {flush.candidate.tail for flush in sent(actions, Flush)} == {runs}


def everybody_flushes_first(core: type[Master]) -> None:
    """P16: no vote is asked for until every member-to-be holds the whole final queue."""
    node = Lone(core)
    ballot = proposing(node)
    run = node.run_of("b", 1, 7, n=2)
    actions = node.hear(node.promise("b", ballot, run), node.promise("c", ballot))
    actions += node.hear(node.flushed("c", ballot, 1))
    actions += node.push(run)
    assert not sent(actions, Accept)
    assert sent(node.hear(node.flushed("c", ballot, 0)), Accept)


def who_is_done_is_missed(core: type[Master]) -> None:
    """P16: a member that is done goes; what another one lacks may have been there alone."""
    node = Lone(core, suspect_us=SECOND_US)
    run = node.run_of("b", 1, 7)
    node.push(run)
    ballot = proposing(node)
    node.hear(node.promise("b", ballot, run), node.promise("c", ballot))
    started: list[Prepare] = []
    for _ in range(30):
        if not started:
            actions = node.hear(node.flushed("c", ballot, 1)) + node.wait(SECOND_US // 10)
            started += sent(actions, Prepare)
    assert started, "the attempt goes on with c, which lacks what nobody gives it"
    actions = node.hear(node.promise("c", started[-1].ballot)) + node.wait(SECOND_US)
    assert {flush.candidate.members for flush in sent(actions, Flush)} == {("a", "c")}


def flushed_is_durable_first(core: type[Master]) -> None:
    """P16, P18: FLUSHED leaves behind the payload, a post of the next epoch behind its view."""
    node = Lone(core)
    run = node.run_of("c", 1, 7)
    end = end_of(MergeBase(), (run,))
    decided = replace(next_view(node.view, "a", "b"), tail=(run,), end=end)
    node.hear(node.prepare("b", 1))
    node.hear(
        Flush(
            sender=NodeId("b"),
            incarnation=1,
            view=node.view,
            candidate=decided,
            ballot=Ballot(number=1, node="b"),
            holder=NodeId("b"),
        )
    )
    actions = node.push(run)
    assert [message.missing for message in sent(actions, Flushed)] == [0]
    assert isinstance(actions[0], PersistForeignRun)
    actions = node.hear(Decide(sender=NodeId("b"), view=decided))
    kinds = [type(a) for a in actions if isinstance(a, PersistQueue | PersistView | SendPost)]
    assert kinds == [PersistQueue, PersistView, SendPost]


def no_vote_below_a_promise(core: type[Master]) -> None:
    """P17: a node that promised ballot 5, or accepted in it, takes no part in ballot 3."""
    for five in ("prepare", "accept"):
        node = Lone(core)
        candidate = next_view(node.view, "a", "b")
        node.hear(node.prepare("b", 5) if five == "prepare" else node.accept("b", 5, candidate))
        other = next_view(node.view, "a", "c")
        actions = node.hear(node.prepare("c", 3), node.accept("c", 3, other))
        assert len(sent(actions, Refusal)) == 2
        assert not sent(actions, Promise)
        accepted = node.master._succession.voter.accepted
        assert accepted is None or accepted.view == candidate


def accepted_value_survives_a_crash(core: type[Master]) -> None:
    """P17: an accepted value is in every later promise, also after a restart."""
    node = Lone(core)
    candidate = next_view(node.view, "a", "b")
    node.hear(node.accept("b", 1, candidate))
    node.start()
    promises = sent(node.hear(node.prepare("c", 2)), Promise)
    assert promises[0].accepted is not None
    assert promises[0].accepted.view == candidate


def every_vote_is_needed(core: type[Master]) -> None:
    """P12: in five votes, two are no majority."""
    node = Lone(core, votes=dict.fromkeys("abcde", 1))
    ballot = proposing(node)
    actions = node.hear(*(node.promise(peer, ballot) for peer in "bcde"))
    assert sent(actions, Accept)
    assert not views(actions + node.hear(node.accepted("b", ballot)))
    assert views(node.hear(node.accepted("c", ballot)))


def _that_is_set(core: type[Master], votes: str = "abc", **settings: object) -> Lone:
    """Return a node with other settings, which has just lost its link to `c`."""
    node = Lone(core, votes=dict.fromkeys(votes, 1), suspect_us=SECOND_US)
    node.config = replace(node.config, **settings)  # type: ignore[arg-type]
    node.start()
    node.feed(*(PostReceived(post=node.post_of(peer, node.now)) for peer in votes[1:]))
    node.feed(LinkChanged(peer=NodeId("c"), up=False))
    return node


def _passes(node: Lone, tenths: int, hears: tuple[str, ...], *silent: str) -> list[Prepare]:
    """Let time pass while the others answer, and say whom they hear."""
    started: list[Prepare] = []
    for _ in range(tenths):
        node.now += SECOND_US // 10
        for peer in node.view.members[1:]:
            if peer not in ("c", *silent):
                actions = node.feed(PostReceived(post=node.post_of(peer, node.now)))
                number = node.master._succession.suspicion.number
                started += sent(actions + node.hear(node.answer(peer, number, hears)), Prepare)
    return started


def whom_another_member_hears_is_kept(core: type[Master]) -> None:
    """P39: a cut between two members; the third one orders for both.  Its word ages.

    Simulated: in a quiet log it had not heard `c` lately, said so once, and `c` was left out.
    """
    node = _that_is_set(core, keeps_heard=True)
    assert not _passes(node, 300, ("a", "c"))
    assert not _passes(node, 20, ("a",))
    assert not _passes(node, 100, ("a", "c"))
    assert _passes(node, 70, ("a",))
    assert _passes(_that_is_set(core), 50, ("a", "c")), "it is an option"


def what_carries_nothing_keeps_nobody(core: type[Master]) -> None:
    """P39: a witness hears `c`, and has no queue; and who contradicts itself is not believed."""
    node = _that_is_set(core, "abcw", keeps_heard=True)
    started: list[Prepare] = []
    for _ in range(50):
        started += _passes(node, 1, ("a",))
        number = node.master._succession.suspicion.number
        started += sent(node.hear(node.answer("w", number, ("a", "b", "c"))), Prepare)
    assert started
    node = _that_is_set(core, keeps_heard=True)
    node.feed(LinkChanged(peer=NodeId("c"), up=True))
    node.feed(PostReceived(post=node.post_of("c", node.now + 100)))
    node.push(node.run_of("c", 1, node.now + 50))
    assert _passes(node, 60, ("a", "c"))


def a_change_waits_for_one_that_hears_all(core: type[Master]) -> None:
    """P39: a ballot of this node would not reach `c`, and leave it out."""
    node = _that_is_set(core, keeps_heard=True)
    _passes(node, 5, ("a", "c"))
    heavy = tuple(replace(seat, weight=2) for seat in node.view.roster)
    node.feed(ChangeRequested(ticket=1, roster=heavy))
    assert not _passes(node, 50, ("a", "c"))


def who_misses_one_that_others_hear_tries_last(core: type[Master]) -> None:
    """P39: after a ballot of `b` that came to nothing, one that hears all is first."""
    for keeps, tenths in ((False, 21), (True, 36)):
        node = _that_is_set(core, keeps_heard=keeps)
        _passes(node, 5, ("a", "c"))
        node.hear(node.prepare("b", 1))
        waited = 0
        while not sent(node.wait(SECOND_US // 10), Prepare):
            waited += 1
        assert tenths - 3 <= waited <= tenths


def nobody_goes_on_without_a_whole_set(core: type[Master]) -> None:
    """P40: of two sides that each could, the one goes on that has all of a set."""
    sets = (frozenset({NodeId("a"), NodeId("b")}), frozenset({NodeId("c"), NodeId("d")}))
    for guard, silent, goes_on in (
        ((), (), True),
        (sets, (), True),
        (sets, ("b",), False),
        (sets[1:], (), False),
        ((frozenset({NodeId("a"), NodeId("e")}),), ("b",), True),
    ):
        node = _that_is_set(core, "abcde", guard=guard)
        node.feed(*(LinkChanged(peer=NodeId(peer), up=False) for peer in silent))
        assert bool(_passes(node, 80, ("a",), *silent)) is goes_on


def a_ballot_is_guarded_too(core: type[Master]) -> None:
    """P40: a member that falls silent in a ballot is missed; one whose place goes is not."""
    everybody = (frozenset(map(NodeId, "abc")),)
    for guard, members, decides in (
        ((), "bc", True),
        ((), "b", True),
        (everybody, "bc", True),
        (everybody, "b", False),
    ):
        node = _that_is_set(core, guard=guard)
        ballot = proposing(node)
        actions = node.hear(*(node.promise(member, ballot) for member in members))
        actions += node.wait(SECOND_US)
        assert bool(sent(actions, Accept)) is decides
    node = _that_is_set(core, guard=everybody)
    node.feed(LinkChanged(peer=NodeId("c"), up=False))
    without = ChangeRequested(ticket=1, roster=node.view.roster[:2])
    assert not _passes(node, 40, ("a",))
    node.feed(without)
    assert _passes(node, 20, ("a",))
