"""Mutations of how an epoch is decided (protocol P11–P17)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.epoch.proposer import Intent, Proposer, Stage
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.suspicion import Suspicion
from sparktxlog.protocol.epoch.union import FinalQueue, end_of, final_queue
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.origin_queues import Run, Stream
from sparktxlog.protocol.order.posting import Snapshot
from sparktxlog.protocol.words.actions import Action
from sparktxlog.protocol.words.balloting import BallotState, MemberState, Vote
from sparktxlog.protocol.words.events import RunSubmitted
from sparktxlog.protocol.words.messages import Post, RunHeader
from sparktxlog.protocol.words.outbox import Outbox
from sparktxlog.protocol.words.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.words.view import Ballot, Phase, View

# -- P11, P12, P13 ---------------------------------------------------------------------------------


def new_voters(self: Proposer, node: str) -> bool:
    """Count the votes of the view that is to come."""
    self.accepted.add(node)
    return self.candidate is not None and self.candidate.elects(self.accepted)


def any_vote(self: View, voters: Iterable[str]) -> bool:
    """Let one vote decide."""
    present = set(voters)
    return any(seat.weight for seat in self.roster if seat.node_id in present)


def half(self: View, voters: Iterable[str]) -> bool:
    """Let half of the votes decide."""
    present = set(voters)
    total = sum(seat.weight for seat in self.roster)
    return 2 * sum(seat.weight for seat in self.roster if seat.node_id in present) >= total


def any_member(self: View, answering: Iterable[str]) -> bool:
    """Be content with what one member holds."""
    return bool(set(self.members).intersection(answering))


def new_quorum(self: Proposer, added: set[NodeId], now: int) -> bool:
    """Count the answers by the quorum that is to come."""
    view = replace(self.view, quorum_rule=self.intent.quorum_rule or self.view.quorum_rule)
    return (
        view.elects(self._promises.keys() | added)
        and view.preserves(self._states().keys() | added)
        and self._awaited(now) <= added
    )


def allows_always(
    self: Suspicion, view: View, absent: Iterable[str], now: int, voting: Iterable[str] = ()
) -> bool:
    """Start without asking whether the change can succeed."""
    return True


def overdue_at_once(self: Suspicion, members: Iterable[NodeId], now: int) -> frozenset[NodeId]:
    """Take a suspect for dead without having tried it for a while."""
    return frozenset(self.suspects(members, now))


class DutyAlone(Succession):
    """Evict others only where it is the first in precedence, and nobody if that one is missing."""

    def _propose(self, intent: Intent, now: int) -> None:
        view = self._host.view
        at_work = self._host.phase is not Phase.WEDGED and intent.absent
        if not at_work or intent.joiners or view.members[0] == self._config.node_id:
            super()._propose(intent, now)


def retried_as_is(intent: Intent, **changes: Any) -> Intent:
    """Leave in a retry what was wanted, the change of the roster included."""
    return intent


# -- P14 -------------------------------------------------------------------------------------------


class Loose(Ordering):
    """A wedge that leaves some things running; it then posts as well, what it did shows."""

    stamps = acquires = adds = False
    frozen_posts = False
    _ready = False
    _wedged = False
    _last: Snapshot | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._ready = True

    def freeze(self, now: int) -> None:
        """Freeze in name; what is frozen from the start, as no member, stays so."""
        self._wedged = self._ready
        super().freeze(now)

    @contextlib.contextmanager
    def _thawed(self) -> Iterator[None]:
        self.frozen = False
        try:
            yield
        finally:
            self.frozen = True

    def on_post(self, post: Post, now: int) -> None:
        """Collect although wedged."""
        if self._wedged and (self.acquires or self.adds):
            with self._thawed():
                super().on_post(post, now)
        else:
            super().on_post(post, now)

    def on_payload(self, header: RunHeader, facts: RunFacts, now: int) -> None:
        """Acquire although wedged."""
        if self._wedged and self.acquires:
            with self._thawed():
                super().on_payload(header, facts, now)
        else:
            super().on_payload(header, facts, now)

    def on_submit(self, submit: RunSubmitted, now: int) -> None:
        """Stamp although wedged."""
        if self._wedged and self.stamps:
            with self._thawed():
                super().on_submit(submit, now)
        else:
            super().on_submit(submit, now)

    def flush(self, now: int) -> None:
        """Add and post although wedged."""
        super().flush(now)
        if self._wedged:
            with self._thawed():
                if self.adds:
                    self._add(now)
                self._post(now)

    def _snapshot(self, now: int) -> Snapshot:
        if self._wedged and self.frozen_posts and self._last is not None:
            return self._last
        self._last = super()._snapshot(now)
        return self._last


class StampsWedged(Loose):
    """Stamp and post while wedged."""

    stamps = True


class AcquiresWedged(Loose):
    """Acquire, claim and post while wedged."""

    acquires = True


class AddsWedged(Loose):
    """Collect, append and post while wedged."""

    adds = True


class RepeatsPosts(Loose):
    """Repeat the last post while wedged, which the rule permits."""

    frozen_posts = True


class Unwedged(Loose):
    """Do everything while wedged."""

    stamps = acquires = adds = True


def forget_promise(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start without what was promised to the ballots' proposers."""
    ballot = state.ballot
    if ballot is None:
        return state
    accepted = Ballot() if ballot.accepted is None else ballot.accepted.ballot
    return replace(state, ballot=replace(ballot, promised=accepted))


def promise_anything(self: Voter, ballot: Ballot) -> bool:
    """Promise lower ballots, too."""
    self.promised = ballot
    return True


class StartsAtZero(Succession):
    """Begin with ballot number 1 after a restart."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._seen = 0


# -- P15 -------------------------------------------------------------------------------------------


def no_vote(self: Proposer) -> Vote | None:
    """Find no accepted value among the answers."""
    return None


def lowest_vote(self: Proposer) -> Vote | None:
    """Take the value of the lowest ballot."""
    votes = [p.accepted for p in self._promises.values() if p.accepted is not None]
    return min(votes, key=lambda vote: vote.ballot, default=None)


def longest_queue(states: Mapping[NodeId, MemberState]) -> FinalQueue:
    """Take the longest queue without what was acquired beyond it."""
    return final_queue({n: replace(state, acquired=()) for n, state in states.items()})


def own_queue(self: Proposer) -> FinalQueue:
    """Take the proposer's queue, and what it acquired itself."""
    states = self._states()
    mine = {node: state for node, state in states.items() if node == self.ballot.node}
    return final_queue(mine or states)


def torn_union(states: Mapping[NodeId, MemberState]) -> FinalQueue:
    """Keep of the last run only the first half."""
    queue = final_queue(states)
    if not queue.tail or queue.tail[-1].n < 2:
        return queue
    torn = (*queue.tail[:-1], replace(queue.tail[-1], n=queue.tail[-1].n // 2))
    return replace(queue, tail=torn, end=end_of(queue.base, torn))


def unsorted_union(states: Mapping[NodeId, MemberState]) -> FinalQueue:
    """Leave the runs in the order of their origins."""
    queue = final_queue(states)
    tail = tuple(sorted(queue.tail, key=lambda header: (header.origin, header.seq)))
    return replace(queue, tail=tail, end=end_of(queue.base, tail))


class BeyondGaps(Ordering):
    """Promise runs behind a gap as well."""

    def member_state(self) -> MemberState:
        """Say more than is contiguous."""
        state = super().member_state()
        early = tuple(
            run.header
            for stream in self._streams
            for run in (*stream.runs, *stream.early.values())
            if run.facts is not None and run.last > stream.acquired
        )
        return replace(state, acquired=(*state.acquired, *early))

    def freeze(self, now: int) -> None:
        """Keep what lies behind a gap."""
        kept = {stream.origin: dict(stream.early) for stream in self._streams}
        super().freeze(now)
        for stream in self._streams:
            stream.early.update(kept[stream.origin])


_promise = Succession._promise


def promise_in_memory(self: Succession, ballot: Ballot) -> bool:
    """Count the promise of an own ballot without making it durable."""
    before = list(self._outbox._persists)
    promised = _promise(self, ballot)
    if ballot.node == self._config.node_id:
        self._outbox._persists = before
    return promised


def told_at_once(self: Outbox, action: Action) -> None:
    """Send in front of all that is to be durable."""
    self._firsts.append(action)


# -- P16, P17 --------------------------------------------------------------------------------------

_choose = Proposer.choose


def without_flush(self: Proposer, now: int) -> bool:
    """Ask for votes at once."""
    chosen = _choose(self, now)
    if chosen and self.stage is Stage.FLUSH:
        self._enter(Stage.ACCEPT, now)
    return chosen


def any_stamp_is_held(self: FinalQueue, state: MemberState) -> bool:
    """Look at numbers only, not as what the runs with them are stamped."""
    marks = dict(state.watermarks)
    marks.update((header.origin, header.last) for header in state.acquired)
    return all(marks.get(origin, 0) >= last for origin, last in self.watermarks.items())


def everything_is_held(self: FinalQueue, state: MemberState) -> bool:
    """Take a promise for a flush, whatever it shows."""
    return True


def all_beside(self: Stream) -> list[Run]:
    """Name what is kept beside a stream, behind a gap or not."""
    return [self.early[seq] for seq in sorted(self.early)]


_take_flushed = Proposer.take_flushed


def begun_is_done(self: Proposer, node: str, missing: int, now: int) -> bool:
    """Take every answer to a flush for a complete one."""
    return _take_flushed(self, node, 0, now)


def majority_flushed(self: Proposer, node: str, missing: int, now: int) -> bool:
    """Go on when more than half of the members hold the final queue."""
    if _take_flushed(self, node, missing, now):
        return True
    members = () if self.candidate is None else self.candidate.members
    if 2 * len(self.flushed.intersection(members)) <= len(members):
        return False
    self._enter(Stage.ACCEPT, now)
    return True


def forget_accepted(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start without the accepted value."""
    ballot = state.ballot
    if ballot is None:
        return state
    return replace(state, ballot=BallotState(epoch=ballot.epoch, promised=ballot.promised))


def accept_anything(self: Voter, ballot: Ballot, view: View) -> bool:
    """Accept values of ballots below the promised one."""
    self.promised = max(self.promised, ballot)
    self.accepted = Vote(ballot=ballot, view=view)
    return True


def accept_without_promise(self: Voter, ballot: Ballot, view: View) -> bool:
    """Accept without promising the ballot."""
    if ballot < self.promised:
        return False
    self.accepted = Vote(ballot=ballot, view=view)
    return True


def first_vote(self: Proposer, node: str) -> bool:
    """Take the first vote for the decision."""
    self.accepted.add(node)
    return True


def done_are_not_missed(self: Proposer) -> list[NodeId]:
    """Mind the silence of those only that are not done with a flush."""
    return self.unanswered()
