"""Reads of the journal, from any thread, without waiting for the writer (WAL)."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, TypeVar

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import CorruptLogError, ExpiredError, StorageError, TxLogError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_versions import OrderedVersions, VersionFiles
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.posts import MergeBase, Verdict
from sparktxlog.protocol.messages.recovery import (
    RecoveredAnnouncement,
    RecoveredRun,
    RecoveredState,
)
from sparktxlog.storage.interfaces import (
    INHERITED,
    IdPieces,
    JournalState,
    LogExtent,
    OlderIdsFound,
    OrderedCommit,
    QueueSummary,
    Segment,
    SegmentCut,
    StoredEntry,
)
from sparktxlog.storage.journal import placed_rows
from sparktxlog.storage.journal.commit_rows import read_commit_tables
from sparktxlog.storage.journal.id_files import IdFiles
from sparktxlog.storage.journal.prepared_rows import (
    read_container,
    read_kept,
    read_undecided,
    read_verdict,
    with_verdicts,
)
from sparktxlog.storage.journal.queue_ids import read_digests, read_recent_ids, read_repeats
from sparktxlog.storage.journal.row_pruning import Ends, read_named_bytes
from sparktxlog.storage.journal.sqlite_schema import (
    ENTRY_COLUMNS,
    HEADER_COLUMNS,
    PAYLOAD_COLUMNS,
    RUN_KEY,
    definition_of,
    facts_of,
    header_of,
    open_reader,
    page_counts,
    read_last_entry,
    read_meta,
    read_number,
    read_writes,
    segment_of,
    stored_entry,
    translate,
)
from sparktxlog.storage.payload_log import PayloadLog

_Read = TypeVar("_Read")
#: Number of ids in a piece of a summary.
_PIECE_IDS = 1 << 16
#: Containers of runs that may name staged files and are not published.
_WAITING = (
    "SELECT payload, NULL, NULL, NULL, NULL FROM announcements",
    "SELECT payload, NULL, NULL, NULL, NULL FROM prepared WHERE staged_bytes > 0",
    (
        f"SELECT {PAYLOAD_COLUMNS} FROM incoming JOIN payloads p USING (origin, incarnation, seq)"
        " WHERE staged_bytes > 0"
    ),
    (
        f"SELECT {PAYLOAD_COLUMNS} FROM queue q JOIN payloads p USING (origin, incarnation, seq)"
        " WHERE q.staged_bytes > 0 AND q.position + q.n - 1 >"
        " coalesce((SELECT value FROM meta WHERE name = 'published'), 0)"
    ),
)


class JournalReader:
    """Reads `journal.sqlite` with its own connections; every method may run in any thread.

    Each raises StorageError if the disk fails; then nothing was changed.

    Args:
        path: The file.
        id_window: Positions whose ids the core keeps in memory.
    """

    _id_files: IdFiles
    _payload_log: PayloadLog
    _ends: Ends

    def __init__(self, path: Path, id_window: int) -> None:
        self._path = path
        self._id_window = id_window
        self._closed = False
        self._readers: LifoQueue[sqlite3.Connection] = LifoQueue()
        #: Last position whose row is durable, and the runs that the core appended after it.
        self._durable = 0
        self._unwritten: deque[tuple[int, bytes]] = deque()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Give a reading connection; all its reads see one state."""
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

    def _close_readers(self) -> None:
        self._closed = True
        while not self._readers.empty():
            self._readers.get_nowait().close()

    def _reading_containers(self, read: Callable[[sqlite3.Connection], _Read]) -> _Read:
        """Return what a read returns that also reads the payload log."""
        try:
            with self._reading() as db:
                return read(db)
        except (FileNotFoundError, CorruptLogError):
            # Its rows were forgotten meanwhile, or it is damaged: the newest state says which.
            pass
        try:
            with self._reading() as db:
                return read(db)
        except FileNotFoundError as error:
            raise PayloadLog.lost(Path(error.filename)) from error

    def _first_row(self, statement: str, *arguments: Any) -> Any:
        with self._reading() as db:
            return db.execute(statement, arguments).fetchone()

    # -- at start ------------------------------------------------------------------------------

    def load(self, id_window: int) -> JournalState:
        """Read the state at start: O(tables + incoming + id window), never O(log)."""
        self._id_window = id_window
        with self._reading() as db:
            meta = read_meta(db)
            base, base_key = _end_of_queue(db)
            incoming = [
                RecoveredRun(header=header_of(row), facts=facts_of(row[3], row[9], row[10]))
                for row in db.execute(f"SELECT {HEADER_COLUMNS}, ids, facts FROM incoming")
            ]
            tables = [
                definition_of(body)
                for (body,) in db.execute(
                    "SELECT definition FROM definitions ORDER BY position, name"
                )
            ]
            core = RecoveredState(
                base=base,
                base_key=base_key,
                reserved=meta.get("reserved", 0),
                watermarks=dict(db.execute("SELECT origin, seq FROM watermarks").fetchall()),
                incoming=incoming,
                announcements=_read_announcements(db),
                tables=tables,
                view=meta.get("view"),
                ballot=meta.get("ballot"),
                recent_ids=read_recent_ids(db, base.position - id_window),
                repeats=read_repeats(db, base.position - id_window),
                older_ids=self,
                writes=read_writes(db),
                undecided=read_undecided(db),
                commit_tables=read_commit_tables(db),
            )
            return JournalState(
                core=core,
                incarnation=meta.get("incarnation", 1),
                published=meta.get("published", 0),
                published_version=meta.get("published_version", -1),
                kept_after=meta.get("kept_after", 0),
                values=dict(db.execute("SELECT name, value FROM named_values").fetchall()),
            )

    # -- the queue -----------------------------------------------------------------------------

    def read_payload(self, origin: str, incarnation: int, seq: int) -> bytes | None:
        """Return the payload container of the run that starts at `seq`, None if not held."""
        statement = f"SELECT {PAYLOAD_COLUMNS} FROM payloads WHERE {RUN_KEY}"

        def read(db: sqlite3.Connection) -> bytes | None:
            row = db.execute(statement, (origin, incarnation, seq)).fetchone()
            return None if row is None else self._payload_log.container(row)

        return self._reading_containers(read)

    def read_announced(self, digest: bytes) -> bytes | None:
        """Return the payload container of an own unstamped run."""
        row = self._first_row("SELECT payload FROM announcements WHERE digest = ?", digest)
        return None if row is None else row[0]

    def read_queue(self, after: int, limit_runs: int, *, payloads: bool) -> list[StoredEntry]:
        """Return queue entries that start after position `after`, ascending.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        columns = ", ".join(f"q.{name.strip()}" for name in ENTRY_COLUMNS.split(","))
        join = "LEFT JOIN payloads p USING (origin, incarnation, seq)" if payloads else ""
        container = PAYLOAD_COLUMNS if payloads else "NULL, NULL, NULL, NULL, NULL"

        def read(db: sqlite3.Connection) -> list[StoredEntry]:
            _check_kept(db, after, "pruned", "kept_after")
            rows = db.execute(
                f"SELECT {columns}, {container} FROM queue q {join}"
                " WHERE q.position > ? ORDER BY q.position LIMIT ?",
                (after, limit_runs),
            ).fetchall()
            found = [stored_entry(row, self._payload_log.container(row)) for row in rows]
            return with_verdicts(db, found)

        return self._reading_containers(read)

    def read_backlog(self, after: int, until: int) -> tuple[int, int]:
        """Return bytes of the runs with positions after one and up to another one, and when the
        first of them was ordered here, microseconds since 1970 UTC; 0 = there is none.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        with self._reading() as db:
            _check_kept(db, after, "pruned", "kept_after")
            size_bytes, oldest = db.execute(
                "SELECT sum(size_bytes + staged_bytes), min(ordered_at) FROM queue"
                " WHERE position > ? AND position <= ?",
                (after, until),
            ).fetchone()
        return int(size_bytes or 0), int(oldest or 0)

    def read_entry_at(self, position: int) -> StoredEntry | None:
        """Return the entry that holds `position`, without payload."""
        with self._reading() as db:
            found = read_last_entry(db, position)
        return found if found is not None and found.entry.end >= position else None

    def read_hash_at(self, position: int) -> bytes | None:
        """Return the chain hash at a run end, None if no run ends at `position`.

        For positions before the id window only ends of published segments are known.

        Raises:
            ExpiredError: The hash at `position` is no longer known (definite).
        """
        if position == 0:
            return bytes(32)
        if (stored := self.read_entry_at(position)) is not None:
            return stored.entry.chain_hash if stored.entry.end == position else None
        # The run was pruned, but the one after it may still have its hash.
        if (stored := self.read_entry_at(position + 1)) is not None:
            return stored.entry.previous_hash
        with self._reading() as db:
            segment = next(iter(_read_segments(db, position - 1, 1)), None)
            gone = read_number(db, "pruned", "kept_after")
        if segment is not None and segment.last == position:
            return bytes.fromhex(segment.to_hash)
        if segment is not None and segment.first == position + 1:
            return bytes.fromhex(segment.from_hash)
        if position > gone:
            return None
        raise ExpiredError(
            f"the chain hash at position {position} is no longer known: rows are kept after {gone}",
            position=position,
        )

    def read_created(self, first: int, last: int) -> dict[tuple[int, str], TableDefinition]:
        """Return tables as they were created or changed from `first` to `last`.

        By position and name.
        """
        statement = (
            "SELECT position, name, definition FROM definitions WHERE position BETWEEN ? AND ?"
        )
        with self._reading() as db:
            rows = db.execute(statement, (first, last)).fetchall()
        return {(position, name): definition_of(body) for position, name, body in rows}

    def read_drops(self, after: int) -> dict[str, int]:
        """Return the tables that were dropped after a position, each with its first drop there."""
        statement = (
            "SELECT position, name, definition FROM definitions WHERE position > ? ORDER BY 1"
        )
        found: dict[str, int] = {}
        with self._reading() as db:
            for position, name, body in db.execute(statement, (after,)):
                if definition_of(body).is_dropped:
                    found.setdefault(name, position)
        return found

    def read_definition(self, table: str, schema_version: int) -> TableDefinition | None:
        """Return a table as it is or was at a schema version, None if it never had that."""
        statement = "SELECT definition FROM definitions WHERE name = ? ORDER BY position DESC"
        with self._reading() as db:
            for (body,) in db.execute(statement, (table,)):
                if (found := definition_of(body)).schema_version == schema_version:
                    return found
        return None

    def read_definitions(self, position: int) -> dict[str, TableDefinition]:
        """Return the tables by name as they are, or were, at a position."""
        statement = "SELECT definition FROM definitions WHERE position <= ? ORDER BY position"
        with self._reading() as db:
            found = [definition_of(body) for (body,) in db.execute(statement, (position,))]
        last = {table.name: table for table in found}
        return {name: table for name, table in last.items() if not table.is_dropped}

    def read_prepared(self, transaction_id: bytes) -> bytes | None:
        """Return the container of a prepared transaction, None if its decision is published."""
        with self._reading() as db:
            return read_container(db, transaction_id)

    def find_verdict(self, transaction_id: bytes) -> tuple[int, Verdict] | None:
        """Return the start of the run that decides a prepared transaction, and how (P35)."""
        with self._reading() as db:
            return read_verdict(db, transaction_id)

    def find_withdrawn(self, transaction_id: bytes) -> tuple[str, str] | None:
        """Return code and text of the rejection of a transaction that never got a stamp."""
        found: tuple[str, str] | None = self._first_row(
            "SELECT code, text FROM withdrawn WHERE id = ?", transaction_id
        )
        return found

    # -- commits of commit tables ------------------------------------------------------------------

    def read_ordered_commits(self, uuid: str, after: int) -> list[OrderedCommit]:
        """Return what is known of the versions of a commit table after one, ascending."""
        with self._reading() as db:
            return placed_rows.read_ordered(db, uuid, after)

    def read_to_place(
        self, after: Mapping[str, tuple[int, int]], limit: int
    ) -> dict[str, tuple[list[tuple[OrderedCommit, tuple[bytes, ...]]], bool]]:
        """Return what is to be placed of some commit tables, as far as the journal has its files.

        Args:
            after: Table → its last version that is placed; and the last one with all that its
                transactions gave to other tables.
            limit: Most versions of each.

        Returns:
            Table → its next versions with their files, and whether their transactions gave
            something to other tables that is not noted as placed.
        """
        found = dict[str, tuple[list[tuple[OrderedCommit, tuple[bytes, ...]]], bool]]()
        with self._reading() as db:
            for uuid, (version, whole) in after.items():
                commits = placed_rows.read_to_place(db, uuid, version, limit)
                last = version + len(commits)
                others = placed_rows.read_unplaced_of_others(db, uuid, whole, last)
                found[uuid] = commits, bool(others)
        return found

    def read_carried(self, uuid: str, version: int) -> tuple[bytes, ...]:
        """Return the files of a version that its run carried, none once it is placed."""
        with self._reading() as db:
            return placed_rows.read_carried(db, uuid, version)

    def read_kept_commits(self) -> list[OrderedCommit]:
        """Return all commits whose files the payload store has to keep."""
        with self._reading() as db:
            return placed_rows.read_all_ordered(db)

    def read_commits_at(self, position: int) -> list[OrderedCommit]:
        """Return the commits that a position ordered, with those of their files that are kept."""
        with self._reading() as db:
            return placed_rows.read_at(db, position)

    def read_commits(self, after: int, upto: int, limit: int) -> OrderedVersions:
        """Return what was ordered of commit tables after one position and up to another one.

        Args:
            limit: About so many versions.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        with self._reading() as db:
            _check_kept(db, after, "kept_after")
            return placed_rows.read_after(db, after, upto, limit)

    def read_done_commits(self) -> list[OrderedCommit]:
        """Return placed commits of expired positions: their files may go."""
        with self._reading() as db:
            return placed_rows.read_done(db, read_number(db, "kept_after"))

    def read_placed(self, uuid: str) -> bytes | None:
        """Return the state of a commit table where it is placed, None = nowhere."""
        with self._reading() as db:
            return placed_rows.read_placed(db, uuid)

    def read_placed_versions(self) -> dict[str, int]:
        """Return the version up to which each commit table is placed, by UUID."""
        with self._reading() as db:
            return placed_rows.read_placed_versions(db)

    def read_unplaced_of_others(self, uuid: str, after: int, version: int) -> list[tuple[str, int]]:
        """Return UUID and version that wait at the places of some versions of a commit table.

        Args:
            after: Those of the table's versions after this one, up to `version`.
        """
        with self._reading() as db:
            return placed_rows.read_unplaced_of_others(db, uuid, after, version)

    def read_version_files(self, uuid: str, after: int, limit: int) -> list[VersionFiles]:
        """Return the files of the versions of a commit table after one, as far as known."""
        with self._reading() as db:
            return placed_rows.read_version_files(db, uuid, after, limit)

    def read_unplaced(self, after: int) -> list[tuple[str, int]]:
        """Return the commit tables with versions that wait, ordered after a position; see there."""
        with self._reading() as db:
            return placed_rows.read_unplaced(db, after)

    # -- ids that the core no longer holds -----------------------------------------------------

    def appended(self, position: int, ids: bytes) -> None:
        """Keep the ids of a run that the core put into its queue until its row is durable."""
        self._unwritten.append((position, ids))
        while self._unwritten and self._unwritten[0][0] <= self._durable:
            self._unwritten.popleft()

    def find(self, ids: bytes, after: int) -> list[tuple[int, int]]:
        """Return (index, first position after `after`) of ids in files, rows and pending writes.

        All rows are read: this is for runs that were ordered very late.
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
        """Look up ids in the id files."""
        # Read first: ids that are written meanwhile are then found too.
        end, untold = self._id_files.end, self._ends.untold
        found = self._id_files.first_of(ids)
        return OlderIdsFound(
            end=end,
            found={
                index: (at, rejected if at > untold else None)
                for index, (at, rejected) in found.items()
            },
        )

    def content_digests(self, first: int, n: int = 1) -> bytes:
        """Return what the contents at `n` positions are known by, zeros where it is not known."""
        with self._reading() as db:
            found = read_digests(db, first, n)
        self._id_files.put_digests(found, first)
        return bytes(found)

    # -- the published log ---------------------------------------------------------------------

    def read_segments(self, after: int, limit: int) -> list[Segment]:
        """Return published segments that end after position `after`, ascending.

        Raises:
            ExpiredError: `after` lies before what the journal keeps (definite).
        """
        with self._reading() as db:
            _check_kept(db, after, "kept_after")
            return _read_segments(db, after, limit)

    def read_cuts(self, after: int, limit: int) -> list[SegmentCut]:
        """Return places after position `after` where the log may be cut, ascending."""
        with self._reading() as db:
            return [
                SegmentCut(
                    last=segment.last,
                    chain_hash=bytes.fromhex(segment.to_hash),
                    ordered_at=segment.ordered_at,
                    files_bytes=segment.files_bytes,
                )
                for segment in _read_segments(db, after, limit)
            ]

    def read_expired(self, limit: int) -> list[Segment]:
        """Return expired segments that `DropExpired` has not named yet, ascending."""
        with self._reading() as db:
            kept_after = read_number(db, "kept_after")
            return [s for s in _read_segments(db, 0, limit) if s.last <= kept_after]

    def read_extent(self) -> LogExtent:
        """Return which part of the log is kept, and its size."""
        with self._reading() as db:
            meta = read_meta(db, "kept_after", "files_bytes", "resets")
            pages, free, page_bytes = page_counts(db)
            # Of a file whose other containers are forgotten: to shorten the log frees no more.
            named = read_named_bytes(db)
        return LogExtent(
            kept_after=meta.get("kept_after", 0),
            files_bytes=meta.get("files_bytes", 0),
            live_bytes=(pages - free) * page_bytes + named,
            resets=meta.get("resets", 0),
        )

    def read_waiting_payloads(self) -> list[bytes]:
        """Return the containers of unpublished and undecided runs that may name staged files."""

        def read(db: sqlite3.Connection) -> list[bytes]:
            rows = [row for statement in _WAITING for row in db.execute(statement)]
            found = map(self._payload_log.container, rows)
            return [payload for payload in found if payload is not None]

        return self._reading_containers(read)

    def read_summary(self) -> QueueSummary:
        """Return the queue at the end of its published part.

        Raises:
            ExpiredError: The row of the run that ends there is gone (definite).
        """
        with self._reading() as db:
            summary = _read_summary(db, self._id_window)
        window = summary.recent_ids
        if not window:
            return summary
        older = self._id_files.before(window[0][0], _PIECE_IDS)
        return replace(summary, recent_ids=IdPieces(lambda: chain(older(), window)))


def _end_of_queue(db: sqlite3.Connection) -> tuple[MergeBase, tuple[int, int, str, int]]:
    last = read_last_entry(db)
    if last is None:
        return MergeBase(), (0, 0, "", 0)
    header = last.entry.header
    base = MergeBase(
        position=last.entry.end,
        chain_hash=last.entry.chain_hash,
        origin=header.origin,
        seq=header.last,
    )
    return base, header.key


def _read_announcements(db: sqlite3.Connection) -> list[RecoveredAnnouncement]:
    """Return the own unstamped runs, oldest first."""
    inherited = db.execute("SELECT value FROM named_values WHERE name = ?", (INHERITED,)).fetchone()
    found = []
    for digest, ticket, session, payload in db.execute(
        "SELECT digest, ticket, session, payload FROM announcements ORDER BY id"
    ):
        manifest = read_manifest(payload)
        found.append(
            RecoveredAnnouncement(
                ticket=ticket,
                digest=digest,
                size_bytes=len(payload),
                staged_bytes=manifest.staged_bytes,
                facts=RunFacts.of(manifest),
                session=session,
                submitted_at=None
                if inherited and ticket <= int(inherited[0])
                else manifest.submitted_at,
                stands_alone=manifest.stands_alone,
            )
        )
    return found


def _read_segments(db: sqlite3.Connection, after: int, limit: int) -> list[Segment]:
    rows = db.execute(
        "SELECT segment FROM segments WHERE last > ? ORDER BY last LIMIT ?", (after, limit)
    )
    return [segment_of(body) for (body,) in rows]


def _read_summary(db: sqlite3.Connection, id_window: int) -> QueueSummary:
    meta = read_meta(db, "view", "published")
    view = meta.get("view")
    position = meta.get("published", 0)
    if not position:
        return QueueSummary(view=view)
    last = read_last_entry(db, position)
    if last is None or last.entry.end != position:
        raise ExpiredError(f"the run that ends at {position} is gone", kept_after=position)
    watermarks = db.execute(
        "SELECT w.origin, coalesce(min(q.seq) - 1, w.seq) AS mark FROM watermarks w LEFT JOIN queue"
        " q ON q.origin = w.origin AND q.position > ? GROUP BY w.origin HAVING mark > 0",
        (position,),
    )
    tables = db.execute(
        "SELECT position, definition FROM definitions WHERE position <= ? ORDER BY position, name",
        (position,),
    )
    return QueueSummary(
        last=last,
        watermarks=dict(watermarks.fetchall()),
        tables=tuple((at, definition_of(body)) for at, body in tables),
        recent_ids=tuple(read_recent_ids(db, position - id_window, last.entry.position)),
        view=view,
        writes=read_writes(db, position),
        prepared=read_kept(db, position),
        commit_tables=read_commit_tables(db, position),
        content_digests=_read_newest_digests(db, position, id_window),
    )


def _read_newest_digests(db: sqlite3.Connection, position: int, most: int) -> bytes:
    """Return the digests of the last contents up to a position; empty = none is known."""
    n = min(position, most)
    found = bytes(read_digests(db, position - n + 1, n))
    return found if any(found) else b""


def _check_kept(db: sqlite3.Connection, after: int, *names: str) -> None:
    kept_after = read_number(db, *names)
    if after < kept_after:
        raise ExpiredError(
            f"the log after position {after} is expired: it is kept only after {kept_after}",
            hint="A node or worker that lags so far needs a copy.",
            after=after,
            kept_after=kept_after,
        )
