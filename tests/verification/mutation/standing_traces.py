"""Directed traces of whom to believe: contradictions, older disks, empty ones (P10, P30, P29)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_view,
    proposing,
    queued,
    sent,
    tail_of,
)

from sparktxlog.errors import OutdatedError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    FetchPayload,
    PersistOwnRun,
    PersistStanding,
    SendPost,
    TellDoubt,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    JoinRequest,
    Prepare,
    Standing,
    TailRequest,
)
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    FetchFailed,
    FilesLost,
    ForceRequested,
    Greeted,
    PostReceived,
)
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Phase

_OTHER = MergeBase(chain_hash=bytes(31) + b"x")


def a_contradiction_is_the_senders(core: type[Master]) -> None:
    """P10: a node that breaks its promise is not believed any more; no other stops for it."""
    node = Lone(core, suspect_us=SECOND_US)
    node.feed(PostReceived(post=node.post_of("b", node.now + 100)))
    actions = node.push(node.run_of("b", 1, node.now + 50))
    assert node.master.phase in (Phase.NORMAL, Phase.SUSPECT)
    assert [a.peer for a in actions if isinstance(a, TellDoubt)] == ["b"]
    node.now += SECOND_US
    actions = node.submit()
    for _ in range(3):
        node.now += SECOND_US
        posts = [replace(node.post_of(peer, node.now), acquired={"a": 1}) for peer in "bc"]
        actions += node.feed(*(PostReceived(post=post) for post in posts))
    assert node.master.status().suspects == ("b",)
    assert not queued(actions)


def a_queue_corrects_an_origin(core: type[Master]) -> None:
    """P10, P9: an origin named a run wrongly to this node alone; the queue has it right."""
    node = Lone(core)
    header = node.run_of("b", 1, node.now)
    wrong = replace(header, digest=bytes(31) + b"x")
    node.feed(PostReceived(post=node.post_of("b", node.now, wrong)))
    actions = node.feed(tail_of(LOG_ID, entry_of(header, 1, bytes(32))))
    assert not node.master.status().halted, "b's lie stops a healthy member"
    assert [a.header for a in actions if isinstance(a, FetchPayload)] == [header]
    assert [a for a in actions if isinstance(a, Alarm)], "nobody hears of it"
    node.feed(FetchFailed(digest=wrong.digest, reason="unknown"))
    actions = node.wait(60 * SECOND_US)
    assert not [a for a in actions if isinstance(a, FetchPayload)], "nobody has that one"
    assert queued(node.push(header))


def an_origin_corrects_itself(core: type[Master]) -> None:
    """P10: of two members one named a run wrongly; it is named again, and comes."""
    node = Lone(core, votes={"a": 1, "b": 1})
    header = node.run_of("b", 1, node.now)
    wrong = replace(header, digest=bytes(31) + b"x")

    def known(actions: list[Action]) -> int:
        return [a.post.known["b"] for a in actions if isinstance(a, SendPost)][-1]

    actions = node.feed(PostReceived(post=node.post_of("b", node.now, wrong)))
    assert known(actions + node.wait(SECOND_US)) == 1
    node.feed(FetchFailed(digest=wrong.digest, reason="unknown"))
    assert known(node.wait(2 * SECOND_US)) == 0, "b does not name it again"
    node.feed(FetchFailed(digest=wrong.digest, reason="unknown"))
    again = node.post_of("b", node.now, header)
    actions = node.feed(PostReceived(post=again))
    assert [a.header for a in actions if isinstance(a, FetchPayload)] == [header]
    assert not [a for a in actions if isinstance(a, TellDoubt)], "one wrong word is corrected"
    assert [a for a in actions if isinstance(a, Alarm)], "nobody hears of it"
    assert known(actions) == 1
    assert queued(node.push(header)), "the order waits no more"


def an_origin_does_not_correct_a_queue(core: type[Master]) -> None:
    """P10, P9: what a queue has stays, also while its payload cannot be had."""
    node = Lone(core)
    header = node.run_of("b", 1, node.now)
    node.feed(tail_of(LOG_ID, entry_of(header, 1, bytes(32))))
    actions = node.feed(FetchFailed(digest=header.digest, reason="unknown"))
    actions += node.wait(2 * SECOND_US)
    told = [a.post.known["b"] for a in actions if isinstance(a, SendPost)]
    assert set(told) == {1}, "nobody needs to name it again"
    wrong = replace(header, digest=bytes(31) + b"x")
    actions = node.feed(PostReceived(post=node.post_of("b", node.now, wrong)))
    assert [a.peer for a in actions if isinstance(a, TellDoubt)] == ["b"]
    assert queued(node.push(header))


def half_of_the_members_stop_a_node(core: type[Master]) -> None:
    """P10, I1: one member of three with another queue is wrong itself; two are right."""
    node = Lone(core)
    odd = {peer: replace(node.post_of(peer, node.now), base=_OTHER) for peer in "bc"}
    actions = node.feed(PostReceived(post=odd["b"])) + node.submit()
    assert not node.master.status().halted
    assert [a for a in actions if isinstance(a, SendPost)]
    node.feed(PostReceived(post=odd["c"]))
    assert node.master.phase is Phase.FAULT


def of_two_runs_with_one_number_the_more_named_one_counts(core: type[Master]) -> None:
    """P10, P15: a copy of `d`'s disk stamped it again; a holder of the other one only votes.

    Whole nodes, seed 98: each proposer halted in its turn.
    """
    for named, members, counts in (
        ({"b": 1, "c": 2}, ("a", "c"), 2),
        ({"b": 2, "c": 1}, ("a", "b"), 2),
        ({"b": 1, "c": 1, "e": 2}, ("a", "b", "c"), 1),
        ({"b": 1, "c": 2, "e": 2}, ("a", "c", "e"), 2),
    ):
        node = Lone(core, votes=dict.fromkeys(("a", "d", *named), 1), suspect_us=SECOND_US)
        ballot = proposing(node)
        runs = {nth: node.run_of("d", 1, node.now + nth) for nth in (1, 2)}
        actions = node.hear(*(node.promise(who, ballot, runs[nth]) for who, nth in named.items()))
        actions += node.wait(SECOND_US)
        assert not node.master.status().halted, "nobody decides on the next epoch any more"
        flushes = [(m.candidate.members, m.candidate.tail) for m in sent(actions, Flush)]
        assert flushes[:1] == [(members, (runs[counts],))]
        assert [a.text for a in actions if isinstance(a, Alarm) and "another run" in a.text]


def _starts_again(node: Lone, shown: Standing) -> str:
    """Return what a node says to the greeting of `b`, started once more, after an own restart."""
    node.start()
    return node.master.judge("b", replace(shown, start=shown.start + 1, boot="second"))


def who_shows_less_comes_back_as_another(core: type[Master]) -> None:
    """P30: less than what posts showed before, own restarts included, is an older disk."""
    node = Lone(core)
    first = Standing(start=1, boot="first", epoch=1, counter=node.now, seq=4, position=0, held=7)
    assert node.master.judge("b", first) == ""
    node.feed(Greeted(peer=NodeId("b"), standing=first))
    counter = node.now + 60 * SECOND_US
    post = replace(node.post_of("b", counter, last_seq=6), acquired={"a": 3, "b": 6})
    node.feed(PostReceived(post=replace(post, base=MergeBase(position=5))))
    grown = replace(first, counter=counter + 1, seq=6, position=5, held=9)
    assert _starts_again(node, grown) == ""
    for short in (
        replace(grown, counter=counter - 1),
        replace(grown, seq=5),
        replace(grown, position=4),
        replace(grown, held=8),
        replace(grown, epoch=0),
        replace(grown, start=-1),
    ):
        assert _starts_again(node, short), short
    assert node.master.judge("b", replace(first, boot="clone")), "the same start, another process"
    assert node.master.judge("b", replace(first, incarnation=2, start=1, boot="new")) == ""


def who_forgot_its_vote_comes_back_as_another(core: type[Master]) -> None:
    """P30: a witness promised and accepted; with an older disk it must not vote any more."""
    node = Lone(core, votes={"a": 1, "b": 1, "w": 1})
    node.feed(Greeted(peer=NodeId("w"), standing=Standing(start=1, boot="first", epoch=1)))
    ballot = proposing(node)
    assert node.master.judge("w", Standing(start=2, boot="second", epoch=1)) == ""
    actions = node.hear(node.promise("w", ballot)) + node.wait(SECOND_US)
    asked = sent(actions, Accept)
    assert asked, "nothing was proposed"
    promised = Standing(start=2, boot="second", epoch=1, promised=ballot)
    assert node.master.judge("w", promised) == ""
    assert node.master.judge("w", Standing(start=2, boot="second", epoch=1))
    node.hear(replace(node.accepted("w", ballot), epoch=1))
    assert node.master.judge("w", promised)
    assert node.master.judge("w", replace(promised, accepted=ballot)) in ("", "epoch 1, before 2")


def nobody_promises_ahead_of_this_node(core: type[Master]) -> None:
    """P30: a promise that names a later epoch is no answer to anybody here, and binds nobody."""
    node = Lone(core)
    first = Standing(start=1, boot="first", epoch=1)
    node.feed(Greeted(peer=NodeId("b"), standing=first))
    node.hear(replace(node.promise("b", proposing(node)), epoch=2))
    assert node.master.judge("b", replace(first, start=2, boot="second", epoch=2)) == ""


def what_is_held_here_tells(core: type[Master]) -> None:
    """P30: a queue and streams that rest on a node's word tell as much as what is kept of it."""
    node = Lone(core)
    header = node.run_of("b", 1, node.now)
    assert queued(node.feed(tail_of(LOG_ID, entry_of(header, 1, bytes(32)))) + node.push(header))
    back = Standing(start=9, boot="second", epoch=1, seq_now=1, counter_now=header.ts)
    assert node.master.judge("b", replace(back, seq_now=0))
    assert node.master.judge("b", back) == ""
    late = replace(back, seq_now=0, counter_now=0)
    assert node.master.judge("b", late) == "", "an earlier greeting that came late"
    assert node.master.judge("b", replace(late, boot="third"))
    assert node.master.judge("c", replace(back, seq_now=0, counter_now=header.ts - 1))


def standings_are_durable(core: type[Master]) -> None:
    """P30: a first word, a start, and a counter ten seconds further are kept; each post is not."""
    node = Lone(core)
    node.disk.standings.clear()
    node.start()
    kept = [
        len([a for a in actions if isinstance(a, PersistStanding)])
        for actions in (
            node.feed(PostReceived(post=node.post_of("b", node.now + 1))),
            node.feed(PostReceived(post=node.post_of("b", node.now + 2))),
            node.feed(PostReceived(post=node.post_of("b", node.now + 11 * SECOND_US))),
            node.feed(Greeted(peer=NodeId("b"), standing=Standing(start=5, boot="new"))),
        )
    ]
    assert kept == [1, 0, 1, 1]


def nobody_unheard_is_left_out(core: type[Master]) -> None:
    """P29: `c` may have the log that this node and `b` lost: only an operator says it is not."""
    node = Lone(core, suspect_us=SECOND_US)
    del node.disk.standings["c"]
    node.start()

    def passes(seconds: int) -> list[Prepare]:
        started = []
        for _ in range(10 * seconds):
            node.now += SECOND_US // 10
            actions = node.feed(PostReceived(post=node.post_of("b", node.now)))
            number = node.master._succession.suspicion.number
            actions += node.hear(node.answer("b", number, ("a",)))
            started += sent(actions, Prepare)
        return started

    node.submit()
    assert passes(8) == []
    further = Standing(start=1, boot="c", epoch=7, position=9)
    node.feed(Greeted(peer=NodeId("c"), standing=further))
    assert passes(8) == []
    heavy = tuple(replace(seat, weight=2) for seat in node.view.roster)
    node.feed(ChangeRequested(ticket=1, roster=heavy))
    assert passes(4) == []
    node.feed(ChangeRequested(ticket=2, roster=node.view.roster[:2]))
    assert passes(4)


def who_comes_anew_with_nothing_was_heard(core: type[Master]) -> None:
    """P29: `c` lost its disk before others heard it; a log that it brings along is no nothing."""
    request = JoinRequest(
        log_id=LOG_ID,
        epoch=1,
        sender=NodeId("c"),
        incarnation=2,
        base=MergeBase(position=9),
        ts=0,
        counter=0,
    )
    for base, begins in ((request.base, False), (MergeBase(), True)):
        node = Lone(core, suspect_us=SECOND_US)
        del node.disk.standings["c"]
        node.start()
        node.submit()
        started: list[Prepare] = []
        for _ in range(80):
            node.now += SECOND_US // 10
            actions = node.hear(replace(request, base=base))
            actions += node.feed(PostReceived(post=node.post_of("b", node.now)))
            number = node.master._succession.suspicion.number
            started += sent(actions + node.hear(node.answer("b", number, ("a", "c"))), Prepare)
        assert bool(started) is begins


def all_follow_a_forced_log(core: type[Master]) -> None:
    """P23: a node of an earlier epoch, or asked to join, learns of it and follows; a later not."""
    node = Lone(core, votes={"a": 1, "b": 1})
    node.hear(node.letter_of_decision("b", next_view(node.view, "a", "b")))
    node.feed(ForceRequested(ticket=1, log_id="forced"))
    forced = node.master.view
    assert forced.ancestors == ((LOG_ID, 2),)
    for epoch in (0, 1, 2, 3):
        node.now += SECOND_US
        asks = TailRequest(
            log_id=LOG_ID,
            epoch=epoch,
            sender=NodeId("b"),
            incarnation=1,
            position=0,
            chain_hash=bytes(32),
        )
        told = [decide.view for decide in sent(node.hear(asks), Decide)]
        assert told == ([forced] if epoch <= 2 else [])
        other = Lone(core, "b", {"a": 1, "b": 1}, epoch=epoch)
        other.hear(other.letter_of_decision("a", forced))
        assert (other.master.view == forced) == (epoch <= 2)


def an_empty_disk_binds_nobody(core: type[Master]) -> None:
    """P30: an empty disk was in the place of one that is further; that one is no older one."""
    node = Lone(core)
    empty = Standing(start=1, boot="empty", epoch=1, counter=node.now)
    node.feed(Greeted(peer=NodeId("b"), standing=empty))
    assert node.master.is_blank("b")
    full = Standing(start=1, boot="full", epoch=1, counter=1, seq=3, seq_now=3, position=3)
    assert node.master.judge("b", full) == ""
    node.feed(Greeted(peer=NodeId("b"), standing=full))
    assert not node.master.is_blank("b")
    assert node.master.judge("b", replace(full, start=2, boot="older", position=2))


def an_empty_disk_that_was_told_of_an_epoch_binds_nobody(core: type[Master]) -> None:
    """P29, P30: the true disk may come back in its place, unless it lacks that epoch."""
    for epoch, counter, binds in ((1, 7, False), (19, 0, False), (19, 7, True)):
        node = _that_never_heard(core)
        shown = Standing(start=1, boot="empty", epoch=epoch, counter=counter)
        node.feed(Greeted(peer=NodeId("b"), standing=shown))
        assert node.master.is_blank("b") is not binds
    node = _that_never_heard(core)
    node.feed(Greeted(peer=NodeId("b"), standing=Standing(start=1, boot="empty", epoch=19)))
    full = Standing(start=7, boot="full", epoch=19, counter=5, seq=3, seq_now=3, position=3)
    assert not node.master.judge("b", full)
    assert node.master.judge("b", replace(full, epoch=18)), "it may have voted in epoch 18"


def _that_never_heard(core: type[Master]) -> Lone:
    node = Lone(core)
    node.disk.standings.clear()
    node.start()
    return node


def who_the_log_has_as_a_later_one_comes_back(core: type[Master]) -> None:
    """P30: its place went to another disk while it was away; as what it was nobody admits it."""
    node = Lone(core)
    roster = tuple(replace(s, incarnation=1 + (s.node_id == "a")) for s in node.view.roster)
    view = replace(next_view(node.view, "b", "c"), roster=roster)
    actions = node.hear(node.letter_of_decision("b", view))
    assert node.master.view == view, "it comes back behind what the log knows"
    assert [a.code for a in actions if isinstance(a, Alarm)] == [OutdatedError.code]
    node = Lone(core)
    actions = node.feed(tail_of(LOG_ID, entry_of(node.run_of("a", 1, node.now), 1, bytes(32))))
    assert [a.code for a in actions if isinstance(a, Alarm)] == [OutdatedError.code]


def another_has_another_counter(core: type[Master]) -> None:
    """P30: of a later incarnation nobody knows a promise: what it stamped far ahead is no floor."""
    node = Lone(core)
    node.off_us = 100 * SECOND_US
    node.submit()
    assert node.disk.incoming
    node.off_us = 0
    node.disk.join_anew(2, first_ticket=7)
    node.config = replace(node.config, incarnation=2, epoch=0)
    node.start()
    assert node.master.next_stamp < node.now + SECOND_US


def a_run_of_an_earlier_incarnation_is_not_refused_before_its_outcome(core: type[Master]) -> None:
    """P1a, P30: it may be ordered under its former stamp, which a member's queue shows."""
    node = Lone(core)
    (header,) = [a.header for a in node.submit() if isinstance(a, PersistOwnRun)]
    node.disk.join_anew(2, first_ticket=7)
    node.submits[7] = node.disk.announcements[7]
    node.config = replace(node.config, incarnation=2, epoch=0)
    node.start()
    lost = FilesLost(digest=header.digest, text="damaged")
    assert not [a for a in node.feed(lost) if isinstance(a, TellRejected)]
    assert node.disk.announcements, "it is looked at again"
