"""Mutations of how a decided epoch is entered, left and forced (protocol P18–P21, P23)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.verification.mutation.ordinary import unchecked

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.forcing import forced_view
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.union import FinalQueue
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.collecting import Collecting
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.words.action_order import ActionStream
from sparktxlog.protocol.words.actions import PersistRestamp
from sparktxlog.protocol.words.balloting import MemberState, Vote
from sparktxlog.protocol.words.events import ForceRequested
from sparktxlog.protocol.words.recovery import MasterConfig, RecoveredRun, RecoveredState
from sparktxlog.protocol.words.view import Phase, View

# -- P14, P18 --------------------------------------------------------------------------------------


class ForgottenWedge(Master):
    """Work on after a restart although a ballot was promised."""

    def _first_phase(self, voter: Voter) -> Phase:
        phase = super()._first_phase(voter)
        return Phase.NORMAL if phase is Phase.WEDGED else phase


class CounterNotRaised(Master):
    """Leave the counter as it is when a final queue is installed."""

    def _take_into_force(self, now: int) -> None:
        with patch.object(TimestampCounter, "use", unchecked):
            super()._take_into_force(now)


class _KeepingOrdering(Ordering):
    def own_incoming(self) -> list[RecoveredRun]:
        """Return what others stamped, too."""
        return [
            RecoveredRun(header=run.header, facts=run.facts)
            for stream in self._streams
            for run in stream.runs
            if run.facts is not None
        ]


class KeepsAcquired(Master):
    """Go on counting as acquired, as an evicted node, what was acquired as a member."""

    ordering_class = _KeepingOrdering

    def _restamp(self, runs: list[RecoveredRun]) -> list[RecoveredRun]:
        own, kept = self._config.node_id, super()._restamp(runs)
        return [*kept, *(r for r in runs if r.header.origin != own and r not in kept)]


class _UncheckedOrdering(Ordering):
    def finish(self, view: View, now: int) -> list[RecoveredRun]:
        """Install without comparing."""
        end = replace(view.end, position=self._queue.position, chain_hash=self._queue.hash)
        return super().finish(replace(view, end=end, tail=()), now)

    def want(self, view: View, now: int) -> int:
        """Find nothing missing and nothing different."""
        with patch.object(type(self._queue), "check_base", unchecked):
            return super().want(view, now)


class InstallsAnything(Master):
    """Install a final queue without comparing it with the own one."""

    ordering_class = _UncheckedOrdering


# -- P19 -------------------------------------------------------------------------------------------


class EvictedWorks(Master):
    """Go on posting and adding as no member."""

    def _new_ordering(self, incoming: list[RecoveredRun], now: int) -> Ordering:
        ordering = super()._new_ordering(incoming, now)
        outside = not self._is_member and self._phase is not Phase.WITNESS
        if outside and self._view.epoch > 1:
            ordering.frozen = False
        return ordering


class EvictedStays(Master):
    """Do not take note of a view without this node."""

    def learn(self, view: View, now: int) -> None:
        """Learn only what one likes to hear."""
        if self._counts_me(view):
            super().learn(view, now)


#: An evicted node takes transactions like a member.
ALL_TAKE_SUBMITS = frozenset(Phase) - {Phase.WITNESS, Phase.FAULT}

# -- P20 -------------------------------------------------------------------------------------------


class _BlindOrdering(Ordering):
    def finish(self, view: View, now: int) -> list[RecoveredRun]:
        """Return all own runs, those in the final queue as well."""
        left = self.own_incoming()
        super().finish(view, now)
        return left


class ResubmitsBlindly(Master):
    """Stamp all own runs anew, also those that the final queue holds."""

    ordering_class = _BlindOrdering


class RestampsForeign(Master):
    """Stamp anew, as a member, what others stamped in the epoch before."""

    ordering_class = _KeepingOrdering

    def _restamp(self, runs: list[RecoveredRun]) -> list[RecoveredRun]:
        own, epoch, kept = self._config.node_id, self._view.epoch, super()._restamp(runs)
        foreign = [r for r in runs if r.header.origin != own and r.header.epoch < epoch]
        return kept + [_stamped(self, run, epoch) for run in foreign if self._is_member]

    def _new_ordering(self, incoming: list[RecoveredRun], now: int) -> Ordering:
        own = self._config.node_id
        mine = [run for run in incoming if self._is_member or run.header.origin == own]
        return super()._new_ordering(mine, now)


class RestampsOutside(Master):
    """Stamp own runs anew although this node is no member."""

    def learn(self, view: View, now: int) -> None:
        """Let an eviction restamp."""
        super().learn(view, now)
        if not self._is_member and self._phase is not Phase.WITNESS:
            left = self._ordering.own_incoming()
            self._is_member = True
            runs = self._restamp(left)
            self._is_member = False
            self._ordering = self._new_ordering(runs, now)


class RestampsInOldEpoch(Master):
    """Give own runs a new timestamp and leave them in the epoch before."""

    def _restamp(self, runs: list[RecoveredRun]) -> list[RecoveredRun]:
        old = _old_runs(self, runs)
        kept = super()._restamp([run for run in runs if run not in old])
        return kept + [_stamped(self, run, run.header.epoch) for run in old]


class RestampsBackwards(Master):
    """Stamp own runs anew, the last one first."""

    def _restamp(self, runs: list[RecoveredRun]) -> list[RecoveredRun]:
        old = _old_runs(self, runs)
        kept = super()._restamp([run for run in runs if run not in old])
        return kept + [_stamped(self, run, self._view.epoch) for run in reversed(old)]


def _old_runs(core: Master, runs: list[RecoveredRun]) -> list[RecoveredRun]:
    """Return the own runs of earlier epochs, in order, if the node is a member."""
    own, epoch = (core._config.node_id, core.incarnation), core._view.epoch
    old = [
        run
        for run in runs
        if core._is_member
        and (run.header.origin, run.header.incarnation) == own
        and run.header.epoch < epoch
    ]
    return sorted(old, key=lambda run: run.header.seq)


def _stamped(core: Master, run: RecoveredRun, epoch: int) -> RecoveredRun:
    header = replace(run.header, epoch=epoch, ts=core._counter.stamp())
    core._outbox.persist(PersistRestamp(header=header))
    return RecoveredRun(header=header, facts=run.facts)


# -- P21 -------------------------------------------------------------------------------------------


_take_flushed = Proposer.take_flushed


def appended_unchecked(
    queue: SynchronizedQueue, collecting: Collecting, view: View, now: int
) -> bool:
    """Append what is held until the queue is as long as the base says."""
    held = [run for stream in collecting.streams.values() for run in stream.held()]
    for run in sorted(held, key=lambda run: run.key):
        if queue.position < view.base.position:
            queue.append(collecting.learn_final(run.header, now), collecting.streams[run.key[2]])
    return queue.position >= view.base.position


def nothing_appended(
    queue: SynchronizedQueue, collecting: Collecting, view: View, now: int
) -> bool:
    """Append nothing that is held: a tail is asked for instead."""
    return False


def joiners_unflushed(self: Proposer, node: str, missing: int, now: int) -> bool:
    """Wait for the members of before only."""
    self.flushed |= set(self.intent.joiners)
    return _take_flushed(self, node, missing, now)


def any_incarnation(self: View, node_id: str, incarnation: int) -> bool:
    """Know a node by its name alone."""
    return self.seat(node_id) is not None


class OldIncarnation(Master):
    """Return from a lost disk under the old name."""

    def __init__(
        self, config: MasterConfig, state: RecoveredState, now: int, wall: int | None = None
    ) -> None:
        super().__init__(replace(config, incarnation=1), state, now, wall)


# -- P23 -------------------------------------------------------------------------------------------


_new_view = Proposer._new_view


def incarnations_as_asked(self: Proposer, queue: FinalQueue) -> View:
    """Give seats the incarnations that the request named."""
    view, asked = _new_view(self, queue), self.intent.roster or ()
    former = {seat.node_id: seat.incarnation for seat in asked} | self.intent.joiners
    roster = (
        replace(seat, incarnation=former.get(seat.node_id, seat.incarnation))
        for seat in view.roster
    )
    return replace(view, roster=tuple(roster))


def full_batch(self: ActionStream[Any]) -> int:
    """End a batch at its bound, whatever stands there."""
    return self._max_batch


def force_own(
    view: View, node: NodeId, lineage: str, state: MemberState, accepted: Vote | None
) -> View:
    """Force without looking at the accepted value."""
    return forced_view(view, node, lineage, state, None)


def force_beside(
    view: View, node: NodeId, lineage: str, state: MemberState, accepted: Vote | None
) -> View:
    """Force what it accepted, beside the epoch that may have been decided so, not behind it."""
    ancestors = (*view.ancestors, (view.lineage, view.epoch))
    forced = forced_view(view, node, lineage, state, accepted)
    return replace(forced, epoch=view.epoch + 1, ancestors=ancestors)


def force_with_votes(
    view: View, node: NodeId, lineage: str, state: MemberState, accepted: Vote | None
) -> View:
    """Force, and leave the others their votes."""
    return replace(forced_view(view, node, lineage, state, accepted), roster=view.roster)


def follow_any_lineage(self: Succession, view: View) -> bool:
    """Take any later epoch for a continuation of the own one."""
    return view.epoch > self._host.view.epoch


class _Everything(Container[str]):
    def __contains__(self, item: object) -> bool:
        return True


class AnyLineage(Master):
    """Take tails and posts of other lineages."""

    _lineages = _Everything()  # type: ignore[assignment]


class SameLineage(Master):
    """Force under the lineage that the others go on with."""

    def _on_force(self, event: ForceRequested, now: int) -> None:
        with patch.object(type(self), "_lineages", frozenset()):
            super()._on_force(event, now)


def from_the_last_epoch(self: View, lineage: str, epoch: int) -> bool:
    """Know of a log before only the epoch in which it was forced on."""
    return (lineage, epoch) in self.ancestors
