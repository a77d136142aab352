"""A replica's own durable state, in `lake/_sparktxlog/`: one process at a time.

    lock            held while the worker runs; lock.driver is held while its JVM runs
    state.json      applied position, chain hash, tables, and an unfinished batch or copy

A batch is journaled in `state.json` before its first commit, so that it is repeated with the same
end after a crash.  Its end is recorded after its last commit was fsynced.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from sparktxlog.delta.log_files import TablePlace, commit_path
from sparktxlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    LockedError,
    NotAppliedError,
    ObjectMissingError,
)
from sparktxlog.files.durability import storing, write_durably
from sparktxlog.model.ids import local_path
from sparktxlog.model.replicas import MAIN, check_replica_name, table_set
from sparktxlog.model.report import Recount, RecountedTable, TableState
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.storage.lock import DirectoryLock
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket

#: Directory of the worker's own files inside the lake; Delta ignores the leading underscore.
STATE_DIRECTORY = "_sparktxlog"
#: File in it while a backup image is being restored into the lake.
RESTORING = "restoring.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTable:
    """A table of the replica after the last complete batch."""

    definition: TableDefinition
    #: Delta version that holds exactly the transactions up to the applied position.
    version: int
    signature: TableSignature = EMPTY_SIGNATURE
    #: Empty, or why the table stands still.
    diverged: str = ""
    #: Of a table that stands still: `version` holds the log up to this position.  All other
    #: tables: -1, the replica's position counts.
    position: int = -1

    def to_report(self) -> TableState:
        """Return the table as reports contain it."""
        return TableState(
            version=self.version,
            signature=self.signature,
            schema=self.definition.fingerprint(),
            diverged=self.diverged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """A batch whose commits may have begun."""

    first: int
    last: int
    from_hash: str
    to_hash: str
    #: Its end, if that is inside a published segment.
    cut: Cut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLog:
    """A donor's Delta log that replaces a table's, identified by the file of its last commit."""

    version: int
    size_bytes: int
    #: Time of the donor's file, which the staged commit keeps; microseconds since 1970 UTC.
    modified_at: int
    #: SHA-256 of that file, hexadecimal: a bucket keeps no times of donors.  Empty = not known.
    digest: str = ""

    def stands_in(self, table: TablePlace) -> bool:
        """Return whether a table has that log, perhaps with newer commits."""
        if not isinstance(table, Path):
            try:
                content = table.read(commit_file_name(self.version))
            except ObjectMissingError:
                return False
            return sha256(content).hexdigest() == self.digest
        try:
            status = commit_path(table, self.version).stat()
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns // 1000) == (self.size_bytes, self.modified_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCopy:
    """An unfinished copy; until it ends, tables may stand at different positions."""

    #: Id of the first attempt, in the names of workspace, commits and entries of the attic.
    copy_id: str
    #: Wall clock, microseconds since 1970 UTC.
    started_at: int
    #: An operator asked for it, not the node's plan.
    forced: bool = False
    #: Donor that an operator named, empty = none.
    donor: str = ""
    #: The replica may have rows that this log lacks; those of all tables go to the attic.
    suspect: bool = False
    #: Tables whose swap was begun.
    swapped: tuple[str, ...] = ()
    #: Table → donor's log; its whole directory was about to be replaced.
    renamed: dict[str, PlacedLog] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The durable state of a worker."""

    worker_id: str
    #: Site whose replica it is; empty = nothing was reported yet.
    node_id: str = ""
    #: Empty until the first batch.
    log_id: str = ""
    epoch: int = 0
    #: Applied position, a run end; 0 = nothing yet.
    position: int = 0
    chain_hash: str = ""
    tables: dict[str, ReplicaTable] = field(default_factory=dict)
    pending: PendingBatch | None = None
    #: Unless it is None, no batch may be applied.
    copying: PendingCopy | None = None
    #: Donor, position and id of the last copy, `B@1200/3f0c…`; empty = none.
    copied_from: str = ""
    #: A position that may lie inside a published segment: a worker had to stop there (`--at-most`),
    #: or the replica was restored from an image.
    cut: Cut | None = None
    #: Its name at the site, and patterns of the tables that it holds (`model.replicas`).
    name: str = MAIN
    only: tuple[str, ...] = ()

    def begin(self, batch: Batch, log_id: str, cut: Cut | None = None) -> ReplicaState:
        """Return the state with a batch begun, which may end at a cut."""
        pending = PendingBatch(
            first=batch.first,
            last=batch.last,
            from_hash=batch.from_hash,
            to_hash=batch.to_hash,
            cut=cut,
        )
        return replace(self, log_id=log_id, pending=pending)

    def finish(
        self,
        batch: Batch,
        log_id: str,
        tables: dict[str, ReplicaTable],
        cut: Cut | None = None,
    ) -> ReplicaState:
        """Return the state after a complete batch, which may have ended at a cut."""
        return replace(
            self,
            log_id=log_id,
            epoch=batch.epoch,
            position=batch.last,
            chain_hash=batch.to_hash,
            tables=tables,
            pending=None,
            # The batch may have begun at the former cut, which was needed until now.
            cut=cut or self.cut,
        )

    def of_site(self, node_id: str, lake: str, *, takes: bool = False) -> ReplicaState:
        """Return the state as that of a site's replica.

        Args:
            takes: It was that of another site, and came here on purpose: its worker is a new one.

        Raises:
            InvalidRequestError: It is that of another site (definite).
        """
        if self.node_id in ("", node_id):
            return replace(self, node_id=node_id)
        if takes:
            return replace(self, node_id=node_id, worker_id=new_worker())
        raise InvalidRequestError(
            f"the replica in {lake} is that of site {self.node_id!r}, and the node that was named "
            f"is site {node_id!r}: one lake would count as two sites",
            hint="Name the node of its own site (--url), or another lake (--lake). If the lake "
            "was moved or copied to this site on purpose: --take-lake",
            field="url",
            value=node_id,
        )

    def named(
        self, name: str | None, tables: Sequence[str], lake: str, *, takes: bool = False
    ) -> ReplicaState:
        """Return the state as that of a replica with a name and a set of tables.

        A replica without anything takes both; another one keeps them.

        Args:
            name: None = the name that it has.
            tables: Patterns; empty = those that it has.
            takes: Its lake was copied or moved on purpose, so it may get another name: its worker
                is a new one.

        Raises:
            InvalidNameError, InvalidRequestError: They are wrong, or others than it has (definite).
        """
        name = None if name is None else check_replica_name(name)
        only = table_set(tables)
        if not self.position and self.copying is None:
            return replace(self, name=name or self.name, only=only or self.only)
        if only and only != self.only:
            raise InvalidRequestError(
                f"the replica in {lake} holds {', '.join(self.only) or 'all tables'}, and --tables "
                f"says {', '.join(only)}: it would lack rows from before",
                hint="Leave --tables out to go on with what it holds.  For other tables begin "
                "another replica: --name and an empty --lake; a copy from this site's replicas "
                "brings it to the present.",
                field="tables",
                value=", ".join(only)[:200],
            )
        if name in (None, self.name):
            return self
        if takes:
            return replace(self, name=name or self.name, worker_id=new_worker())
        raise InvalidRequestError(
            f"the replica in {lake} has the name {self.name!r}, and --name says {name!r}: one lake "
            "would count as two replicas",
            hint="Leave --name out, or name another lake (--lake).  If the lake was copied or "
            "moved on purpose: --take-lake",
            field="name",
            value=name,
        )

    def recount(self, node_id: str, tables: dict[str, RecountedTable]) -> Recount:
        """Return the results of full scans, as the node gets them."""
        return Recount(
            worker_id=self.worker_id,
            node_id=node_id,
            copied_from=self.copied_from,
            position=self.position,
            tables=tables,
        )

    @property
    def diverged(self) -> dict[str, str]:
        """Tables that stand still, with the reason."""
        return {name: table.diverged for name, table in self.tables.items() if table.diverged}


class ReplicaHome(Protocol):
    """Where a replica is, owned by this process while it is open."""

    @property
    def place(self) -> Lake:
        """Its tables."""

    @property
    def own(self) -> Path:
        """Directory of this machine for the worker's own files."""

    @property
    def disk(self) -> Path:
        """Directory of this machine for files on their way; that of the tables, on a disk."""

    def load(self) -> ReplicaState:
        """Read the state; a fresh replica gets an id and stands at position 0."""

    def save(self, state: ReplicaState) -> None:
        """Replace the state durably."""

    def check_owner(self) -> None:
        """Return unless this process knows that another one has the replica.

        Raises:
            LockedError: It does (definite).
        """

    def on_close(self, release: Callable[[], None]) -> None:
        """Call `release` in `close`, before the replica's lock is released."""

    def close(self) -> None:
        """Release the replica."""


class ReplicaDirectory:
    """The lake of a replica, locked by this process while it is open.

    Args:
        lake: Root of the replica's tables; made if missing.

    Raises:
        InvalidRequestError: It is no path of this machine (definite).
        LockedError: Another worker owns the replica (definite).
        CorruptLogError: The state cannot be read.
    """

    def __init__(self, lake: str | Path) -> None:
        self.lake = Path(local_path(str(lake), "lake")).absolute()
        self.place = DiskLake(self.lake)
        self.own = self.lake / STATE_DIRECTORY
        self._lock = lock_of_worker(self.own, str(self.lake))
        self._releases: list[Callable[[], None]] = []

    @property
    def disk(self) -> Path:
        """As `ReplicaHome.disk`."""
        return self.lake

    def load(self) -> ReplicaState:
        """Read the state; a fresh replica gets an id and stands at position 0.

        Raises:
            CorruptLogError: It cannot be read, or a restore here was not finished (definite).
        """
        if (self.own / RESTORING).exists():
            raise broken_off(str(self.lake), str(self.own / RESTORING))
        found = read_state(self.lake)
        if found is not None:
            return found
        state = ReplicaState(worker_id=new_worker())
        self.save(state)
        return state

    def save(self, state: ReplicaState) -> None:
        """Replace the state durably: after a crash it is the old or the new one.

        Raises:
            DiskFullError: It is the old one (definite).
            StorageError: The disk failed; it is one of both.
        """
        path = self.own / "state.json"
        with storing(path):
            write_durably(path, msgspec.json.encode(state))

    def check_owner(self) -> None:
        """As `ReplicaHome.check_owner`: the system keeps the lock while this process lives."""

    def on_close(self, release: Callable[[], None]) -> None:
        """Call `release` in `close`, before the replica's lock is released."""
        self._releases.append(release)

    def close(self) -> None:
        """Release the replica."""
        while self._releases:
            self._releases.pop()()
        self._lock.release()


def broken_off(lake: str, marker: str) -> CorruptLogError:
    """Return the error that a restore into a lake was not finished, as its marker says."""
    return CorruptLogError(
        f"a restore was broken off in {lake}: its tables are not whole",
        hint="Repeat it: sparktxlog restore … --force-clean",
        path=marker,
    )


def new_worker() -> str:
    """Return an id for the worker of a new replica."""
    return uuid.uuid4().hex[:12]


def lock_of_worker(own: Path, lake: str) -> DirectoryLock:
    """Lock a worker's own directory; it is made if missing.

    Raises:
        LockedError: Another worker owns the replica (definite).
    """
    try:
        return DirectoryLock(own)
    except LockedError as error:
        holder = error.fields["pid"] or "unknown"
        raise LockedError(
            f"the replica in {lake} is owned by another worker (process {holder})",
            hint="One worker writes a replica; stop that one first.",
            path=lake,
        ) from error


def read_state(lake: str | Path) -> ReplicaState | None:
    """Read a replica's state without its lock; None = no worker has run here.

    Args:
        lake: A directory, or the URL of a bucket, which is reached as the environment says.

    Raises:
        CorruptLogError: The file is damaged.
        StorageError: As `Store`, in a bucket.
    """
    if is_in_bucket(lake):
        store, key = bucket_at(str(lake)), f"{STATE_DIRECTORY}/state.json"
        try:
            return decoded_state(store.read(key), store.url_of(key))
        except ObjectMissingError:
            return None
    path = Path(lake) / STATE_DIRECTORY / "state.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decoded_state(content, str(path))


def decoded_state(content: bytes, path: str) -> ReplicaState:
    """Return the state that bytes say.

    Raises:
        CorruptLogError: They are damaged (definite).
    """
    try:
        return msgspec.json.decode(content, type=ReplicaState)
    except msgspec.MsgspecError as error:
        raise CorruptLogError(
            f"the replica's state {path} cannot be read: {error}",
            hint="Restore the file, or remove the lake and let the worker replay the log.",
            path=path,
        ) from error


def applied_state(lake: str | Path) -> ReplicaState:
    """Read the state of a replica to which something was applied.

    Raises:
        NotAppliedError: No worker has applied anything here yet (definite).
    """
    state = read_state(lake)
    if state is None or state.position == 0:
        raise NotAppliedError(
            f"nothing was applied in {lake} yet",
            hint="Run a worker first: ./spark-submit.sh jobs/apply.py",
            path=str(lake),
        )
    return state
