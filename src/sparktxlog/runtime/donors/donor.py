"""The donor's side of a copy: leases on the own replicas, and chunks of their files.

A lease pins all files of a replica's tables at its newest IN_SYNC report: by hard links (see
`files.pins`), in a bucket by a list of their names (`files.stores.object_pins`).  So the replica
stays online and writable while it is copied, and later changes do not reach the copy.  The lease's
token gives access to these files only.  An unused lease expires, and its pins are removed.

Leases exist in memory only: a restart of this node removes their pins, and their holders ask for
new leases.  Files that they have fetched stay valid.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import structlog

from sparktxlog.delta.live_files import needed_files
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.errors import (
    BusyError,
    NotFoundError,
    StorageError,
    TxLogError,
)
from sparktxlog.files.pinned_chunks import Chunk, ChunkReader
from sparktxlog.files.pins import Pinned, Pinning, Pins, place_of_pins
from sparktxlog.files.stores.object_pins import ObjectPins, disk_of
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.copying import Lease, OfferedTable, ReplicaSize
from sparktxlog.model.replicas import MAIN, holds, replica_id
from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle, Turn
from sparktxlog.runtime.donors.leases import Leases, lease_gone
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.leaving_fork.leftover_log import OwnState, read_replica_state
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.lake_tables import LakeTables
from sparktxlog.supervision import KeyedTasks

if TYPE_CHECKING:
    # Sites on disks have no library for buckets.
    from sparktxlog.files.stores.bucket import BucketStore

_log = structlog.get_logger("sparktxlog.donor")

#: Leases at once; each holds a list of all files of the replica.
MAX_LEASES = 32
_THREADS = 4
#: Added to the niceness of the threads that read, hash and compress (19 at most).
_NICER = 10
#: Sizes of table versions remembered.
_MAX_SIZES = 1_000


@dataclass(frozen=True, slots=True)
class _Lent:
    """The lake of a replica of this site."""

    lake: TablePlace
    tables: LakeTables
    pins: Pinning
    #: As its worker named it; empty = it is the main one's.
    named: str = ""


class Donor:
    """Grants leases on this node's replicas and serves their files; belongs to the event loop.

    Args:
        lake: Where the row tables of the main replica are.
        opened: Returns the store of another replica's lake in a bucket; no object is looked at.

    **After calling** the constructor: `start`, and `close` in the end.
    """

    def __init__(
        self,
        base: Foundation,
        replicas: Replicas,
        throttle: CopyThrottle,
        lake: TablePlace,
        opened: Callable[[str], BucketStore] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config, metrics = base.config, base.metrics
        self._base = base
        self._config = config
        self._replicas = replicas
        self._metrics = metrics
        self._throttle = throttle
        self._opened = opened
        pins: Pinning = (
            Pins(config.lake_dir)
            if isinstance(lake, Path)
            else ObjectPins(cast("BucketStore", lake), config.lake_dir)
        )
        #: Name → lake of a replica, once the pins of a former start are removed there.
        self._lent = {MAIN: _Lent(lake, LakeTables(lake), pins)}
        self._opening: dict[str, asyncio.Lock] = {}
        self._looking = KeyedTasks[str]()
        #: Lease → what pins its files.
        self._pinned: dict[str, Pinning] = {}
        self._chunks = ChunkReader(config.replication_chunk_bytes)
        self._leases = Leases(clock=clock, on_end=self._ended, on_count=metrics.donor_leases.set)
        self._lending = 0
        self._sizes: dict[tuple[str, str, int], list[tuple[str, int]]] = {}
        self._threads = ThreadPoolExecutor(
            max_workers=_THREADS, thread_name_prefix="donor", initializer=_step_back
        )

    async def start(self) -> None:
        """Remove the pins of leases that a former start of this node gave."""
        await self._remove_stale(self._lent[MAIN])
        for name in self._replicas.lakes:
            self.look(name)

    def look(self, name: str) -> None:
        """Make the lake of a replica ready for copies, aside: a mount may hang."""
        self._looking.start(name, partial(self._look, name))

    async def _look(self, name: str) -> None:
        try:
            await self._lake_of(name)
        except TxLogError as error:
            _log.info("no lake to lend from", replica=name, reason=str(error))

    async def _remove_stale(self, lent: _Lent) -> None:
        stale = await self._run(lent.pins.release_others)
        if stale:
            _log.info("pins of a former start removed", leases=len(stale))

    async def close(self) -> None:
        """Give up all leases."""
        await self._looking.close()
        self._leases.close()
        for lent in self._lent.values():
            await self._run(lent.pins.release_others)
        await asyncio.to_thread(self._threads.shutdown)

    def _run(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    # -- leases ------------------------------------------------------------------------------------

    async def lend(
        self,
        worker_id: str,
        *,
        named: bool = False,
        name: str = MAIN,
        only: tuple[str, ...] = (),
        site: str = "",
        here: bool = False,
    ) -> Lease:
        """Pin a replica as its newest report says it is, and give a lease on it.

        No file's content is read.  The caller compares position and chain hash with its own log.

        Args:
            worker_id: The worker that copies, for the log.
            named: An operator says that this replica is right, although another one differs.
            name: Of the replica at this site.
            only: Patterns of the tables that the target holds; empty = all.
            site: Of the target; empty = this one.
            here: The target is another replica of this site.

        Raises:
            NotFoundError: There is no such replica here, not one that is IN_SYNC, or it lacks
                tables (definite).
            BusyError: There are MAX_LEASES leases already; they expire (definite).
            StorageError: The files cannot be pinned; nothing stays pinned.
        """
        self._leases.expire()
        if len(self._leases) + self._lending >= MAX_LEASES:
            raise BusyError(
                f"node {self._config.node_id!r} has given {MAX_LEASES} leases",
                hint="Copy from another site, or later.",
                limit=MAX_LEASES,
            )
        self._lending += 1
        try:
            target = site or self._config.node_id
            lease, pinned = await self._pin(named, name, only, target, here=here)
        finally:
            self._lending -= 1
        self._leases.add(lease, pinned)
        _log.info(
            "lease given",
            lease=lease.lease_id,
            worker=worker_id,
            replica=lease.replica,
            position=lease.position,
            tables=len(lease.tables),
            files=sum(len(table.files) for table in lease.tables),
        )
        return lease

    async def _pin(
        self, named: bool, name: str, only: tuple[str, ...], site: str, *, here: bool
    ) -> tuple[Lease, dict[str, tuple[Pinned, ...]]]:
        config, lent = self._config, await self._lake_of(name)
        report = await self._report(named, name)
        if self._replicas.sets.lacks(report.only, only, at=report.node_id, site=site):
            its = f"{', '.join(report.only)} only" if report.only else "no rows of some groups"
            raise NotFoundError(
                f"the replica {report.replica!r} holds {its}",
                hint="Copy from another replica.",
            )
        lease_id, sets = secrets.token_hex(16), self._replicas.sets
        tables_of_it = [t for t in report.tables if holds(only, t) and sets.may_have(site, t)]
        pinned: dict[str, tuple[Pinned, ...]] = await self._run(
            lent.pins.pin, lease_id, tables_of_it
        )
        try:
            # The replica may stand before a change that this node's tables have already.
            definitions = await self._run(self._base.journal.read_definitions, report.position)
            tables: tuple[OfferedTable, ...] = await self._run(_offers, report, pinned, definitions)
        except (NotFoundError, StorageError):
            await self._run(lent.pins.release, lease_id)
            raise
        self._pinned[lease_id] = lent.pins
        lease = Lease(
            lease_id=lease_id,
            token=secrets.token_urlsafe(32),
            node_id=config.node_id,
            url=config.master_url,
            log_id=config.log_id,
            epoch=report.epoch,
            position=report.position,
            chain_hash=report.chain_hash,
            chunk_bytes=config.replication_chunk_bytes,
            lease_s=config.replication_lease,
            tables=tables,
            name=name,
            pins=str(place_of_pins(lent.lake, lease_id))
            if here and isinstance(lent.lake, Path)
            else "",
        )
        return lease, pinned

    async def _lake_of(self, name: str) -> _Lent:
        """Return the lake of a replica of this site.

        Raises:
            NotFoundError: There is no such replica, or this node does not see its lake (definite).
            ConfigError, MissingDependencyError: Nor its bucket, by its settings (definite).
        """
        given = self._replicas.lakes.get(name)
        if name == MAIN or given is None:
            if (main := self._lent.get(name)) is None or name != MAIN:
                raise NotFoundError(
                    f"node {self._config.node_id!r} has no replica {name!r}",
                    hint="Copy from another replica.",
                )
            return main
        async with self._opening.setdefault(name, asyncio.Lock()):
            known = self._lent.get(name)
            if known is not None and known.named == given:
                return known
            lake, pins = await self._run(self._open, name, given)
            lent = _Lent(lake, LakeTables(lake), pins, given)
            await self._remove_stale(lent)  # before anything is pinned there
            self._lent[name] = lent
            return lent

    def _open(self, name: str, given: str) -> tuple[TablePlace, Pinning]:
        """Return the lake of a named replica, and what pins its files."""
        if self._opened is not None and bucket_url(given, "lake") is not None:
            store = self._opened(given)
            disk = disk_of(given, self._config.lake_dir, self._config.lake_url)
            return store, ObjectPins(store, disk)
        lake = Path(given)
        if not lake.is_absolute() or not lake.is_dir():
            raise NotFoundError(
                f"node {self._config.node_id!r} lends no files of replica {name!r}: it sees no "
                f"directory {given[:200]}",
                hint="Copy from another replica.",
            )
        return lake, Pins(lake)

    async def _report(self, named: bool, name: str) -> WorkerReport:
        """Return the report of the present lake; NotFoundError if it must not be a donor."""
        lent = await self._lake_of(name)
        node_id = replica_id(self._config.node_id, name)
        own: OwnState | None = await self._run(read_replica_state, lent.lake)
        newest = self._replicas.named(name)
        if own is not None and newest is not None and own.worker_id != newest.report.worker_id:
            newest = None  # a new lake has another worker; older reports do not describe it
        if newest is None or newest.report.position == 0:
            raise NotFoundError(
                f"node {node_id!r} has no applied replica", hint="Copy from another site."
            )
        report = newest.report
        if newest.comparison.verdict is not ReplicaVerdict.IN_SYNC:
            raise NotFoundError(
                f"the replica of {node_id!r} is {newest.comparison.verdict.value}: "
                f"{newest.comparison.reason}",
                hint="Copy from another site.",
            )
        if newest.contested and not named:
            raise NotFoundError(
                f"the replica of {node_id!r} may be wrong: {newest.comparison.reason}",
                hint="Copy from another site, or name this one if it is right (--donor).",
            )
        if own is not None and own.position < report.position:
            raise NotFoundError(
                f"the replica of {node_id!r} is at position {own.position}, its last report "
                f"says {report.position}",
                hint="Wait until its worker has reported again.",
            )
        return report

    def lease(self, lease_id: str, token: str) -> Lease:
        """Return a lease and renew it.

        Raises:
            LeaseGoneError: Released, expired, or of a former start (definite).
            UnauthorizedError: Not the lease's token (definite).
        """
        return self._leases.find(lease_id, token).lease

    def release(self, lease_id: str, token: str) -> None:
        """End a lease; its pins are removed in the background.  Errors as `lease`."""
        self._leases.find(lease_id, token)
        self._leases.end(lease_id, "released")

    def _ended(self, lease_id: str) -> None:
        pins = self._pinned.pop(lease_id, self._lent[MAIN].pins)
        self._threads.submit(self._unpin, pins, lease_id)

    def _unpin(self, pins: Pinning, lease_id: str) -> None:
        if not pins.release(lease_id):
            _log.warning("pins remain until the next start", lease=lease_id)

    # -- files -------------------------------------------------------------------------------------

    async def turn(self, lease_id: str, token: str) -> Turn:
        """Wait until a chunk may be served under a lease.

        **After calling**: `end` the turn when the chunk has left.

        Raises:
            LeaseGoneError, UnauthorizedError: As `lease`.
            DonorYieldsError: Transactions go first; ask again (definite).
        """
        with self._leases.using(lease_id, token):
            return await self._throttle.take()

    async def chunk(
        self,
        lease_id: str,
        token: str,
        table: str,
        path: str,
        offset: int,
        length: int,
        *,
        packed: bool = False,
    ) -> Chunk:
        """Return a chunk of a pinned file.

        Args:
            offset: A multiple of the lease's chunk size, below the file's size.
            length: Bytes, 1 to the chunk size; fewer come at the file's end.
            packed: The holder takes it compressed too.

        Raises:
            LeaseGoneError, UnauthorizedError: As `lease`.
            UnknownTableError, NotFoundError, InvalidRequestError: No such chunk (definite).
            FileChangedError: The file has changed since it was pinned (definite).
        """
        with self._leases.using(lease_id, token) as lease:
            file = lease.file(table, path)
            packed = packed and self._config.replication_compression
            chunk: Chunk = await self._run(self._chunks.read, file, offset, length, packed)
        metrics = self._metrics
        metrics.donor_chunks.inc()
        metrics.donor_file_bytes.inc(chunk.file_bytes)
        metrics.donor_sent_bytes.inc(len(chunk.data))
        return chunk

    async def digests(
        self, lease_id: str, token: str, files: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Return the digests of pinned files' chunks, given as (table, path), in their order.

        Errors as `chunk`.
        """
        with self._leases.using(lease_id, token) as lease:
            wanted = [lease.file(table, path) for table, path in files]
            found: list[str] = await self._run(self._digests_of, lease_id, wanted)
        return found

    def _digests_of(self, lease_id: str, files: Sequence[Pinned]) -> list[str]:
        digests = []
        for file in files:
            if lease_id not in self._leases:  # the node stops, or the lease was released
                raise lease_gone()
            digests.append(self._chunks.file_digests(file))
        return digests

    async def size(self, name: str = MAIN) -> ReplicaSize:
        """Return the live files of a replica: what a copy of it costs.

        Raises:
            NotFoundError: No replica that is IN_SYNC (definite).
            StorageError: Its tables cannot be read.
        """
        # Also for a contested replica: an operator may name it as the donor.
        report, lent = await self._report(True, name), await self._lake_of(name)
        files = {}
        for table, state in sorted(report.tables.items()):
            key = (name, table, state.version)
            if key not in self._sizes:
                place = lent.tables.place(table)
                self._sizes[key] = await self._run(_sizes_of, place, state.version)
                while len(self._sizes) > _MAX_SIZES:
                    del self._sizes[next(iter(self._sizes))]
            files[table] = self._sizes[key]
        return ReplicaSize(node_id=self._config.node_id, position=report.position, files=files)


def _sizes_of(table: TablePlace, version: int) -> list[tuple[str, int]]:
    """Return path and bytes of the live data files; a file of vectors may be that of several."""
    found = needed_files(table, version).values()
    return sorted((file.path, file.size) for file in found if file.is_exact)


def _offers(
    report: WorkerReport,
    pinned: Mapping[str, tuple[Pinned, ...]],
    definitions: Mapping[str, TableDefinition],
) -> tuple[OfferedTable, ...]:
    return tuple(
        _offer(report, table, files, definitions.get(table))
        for table, files in sorted(pinned.items())
    )


def _offer(
    report: WorkerReport,
    table: str,
    files: tuple[Pinned, ...],
    definition: TableDefinition | None,
) -> OfferedTable:
    state = report.tables[table]
    if definition is None or definition.fingerprint() != state.schema:
        raise NotFoundError(
            f"table {table!r} of the replica differs from that of the log at position "
            f"{report.position}",
            table=table,
            schema=state.schema,
        )
    commit = commit_file_name(state.version).removesuffix("json")
    if not any(file.path.startswith(commit) for file in files):
        raise StorageError(
            f"table {table!r}: the log of version {state.version} no longer exists",
            hint="Wait until the site's worker has reported again.",
            table=table,
            version=state.version,
        )
    return OfferedTable(
        definition=definition,
        version=state.version,
        signature=state.signature,
        files=tuple(file.offered() for file in files),
    )


def _step_back() -> None:
    """Lower this thread's priority: a copy takes only what the node does not need."""
    if sys.platform == "linux":  # elsewhere priorities belong to whole processes
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + _NICER, 19))
