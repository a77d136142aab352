"""The journal: durable state of the protocol in one SQLite file, and a payload log next to it.

Rules: one INSERT per run, never one per transaction; one SQLite transaction and one fsync per
`write`, and before it one of the payload log if the write has many bytes of containers; memory
changes only after the transaction was committed.  The writing connection belongs to one thread at a
time; `read_*` take other connections from a pool, so the publisher and the HTTP handlers never wait
for the writer (WAL).

    incoming ──AppendQueue──► queue ──MarkPublished──► segments
    payloads stay until ForgetPayloads, queue rows for the id window (see `row_pruning`);
    segments until ExpireLog, DropExpired (see `log_expiry`)
    views, votes, new stamps, summaries: see `epoch_changes`
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import structlog

from sparktxlog.codec.containers.payload import checked_manifest
from sparktxlog.errors import InvariantViolation, StorageError
from sparktxlog.files.durability import link_or_copy, storage_error, storing, sync_directory
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader, Verdict
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    DropExpired,
    DropPlaced,
    ExpireLog,
    ForgetPayloads,
    MarkPublished,
    PutAnnouncement,
    PutBallot,
    PutPlaced,
    PutReservation,
    PutRestamp,
    PutRun,
    PutValue,
    PutVersionFiles,
    PutView,
    ResetJournal,
    ShrinkJournal,
    Write,
)
from sparktxlog.storage.journal import epoch_changes, log_expiry, placed_rows
from sparktxlog.storage.journal.commit_rows import put_commit_tables
from sparktxlog.storage.journal.id_files import IdFiles
from sparktxlog.storage.journal.journal_reader import JournalReader
from sparktxlog.storage.journal.prepared_rows import forget_decided, put_undecided, put_verdicts
from sparktxlog.storage.journal.queue_ids import read_unfiled
from sparktxlog.storage.journal.row_pruning import (
    Ends,
    forget,
    held_bytes_of,
    is_file_named,
    read_held_bytes,
    read_named_files,
)
from sparktxlog.storage.journal.sqlite_schema import (
    HEADER_COLUMNS,
    PAYLOAD_COLUMNS,
    RUN_KEY,
    encode,
    encode_facts,
    fold_by_itself,
    header_of,
    header_row,
    insert_entry,
    open_journal,
    put_meta,
    put_writes,
    read_meta,
    translate,
    unfolded_bytes,
)
from sparktxlog.storage.journal.waiting_ids import WaitingIds, run_key
from sparktxlog.storage.lock import DirectoryLock
from sparktxlog.storage.payload_log import LEAST_BYTES, PAYLOAD_LOG, PayloadLog

JOURNAL_NAME = "journal.sqlite"
#: Permissions of a new data directory: only its user may read transactions and instance.
PRIVATE = 0o700
_log = structlog.get_logger("sparktxlog.journal")

_HOUR_US = 3_600 * 1_000_000
#: Number of ids in a new id file.
_FILED_IDS = 65_536

#: True: the run waits now, with this header; False: it no longer waits.
_Change = tuple[bool, RunHeader, bytes]


class Journal(JournalReader):
    """Durable state of the protocol in `<directory>/journal.sqlite`; owns the directory by a lock.

    `read_*`, `find_*` and `older_ids` may run in any thread, all else in one at a time.

    Raises:
        LockedError: Another process owns the directory (definite).
        CorruptLogError: The file is damaged or of another format.
        StorageError: The disk fails.
    """

    def __init__(
        self, directory: Path, *, id_window: int = 1_000_000, id_window_us: int = 24 * _HOUR_US
    ) -> None:
        super().__init__(directory / JOURNAL_NAME, id_window)
        self._id_window_us = id_window_us
        self._lock = DirectoryLock(directory, mode=PRIVATE)
        #: The error that made the state unknown; from then on every write is refused.
        self._failed: StorageError | None = None
        self._waiting = WaitingIds()
        #: Whether the containers of the present write go into the payload log.
        self._is_large = False
        #: Run digest → those of its contents, of runs that came since the start and wait.
        self._digests: dict[bytes, bytes] = {}
        self._unfolded = 0
        self._ends = Ends()
        try:
            self._db = open_journal(self._path)
            try:
                sync_directory(directory)
                self._recover()
                self._payload_log = self._opened_payloads(directory)
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
            meta = read_meta(self._db, "published", "forgotten", "pruned", "untold")
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
            untold=meta.get("untold", 0),
            held_bytes=held_bytes,
        )
        for row in waiting:
            self._waiting.add(header_of(row), row[9])

    def _opened_payloads(self, directory: Path) -> PayloadLog:
        """Open the payload log, and compare what was written last: a disk may have lied."""
        last = f"SELECT {PAYLOAD_COLUMNS} FROM payloads WHERE file = ?"
        try:
            named = read_named_files(self._db)
            log = PayloadLog(directory / PAYLOAD_LOG, named)
            if named:
                for row in self._db.execute(last, (max(named)[0],)):
                    log.container(row)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        return log

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
        before, end = self._ends, self._payload_log.begin()
        containers = (len(write.payload) for write in writes if isinstance(write, PutRun))
        self._is_large = sum(containers) >= LEAST_BYTES
        changes: list[_Change] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for write in writes:
                self._carry_out(write, changes)
            self._payload_log.sync()
            self._db.execute("COMMIT")
        except (sqlite3.Error, StorageError, FileNotFoundError) as error:
            failure = self._failure_of(error)
            self._roll_back(before, end, not_kept=failure.definite)
            if not failure.definite:
                self._failed = failure
            else:
                fold_by_itself(self._db, on=False)
            raise failure from error
        except BaseException:
            self._roll_back(before, end)
            raise
        self._durable = self._ends.position
        self._unfolded = unfolded_bytes(self._db, self._path)
        for waits, header, ids in changes:
            if not waits:
                self._digests.pop(header.digest, None)
            (self._waiting.add if waits else self._waiting.remove)(header, ids)
        for write in writes:
            if isinstance(write, ShrinkJournal):
                log_expiry.shrink(self._db, self._path, write.least_free_bytes)
            elif isinstance(write, ResetJournal):
                self._id_files.cut(0)
            elif isinstance(write, AppendQueue):
                self._file_ids()
            if isinstance(write, ForgetPayloads | ResetJournal | PutView | ShrinkJournal):
                self._drop_payload_files(few=isinstance(write, ShrinkJournal))

    def _drop_payload_files(self, *, few: bool) -> None:
        """Remove files that no row names any more; what fails is done the next time."""
        try:
            self._payload_log.drop_unnamed(partial(is_file_named, self._db), few=few)
        except sqlite3.Error as error:
            _log.warning("files of the payload log stay", reason=str(error))

    def _failure_of(self, error: sqlite3.Error | StorageError | FileNotFoundError) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return PayloadLog.lost(Path(error.filename))
        return error if isinstance(error, StorageError) else translate(error, self._path)

    def _file_ids(self) -> None:
        """Write ids to a file half a window before the core forgets them; may be retried."""
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
                _log.warning("ids are not yet written to a file", error=str(error))
                return

    def _roll_back(self, before: Ends, end: int, *, not_kept: bool = False) -> None:
        self._ends = before
        self._id_files.cut(before.position)
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
                not_kept = True
        except sqlite3.Error as error:
            self._failed = translate(error, self._path)
        if not_kept:  # else rows may name what was appended
            self._payload_log.cut(end)

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
            case ExpireLog() | DropExpired() | DropPlaced():
                self._shorten(write)
            case ShrinkJournal():
                pass  # not part of the transaction: done after it
            case PutPlaced() | PutVersionFiles() | PutValue():
                self._keep_value(write)
            case _:
                assert_never(write)

    def _shorten(self, write: ExpireLog | DropExpired | DropPlaced) -> None:
        match write:
            case ExpireLog():
                log_expiry.expire_log(self._db, write)
            case DropExpired():
                log_expiry.drop_expired(self._db, write)
            case DropPlaced():
                placed_rows.drop_placed(self._db, write)

    def _keep_value(self, write: PutPlaced | PutVersionFiles | PutValue) -> None:
        if isinstance(write, PutPlaced):
            placed_rows.put_placed(self._db, write)
            return
        if isinstance(write, PutVersionFiles):
            placed_rows.put_version_files(self._db, write.uuid, write.versions)
            return
        self._db.execute(
            "INSERT OR REPLACE INTO named_values VALUES(?, ?)", (write.name, write.value)
        )

    def _keep_announcement(self, write: PutAnnouncement | DropAnnouncement) -> None:
        if isinstance(write, DropAnnouncement):
            statement = "DELETE FROM announcements WHERE digest = ? RETURNING payload"
            payload = _first_value(self._db, statement, (write.digest,))
            ids = b"" if payload is None else checked_manifest(payload).ids
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
        manifest = checked_manifest(write.payload)
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
            differs = held.digest != header.digest
            if header.voids(held) or (differs and self._is_announced(held.digest)):
                changes.extend((False, *run) for run in epoch_changes.drop_run(self._db, header))
                return self._put_run(write, changes)
            if differs:
                raise InvariantViolation(
                    f"two runs {header.origin}/{header.incarnation}/{header.seq} of different"
                    " content",
                    digests=[held.digest, header.digest],
                )
            if header != held and header.epoch >= held.epoch:
                epoch_changes.restamp(self._db, header)
                changes.append((True, header, manifest.ids))
            return None
        container: tuple[bytes | int | None, ...] = (write.payload, None, None, None, None)
        if self._is_large:
            container = (None, *self._payload_log.append(write.payload))
        self._db.execute(
            f"INSERT INTO payloads(origin, incarnation, seq, {PAYLOAD_COLUMNS})"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (*run_key(header), *container),
        )
        self._digests[header.digest] = manifest.content_digests
        if write.ends_announcement:
            self._db.execute("DELETE FROM announcements WHERE digest = ?", (header.digest,))
        changes.append((True, header, manifest.ids))
        return None

    def _is_announced(self, digest: bytes) -> bool:
        """Return whether an own run waits for a stamp: the former name of such a one is free.

        A node that returns under another incarnation keeps its runs so.  A copy of its disk may
        have given their numbers to other runs, which the others have.
        """
        statement = "SELECT 1 FROM announcements WHERE digest = ?"
        return _first_value(self._db, statement, (digest,)) is not None

    def _append_queue(self, write: AppendQueue, changes: list[_Change]) -> None:
        for entry in write.entries:
            self._check_next(entry)
            ids, digests = self._ids_of(entry.header), self._content_digests_of(entry.header)
            insert_entry(self._db, entry, write.ordered_at, ids, digests or None)
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
            "INSERT OR REPLACE INTO definitions VALUES(?, ?, ?)",
            [(at, table.name, encode(table)) for at, table in write.tables],
        )
        put_writes(self._db, write.writes, self._ends.published)
        put_undecided(self._db, self._payload_log, write.undecided)
        put_commit_tables(self._db, write.commit_tables, self._ends.published)
        if write.commit_tables:
            first = write.entries[0].position
            placed_rows.put_ordered(self._db, self._payload_log, write.commit_tables, first)
        until = write.ordered_at - self._id_window_us
        put_verdicts(self._db, write.entries, write.ordered_at, until, self._is_id_known)

    def _is_id_known(self, verdict: Verdict) -> bool:
        filed = self._id_files.first_of(verdict.transaction_id)
        return verdict.position > self._ends.pruned or bool(filed)

    def _check_next(self, entry: QueueEntry) -> None:
        ends = self._ends
        if entry.position != ends.position + 1 or entry.previous_hash != ends.chain_hash:
            raise InvariantViolation(
                f"entry at {entry.position} does not follow the queue's end at {ends.position}",
                position=entry.position,
                previous_hash=entry.previous_hash,
                chain_hash=ends.chain_hash,
            )

    def _content_digests_of(self, header: RunHeader) -> bytes:
        """Return the digests of an incoming run's contents."""
        if (digests := self._digests.get(header.digest)) is not None:
            return digests
        statement = f"SELECT {PAYLOAD_COLUMNS} FROM payloads WHERE {RUN_KEY}"
        row = self._db.execute(statement, run_key(header)).fetchone()
        payload = None if row is None else self._payload_log.container(row)
        return b"" if payload is None else checked_manifest(payload).content_digests

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
        forget_decided(self._db, write.position)
        self._ends = replace(ends, published=write.position)

    def find_transaction(self, transaction_id: bytes) -> tuple[RunHeader, int] | None:
        """Return header and index of a transaction that waits in the incoming queue."""
        return self._waiting.find(transaction_id)

    # -- end -----------------------------------------------------------------------------------

    def unfolded_bytes(self) -> int:
        """Bytes to be written once more: of the write-ahead log, and of unpublished runs."""
        ends = self._ends
        return self._unfolded + (ends.held_bytes if ends.position > ends.published else 0)

    def size_bytes(self) -> int:
        """Bytes on disk: the file, its write-ahead log and the payload log."""
        total = self._payload_log.size_bytes()
        for suffix in ("", "-wal", "-shm"):
            try:
                total += self._path.with_name(JOURNAL_NAME + suffix).stat().st_size
            except FileNotFoundError:
                continue
        return total

    def close(self) -> None:
        """Release lock and files; a second call does nothing."""
        if self._closed:
            return
        self._close_readers()
        self._id_files.close()
        self._payload_log.close()
        self._db.close()
        self._lock.release()

    def replace_by(self, other: Path, kept: Path) -> None:
        """Close the file, rename it to `kept`, and put another closed journal into its place.

        At any moment its name means the old or the new one; the lock is released last.

        Args:
            other: A closed journal on the same file system.
            kept: A free name, or one that this file already has.

        Raises:
            StorageError: The old one is in its place still; do it again.
        """
        try:
            self._close_readers()
            self._payload_log.close()
            self._db.close()
            with storing(self._path):
                self._payload_log.keep(kept.parent)
            swap_journal(self._path, other, kept)
            self._payload_log.drop_all()
        finally:
            self._lock.release()


def swap_journal(path: Path, other: Path, kept: Path) -> None:
    """Replace a closed journal by another closed one; the old one is kept under a new name.

    Raises:
        StorageError: The old one is in its place still; do it again.
    """
    with storing(path):
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise StorageError(
                f"{log} was not merged into its database: another program has it open",
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
