"""The published log of a node: its publisher, the replicas that still need it, what may go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparktxlog.model.answers import ListedRun
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.table import TableDefinition
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.executor import AsideWrite
from sparktxlog.runtime.fleet.transfers import Transfers
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.forgetting import forgettable
from sparktxlog.runtime.log.pruning import Maintenance, Pruning
from sparktxlog.runtime.log.publisher import Publisher
from sparktxlog.runtime.log.retention import Holders, Limits, RetentionView
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.storage.interfaces import ForgetPayloads, Segment, Write

if TYPE_CHECKING:
    from sparktxlog.runtime.fleet.fleet import Fleet

_HOUR_US = 3_600_000_000
#: A copy that has not ended by then keeps the log no more: its worker gave up silently.
_LONGEST_COPY_US = 24 * _HOUR_US
#: Longest wait of any request, seconds.
_MAX_WAIT_S = 300.0
_MAX_PAGE = 1_000


class PublishedLog:
    """Publishes and shortens the log in a thread of its own; all else is the event loop's.

    **After calling** the constructor: `open`, `start`, and `close` in the end; a witness has none
    of them.
    """

    def __init__(
        self, base: Foundation, core: CoreLoop, membership: Membership, transfers: Transfers
    ) -> None:
        config, view = base.config, base.master.view
        self._base = base
        self._core = core
        self._membership = membership
        self._transfers = transfers
        self._follower: Fleet | None = None
        #: Which payloads the journal was told to forget last.
        self._forgotten: ForgetPayloads | None = None
        replicas = {str(seat.node_id) for seat in view.roster if not seat.witness}
        if "replica" not in config.roles:
            replicas.discard(config.node_id)
        #: Who keeps the log: the last report of each member's replica.
        self.holders = Holders(replicas, base.state.values)
        self.pruning = Pruning(base, self)
        self.publisher = Publisher(base, self, membership.epochs.history, self.pruning)

    async def open(self) -> None:
        """Open the queue table before anything is told to anybody.

        Raises:
            FrontLostError: The journal lacks what the queue table holds.
            NewerReleaseError: A later release wrote the queue table (definite).
        """
        await asyncio.to_thread(self.publisher.open)

    def start(self, follower: Fleet) -> None:
        """Start publishing."""
        self._follower = follower
        self.publisher.start(self._base.ordered.value)

    async def close(self) -> None:
        """Finish the publish under way and end the thread."""
        await asyncio.to_thread(self.publisher.stop)

    # -- what the thread asks and tells ------------------------------------------------------------

    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the catalog at or after the last ordered entry."""
        return self._base.master.catalog

    def write(self, writes: Sequence[Write]) -> None:
        """Make writes durable in the journal's writer thread and return when they are."""

        async def write() -> None:
            await self._core.executor.write(writes)

        asyncio.run_coroutine_threadsafe(write(), self._base.loop).result()

    def on_published(self, position: int, seconds: float) -> None:
        """Note that the queue is published up to a position; seconds it took."""
        self._on_loop(self._note_published, position, seconds)

    def on_rest(self) -> None:
        """Note that the work that there was is done."""
        self._on_loop(self._core.cycle.look_for_rest)

    def on_kept(self, position: int) -> None:
        """Note that the log is expired up to a position."""
        self._on_loop(self._base.kept_after.advance, position)

    def retention_view(self) -> RetentionView:
        """Return what decides how much of the log is kept, as the event loop knows it."""

        async def view() -> RetentionView:
            return self._retention_view()

        return asyncio.run_coroutine_threadsafe(view(), self._base.loop).result()

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        self._base.loop.call_soon_threadsafe(work, *args)

    def _retention_view(self) -> RetentionView:
        base, view = self._base, self._base.master.view
        limits = base.settings.in_force
        peers = base.master.status().peers
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
        self._forget_payloads()
        if self._follower is not None:
            self._follower.judge_again()

    def _forget_payloads(self) -> None:
        """Tell the journal which payloads nobody needs any more."""
        base, shown = self._base, self._membership.positions
        posted = {str(peer.peer): peer.position for peer in base.master.status().peers}
        for node_id, position in posted.items():
            # After a start, and in a new epoch, nothing is known of a peer until it posts.
            shown[node_id] = max(position, shown.get(node_id, 0))
        write = forgettable(
            base.master.view,
            base.config.node_id,
            base.master.incarnation,
            posted=posted,
            shown=shown,
            published=base.published.value,
            kept_after=base.kept_after.value,
            keep_bytes=base.config.rejoin_keep_bytes,
        )
        if write.position and write != self._forgotten:
            self._forgotten = write
            self._core.holdings.release(write.position)
            self._core.executor.put([AsideWrite(writes=[write])])

    # -- questions ---------------------------------------------------------------------------------

    async def published(self, at_least: int, timeout: float) -> int:
        """Return the published position once it is `at_least`, or as it is after `timeout` s."""
        return await self._base.published.reach(at_least, min(timeout, _MAX_WAIT_S))

    async def segments(self, after: int, wait: float, limit: int) -> tuple[int, list[Segment]]:
        """Return published position and segments after a position, waiting for one if needed.

        Raises:
            ExpiredError: `after` lies before what the node keeps (definite).
        """
        published = await self.published(after + 1, wait)
        if published <= after:
            return published, []
        segments: list[Segment] = await self._base.run_blocking(
            self._base.journal.read_segments, after, max(1, min(limit, _MAX_PAGE))
        )
        return published, segments

    def queue(self, after: int, limit: int) -> list[ListedRun]:
        """Return entries of the synchronized queue after a position, for people."""
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
                "first_id": transaction_id_to_text(item.ids[:16]),
                "ordered_at": item.ordered_at,
            }
            for item in stored
        ]

    async def maintain(self) -> Maintenance:
        """Shorten the log now, as its limits ask; return what was done.

        Raises:
            BusyError: The node is stopping (definite).
            StorageError: It failed, and is tried again by itself; nothing kept was lost.
        """
        return await asyncio.wrap_future(self.publisher.maintain())
