"""Directed traces of nodes that come back late, or stand aside (protocol P16, P21, P37)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_view,
    sent,
    tail_of,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, FetchPayload
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    Flush,
    Flushed,
    JoinRequest,
    Prepare,
    Probe,
    ProbeAnswer,
    TailRequest,
)
from sparktxlog.protocol.messages.events import StoodAside
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Ballot, Phase, View

#: Transactions that `a` orders in a second; a step is a twentieth of that.
_RATE, _STEP_US = 100, SECOND_US // 20


class _Slow:
    """`a` goes on alone; `c` asks to be admitted, and fetches what it lacks in its own time.

    Args:
        lacks: Transactions that `c` lacks in the beginning.
        speed: Transactions that `c` fetches in a second.
        told: Whether `c` answers when it is asked to flush.
    """

    def __init__(
        self, core: type[Master], lacks: int, *, speed: int = _RATE, told: bool = True
    ) -> None:
        self.node = Lone(core, votes={"a": 2, "c": 1}, suspect_us=SECOND_US)
        self._speed, self._told = speed, told
        self.node.hear(Decide(sender=NodeId("c"), view=next_view(self.node.view, "a")))
        for _ in range(0, lacks, 50):  # a mutation may order none
            self.node.submit(min(50, lacks - self._end))
        assert self._end == lacks
        self._position = 0
        #: When `c` was first asked to flush, attempt by attempt.
        self.tried: list[int] = []
        self._ballots: set[tuple[int, Ballot]] = set()

    @property
    def _end(self) -> int:
        return self.node.master.base.position

    @property
    def admitted(self) -> bool:
        return "c" in self.node.master.view.members

    def let_pass(self, microseconds: int) -> None:
        """Let time pass until `c` is admitted."""
        until = self.node.now + microseconds
        while self.node.now < until and not self.admitted:
            self.node.now += _STEP_US
            if self.node.master.phase is Phase.NORMAL:
                self.node.submit(_RATE // 20)
            self._position = min(self._end, self._position + self._speed // 20)
            self._play(self.node.hear(self._wish()))

    def _wish(self) -> JoinRequest:
        return JoinRequest(
            log_id=LOG_ID,
            epoch=self.node.master.view.epoch,
            sender=NodeId("c"),
            incarnation=1,
            base=MergeBase(position=self._position),
            ts=0,
        )

    def _play(self, actions: list[Action]) -> None:
        node, epoch = self.node, self.node.master.view.epoch
        for probe in sent(actions, Probe):
            answer: ProbeAnswer = node.answer("c", probe.number, ("a",))
            self._play(node.hear(replace(answer, epoch=epoch)))
        for flush in sent(actions, Flush):
            if (epoch, flush.ballot) not in self._ballots:
                self._ballots.add((epoch, flush.ballot))
                self.tried.append(node.now)
            missing = self._position - self._end
            if self._told:
                said: Flushed = node.flushed("c", flush.ballot, missing)
                self._play(node.hear(replace(said, epoch=epoch)))
        for accept in sent(actions, Accept):
            self._play(node.hear(replace(node.accepted("c", accept.ballot), epoch=epoch)))


def a_joiner_has_time_while_it_gains(core: type[Master]) -> None:
    """P16: what it reports shows that it will be done in twice the patience: it is waited for."""
    slow = _Slow(core, 3 * _RATE // 2)
    slow.let_pass(10 * SECOND_US)
    assert slow.admitted and len(slow.tried) == 1, slow.tried
    slow = _Slow(core, 3 * _RATE // 2, told=False)
    for _ in range(10 * SECOND_US // _STEP_US):
        if not slow.tried:
            slow.let_pass(_STEP_US)
    assert slow.tried
    slow.let_pass(3 * SECOND_US // 4)
    assert slow.node.master.phase is Phase.NORMAL, "who says nothing has half of the patience"


def a_joiner_that_gains_is_tried_again_soon(core: type[Master]) -> None:
    """P21: one that comes nearer by the attempts is tried again after half of the patience."""
    slow = _Slow(core, 4 * _RATE)
    slow.let_pass(20 * SECOND_US)
    pauses = [later - at for at, later in pairwise(slow.tried)]
    assert slow.admitted and pauses and max(pauses) < 3 * SECOND_US, pauses
    slow = _Slow(core, 4 * _RATE, speed=0)
    slow.let_pass(20 * SECOND_US)
    assert not slow.tried, "one that stands still would stop everybody for nothing"


def who_failed_elsewhere_is_left_alone(core: type[Master]) -> None:
    """P21: an attempt of any node stops all: the next one comes later at each node."""
    for failed in (False, True):
        node = Lone(core, suspect_us=SECOND_US)
        ballot = Ballot(number=1, node="b")
        asked = Flush(
            sender=NodeId("b"),
            incarnation=1,
            view=node.view,
            ballot=ballot,
            candidate=_with_c_anew(node),
            holder=NodeId("b"),
        )
        node.hear(node.prepare("b", 1))
        if failed:
            node.hear(asked)
        view = next_view(node.view, "a", "b")
        node.hear(Decide(sender=NodeId("b"), view=view))
        started: list[Prepare] = []
        for _ in range(18):
            node.now += SECOND_US // 10
            wish = JoinRequest(
                log_id=LOG_ID, epoch=2, sender=NodeId("c"), incarnation=2, base=MergeBase(), ts=0
            )
            actions = node.hear(wish)
            answers = [
                replace(node.answer(peer, probe.number, ("a", "b", "c")), epoch=2)
                for probe in sent(actions, Probe)
                for peer in "bc"
            ]
            started += sent(actions + node.hear(*answers), Prepare)
        assert bool(started) is not failed


def _with_c_anew(node: Lone) -> View:
    view = next_view(node.view, "a", "b", "c")
    roster = tuple(
        replace(seat, incarnation=2) if seat.node_id == "c" else seat for seat in view.roster
    )
    return replace(view, roster=roster)


def a_few_runs_with_files_are_fetched_at_once(core: type[Master]) -> None:
    """P3a: what waits behind many fetches would come too late, once an epoch began meanwhile."""
    node = Lone(core)
    previous, entries = bytes(32), []
    for seq in range(1, 101):
        header = replace(node.run_of("b", seq, node.now + seq), staged_bytes=9 if seq < 100 else 0)
        entries.append(entry_of(header, seq, previous))
        previous = entries[-1].chain_hash
    actions = node.feed(tail_of(LOG_ID, *entries)) + node.wait(SECOND_US)
    fetched = {a.header.seq for a in actions if isinstance(a, FetchPayload)}
    assert fetched == {*range(1, 33), 100}
    actions = node.push(entries[0].header)
    assert {a.header.seq for a in actions if isinstance(a, FetchPayload)} == {33}


def who_is_slow_is_left_out(core: type[Master]) -> None:
    """P37: a member whose disk is slow is left out although it answers; its vote is not awaited."""
    node = Lone(core, suspect_us=SECOND_US)
    node.feed(StoodAside(nodes=frozenset({NodeId("c")})))
    probes = sent(node.wait(SECOND_US), Probe)
    assert probes, "a member that stands aside is waited for"
    heard = tuple(node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc")
    started = sent(node.hear(*heard), Prepare)
    for _ in range(10):
        started = started or sent(node.wait(SECOND_US // 20), Prepare)
    assert started, "nobody is left out"
    accepts = sent(node.hear(node.promise("b", started[0].ballot)), Accept)
    assert {one.candidate.members for one in accepts} == {("a", "b")}


def too_many_that_are_slow_stay(core: type[Master]) -> None:
    """P37: two members stay, and as many as synchronous runs need: else each waits for the slow."""
    for votes, slow in (({"a": 2, "b": 1}, "b"), ({"a": 3, "b": 3, "c": 1, "d": 1}, "cd")):
        node = Lone(core, votes=votes, suspect_us=SECOND_US)
        actions = node.feed(StoodAside(nodes=frozenset(map(NodeId, slow))))
        for _ in range(20):
            for probe in sent(actions, Probe):
                heard = (node.answer(name, probe.number, tuple(votes)) for name in votes)
                actions += node.hear(*heard)
            assert not sent(actions, Prepare), f"{slow} of {', '.join(votes)} are left out"
            actions = node.wait(SECOND_US // 10)


def who_stands_aside_follows(core: type[Master]) -> None:
    """P37: it fetches the queue, and asks to be admitted once it is quick, or needed."""
    for needed in (False, True):
        node = Lone(core, own="c", suspect_us=SECOND_US)
        node.feed(StoodAside(nodes=frozenset({NodeId("c")})))
        view = next_view(node.view, "a", "b")
        actions = node.hear(Decide(sender=NodeId("a"), view=view)) + node.wait(10 * SECOND_US)
        assert sent(actions, TailRequest) and not sent(actions, JoinRequest)
        if needed:
            alone = next_view(view, "a")
            actions = node.hear(Decide(sender=NodeId("a"), view=alone))
        else:
            actions = node.feed(StoodAside(nodes=frozenset()))
        assert sent(actions + node.wait(10 * SECOND_US), JoinRequest)


def who_stands_aside_is_not_admitted(core: type[Master]) -> None:
    """P37: what it asked for before it became slow does not bring it back."""
    slow = _Slow(core, 0)
    slow.node.feed(StoodAside(nodes=frozenset({NodeId("c")})))
    slow.let_pass(3 * SECOND_US)
    assert slow.admitted, "one member is not enough: it stays needed, slow or not"

    node = Lone(core, votes={"a": 2, "b": 1, "c": 1}, suspect_us=SECOND_US)
    node.hear(Decide(sender=NodeId("b"), view=next_view(node.view, "a", "b")))
    node.feed(StoodAside(nodes=frozenset({NodeId("c")})))
    epoch = node.master.view.epoch
    wish = JoinRequest(
        log_id=LOG_ID, epoch=epoch, sender=NodeId("c"), incarnation=1, base=MergeBase(), ts=0
    )
    assert not sent(node.hear(wish) + node.wait(SECOND_US), Probe)
