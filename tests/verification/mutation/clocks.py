"""Mutations of what the core does with clocks: C1, C3."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.proposer import Intent, Proposer
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.suspicion import Suspicion
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.counter import TimestampCounter, WallClock
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.posting import Snapshot
from sparktxlog.protocol.words import bounds
from sparktxlog.protocol.words.actions import PersistReservation
from sparktxlog.protocol.words.balloting import EpochMessage, JoinRequest, Promise, Vote
from sparktxlog.protocol.words.bounds import misfit
from sparktxlog.protocol.words.messages import RunHeader


class PostsLogClock(Ordering):
    """Post the log clock for the wall clock."""

    def _snapshot(self, now: int) -> Snapshot:
        snapshot = super()._snapshot(now)
        snapshot.wall = snapshot.counter
        return snapshot


@property  # type: ignore[misc]
def any_wall_clock(self: WallClock) -> int:
    """Believe the wall clock, whatever it says."""
    return self.wall


def never_believe(self: WallClock) -> None:
    """Never believe a wall clock that was set."""


@property  # type: ignore[misc]
def full_speed(self: TimestampCounter) -> int:
    """Go on at full speed, however far ahead."""
    return max(self.clock.time, self._raised + self.clock.now - self._raised_at)


_learn = TimestampCounter.learn


def learn_the_bound(self: TimestampCounter, ts: int) -> None:
    """Let the timestamps of peers move the bound for the next ones."""
    _learn(self, ts)
    self.clock.begin_at(ts)


def any_header(header: RunHeader, limit: int = 0) -> bool:
    """Take whatever comes."""
    return True


def any_headers(headers: Iterable[RunHeader], limit: int = 0) -> bool:
    """Take whatever comes."""
    return True


def any_message(message: EpochMessage, seen: int, limit: int | None) -> str:
    """Take whatever comes."""
    return ""


class LosesLatePromises(Succession):
    """Take the promise of a node that holds late runs for lost."""

    def _on_promise(self, promise: Promise, now: int) -> None:
        held = () if promise.state is None else promise.state.acquired
        if bounds.all_fit(held, self._host.latest):
            super()._on_promise(promise, now)


class RefusesItsOwnVote(Succession):
    """Vote only once for runs stamped late."""

    def _misfit(self, message: EpochMessage) -> str:
        return misfit(message, 1 << 40, self._host.latest if self._host.is_member else None)


def any_are_late(self: Proposer, added: set[NodeId], now: int) -> bool:
    """Leave out whoever seems too late, however many."""
    return (
        self.view.elects(self._promises.keys() | added)
        and self.view.preserves(self._states().keys() | added)
        and self._awaited(now) <= added
    )


def highest_fitting_vote(self: Proposer) -> Vote | None:
    """Adopt no vote for late runs, although it may be decided."""
    vote = self._highest_vote()
    return vote if vote is not None and self._fits(vote.view.tail) else None


class TakesEvery(Succession):
    """Evict for no promise."""

    def _intent(self, overdue: frozenset[NodeId], ready: dict[NodeId, int], now: int) -> Intent:
        return replace(super()._intent(overdue, ready, now), excluded=self._excluded)


def none_useless(
    self: Suspicion, members: Iterable[NodeId], timeout_us: int, now: int
) -> list[NodeId]:
    """Be content with whatever a member promises that is heard."""
    return []


def gone_is_kept(self: TimestampCounter) -> None:
    """Leave the log clock where headers raised it that are gone."""


class DeafToWaiting(Ordering):
    """Take no note of what a member that counts too far ahead says of its transactions."""

    def lacking(self, deaf: Container[str] = ()) -> dict[NodeId, int]:
        """Return only whom a run that is known here waits for."""
        return super().lacking(deaf) if self.busy else {}


class ContentWithPromises(Ordering):
    """Be content with a member that promises, whether it hears this node or not."""

    def lacking(self, deaf: Container[str] = ()) -> dict[NodeId, int]:
        """Return only whose promise does not suffice."""
        promised = {peer.node_id: peer.counter for peer in self._peers}
        return {node: c for node, c in super().lacking(deaf).items() if promised[node] == c}


def nobody_is_deaf(self: Suspicion, now: int) -> set[str]:
    """Take no note of who complains of this node itself."""
    return set()


def deaf_for_long(self: Suspicion, node: str, number: int, hears: Iterable[str], now: int) -> None:
    """Go on with what a node complained of, although it says that it hears this one."""
    deaf = dict(self._deaf)
    _answered(self, node, number, hears, now)
    self._deaf = deaf


_answered, _link = Suspicion.answered, Suspicion.link


def useless_as_before(self: Suspicion, node: str, *, up: bool, now: int) -> None:
    """Count from a link on what a node promised before."""
    watched = self._watched[node]
    promise, lacked = watched.promise, watched.lacks_since
    _link(self, node, up=up, now=now)
    if lacked is not None:
        watched.promise, watched.lacks_since, watched.waited_since = promise, now, now


class CountsNoUseless(Succession):
    """Leave a member of no use no vote, whoever asks."""

    def _left_out(self, overdue: frozenset[NodeId], now: int) -> frozenset[NodeId]:
        return frozenset()


class UsesTheUseless(Succession):
    """Decide by the votes of a member of no use, although nobody asks."""

    def _left_out(self, overdue: frozenset[NodeId], now: int) -> frozenset[NodeId]:
        return self.suspicion.useless(overdue, now)


class ReservesAlways(Master):
    """Reserve a counter that follows no clock, and take it for the time at the next start."""

    def _work(self, now: int) -> None:
        super()._work(now)
        reserved = self._counter.reservation()
        if reserved is not None:
            self._outbox.persist_first(PersistReservation(counter=reserved))


class WitnessJudges(Succession):
    """Compare what a joiner would promise with the clock of a node that admits nobody."""

    def _on_join(self, request: JoinRequest, now: int) -> None:
        if request.counter > self._host.latest:
            self._tell_refused(request.sender, "a wish to join")
        super()._on_join(request, now)


class AdmitsAnyCounter(Succession):
    """Let every node in, whatever it would promise."""

    def _on_join(self, request: JoinRequest, now: int) -> None:
        super()._on_join(replace(request, counter=0), now)
