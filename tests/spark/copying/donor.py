"""A donor without a node: leases over a lake's directories, and files taken from there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.worker_log import LogBuilder, MemoryLog

from sparktxlog.errors import ApplyError
from sparktxlog.files.selection import Wanted
from sparktxlog.files.tasks import Fetched, FileTask
from sparktxlog.model.copying import (
    CopyTicket,
    Decision,
    Lease,
    OfferedFile,
    OfferedTable,
    Transfer,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import Answer
from sparktxlog.worker.replica.state import STATE_DIRECTORY, ReplicaDirectory, read_state


def offer(
    path: Path, definition: TableDefinition, version: int, signature: TableSignature
) -> OfferedTable:
    """Return all files of a table's directory, as a lease lists them."""
    files = []
    for file in sorted(path.rglob("*")):
        if file.is_file():
            status = file.stat()
            files.append(
                OfferedFile(
                    path=str(file.relative_to(path)),
                    size_bytes=status.st_size,
                    modified_at=status.st_mtime_ns // 1000,
                )
            )
    return OfferedTable(
        definition=definition, version=version, signature=signature, files=tuple(files)
    )


def lease(
    tables: Iterable[OfferedTable], position: int, chain_hash: str = "h", log_id: str = "test"
) -> Lease:
    return Lease(
        lease_id="lease",
        token="token",
        node_id="b",
        url="http://nowhere",
        log_id=log_id,
        epoch=1,
        position=position,
        chain_hash=chain_hash,
        chunk_bytes=1 << 20,
        lease_s=60.0,
        tables=tuple(tables),
    )


def lease_of(lake: Path) -> Lease:
    """Return a lease of a replica as its worker left it."""
    state = read_state(lake)
    assert state is not None
    tables = [
        offer(lake / name, table.definition, table.version, table.signature)
        for name, table in sorted(state.tables.items())
    ]
    return lease(tables, state.position, state.chain_hash, state.log_id)


class FolderFetcher(DonorFetcher):
    """Takes files from a donor's directory; links what the replica has with equal bytes."""

    def __init__(self, donor: Path, lake: Path, copy_id: str) -> None:
        super().__init__(lake, copy_id)
        self.donor = donor
        self.lake = lake
        self.root = lake / STATE_DIRECTORY / "copies" / copy_id
        self.held: CopyTicket | None = None
        self.released = 0
        self.before: Callable[[str], None] = lambda path: None
        #: Bytes that room was asked for, each time.
        self.room_for: list[int] = []

    def select(self, table: str, files: Sequence[OfferedFile]) -> Wanted:
        """Link nothing yet: `fetch` does."""
        return Wanted(tasks=tuple(FileTask.of(table, file) for file in files), works=())

    def require_space(self, wanted: Sequence[Wanted]) -> None:
        self.room_for.append(sum(part.size_bytes for part in wanted))

    def fetch(self, wanted: Wanted) -> Fetched:
        total, reused = 0, 0
        for file in wanted.tasks:
            self.before(file.path)
            source = self.donor / file.table / file.path
            target, local = self.root / file.table / file.path, self.lake / file.table / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            total += file.size_bytes
            content = source.read_bytes()
            if target.exists() and target.read_bytes() == content:
                continue
            target.unlink(missing_ok=True)
            if local.exists() and local.read_bytes() == content:
                os.link(local, target)
                reused += file.size_bytes
            else:
                target.write_bytes(content)
        return Fetched(size_bytes=total, wire_bytes=total - reused, reused_bytes=reused)

    def hold(self, ticket: CopyTicket) -> None:
        self.held = ticket

    def release(self) -> None:
        if self.held is not None:
            self.held, self.released = None, self.released + 1

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class CopyLog(MemoryLog):
    """A node that leases copies of another lake."""

    def __init__(self, log: LogBuilder, lake: Path, donor: Path) -> None:
        super().__init__(log, lake)
        self.donor = donor
        self.transfers: list[Transfer] = []
        self.lends = True
        self.lease: Lease | None = None
        self.tickets = 0
        self.planned = Decision(worker_id="w", plan="copy", reason="because")

    def plan(self, worker_id: str) -> Decision:
        return self.planned

    def copy_ticket(
        self, worker_id: str, *, forced: bool, donor: str = "", failed: Sequence[str] = ()
    ) -> CopyTicket:
        self._check()
        self.tickets += 1
        if not self.lends:
            raise ApplyError("nobody lends")
        found = self.lease or lease_of(self.donor)
        return CopyTicket(copy_id=f"t{self.tickets}", decision=self.planned, lease=found)

    def record_transfer(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)


def known(position: int) -> Answer:
    return Answer(verdict="IN_SYNC", plan="up-to-date", reason=f"at {position}")


def apply_all(spark: SparkSession, log: LogBuilder, lake: Path) -> None:
    with closing(ReplicaDirectory(lake)) as directory:
        Applier(spark, MemoryLog(log, lake), directory).run_once()
