"""Mutations of normal operation within one epoch (protocol P1–P10, P22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.verification.simulation.disk import key_of
from tests.verification.simulation.node import SimulatedNode

from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.addition import head_of, holders, may_add
from sparktxlog.protocol.order.catalog import Catalog
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.idwindow import IdWindow
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.origin_queues import Run, Stream
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.posting import Snapshot
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.words.events import RunSubmitted
from sparktxlog.protocol.words.messages import (
    MergeBase,
    Post,
    QueueEntry,
    Rejection,
    RunHeader,
    Tail,
)
from sparktxlog.protocol.words.recovery import MasterConfig, NoOlderIds, RecoveredState


class ReusedCounter(Ordering):
    """Stamp at the posted counter instead of above it."""

    def _next_timestamp(self) -> int:
        self._counter.value -= 1
        return self._counter.stamp()


class ContinuedRun(Ordering):
    """Stamp a later submit with the timestamp of the own run that still waits."""

    def _next_timestamp(self) -> int:
        runs = self._own.runs
        return runs[-1].header.ts if runs else super()._next_timestamp()


class ContinuingMaster(Master):
    """Core that continues runs."""

    ordering_class = ContinuedRun


_register = Stream.register


def register_equal_timestamps(self: Stream, header: RunHeader, now: int) -> Run:
    """Register a header without asking for a rising timestamp."""
    self._last_ts = min(self._last_ts, header.ts - 1)
    return _register(self, header, now)


_make_post = Snapshot._make


def uncut(self: Snapshot, *arguments: Any) -> Post:
    """Leave out the promise that a post makes which has no room for all headers."""
    return replace(_make_post(self, *arguments), cut=None)


def forget_announcements(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start without the own runs that wait for their stamp."""
    return replace(state, announcements=())


def forget_tables(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start without the tables that the queue created."""
    return replace(state, tables=())


def forget_own(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start without the own runs beyond the queue."""
    foreign = [run for run in state.incoming if run.header.origin != config.node_id]
    return replace(state, incoming=foreign)


class ForgottenReservation(Master):
    """Restart without H: the counter begins anew."""

    def __init__(
        self, config: MasterConfig, state: RecoveredState, now: int, wall: int | None = None
    ) -> None:
        super().__init__(config, state, now, wall)
        self._counter.value = max((run.header.ts for run in state.incoming), default=0)
        self._counter.reserved = self._counter.value


def reservation_late(self: TimestampCounter) -> int | None:
    """Let a counter out that H does not cover."""
    if self.value <= self.reserved + 5:
        return None
    self.reserved = self.value
    return self.reserved


class ForgottenNewest(Ordering):
    """Promise (c, n) with an n that leaves out the newest own run."""

    def _snapshot(self, now: int) -> Snapshot:
        snapshot = super()._snapshot(now)
        if self._own.runs:
            snapshot.last_seq -= self._own.runs[-1].header.n
        return snapshot


class TornPost(Ordering):
    """A post's counter is not of the moment of its headers, but of a later one."""

    def _snapshot(self, now: int) -> Snapshot:
        snapshot = super()._snapshot(now)
        snapshot.counter += 30
        return snapshot


def no_hurry(self: Fetching, now: int) -> None:
    """Wait out the pause, whoever is back."""


def any_payload_ends_a_fetch(self: Fetching, header: RunHeader) -> None:
    """Take whatever comes with a digest for the answer to its fetch."""
    self.in_flight.pop(header.digest, None)


class ClaimingUnacquired(Ordering):
    """Post headers as acquired before their payload is here."""

    def _claim(self, stream: Stream) -> int:
        return stream.known


class ClaimingBeyondGap(Ordering):
    """Post as acquired what lies behind a gap."""

    def _claim(self, stream: Stream) -> int:
        held = [run.last for run in (*stream.runs, *stream.early.values()) if run.facts]
        return max([stream.acquired, *held])


def promise_without_headers(self: Peer, counter: int, last_seq: int, known: int) -> None:
    """Use a promise whose headers are not held."""
    if counter > self.counter:
        self.counter, self.last_seq = counter, last_seq


def settle_all(self: Peer, known: int) -> None:
    """Use every promise that waits for headers as soon as one header came."""
    while self.pending:
        self.counter, self.last_seq = self.pending.pop(0)


def believe_more(self: Peer, vector: dict[str, int]) -> None:
    """Believe an acquired claim to cover one run more than it says."""
    for origin, seq in vector.items():
        self.acquired[origin] = max(self.acquired.get(origin, 0), seq + 2)


class AnyEpoch(Master):
    """Promises and claims of earlier epochs count in this one."""

    def _on_post(self, post: Post, now: int) -> None:
        view = self._view
        if post.epoch < view.epoch and post.sender in view.members:
            untagged = Post(
                lineage=post.lineage, epoch=view.epoch, sender=post.sender, round=post.round,
                base=MergeBase(), counter=post.counter, last_seq=post.last_seq,
                known=post.known, acquired=post.acquired, busy=post.busy, start=post.start,
            )  # fmt: skip
            super()._on_post(untagged, now)
        else:
            super()._on_post(post, now)


def learn_nothing(self: TimestampCounter, ts: int) -> None:
    """Leave the log clock as it is, whatever timestamps come."""


class Skipping(Ordering):
    """Skip a run that is not acquired yet, instead of stopping at it."""

    def _next_addable(self, least: int) -> Run | None:
        found = super()._next_addable(least)
        if found is not None:
            return found
        heads = [stream.runs[0] for stream in self._streams if stream.runs]
        for run in sorted(heads, key=lambda run: run.key)[1:]:
            if may_add(run, self._peers, least, self._config.quorum):
                return run
        return None


class SmallerQuorum(Ordering):
    """Append with one holder fewer than configured."""

    def _next_addable(self, least: int) -> Run | None:
        found = super()._next_addable(least)
        if found is not None:
            return found
        run = head_of(self._streams)
        if run is not None and run.facts is not None and run.header.ts <= least:
            return run if holders(run, self._peers) >= self._config.quorum - 1 else None
        return None


class GreatestPromise(Ordering):
    """Cut at the greatest counter instead of the least."""

    def _next_addable(self, least: int) -> Run | None:
        counters = [peer.counter for peer in self._peers]
        return super()._next_addable(max(counters, default=least))


class IgnoredSelf(Ordering):
    """Append without holding the payload oneself."""

    def _next_addable(self, least: int) -> Run | None:
        run = head_of(self._streams)
        if run is None or run.header.ts > least:
            return None
        if holders(run, self._peers) < self._config.quorum:
            return None
        if run.facts is None:
            run.facts = RunFacts(n=run.header.n, ids=bytes(16 * run.header.n))
        return run


def least_of_peers(peers: Sequence[Peer], own: int) -> int:
    """Return the least promise of the others alone."""
    return min((peer.counter for peer in peers), default=own)


class TornAddition(Ordering):
    """Append the first transaction of a run, and the rest later."""

    def _next_addable(self, least: int) -> Run | None:
        run = super()._next_addable(least)
        if run is None or run.header.n == 1 or run.facts is None:
            return run
        header, facts, rest = run.header, run.facts, run.header.n - 1
        stream = self._collecting.streams[header.origin]
        # The stream's first run becomes two: its first transaction, and those behind it.
        first = Run(_part(header, header.seq, 1), run.seen_at)
        first.facts = RunFacts(n=1, ids=facts.ids[:16])
        second = Run(_part(header, header.seq + 1, rest), run.seen_at)
        second.facts = RunFacts(n=rest, ids=facts.ids[16:])
        stream.runs[0] = second
        stream.runs.appendleft(first)
        stream._by_seq[first.header.seq], stream._by_seq[second.header.seq] = first, second
        return first


def _part(header: RunHeader, seq: int, n: int) -> RunHeader:
    return RunHeader(
        epoch=header.epoch, ts=header.ts, origin=header.origin, incarnation=header.incarnation,
        seq=seq, n=n, digest=header.digest, size_bytes=header.size_bytes,
        staged_bytes=header.staged_bytes,
    )  # fmt: skip


_start = SimulatedNode.start


def start_without_queue(self: SimulatedNode) -> None:
    """Forget at each start what the present epoch appended; the runs themselves are kept."""
    disk, floor = self.disk, 0 if self.disk.view is None else self.disk.view.end.position
    kept = [entry for entry in disk.queue if entry.position <= floor]
    for entry in disk.queue[len(kept) :]:
        key = key_of(entry.header)
        disk.incoming[key] = disk.ordered.pop(key)
    disk.queue = kept
    disk._watermarks = {entry.header.origin: entry.header.last for entry in kept}
    checked = self.world.checks._checked
    checked[self.name] = min(checked.get(self.name, 0), len(kept))
    _start(self)


def never(self: Any, now: int, *, news: bool, busy: bool) -> None:
    """Plan no heartbeat: a post that is lost is not repeated."""
    self.heartbeat_at = now + 3_600_000_000_000


def follow_blindly(self: SynchronizedQueue, tail: Tail) -> list[QueueEntry]:
    """Take entries by their positions, whatever their hashes say."""
    end = self.tail[-1].end if self.tail else self.position
    found = []
    for entry in tail.entries:
        if entry.position == end + 1:
            found.append(entry)
            end = entry.end
    return found


def no_service(self: Ordering, peer: Peer, now: int) -> None:
    """Send no tail to a member that lags behind."""


_note_newest = Peer.note_newest


def tail_of_before(self: Peer, post: Post, reader: NodeId, now: int) -> bool:
    """Believe that a peer still has the tail that it had once."""
    before = self.ahead
    changed = _note_newest(self, post, reader, now)
    self.ahead = self.ahead or before
    return changed


def unbroken(self: Stream, counter: int, last_seq: int) -> RunHeader | None:
    """Find every promise kept."""
    return None


def unchecked(*arguments: Any, **named: Any) -> None:
    """Check nothing."""


def no_waiting(self: Any, session: str | None) -> bool:
    """Let no run wait for the one before it in its session."""
    return False


def keep_withdrawn(self: Any, digest: bytes) -> list[RunSubmitted]:
    """Reject runs whose files are lost, and leave them where they wait for their stamp."""
    return [run.submit for run in self.runs.values() if run.submit.digest == digest]


def half_window(state: RecoveredState) -> RecoveredState:
    """Start with the newer half of the ids."""
    return replace(state, recent_ids=state.recent_ids[len(state.recent_ids) // 2 :], repeats=())


def forget_ids(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Start with a shorter window."""
    return half_window(state) if len(state.recent_ids) > 1 else state


_reject_by_id = Catalog._reject_by_id


def no_acceptance(self: Catalog, position: int, facts: RunFacts, ts: int) -> dict[int, Rejection]:
    """Look at the window only, whatever the accepting node found and whenever it did."""
    return _reject_by_id(self, position, replace(facts, acceptance=None), ts)


def nothing_older(self: Catalog, position: int, facts: RunFacts, ts: int) -> dict[int, Rejection]:
    """Look for repeats of a late run in the window only."""
    self._older_ids = NoOlderIds()
    return _reject_by_id(self, position, facts, ts)


def never_expired(self: Catalog, position: int, facts: RunFacts, ts: int) -> dict[int, Rejection]:
    """Let a run take effect however late it was ordered."""
    self._window_us = 1 << 62
    return _reject_by_id(self, position, facts, ts)


def newest_first(self: IdWindow, position: int, first: int) -> None:
    """Remember of a repeat no earlier place."""
