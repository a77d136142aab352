"""The published log of a node: its publisher, its readers, and when it is shortened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sparktxlog.model.answers import ListedRun
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_versions import OrderedVersions
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.disk_space import DiskSpace
from sparktxlog.runtime.log.forgetting import forgettable
from sparktxlog.runtime.log.pruning import LogOwner, Maintenance, Pruning
from sparktxlog.runtime.log.publish_lag import PublishLag
from sparktxlog.runtime.log.publisher import Publisher
from sparktxlog.runtime.log.retention import Holders, Limits, RetentionView
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.replicas.transfers import Transfers
from sparktxlog.storage.interfaces import ForgetPayloads, MarkPublished, Segment, Write

_HOUR_US = 3_600_000_000
#: A copy that lasts longer does not hold the log back any more: its worker has gone.
_LONGEST_COPY_US = 24 * _HOUR_US
#: Longest wait of any request, seconds.
_MAX_WAIT_S = 300.0
_MAX_PAGE = 1_000


class JudgesReplicas(Protocol):
    """Compares the reports of replicas with the log."""

    def judge_again(self) -> None:
        """Judge again the reports whose positions the published log has reached."""


class PublishedLog(LogOwner):
    """Publishes and shortens the log in its own thread; all else is done on the event loop.

    **After calling** the constructor: `open`, `start`, and `close` at the end; on a witness none of
    them.
    """

    def __init__(
        self, base: Foundation, core: CoreLoop, membership: Membership, transfers: Transfers
    ) -> None:
        self._base = base
        self._core = core
        self._membership = membership
        self._transfers = transfers
        self._follower: JudgesReplicas | None = None
        #: The last order to the journal to forget payloads.
        self._forgotten: ForgetPayloads | None = None
        #: The last report of each member's replica, which may hold the log back.
        self.holders = Holders(self._replicas(base.master.view), base.state.values)
        self.pruning = Pruning(base, self)
        self.publisher = Publisher(base, self, membership.epochs.history, self.pruning)
        self.space = DiskSpace(
            base,
            failed=lambda: core.executor.disk_full,
            log_bytes=lambda: (base.journal.size_bytes(), self.pruning.log_bytes()),
            held_by=lambda: self.pruning.held_by,
        )
        self.lag = PublishLag(
            base.clock.now,
            lambda: base.settings.in_force.publish_lag_limit,
            lambda: self.publisher.failure,
            base.config.publish_interval,
        )

    def _replicas(self, view: View) -> dict[str, int]:
        """Return the nodes whose replicas may hold the log back, and their incarnations.

        That of a follower holds back only the follower's own log (P38).
        """
        config, seats = self._base.config, view.roster
        found = {
            str(seat.node_id): seat.incarnation
            for seat in seats
            if seat.may_be_member or (seat.follower and seat.node_id == config.node_id)
        }
        if "replica" not in config.roles:
            found.pop(config.node_id, None)
        return found

    def enter(self, view: View) -> None:
        """Follow a decided view: its nodes have replicas, which may hold the log back."""
        self.holders.set_members(self._replicas(view))

    async def open(self) -> None:
        """Open the queue table before the node speaks to anybody.

        Raises:
            JournalLostError: The journal lacks what the queue table holds.
            NewerReleaseError: A later release wrote the queue table (definite).
        """
        await asyncio.to_thread(self.publisher.open)

    def start(self, follower: JudgesReplicas) -> None:
        """Start publishing."""
        self._follower = follower
        if self._base.ordered.value > self._base.published.value:
            self.lag.ordered(self._base.ordered.value)
        self.publisher.start(self._base.ordered.value)

    def ordered(self, position: int) -> None:
        """Note the new end of the queue, to be published."""
        if self._follower is not None:  # a witness publishes nothing
            self.lag.ordered(position)
        self.publisher.ordered(position)

    async def close(self) -> None:
        """Finish the present publish and end the thread."""
        self.lag.release()
        await asyncio.to_thread(self.publisher.stop)

    # -- what the publisher's thread calls ---------------------------------------------------------

    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the tables at or after the last ordered entry."""
        return self._base.master.tables

    def write(self, writes: Sequence[Write]) -> None:
        """Make writes durable in the journal's writer thread and return when they are."""

        async def write() -> None:
            await self._core.executor.write(writes)

        asyncio.run_coroutine_threadsafe(write(), self._base.loop).result()

    def mark(self, marks: Sequence[MarkPublished]) -> None:
        """Make durable that positions are published, and forget payloads with the same sync."""

        async def mark() -> None:
            forgets = self._forget_payloads(marks[-1].position)
            await self._core.executor.write([*marks, *forgets])

        asyncio.run_coroutine_threadsafe(mark(), self._base.loop).result()

    def on_published(self, position: int, seconds: float) -> None:
        """Note that the queue is published up to a position, and how many seconds that took."""
        self._on_loop(self._note_published, position, seconds)

    def on_rest(self) -> None:
        """Note that the publisher has nothing to do now."""
        self._on_loop(self._core.cycle.look_for_rest)

    def on_kept(self, position: int) -> None:
        """Note that the log has expired up to a position."""
        self._on_loop(self._base.kept_after.advance, position)

    def retention_view(self) -> RetentionView:
        """Return the inputs of `retention.decide`, read on the event loop."""

        async def view() -> RetentionView:
            return self._retention_view()

        return asyncio.run_coroutine_threadsafe(view(), self._base.loop).result()

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        self._base.loop.call_soon_threadsafe(work, *args)

    def _retention_view(self) -> RetentionView:
        base, view = self._base, self._base.master.view
        limits = base.settings.in_force
        # No member posts to a follower, and none needs the queue of one.
        peers = () if view.follows(base.config.node_id) else base.master.status().peers
        return RetentionView(
            published=base.published.value,
            kept_after=base.kept_after.value,
            peers={peer.peer: peer.position for peer in peers if peer.peer in view.members},
            holders=self.holders.all(),
            limits=Limits(
                transactions=limits.tx_log_max_size,
                age_us=int(limits.tx_log_max_depth * _HOUR_US),
                size_bytes=limits.tx_log_max_bytes,
            ),
            now_us=wall_us(),
            copies=self._transfers.positions(base.clock.now() - _LONGEST_COPY_US),
        )

    def _note_published(self, position: int, seconds: float) -> None:
        self._base.metrics.publish_seconds.observe(seconds)
        self._base.published.advance(position)
        self.lag.published(position)
        if self._base.traces is not None:
            self._base.traces.published(position)
        if self._follower is not None:
            self._follower.judge_again()

    def _forget_payloads(self, published: int) -> list[ForgetPayloads]:
        """Return what makes the journal forget the payloads that nobody needs any more."""
        base, shown = self._base, self._membership.positions
        posted = {str(peer.peer): peer.position for peer in base.master.status().peers}
        for node_id, position in posted.items():
            # After a start, and in a new epoch, a peer's position is 0 until it posts.
            shown[node_id] = max(position, shown.get(node_id, 0))
        write = forgettable(
            base.master.view,
            base.config.node_id,
            base.master.incarnation,
            posted=posted,
            shown=shown,
            published=published,
            kept_after=base.kept_after.value,
            keep_bytes=base.config.rejoin_keep_bytes,
        )
        if not write.position or write == self._forgotten:
            return []
        self._forgotten = write
        self._core.holdings.release(write.position)
        return [write]

    # -- questions ---------------------------------------------------------------------------------

    async def published(self, at_least: int, timeout: float) -> int:
        """Return the published position; wait up to `timeout` s until it is `at_least`."""
        if self._base.published.value >= at_least or timeout <= 0:
            return self._base.published.value
        with self.publisher.wanted(at_least):
            return await self._base.published.reach(at_least, min(timeout, _MAX_WAIT_S))

    async def segments(self, after: int, wait: float, limit: int) -> tuple[int, list[Segment]]:
        """Return the published position and segments after a position; wait for the first one.

        Raises:
            ExpiredError: `after` is before the kept log (definite).
        """
        published = await self.published(after + 1, wait)
        if published <= after:
            return published, []
        segments: list[Segment] = await self._base.run_blocking(
            self._base.journal.read_segments, after, max(1, min(limit, _MAX_PAGE))
        )
        return published, segments

    async def commits(self, after: int, upto: int, limit: int) -> OrderedVersions:
        """Return what was ordered of commit tables after one position and up to another one.

        Raises:
            ExpiredError: `after` is before the kept log (definite).
        """
        end = min(upto, self._base.published.value)
        if end <= after:
            return OrderedVersions(upto=after)
        found: OrderedVersions = await self._base.run_blocking(
            self._base.journal.read_commits, after, end, max(1, min(limit, _MAX_PAGE))
        )
        return found

    def queue(self, after: int, limit: int) -> list[ListedRun]:
        """Return entries of the synchronized queue after a position."""
        stored = self._base.journal.read_queue(
            max(after, 0), max(1, min(limit, _MAX_PAGE)), payloads=False
        )
        return [
            {
                "position": item.entry.position,
                "n": item.entry.header.n,
                "origin": item.entry.header.origin,
                "incarnation": item.entry.header.incarnation,
                "seq": item.entry.header.seq,
                "ts": item.entry.header.ts,
                "epoch": item.entry.header.epoch,
                "digest": item.entry.header.digest.hex(),
                "chain_hash": item.entry.chain_hash.hex(),
                "size_bytes": item.entry.header.size_bytes,
                "staged_bytes": item.entry.header.staged_bytes,
                "rejected": [
                    {"index": r.index, "code": r.code, "text": r.text}
                    for r in item.entry.rejections
                ],
                "decided": [
                    {
                        "index": one.index,
                        "transaction_id": transaction_id_to_text(one.transaction_id),
                        "prepared_at": one.position,
                        "code": one.rejection.code if one.rejection else None,
                    }
                    for one in item.entry.verdicts
                ],
                "first_id": transaction_id_to_text(item.ids[:16]),
                "ordered_at": item.ordered_at,
            }
            for item in stored
        ]

    async def maintain(self) -> Maintenance:
        """Shorten the log to its limits now.

        Raises:
            BusyError: The node is stopping (definite).
            DiskFullError: Nothing at all can be written (definite).
            StorageError: It failed; a later round repeats it.  The kept log is whole.
        """
        self.space.check_writes()
        return await asyncio.wrap_future(self.publisher.maintain())
