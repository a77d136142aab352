"""Cores with one rule broken each; the random schedules must find every one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.actions import (
    Action,
    PersistAnnouncement,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
)
from sparktxlog.protocol.addition import head_of, holders, may_add
from sparktxlog.protocol.counter import TimestampCounter
from sparktxlog.protocol.events import Event
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.ordering import Ordering
from sparktxlog.protocol.peers import Peer
from sparktxlog.protocol.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.streams import Run, Stream

_PERSISTS = (
    PersistOwnRun,
    PersistForeignRun,
    PersistReservation,
    PersistAnnouncement,
    PersistQueue,
)


class ReusedCounter(Ordering):
    """Stamp at the posted counter instead of above it (P1)."""

    def _next_timestamp(self, now: int) -> int:
        self._counter.value -= 1
        return self._counter.stamp(now)


class ForgottenReservation(Master):
    """Restart without H: the counter begins anew (P2)."""

    def __init__(self, config: MasterConfig, state: RecoveredState, now: int) -> None:
        super().__init__(config, state, now)
        self._counter.value = max((run.header.ts for run in state.incoming), default=0)
        self._counter.reserved = self._counter.value


class Skipping(Ordering):
    """Skip a run that is not acquired yet, instead of stopping at it (P7)."""

    def _next_addable(self, least: int) -> Run | None:
        found = super()._next_addable(least)
        if found is not None:
            return found
        heads = [stream.runs[0] for stream in self._streams if stream.runs]
        for run in sorted(heads, key=lambda run: run.key)[1:]:
            if may_add(run, self._peers, least, self._config.quorum):
                return run
        return None


class ClaimingUnacquired(Ordering):
    """Post headers as acquired before their payload is here (P4, G35)."""

    def _claim(self, stream: Stream) -> int:
        return stream.known


class SmallerQuorum(Ordering):
    """Append with one holder fewer than configured (P7)."""

    def _next_addable(self, least: int) -> Run | None:
        found = super()._next_addable(least)
        if found is not None:
            return found
        run = head_of(self._streams)
        if run is not None and run.facts is not None and run.header.ts <= least:
            return run if holders(run, self._peers) >= self._config.quorum - 1 else None
        return None


class GreatestPromise(Ordering):
    """Cut at the greatest counter instead of the least (G14)."""

    def _next_addable(self, least: int) -> Run | None:
        counters = [peer.counter for peer in self._peers]
        return super()._next_addable(max(counters, default=least))


class IgnoredSelf(Ordering):
    """Append without holding the payload oneself (G36)."""

    def _next_addable(self, least: int) -> Run | None:
        run = head_of(self._streams)
        if run is None or run.header.ts > least:
            return None
        if holders(run, self._peers) < self._config.quorum:
            return None
        if run.facts is None:
            run.facts = RunFacts(n=run.header.n, ids=bytes(16 * run.header.n))
        return run


class SpokenBeforePersisted(Master):
    """Send before the persists of the same batch (§3)."""

    def handle_all(self, events: Sequence[Event], now: int) -> list[Action]:
        """Return the persists last."""
        actions = super().handle_all(events, now)
        persists: list[Action] = [a for a in actions if isinstance(a, _PERSISTS)]
        return [a for a in actions if not isinstance(a, _PERSISTS)] + persists


@contextlib.contextmanager
def promise_before_headers() -> Iterator[type[Master]]:
    """Use a promise whose headers are not held (P5)."""

    def record(self: Peer, counter: int, last_seq: int, known: int) -> None:
        if counter > self.counter:
            self.counter, self.last_seq = counter, last_seq

    with patch.object(Peer, "record_promise", record):
        yield Master


@contextlib.contextmanager
def unreserved_counter() -> Iterator[type[Master]]:
    """Let a counter out that H does not cover (P2)."""

    def reservation(self: TimestampCounter) -> int | None:
        if self.value <= self.reserved + 5:
            return None
        self.reserved = self.value
        return self.reserved

    with patch.object(TimestampCounter, "reservation", reservation):
        yield Master


@contextlib.contextmanager
def vector_too_far() -> Iterator[type[Master]]:
    """Believe an acquired claim to cover one run more than it says (P4)."""

    def record(self: Peer, vector: dict[str, int]) -> None:
        for origin, seq in vector.items():
            self.acquired[origin] = max(self.acquired.get(origin, 0), seq + 2)

    with patch.object(Peer, "record_acquired", record):
        yield Master


_Core = Callable[[], contextlib.AbstractContextManager[type[Master]]]


def _ordering(mutant: type[Ordering]) -> _Core:
    """Return a core whose normal operation is the mutant's."""
    return _plain(type(mutant.__name__, (Master,), {"ordering_class": mutant}))


def _plain(mutant: type[Master]) -> _Core:
    return lambda: contextlib.nullcontext(mutant)


MUTANTS: dict[str, _Core] = {
    "counter-reused": _ordering(ReusedCounter),
    "reservation-forgotten": _plain(ForgottenReservation),
    "skip-instead-of-stop": _ordering(Skipping),
    "claims-unacquired": _ordering(ClaimingUnacquired),
    "quorum-minus-one": _ordering(SmallerQuorum),
    "greatest-promise": _ordering(GreatestPromise),
    "self-not-needed": _ordering(IgnoredSelf),
    "speaks-before-persisting": _plain(SpokenBeforePersisted),
    "promise-before-headers": promise_before_headers,
    "counter-unreserved": unreserved_counter,
    "vector-too-far": vector_too_far,
}
