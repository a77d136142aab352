"""Directed traces of clocks that are wrong, and of what they make others say: C1, C3."""

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
    sent,
    tail_of,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    FetchPayload,
    PersistForeignRun,
    SendPost,
    TellAccepted,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Accepted,
    Flush,
    Flushed,
    JoinRequest,
    Prepare,
    Probe,
    Promise,
    Vote,
)
from sparktxlog.protocol.messages.events import ChangeRequested, LinkChanged, PostReceived
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Phase

HOUR_US = 3_600 * SECOND_US
YEAR_US = 8_766 * HOUR_US


def _posts(node: Lone, peers: str = "bc") -> list[Action]:
    """Let other members, whose clocks are right, post a few times."""
    actions = []
    for _ in range(4):
        node.now += SECOND_US
        for peer in peers:
            post = replace(node.post_of(peer, node.now), wall=node.now)
            actions += node.feed(PostReceived(post=post))
    return actions


def _promised(actions: list[Action]) -> int:
    return max((a.post.counter for a in actions if isinstance(a, SendPost)), default=0)


def wrong_once_is_forgiven(core: type[Master]) -> None:
    """C3: a node whose clock was an hour ahead takes submits as soon as it is right again."""
    node = Lone(core)
    node.off_us = HOUR_US
    _posts(node)
    assert [a for a in node.submit() if isinstance(a, TellRejected)]
    node.wait(2 * SECOND_US)
    node.off_us = 0
    node.start()
    actions = _posts(node)
    assert _promised(actions) > node.now + HOUR_US // 2
    assert max(a.post.wall for a in actions if isinstance(a, SendPost)) <= node.now
    assert [a for a in node.submit() if isinstance(a, TellAccepted)]


def a_jump_waits_for_the_others(core: type[Master]) -> None:
    """C3: a clock that is suddenly a year ahead moves no timestamp until the members' agree."""
    node = Lone(core)
    _posts(node)
    node.off_us = YEAR_US
    node.start()
    actions = node.submit() + _posts(node) + node.wait(2 * SECOND_US)
    assert _promised(actions) < node.now + 10 * SECOND_US


def all_clocks_agree(core: type[Master]) -> None:
    """C1: members that were all stopped for days go on with the time of now."""
    node = Lone(core)
    _posts(node)
    node.now += 60 * HOUR_US
    node.start()
    assert _promised(_posts(node) + node.wait(2 * SECOND_US)) > node.now - 4 * SECOND_US


def ahead_it_slows_down(core: type[Master]) -> None:
    """C1: ahead of its wall clock the log clock goes on, at half the speed, and is caught up."""
    node = Lone(core)
    _posts(node, "c")
    ahead = node.run_of("b", 1, node.now + HOUR_US)
    node.push(ahead)
    node.now += HOUR_US
    later = _promised(_posts(node, "c") + node.wait(2 * SECOND_US))
    assert ahead.ts + HOUR_US // 3 < later < ahead.ts + HOUR_US * 2 // 3
    node.now += 2 * HOUR_US
    assert _promised(_posts(node, "c") + node.wait(2 * SECOND_US)) <= node.now


def what_is_gone_moves_no_clock(core: type[Master]) -> None:
    """C1: a header that is in no final queue raises no log clock in the next epoch."""
    node = Lone(core)
    _posts(node)
    late = node.run_of("b", 1, node.now + 23 * HOUR_US)
    candidate = replace(next_view(node.view, "a", "b", "c"), tail=(late,))
    ballot = Ballot(number=1, node="b")
    flush = Flush(
        sender=NodeId("b"),
        incarnation=1,
        view=node.view,
        ballot=ballot,
        candidate=candidate,
        holder=NodeId("b"),
    )
    node.hear(node.prepare("b", 1), flush)
    node.hear(node.letter_of_decision("c", next_view(node.view, "a", "c")))
    assert node.master.phase is Phase.NORMAL
    assert _promised(node.wait(5 * SECOND_US)) < node.now + HOUR_US


# -- what others say -------------------------------------------------------------------------------


def five_runs_move_no_clock(core: type[Master]) -> None:
    """C3: each 23 h ahead of what came before, runs of a peer move a clock by 24 h at most."""
    node = Lone(core)
    _posts(node, "c")
    for seq in range(1, 6):
        node.push(node.run_of("b", seq, max(node.master._counter.value, node.now) + 23 * HOUR_US))
        node.wait(SECOND_US)
    assert node.master.phase is Phase.NORMAL
    assert _promised(node.wait(5 * SECOND_US)) < node.now + 25 * HOUR_US


def who_is_no_member_has_no_time(core: type[Master]) -> None:
    """C3: a witness and a node about to join, started long ago, take what members take."""
    for own, off_us in (("w", -YEAR_US), ("d", 0)):
        node = Lone(core, own, votes={"a": 1, "b": 1, "c": 1, "w": 1})
        node.now += 2 * YEAR_US
        node.off_us = off_us
        node.start()
        asks = JoinRequest(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId("c"),
            incarnation=2,
            base=MergeBase(),
            ts=0,
            counter=node.now,
        )
        assert not [a for a in node.hear(asks) if isinstance(a, Alarm)], own
    pushed = node.push(node.run_of("b", 1, node.now))
    assert [a for a in pushed if isinstance(a, PersistForeignRun)]


def late_headers_are_refused(core: type[Master]) -> None:
    """C3: a run that its origin stamped later than can be is neither wanted nor kept."""
    node = Lone(core)
    _posts(node, "c")
    actions = []
    for ts in (node.now + YEAR_US, 1 << 63, (1 << 64) - 1):
        header = node.run_of("b", 1, ts)
        post = replace(node.post_of("b", node.now, header), round=1 + ts % 7)
        actions += node.feed(PostReceived(post=post)) + node.push(header)
        actions += node.push(node.run_of("b", 2, ts)) + node.wait(2 * SECOND_US)
    assert not [a for a in actions if isinstance(a, PersistForeignRun | FetchPayload)]
    assert node.master.phase is Phase.NORMAL
    header = node.run_of("b", 1, node.now)
    assert [a for a in node.push(header) if isinstance(a, PersistForeignRun)]


def late_tails_are_refused(core: type[Master]) -> None:
    """C3: a tail says nothing that no member can have promised."""
    node = Lone(core)
    _posts(node, "c")
    for ts in (node.now + YEAR_US, 1 << 63):
        entry = entry_of(node.run_of("b", 1, ts), 1, bytes(32))
        actions = node.feed(tail_of(LOG_ID, entry)) + node.push(entry.header)
        assert not [a for a in actions if isinstance(a, PersistForeignRun | FetchPayload)]
        assert node.master.phase is Phase.NORMAL


def late_candidates_are_refused(core: type[Master]) -> None:
    """C3: no epoch change moves a clock: neither flush nor vote for a run stamped far ahead."""
    for ts in (YEAR_US, 1 << 63):
        node = Lone(core)
        _posts(node)
        node.hear(node.prepare("c", 1))
        late = node.run_of("c", 1, node.now + ts)
        candidate = replace(next_view(node.view, "a", "b", "c"), tail=(late,))
        ballot = Ballot(number=1, node="c")
        flush = Flush(
            sender=NodeId("c"),
            incarnation=1,
            view=node.view,
            ballot=ballot,
            candidate=candidate,
            holder=NodeId("c"),
        )
        actions = node.hear(flush, node.accept("c", 1, candidate)) + node.push(late)
        assert not sent(actions, Flushed)
        assert not [a for a in actions if isinstance(a, PersistForeignRun)]


def late_promises_do_not_count(core: type[Master]) -> None:
    """C3: a holder of a run stamped far ahead brings it into no final queue."""
    node = Lone(core)
    ballot = proposing(node)
    late = node.run_of("c", 1, node.now + YEAR_US)
    actions = node.hear(node.promise("c", ballot, late)) + node.wait(SECOND_US // 2)
    assert not sent(actions, Flush) + sent(actions, Accept)
    actions = node.hear(node.promise("b", ballot))
    assert [m.candidate.tail for m in sent(actions, Accept)][:1] == [()]


def who_holds_late_runs_votes(core: type[Master]) -> None:
    """C3: a node that stamped far ahead has its votes, and nothing of it is waited for."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 2})
    ballot = proposing(node)
    late = node.run_of("c", 1, node.now + YEAR_US)
    actions = node.hear(node.promise("c", ballot, late), node.promise("b", ballot))
    candidates = [m.candidate for m in sent(actions + node.wait(SECOND_US // 2), Accept)]
    assert [(view.members, view.tail) for view in candidates][:1] == [(("a", "b"), ())]


def one_does_not_judge_most(core: type[Master]) -> None:
    """C3: a node to whom more are too late than are not leaves nobody out: it is the wrong one."""
    node = Lone(core)
    everywhere = replace(next_view(node.view, "a", "b", "c"), quorum_rule="all")
    node.hear(node.prepare("b", 1), node.letter_of_decision("b", everywhere))
    node.view = everywhere
    ballot = proposing(node)
    late = [replace(node.run_of(n, 1, node.now + YEAR_US), epoch=2) for n in "bc"]
    promises = [node.promise(run.origin, ballot, run) for run in late]
    actions = node.hear(*(replace(one, epoch=2) for one in promises)) + node.wait(SECOND_US // 2)
    assert not sent(actions, Flush) + sent(actions, Accept)


def late_votes_bind_if_decided(core: type[Master]) -> None:
    """C3, P15: a vote for runs stamped far ahead counts, unless nothing can be decided by it."""
    node = Lone(core)
    late = node.run_of("c", 1, node.now + YEAR_US)
    voted = replace(next_view(node.view, "c"), tail=(late,))
    vote = Vote(ballot=Ballot(number=1, node="c"), view=voted)
    ballot = proposing(node, 2)
    actions = node.hear(
        node.promise("c", ballot, late, accepted=vote), node.promise("b", ballot)
    ) + node.wait(SECOND_US // 2)
    assert [m.candidate.members for m in sent(actions, Accept)][:1] == [("a", "b")]
    node = Lone(core, votes={"a": 1, "b": 1, "c": 2})
    ballot = proposing(node, 2)
    actions = node.hear(
        node.promise("c", ballot, late, accepted=vote), node.promise("b", ballot)
    ) + node.wait(SECOND_US // 2)
    assert [m.candidate.members for m in sent(actions, Accept)][:1] == [("a", "b")]
    node = Lone(core, votes={"a": 1, "b": 1, "c": 1, "w": 2})
    ballot = proposing(node, 2)
    actions = node.hear(
        node.promise("c", ballot, late, accepted=vote), node.promise("b", ballot)
    ) + node.wait(SECOND_US // 2)
    assert [m.candidate for m in sent(actions, Accept)][:1] == [voted], "c and w may have decided"
    assert sent(node.hear(node.accept("c", 9, voted)), Accepted), "it voted so before"


def no_ballot_leaps(core: type[Master]) -> None:
    """C3: a ballot number that leaves none for others is nobody's."""
    node = Lone(core)
    leap = (1 << 64) - 1
    node.hear(node.prepare("b", leap))
    node.hear(node.accept("b", leap, next_view(node.view, "a", "b")))
    assert sent(node.hear(node.prepare("c", 5)), Promise)
    node = Lone(core)
    ballot = proposing(node)
    node.hear(node.refusal("b", ballot, Ballot(number=leap, node="b")))
    started = [m.ballot.number for m in sent(node.wait(20 * SECOND_US), Prepare)]
    assert started
    assert max(started) < leap


# -- members that promise nothing of use -----------------------------------------------------------


def _busy(
    node: Lone,
    seconds: int,
    counter_us: int,
    *,
    waits: bool = False,
    deaf: bool = False,
    complains: bool = False,
    last_seq: int = 0,
) -> tuple[list[Action], bool]:
    """Let `b` promise, `c` promise something else, and both answer probes.

    Args:
        waits: `c` says that transactions wait there.
        deaf: `c` does not hear this node.
        complains: `c` says so, and answers no probe.
        last_seq: Number of the last transaction of `c`.

    Returns:
        What the node does until it starts a ballot, and whether it does.
    """
    actions: list[Action] = []
    for _ in range(10 * seconds):
        node.now += SECOND_US // 10
        for peer, ahead in (("b", SECOND_US), ("c", counter_us)):
            post = replace(node.post_of(peer, node.now + ahead), wall=node.now)
            if peer == "c":
                known = {} if deaf else post.known
                post = replace(post, busy=waits, known=known, last_seq=last_seq)
            actions += node.feed(PostReceived(post=post))
        if complains:
            actions += node.hear(_complaint(node))
        for probe in sent(actions[-20:], Probe)[-1:]:
            there = "b" if complains else "bc"
            actions += node.hear(*(node.answer(peer, probe.number, ("a", "b")) for peer in there))
        if sent(actions, Prepare):
            return actions, True
    return actions, False


def a_promise_of_no_use_evicts(core: type[Master]) -> None:
    """C3, P13: a member that is heard, and whose promise nobody can use, is evicted."""
    node = Lone(core, suspect_us=SECOND_US)
    _busy(node, 1, -9 * SECOND_US)
    node.submit()
    actions, started = _busy(node, 8, YEAR_US)
    assert started
    ballot = sent(actions, Prepare)[-1].ballot
    actions = node.hear(node.promise("c", ballot), node.promise("b", ballot))
    actions += node.wait(SECOND_US // 2)
    candidates = [m.candidate for m in sent(actions, Flush) + sent(actions, Accept)]
    assert candidates
    assert candidates[0].members == ("a", "b"), "although it promised"


def what_waits_at_the_useless_counts(core: type[Master]) -> None:
    """C3, P13: transactions wait at a member of which nothing is taken; it is evicted for them."""
    for waits in (False, True):
        node = Lone(core, suspect_us=SECOND_US)
        _busy(node, 1, -9 * SECOND_US)
        assert _busy(node, 6, YEAR_US, waits=waits)[1] == waits


def who_does_not_hear_is_of_no_use(core: type[Master]) -> None:
    """P13: a member that promises, and never learns of what this node stamps, is evicted."""
    for deaf in (False, True):
        node = Lone(core, suspect_us=SECOND_US)
        _busy(node, 1, SECOND_US)
        node.submit()
        assert _busy(node, 6, SECOND_US, deaf=deaf)[1] == deaf


def _complaint(node: Lone) -> Probe:
    """Return what `c` says when it does not hear this node."""
    return Probe(
        log_id=LOG_ID,
        epoch=1,
        sender=NodeId("c"),
        incarnation=1,
        number=1,
        suspects=(NodeId("a"),),
    )


def who_went_deaf_is_of_no_use(core: type[Master]) -> None:
    """P13: a member that knows of a run, lacks it and complains of its origin, is evicted."""
    for complains in (False, True):
        node = Lone(core, suspect_us=SECOND_US)
        _busy(node, 1, SECOND_US)
        node.submit()
        assert _busy(node, 6, SECOND_US, complains=complains)[1] == complains
    node = Lone(core, suspect_us=SECOND_US)
    _busy(node, 1, SECOND_US)
    node.submit()
    node.hear(_complaint(node))
    assert not _busy(node, 6, SECOND_US)[1], "it hears this node again, and fetches"


def who_gives_no_payload_is_of_no_use(core: type[Master]) -> None:
    """P13: a deaf member whose run waits first, and cannot be fetched, is evicted."""
    for complains in (False, True):
        node = Lone(core, suspect_us=SECOND_US)
        _busy(node, 1, SECOND_US)
        ts = node.now + 2 * SECOND_US  # after all that it has promised
        post = replace(node.post_of("c", ts, node.run_of("c", 1, ts)), wall=node.now)
        node.feed(PostReceived(post=post))
        assert _busy(node, 6, 3 * SECOND_US, complains=complains, last_seq=1)[1] == complains


def who_is_back_is_waited_for(core: type[Master]) -> None:
    """P13: what nobody could use before all stood still is nothing against one that came back."""
    node = Lone(core, suspect_us=SECOND_US)
    _busy(node, 1, SECOND_US)
    node.submit()
    _busy(node, 1, SECOND_US, deaf=True)
    node.hear(node.prepare("b", 1))
    for up in (False, True):
        node.feed(LinkChanged(peer=NodeId("c"), up=up))
    node.hear(node.answer("c", 0))
    ballot = next_ballot(node)
    actions = node.hear(node.promise("b", ballot)) + node.hear(node.promise("c", ballot))
    candidates = [m.candidate for m in sent(actions, Flush) + sent(actions, Accept)]
    assert {candidate.members for candidate in candidates} == {("a", "b", "c")}


def last_words_keep_nobody(core: type[Master]) -> None:
    """P13: a node that is heard while its link is down owes another word, also in a quiet log."""
    node = Lone(core, suspect_us=SECOND_US)
    _busy(node, 1, SECOND_US)
    node.feed(LinkChanged(peer=NodeId("c"), up=False))
    node.feed(PostReceived(post=node.post_of("c", node.now)))
    assert not node.master.status().suspects
    node.wait(2 * SECOND_US)
    assert node.master.status().suspects == ("c",)


def who_is_of_no_use_votes_when_asked(core: type[Master]) -> None:
    """C3, P13: a member of no use, with most votes, is left out by them if an operator asks."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 3}, suspect_us=SECOND_US)
    _busy(node, 1, -9 * SECOND_US)
    assert not _busy(node, 6, YEAR_US, waits=True)[1], "nobody asked: c may be right"
    roster = tuple(replace(s, weight=0) if s.node_id == "c" else s for s in node.view.roster)
    node.feed(ChangeRequested(ticket=1, roster=roster))
    assert _busy(node, 6, YEAR_US, waits=True)[1]


def a_promise_that_grows_has_time(core: type[Master]) -> None:
    """C3, P13: a member whose promises come late, and come, is not evicted at once."""
    node = Lone(core, suspect_us=SECOND_US)
    _busy(node, 1, -9 * SECOND_US)
    node.submit()
    assert not _busy(node, 4, -9 * SECOND_US)[1]
    assert _busy(node, 4, -9 * SECOND_US)[1], "but it is at last"


def who_counts_too_far_is_not_admitted(core: type[Master]) -> None:
    """C3, P21: a node that would promise what nobody can use stays outside."""
    for counter, admitted in ((YEAR_US, False), (0, True)):
        node = Lone(core, votes={"a": 1, "b": 1, "c": 1}, suspect_us=SECOND_US)
        evicted = next_view(node.view, "a", "b")
        node.hear(node.prepare("b", 1), node.letter_of_decision("b", evicted))
        asked = JoinRequest(
            log_id=LOG_ID,
            epoch=2,
            sender=NodeId("c"),
            incarnation=1,
            base=MergeBase(),
            ts=0,
            counter=node.now + counter,
        )
        actions: list[Action] = []
        for _ in range(30):
            node.now += SECOND_US // 10
            actions += node.hear(replace(asked, counter=node.now + counter))
            for probe in sent(actions, Probe)[-1:]:
                answers = (node.answer(peer, probe.number, ("a", "b", "c")) for peer in "bc")
                actions += node.hear(*(replace(one, epoch=2) for one in answers))
        assert bool(sent(actions, Prepare)) == admitted
