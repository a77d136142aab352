"""The journal: durable state of the protocol in one SQLite file.

Rules of the room: one INSERT per run, never one per transaction; one SQLite transaction and one
fsync per `write`; what is in memory changes only after the transaction was kept.  The writing
connection belongs to one thread at a time; `read_*` take connections of their own from a pool,
so the publisher and the HTTP handlers never wait for the writer (WAL).

    incoming ──AppendQueue──► queue ──MarkPublished──► segments
    payloads stay until ForgetPayloads, queue rows for the id window (see `forgetting`);
    segments until ExpireLog, DropExpired (see `log_expiry`)
    views, votes, new stamps, snapshots: see `epoch_changes`
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, assert_never

import structlog

from sparktxlog.codec.payload import read_manifest
from sparktxlog.errors import ExpiredError, InvariantViolation, StorageError, TxLogError
from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.words.messages import MergeBase, QueueEntry, RunHeader
from sparktxlog.protocol.words.recovery import RecoveredRun, RecoveredState
from sparktxlog.storage.durability import link_or_copy, storage_error, storing, sync_directory
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    DropExpired,
    ExpireLog,
    ForgetPayloads,
    JournalState,
    LogExtent,
    MarkPublished,
    OlderIdsFound,
    PutAnnouncement,
    PutBallot,
    PutReservation,
    PutRestamp,
    PutRun,
    PutValue,
    PutView,
    QueueSnapshot,
    ResetJournal,
    Segment,
    SegmentCut,
    ShrinkJournal,
    StoredEntry,
    Write,
)
from sparktxlog.storage.journal import epoch_changes, log_expiry
from sparktxlog.storage.journal.id_files import IdFiles
from sparktxlog.storage.journal.loading import (
    read_announcements,
    read_recent_ids,
    read_repeats,
    read_unfiled,
)
from sparktxlog.storage.journal.row_pruning import Ends, forget, held_bytes_of, read_held_bytes
from sparktxlog.storage.journal.sqlite_schema import (
    ENTRY_COLUMNS,
    HEADER_COLUMNS,
    RUN_KEY,
    ballot_of,
    definition_of,
    encode,
    encode_facts,
    facts_of,
    header_of,
    header_row,
    insert_entry,
    open_journal,
    open_reader,
    put_meta,
    read_meta,
    stored_entry,
    translate,
    view_of,
)
from sparktxlog.storage.journal.waiting_ids import WaitingIds, run_key
from sparktxlog.storage.lock import DirectoryLock

JOURNAL_NAME = "front.sqlite"
#: Permissions of a data directory that is made: transactions and instance are nobody else's.
PRIVATE = 0o700
_log = structlog.get_logger("sparktxlog.front")

_HOUR_US = 3_600 * 1_000_000
#: Ids that are filed at once.
_FILED_IDS = 65_536

#: True: the run waits now, with this header; False: it waits no more.
_Change = tuple[bool, RunHeader, bytes]


class Journal:
    """Durable state of the protocol in `<directory>/front.sqlite`; owns the directory by a lock.

    `read_*`, `find_*` and `older_ids` may run in any thread, all else in one at a time.

    Raises:
        LockedError: Another process owns the directory (definite).
        CorruptLogError: The file is damaged or of another format.
        StorageError: The disk fails.
    """

    def __init__(
        self, directory: Path, *, id_window: int = 1_000_000, id_window_us: int = 24 * _HOUR_US
    ) -> None:
        self._path = directory / JOURNAL_NAME
        self._id_window = id_window
        self._id_window_us = id_window_us
        self._lock = DirectoryLock(directory, mode=PRIVATE)
        self._closed = False
        #: What made the state unknown; from then on every write is refused.
        self._failed: StorageError | None = None
        self._readers: LifoQueue[sqlite3.Connection] = LifoQueue()
        self._waiting = WaitingIds()
        self._ends = Ends()
        #: Last position whose row is durable, and the runs that the core appended after it.
        self._durable = 0
        self._unwritten: deque[tuple[int, bytes]] = deque()
        try:
            self._db = open_journal(self._path)
            try:
                sync_directory(directory)
                self._recover()
                self._id_files = IdFiles(directory / "ids", self._ends.position)
            except BaseException:
                self._db.close()
                raise
        except OSError as error:
            self._lock.release()
            raise storage_error(error, directory) from error
        except BaseException:
            self._lock.release()
            raise

    # -- start ---------------------------------------------------------------------------------

    def _recover(self) -> None:
        try:
            meta = read_meta(self._db)
            last = self._db.execute(
                "SELECT position + n - 1, chain_hash FROM queue ORDER BY position DESC LIMIT 1"
            ).fetchone()
            waiting = self._db.execute(f"SELECT {HEADER_COLUMNS}, ids FROM incoming").fetchall()
            held_bytes = read_held_bytes(self._db, meta.get("forgotten", 0))
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        position, chain_hash = last or (0, bytes(32))
        self._ends = Ends(
            position=position,
            chain_hash=chain_hash,
            published=meta.get("published", 0),
            forgotten=meta.get("forgotten", 0),
            pruned=meta.get("pruned", 0),
            held_bytes=held_bytes,
        )
        for row in waiting:
            self._waiting.add(header_of(row), row[9])

    def load(self, id_window: int) -> JournalState:
        """Read the state at start: O(tables + incoming + id window), never O(log)."""
        self._id_window = id_window
        with self._reading() as db:
            meta = read_meta(db)
            base, base_key = self._base(db)
            incoming = [
                RecoveredRun(header=header_of(row), facts=facts_of(row[3], row[9], row[10]))
                for row in db.execute(f"SELECT {HEADER_COLUMNS}, ids, facts FROM incoming")
            ]
            tables = [
                definition_of(body)
                for (body,) in db.execute("SELECT definition FROM catalog ORDER BY position, name")
            ]
            core = RecoveredState(
                base=base,
                base_key=base_key,
                reserved=meta.get("reserved", 0),
                watermarks=dict(db.execute("SELECT origin, seq FROM watermarks").fetchall()),
                incoming=incoming,
                announcements=read_announcements(db),
                tables=tables,
                view=view_of(meta.get("view")),
                ballot=ballot_of(meta.get("ballot")),
                recent_ids=read_recent_ids(db, base.position - id_window),
                repeats=read_repeats(db, base.position - id_window),
                older_ids=self,
            )
            return JournalState(
                core=core,
                incarnation=meta.get("incarnation", 1),
                published=meta.get("published", 0),
                published_version=meta.get("published_version", -1),
                kept_after=meta.get("kept_after", 0),
                values=dict(db.execute("SELECT name, value FROM named_values").fetchall()),
            )

    @staticmethod
    def _base(db: sqlite3.Connection) -> tuple[MergeBase, tuple[int, int, str, int]]:
        row = db.execute(
            f"SELECT {ENTRY_COLUMNS} FROM queue ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return MergeBase(), (0, 0, "", 0)
        entry = stored_entry(row, None).entry
        header = entry.header
        base = MergeBase(
            position=entry.end,
            chain_hash=entry.chain_hash,
            origin=header.origin,
            seq=header.last,
        )
        return base, header.key

    # -- writing -------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> None:
        """Make all writes durable, atomically: one transaction, one fsync.

        Raises:
            DiskFullError: Nothing of it was kept (definite).
            StorageError: State unknown: the node must stop and restart (not definite).
        """
        if not writes:
            return
        if self._failed is not None:
            raise self._failed
        before = self._ends
        changes: list[_Change] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for write in writes:
                self._carry_out(write, changes)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(before)
            failure = translate(error, self._path)
            if not failure.definite:
                self._failed = failure
            raise failure from error
        except BaseException:
            self._roll_back(before)
            raise
        self._durable = self._ends.position
        for waits, header, ids in changes:
            (self._waiting.add if waits else self._waiting.remove)(header, ids)
        for write in writes:
            if isinstance(write, ShrinkJournal):
                log_expiry.shrink(self._db, write.least_free_bytes)
            elif isinstance(write, ResetJournal):
                self._id_files.cut(0)
            elif isinstance(write, AppendQueue):
                self._file_ids()

    def _file_ids(self) -> None:
        """File ids half a window before the core forgets them; a failure only delays it."""
        most = max(1, min(_FILED_IDS, self._id_window // 4))
        while self._ends.position - self._id_files.end >= self._id_window // 2 + most:
            try:
                unfiled = read_unfiled(self._db, self._id_files.end, most)
                if unfiled is None:
                    return
                self._id_files.put(*unfiled)
                self._id_files.expire(
                    unfiled.ts - self._id_window_us, self._ends.position - 2 * self._id_window
                )
            except (OSError, sqlite3.Error) as error:
                _log.warning("ids are not filed yet", error=str(error))
                return

    def _roll_back(self, before: Ends) -> None:
        self._ends = before
        self._id_files.cut(before.position)
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._failed = translate(error, self._path)

    def _carry_out(self, write: Write, changes: list[_Change]) -> None:
        match write:
            case PutRun():
                self._put_run(write, changes)
            case AppendQueue():
                self._append_queue(write, changes)
            case PutReservation():
                put_meta(self._db, reserved=write.counter)
            case PutAnnouncement() | DropAnnouncement():
                self._keep_announcement(write)
            case PutBallot():
                epoch_changes.put_ballot(self._db, write)
            case PutView():
                gone = epoch_changes.put_view(self._db, write)
                changes.extend((False, *run) for run in gone)
            case PutRestamp():
                changes.append((True, *epoch_changes.put_restamp(self._db, write)))
            case ResetJournal():
                self._ends, gone = epoch_changes.reset(self._db, write)
                changes.extend((False, *run) for run in gone)
            case MarkPublished():
                self._mark_published(write)
            case ForgetPayloads():
                self._file_ids()
                self._ends = forget(
                    self._db, write, self._ends, self._id_window, self._id_files.end
                )
            case ExpireLog():
                log_expiry.expire_log(self._db, write)
            case DropExpired():
                log_expiry.drop_expired(self._db, write)
            case ShrinkJournal():
                pass  # no part of the transaction: done behind it
            case PutValue():
                self._db.execute(
                    "INSERT OR REPLACE INTO named_values VALUES(?, ?)", (write.name, write.value)
                )
            case _:
                assert_never(write)

    def _keep_announcement(self, write: PutAnnouncement | DropAnnouncement) -> None:
        if isinstance(write, DropAnnouncement):
            statement = "DELETE FROM announcements WHERE digest = ? RETURNING payload"
            payload = _first_value(self._db, statement, (write.digest,))
            ids = b"" if payload is None else read_manifest(payload).ids
            self._db.executemany(
                "INSERT OR REPLACE INTO withdrawn VALUES(?, ?, ?, ?)",
                [
                    (ids[i : i + 16], write.code, write.text, write.at)
                    for i in range(0, len(ids), 16)
                ],
            )
            until = write.at - self._id_window_us
            self._db.execute("DELETE FROM withdrawn WHERE at < ?", (until,))
            return
        self._db.execute(
            "INSERT INTO announcements(digest, ticket, session, payload)"
            " VALUES(?, ?, ?, ?) ON CONFLICT(digest) DO NOTHING",
            (write.digest, write.ticket, write.session, write.payload),
        )

    def _put_run(self, write: PutRun, changes: list[_Change]) -> None:
        header = write.header
        manifest = read_manifest(write.payload)
        if manifest.n != header.n:
            raise InvariantViolation(
                f"run {header.origin}/{header.seq}: header says {header.n} transactions,"
                f" its manifest {manifest.n}"
            )
        kept = self._db.execute(
            f"INSERT INTO incoming({HEADER_COLUMNS}, ids, facts) VALUES(?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT DO NOTHING",
            (*header_row(header), manifest.ids, encode_facts(RunFacts.of(manifest))),
        )
        if kept.rowcount != 1:
            held = epoch_changes.read_incoming(self._db, header)
            if header.voids(held):
                changes.extend((False, *run) for run in epoch_changes.drop_run(self._db, header))
                return self._put_run(write, changes)
            if held.digest != header.digest:
                raise InvariantViolation(
                    f"two runs {header.origin}/{header.incarnation}/{header.seq} of different"
                    " content",
                    digests=[held.digest, header.digest],
                )
            if header.epoch > held.epoch:
                epoch_changes.restamp(self._db, header)
                changes.append((True, header, manifest.ids))
            return None
        self._db.execute(
            "INSERT INTO payloads(origin, incarnation, seq, payload) VALUES(?, ?, ?, ?)",
            (*run_key(header), write.payload),
        )
        self._db.execute("DELETE FROM announcements WHERE digest = ?", (header.digest,))
        changes.append((True, header, manifest.ids))
        return None

    def _append_queue(self, write: AppendQueue, changes: list[_Change]) -> None:
        for entry in write.entries:
            self._check_next(entry)
            ids = self._ids_of(entry.header)
            insert_entry(self._db, entry, write.ordered_at, ids)
            changes.append((False, entry.header, ids))
            self._ends = replace(
                self._ends,
                position=entry.end,
                chain_hash=entry.chain_hash,
                held_bytes=self._ends.held_bytes + held_bytes_of(entry.header),
            )
        self._db.executemany(
            f"DELETE FROM incoming WHERE {RUN_KEY}",
            [run_key(entry.header) for entry in write.entries],
        )
        watermarks = {entry.header.origin: entry.header.last for entry in write.entries}
        self._db.executemany(
            "INSERT OR REPLACE INTO watermarks VALUES(?, ?)", sorted(watermarks.items())
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO catalog VALUES(?, ?, ?)",
            [(at, table.name, encode(table)) for at, table in write.tables],
        )

    def _check_next(self, entry: QueueEntry) -> None:
        ends = self._ends
        if entry.position != ends.position + 1 or entry.previous_hash != ends.chain_hash:
            raise InvariantViolation(
                f"entry at {entry.position} does not follow the queue's end at {ends.position}",
                position=entry.position,
                previous_hash=entry.previous_hash,
                chain_hash=ends.chain_hash,
            )

    def _ids_of(self, header: RunHeader) -> bytes:
        ids: bytes | None = _first_value(
            self._db,
            f"SELECT ids FROM incoming WHERE {RUN_KEY} AND digest = ?",
            (*run_key(header), header.digest),
        )
        if ids is None:
            raise InvariantViolation(
                f"run {header.origin}/{header.incarnation}/{header.seq} enters the synchronized"
                " queue without standing in the incoming queue",
                digest=header.digest,
            )
        return ids

    def _mark_published(self, write: MarkPublished) -> None:
        ends = self._ends
        if not ends.published <= write.position <= ends.position:
            raise InvariantViolation(
                f"published position {write.position} lies outside"
                f" {ends.published} … {ends.position}"
            )
        put_meta(self._db, published=write.position, published_version=write.version)
        log_expiry.add_files_bytes(self._db, write.segment.files_bytes)
        self._db.execute(
            "INSERT OR REPLACE INTO segments VALUES(?, ?, ?)",
            (write.segment.last, write.segment.first, encode(write.segment)),
        )
        self._ends = replace(ends, published=write.position)

    # -- reading, from any thread --------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a reading connection: one snapshot for all that is read with it."""
        if self._closed:
            raise StorageError(f"{self._path} is closed")
        try:
            connection = self._readers.get_nowait()
        except Empty:
            connection = open_reader(self._path)
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, self._path, reading=True) from error
        except TxLogError:
            connection.execute("COMMIT")
            self._readers.put(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._readers.put(connection)

    def read_payload(self, origin: str, incarnation: int, seq: int) -> bytes | None:
        """Return the payload container of the run that starts at `seq`, None if not held."""
        with self._reading() as db:
            payload: bytes | None = _first_value(
                db,
                f"SELECT payload FROM payloads WHERE {RUN_KEY}",
                (origin, incarnation, seq),
            )
        return payload

    def read_announced(self, digest: bytes) -> bytes | None:
        """Return the payload container of an own unstamped run."""
        with self._reading() as db:
            payload: bytes | None = _first_value(
                db, "SELECT payload FROM announcements WHERE digest = ?", (digest,)
            )
        return payload

    def read_queue(self, after: int, limit_runs: int, *, payloads: bool) -> list[StoredEntry]:
        """Return queue entries that start after position `after`, ascending.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        columns = ", ".join(f"q.{name.strip()}" for name in ENTRY_COLUMNS.split(","))
        join = "LEFT JOIN payloads p USING (origin, incarnation, seq)" if payloads else ""
        with self._reading() as db:
            _check_kept(db, after, ("pruned", "kept_after"))
            rows = db.execute(
                f"SELECT {columns}, {'p.payload' if payloads else 'NULL'} FROM queue q {join}"
                " WHERE q.position > ? ORDER BY q.position LIMIT ?",
                (after, limit_runs),
            ).fetchall()
        return [stored_entry(row, row[15]) for row in rows]

    def read_entry_at(self, position: int) -> StoredEntry | None:
        """Return the entry that holds `position`, without payload."""
        with self._reading() as db:
            row = db.execute(
                f"SELECT {ENTRY_COLUMNS} FROM queue WHERE position <= ?"
                " ORDER BY position DESC LIMIT 1",
                (position,),
            ).fetchone()
        if row is None or row[9] + row[3] <= position:
            return None
        return stored_entry(row, None)

    def read_hash_at(self, position: int) -> bytes | None:
        """Return the chain hash at a run end, None if no run ends at `position`.

        Before the id window only the ends of published segments are known.

        Raises:
            ExpiredError: The hash at `position` is not known any more (definite).
        """
        if position == 0:
            return bytes(32)
        entry = self.read_entry_at(position)
        if entry is not None:
            return entry.entry.chain_hash if entry.entry.end == position else None
        # The run was pruned, but the one behind it may still say its hash.
        behind = self.read_entry_at(position + 1)
        if behind is not None:
            return behind.entry.previous_hash
        with self._reading() as db:
            return log_expiry.read_published_hash(db, position)

    def read_segments(self, after: int, limit: int) -> list[Segment]:
        """Return published segments that end after position `after`, ascending.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        with self._reading() as db:
            _check_kept(db, after, ("kept_after",))
            return log_expiry.read_segments(db, after, limit)

    def read_extent(self) -> LogExtent:
        """Return what of the log is kept, and how large it is."""
        with self._reading() as db:
            return log_expiry.read_extent(db)

    def read_cuts(self, after: int, limit: int) -> list[SegmentCut]:
        """Return places behind position `after` where the log may be cut, ascending."""
        with self._reading() as db:
            return log_expiry.read_cuts(db, after, limit)

    def read_expired(self, limit: int) -> list[Segment]:
        """Return expired segments that `DropExpired` has not named yet, ascending."""
        with self._reading() as db:
            return log_expiry.read_expired(db, limit)

    def read_snapshot(self) -> QueueSnapshot:
        """Return the queue at the end of what is published."""
        with self._reading() as db:
            snapshot = epoch_changes.read_snapshot(db, self._id_window)
        return epoch_changes.with_older_ids(snapshot, self._id_files)

    def read_created(self, first: int, last: int) -> set[tuple[int, str]]:
        """Return position and name of the tables created from position `first` to `last`."""
        with self._reading() as db:
            return set(
                db.execute(
                    "SELECT position, name FROM catalog WHERE position BETWEEN ? AND ?",
                    (first, last),
                )
            )

    def read_waiting_payloads(self) -> list[bytes]:
        """Return the payload containers of unpublished runs that may name staged files."""
        with self._reading() as db:
            return log_expiry.read_waiting_payloads(db)

    def find_transaction(self, transaction_id: bytes) -> tuple[RunHeader, int] | None:
        """Return header and index of a transaction that waits in the incoming queue."""
        return self._waiting.find(transaction_id)

    def find_withdrawn(self, transaction_id: bytes) -> tuple[str, str] | None:
        """Return code and text of what a transaction was rejected for that never got a stamp."""
        with self._reading() as db:
            found: tuple[str, str] | None = db.execute(
                "SELECT code, text FROM withdrawn WHERE id = ?", (transaction_id,)
            ).fetchone()
        return found

    def appended(self, position: int, ids: bytes) -> None:
        """Keep the ids of a run that the core put into its queue until its row is durable."""
        self._unwritten.append((position, ids))
        while self._unwritten and self._unwritten[0][0] <= self._durable:
            self._unwritten.popleft()

    def find(self, ids: bytes, after: int) -> list[tuple[int, int]]:
        """Return (index, first position after `after`) of the ids in files, rows and on their way.

        Rows are read whole: this is for runs that were ordered very late.
        """
        found = {index: at for index, (at, _) in self._id_files.first_of(ids, after).items()}
        places = {ids[16 * i : 16 * i + 16]: i for i in range(len(ids) // 16)}
        with self._reading() as db:
            rows = read_recent_ids(db, max(self._id_files.end, after))
        for first, piece in (*rows, *self._unwritten):
            for offset in range(len(piece) // 16):
                index = places.get(piece[16 * offset : 16 * offset + 16])
                if index is not None and first + offset > after:
                    found.setdefault(index, first + offset)
        return sorted(found.items())

    @property
    def filed_ids(self) -> int:
        """Last position whose id is filed, 0 = none."""
        return self._id_files.end

    def older_ids(self, ids: bytes) -> OlderIdsFound:
        """Look ids up among those that are filed."""
        # Read first: what is filed meanwhile is found, too.
        end = self._id_files.end
        return OlderIdsFound(end=end, found=self._id_files.first_of(ids))

    # -- end -----------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Bytes on disk: the file and its write-ahead log."""
        total = 0
        for suffix in ("", "-wal", "-shm"):
            try:
                total += self._path.with_name(JOURNAL_NAME + suffix).stat().st_size
            except FileNotFoundError:
                continue
        return total

    def close(self) -> None:
        """Release lock and files; doing it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        while not self._readers.empty():
            self._readers.get_nowait().close()
        self._id_files.close()
        self._db.close()
        self._lock.release()

    def replace_by(self, other: Path, kept: Path) -> None:
        """Close the file, keep it under the name `kept`, and put a closed journal into its place.

        Its name stands for the old or for the new one at any moment; the lock is released last.

        Args:
            other: A journal that was closed, on the same file system.
            kept: A free name, or one that this file has already.

        Raises:
            StorageError: The old one is in its place still; do it again.
        """
        self._closed = True
        try:
            while not self._readers.empty():
                self._readers.get_nowait().close()
            self._db.close()
            swap_journal(self._path, other, kept)
        finally:
            self._lock.release()


def swap_journal(path: Path, other: Path, kept: Path) -> None:
    """Put a closed journal into the place of another closed one, which is kept under a new name.

    Raises:
        StorageError: The old one is in its place still; do it again.
    """
    with storing(path):
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise StorageError(
                f"{log} was not folded into its database: another program has it open",
                hint="Close that program.",
                path=str(log),
            )
        link_or_copy(path, kept)
        for directory in (kept.parent, other.parent):
            sync_directory(directory)
        other.replace(path)
        sync_directory(path.parent)


def _first_value(db: sqlite3.Connection, statement: str, arguments: tuple[Any, ...]) -> Any:
    row = db.execute(statement, arguments).fetchone()
    return None if row is None else row[0]


def _check_kept(db: sqlite3.Connection, after: int, names: tuple[str, ...]) -> None:
    meta = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('pruned', 'kept_after')"))
    kept_after = max(meta.get(name, 0) for name in names)
    if after < kept_after:
        raise ExpiredError(
            f"what follows position {after} is expired: the log is kept after {kept_after} only",
            hint="A node or worker so far behind needs a copy.",
            after=after,
            kept_after=kept_after,
        )
