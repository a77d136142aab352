"""Tables of `journal.sqlite`, its settings, and rows to values and back (docs/formats-log.md)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from sparktxlog.errors import (
    CorruptLogError,
    DiskFullError,
    JournalLostError,
    NewerReleaseError,
    StorageError,
)
from sparktxlog.files.durability import rewrite_file
from sparktxlog.model.ids import LARGEST
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitOperation
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Acceptance, Mark, RunFacts, Touch
from sparktxlog.protocol.messages.balloting import BallotState
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection, RunHeader
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.interfaces import Segment, StoredEntry

#: "TXLJ": distinguishes this file from other SQLite files.
APPLICATION_ID = 0x54584C4A
#: The format that this release writes and reads; it refuses a later one.
SCHEMA_VERSION = 2

_PAGE_BYTES = 8192
#: The write-ahead log is merged into the file in steps of this size: in large steps a page that
#: changed several times is written only once.
_CHECKPOINT_BYTES = 48 << 20

_TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE named_values(name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE incoming(
    origin TEXT, incarnation INTEGER, seq INTEGER, n INTEGER, epoch INTEGER, ts INTEGER,
    digest BLOB, size_bytes INTEGER, staged_bytes INTEGER, ids BLOB, facts BLOB,
    PRIMARY KEY(origin, incarnation, seq)) WITHOUT ROWID;
CREATE TABLE payloads(
    origin TEXT, incarnation INTEGER, seq INTEGER, payload BLOB,
    file INTEGER, start INTEGER, size INTEGER, crc INTEGER,
    UNIQUE(origin, incarnation, seq));
CREATE INDEX payloads_by_file ON payloads(file) WHERE file IS NOT NULL;
CREATE TABLE queue(
    position INTEGER PRIMARY KEY, origin TEXT, incarnation INTEGER, seq INTEGER, n INTEGER,
    epoch INTEGER, ts INTEGER, digest BLOB, size_bytes INTEGER, staged_bytes INTEGER,
    previous_hash BLOB, chain_hash BLOB, rejections BLOB, ordered_at INTEGER, ids BLOB,
    content_digests BLOB);
CREATE TABLE watermarks(origin TEXT PRIMARY KEY, seq INTEGER) WITHOUT ROWID;
CREATE TABLE announcements(
    id INTEGER PRIMARY KEY, digest BLOB UNIQUE, ticket INTEGER, session TEXT, payload BLOB);
CREATE TABLE segments(last INTEGER PRIMARY KEY, first INTEGER, segment BLOB);
CREATE TABLE definitions(position INTEGER, name TEXT, definition BLOB, PRIMARY KEY(position, name))
    WITHOUT ROWID;
CREATE TABLE recent_ids(
    last INTEGER PRIMARY KEY, first INTEGER, ids BLOB, content_digests BLOB);
CREATE TABLE withdrawn(id BLOB PRIMARY KEY, code TEXT, text TEXT, at INTEGER) WITHOUT ROWID;
"""

#: The newest row of each table counts, and the newest before the end of what is published.
_TABLE_WRITES = """
CREATE TABLE table_writes(name TEXT, position INTEGER, version INTEGER, PRIMARY KEY(name, position))
    WITHOUT ROWID;
"""

#: What is prepared and undecided after a run that changed it, NULL = it is decided; the
#: containers of these; what became of them, by the first position of the run that decides.
_PREPARED = """
CREATE TABLE undecided(id BLOB, position INTEGER, body BLOB, PRIMARY KEY(id, position))
    WITHOUT ROWID;
CREATE TABLE prepared(id BLOB PRIMARY KEY, staged_bytes INTEGER, payload BLOB);
CREATE TABLE verdicts(run INTEGER, number INTEGER, id BLOB, body BLOB, at INTEGER,
    PRIMARY KEY(run, number)) WITHOUT ROWID;
CREATE INDEX verdicts_by_id ON verdicts(id);
"""

#: Each commit table after the runs that changed it; see `commit_rows`, `placed_rows`.
_COMMIT_TABLES = """
CREATE TABLE commit_tables(uuid TEXT, position INTEGER, body BLOB, PRIMARY KEY(uuid, position))
    WITHOUT ROWID;
CREATE TABLE ordered_commits(uuid TEXT, version INTEGER, position INTEGER, body BLOB,
    PRIMARY KEY(uuid, version)) WITHOUT ROWID;
CREATE INDEX commits_by_position ON ordered_commits(position);
CREATE TABLE placed_commits(uuid TEXT PRIMARY KEY, version INTEGER, state BLOB) WITHOUT ROWID;
CREATE TABLE carried_files(uuid TEXT, version INTEGER, contents BLOB, PRIMARY KEY(uuid, version))
    WITHOUT ROWID;
CREATE TABLE version_files(uuid TEXT, version INTEGER, body BLOB, PRIMARY KEY(uuid, version))
    WITHOUT ROWID;
"""

#: Columns of a run, named as the fields of its header.
HEADER_COLUMNS = "origin, incarnation, seq, n, epoch, ts, digest, size_bytes, staged_bytes"
ENTRY_COLUMNS = (
    f"{HEADER_COLUMNS}, position, previous_hash, chain_hash, rejections, ordered_at, ids"
)
_HEADER_FIELDS = HEADER_COLUMNS.split(", ")
#: A container, or its `ContainerPlace` in the payload log: see `PayloadLog.container`.
PAYLOAD_COLUMNS = "payload, file, start, size, crc"
#: Names a run, in `incoming` and `payloads`.
RUN_KEY = "origin = ? AND incarnation = ? AND seq = ?"

#: Bytes of a segment, definition, view or ballot in its column, and back.
encode = msgspec.msgpack.Encoder().encode
segment_of = msgspec.msgpack.Decoder(Segment).decode
definition_of = msgspec.msgpack.Decoder(TableDefinition).decode
_decode_meta = {
    "view": msgspec.msgpack.Decoder(View).decode,
    "ballot": msgspec.msgpack.Decoder(BallotState).decode,
}


class _Facts(msgspec.Struct, array_like=True):
    """The fields of `RunFacts` in the column."""

    touches: tuple[Touch, ...]
    creates: tuple[tuple[int, TableDefinition], ...]
    acceptance: Acceptance | None = None
    valid_until: tuple[tuple[int, int], ...] = ()
    voided: bool = False
    conditions: tuple[tuple[int, Condition], ...] = ()
    changes: tuple[tuple[int, str, TableChange], ...] = ()
    holders: int = 0
    participants: tuple[str, ...] = ()
    marks: tuple[tuple[int, Mark], ...] = ()
    commits: tuple[tuple[int, CommitOperation], ...] = ()


_decode_facts = msgspec.msgpack.Decoder(_Facts).decode
_decode_rejections = msgspec.msgpack.Decoder(tuple[Rejection, ...]).decode


def open_journal(path: Path) -> sqlite3.Connection:
    """Open the writing connection; makes the tables in a new file.

    Raises:
        CorruptLogError: The file is not a journal, or is torn.
        NewerReleaseError: A newer release wrote it (definite).
    """
    log = _log_of(path)
    if not path.exists() and log.exists() and log.stat().st_size:
        # SQLite would remove it and make a new file.
        raise JournalLostError(
            f"{path} is missing, but its write-ahead log {log.name} exists",
            hint="Put the file back.  If it is lost, also move its log away.",
            path=str(path),
        )
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        fresh = connection.execute("PRAGMA user_version").fetchone()[0] == 0
        fresh = fresh and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if fresh:
            connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        fold_by_itself(connection, on=True)
        connection.execute("PRAGMA cache_size=-16384")
        connection.execute("PRAGMA temp_store=MEMORY")
        if fresh:
            connection.executescript(
                f"BEGIN; {_TABLES} {_TABLE_WRITES} {_PREPARED} {_COMMIT_TABLES}"
                f" PRAGMA application_id={APPLICATION_ID};"
                f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        _check_version(connection, path)
        _fold_log(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise translate(error, path, opening=True) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def fold_by_itself(connection: sqlite3.Connection, *, on: bool) -> None:
    """Let the write-ahead log be merged when it is long, or not: a full disk has no room for it."""
    connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_BYTES // _PAGE_BYTES * on}")


def unfolded_bytes(connection: sqlite3.Connection, path: Path) -> int:
    """Return how much the file grows when the write-ahead log is merged into it."""
    pages, _, page_bytes = page_counts(connection)
    return max(0, int(pages * page_bytes) - path.stat().st_size)


def has_room_to_fold(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the disk has room to merge the write-ahead log into the file.

    A merge that fails takes all that is left, and then nothing can be written any more.
    """
    return unfolded_bytes(connection, path) <= shutil.disk_usage(path.parent).free


def _fold_log(connection: sqlite3.Connection, path: Path) -> None:
    """Merge the write-ahead log of a former process into the file, synced.

    If an fsync of that process failed, the system may show pages that are not on the disk and never
    will be, so nothing that was read from them must be sent.  If there is no space for the merge,
    the log is written again in its place.

    Raises:
        StorageError: Another program has the file open.
    """
    if not has_room_to_fold(connection, path):
        rewrite_file(_log_of(path))
        return
    try:
        _, pages, folded = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        if not isinstance(translate(error, path), DiskFullError):
            raise
        rewrite_file(_log_of(path))
        return
    if folded < pages:
        raise StorageError(
            f"the write-ahead log of {path} cannot be merged: {folded} of {pages} pages",
            hint="Another program reads the file: close it, then start the node again.",
            path=str(path),
        )


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if (owner, version) == (APPLICATION_ID, SCHEMA_VERSION):
        return
    text = (
        f"{path} has format {version} of application {owner:#x}, this release reads format "
        f"{SCHEMA_VERSION} of {APPLICATION_ID:#x}"
    )
    hint = "Use the release of sparktxlog that wrote it, or another data-dir."
    newer = owner == APPLICATION_ID and version > SCHEMA_VERSION
    raise (NewerReleaseError if newer else CorruptLogError)(text, hint=hint, path=str(path))


def read_named_value(path: Path, name: str) -> bytes | None:
    """Return a value of a journal that another process may own; changes nothing.

    Raises:
        CorruptLogError: The file is damaged, or no journal of this release.
        StorageError: It cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            _check_version(db, path)
            statement = "SELECT value FROM named_values WHERE name = ?"
            found = db.execute(statement, (name,)).fetchone()
    except sqlite3.Error as error:
        raise translate(error, path, reading=True) from error
    return None if found is None else bytes(found[0])


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that can only read; it may be used by one thread at a time."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only=1")
    return connection


def translate(
    error: sqlite3.Error, path: Path, *, reading: bool = False, opening: bool = False
) -> StorageError:
    """Return the error of this project for an error of SQLite."""
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    fields = {"path": str(path), "sqlite": name}
    # The index of the write-ahead log, which an orderly stop removed, found no room.  In a write
    # that may come after the log has all of it.
    if name == "SQLITE_FULL" or (opening and name == "SQLITE_IOERR_SHMSIZE"):
        return DiskFullError(
            f"no space left for {path}; nothing of this write was kept",
            hint="Free space on that disk; then the node continues.",
            **fields,
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return CorruptLogError(
            f"{path} is damaged: {error}",
            hint=f"Move only {path.name} and its -wal and -shm files aside, nothing else: a node "
            "with peers then joins them again, and keeps its tables and payloads.  What it alone "
            "had accepted is lost.  If there are no peers, put back a copy of these files.",
            **fields,
        )
    if reading:
        return StorageError(
            f"{path} cannot be read: {error}; nothing was changed",
            hint="The disk may be failing.  The same read may succeed later.",
            **fields,
        )
    return StorageError(
        f"{path} failed: {error}; whether the write was kept is unknown",
        hint="Restart the node: it reads the state back from the file.",
        **fields,
    )


def encode_facts(facts: RunFacts) -> bytes:
    """Return the facts without ids, which have their own column."""
    return encode([getattr(facts, name) for name in _Facts.__struct_fields__])


def facts_of(n: int, ids: bytes, body: bytes) -> RunFacts:
    """Return what `encode_facts` wrote."""
    return RunFacts(n=n, ids=ids, **msgspec.structs.asdict(_decode_facts(body)))


def rejections_of(body: bytes | None) -> tuple[Rejection, ...]:
    """Return the rejections in a row's column."""
    return () if body is None else _decode_rejections(body)


def read_meta(db: sqlite3.Connection, *names: str) -> dict[str, Any]:
    """Return single values of the journal by name: views, ballots, numbers; without names all."""
    chosen = f" WHERE name IN ({', '.join('?' * len(names))})" if names else ""
    rows = db.execute(f"SELECT name, value FROM meta{chosen}", names)
    return {name: _decode_meta.get(name, int)(value) for name, value in rows}


def read_number(db: sqlite3.Connection, *names: str) -> int:
    """Return the greatest of single numbers of the journal, 0 if none is kept."""
    return max(read_meta(db, *names).values(), default=0)


def put_meta(db: sqlite3.Connection, **values: int | bytes) -> None:
    """Keep single values under their names."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES(?, ?)", values.items())


def header_row(header: RunHeader) -> tuple[Any, ...]:
    """Return the values of HEADER_COLUMNS."""
    return tuple(getattr(header, name) for name in _HEADER_FIELDS)


def header_of(row: tuple[Any, ...]) -> RunHeader:
    """Return the header from a row that starts with HEADER_COLUMNS."""
    return RunHeader(**dict(zip(_HEADER_FIELDS, row, strict=False)))


def insert_entry(
    db: sqlite3.Connection, entry: QueueEntry, ordered_at: int, ids: bytes, digests: bytes | None
) -> None:
    """Add a row to the queue."""
    rejections = encode(entry.rejections) if entry.rejections else None
    hashes = (entry.previous_hash, entry.chain_hash)
    row = (*header_row(entry.header), entry.position, *hashes, rejections, ordered_at, ids, digests)
    db.execute(f"INSERT INTO queue({ENTRY_COLUMNS}, content_digests) VALUES({_marks(row)})", row)


def _marks(row: tuple[Any, ...]) -> str:
    return ", ".join("?" * len(row))


def stored_entry(row: tuple[Any, ...], payload: bytes | None) -> StoredEntry:
    """Return the entry from a row that starts with ENTRY_COLUMNS."""
    entry = QueueEntry(
        position=row[9],
        header=header_of(row),
        previous_hash=row[10],
        chain_hash=row[11],
        rejections=rejections_of(row[12]),
    )
    return StoredEntry(entry=entry, ids=row[14], ordered_at=row[13], payload=payload)


def read_last_entry(db: sqlite3.Connection, position: int = (1 << 63) - 1) -> StoredEntry | None:
    """Return the last entry that begins at or before a position, without payload."""
    row = db.execute(
        f"SELECT {ENTRY_COLUMNS} FROM queue WHERE position <= ? ORDER BY position DESC LIMIT 1",
        (position,),
    ).fetchone()
    return None if row is None else stored_entry(row, None)


def put_writes(
    db: sqlite3.Connection, writes: Sequence[tuple[str, TableWrites]], published: int
) -> None:
    """Keep what was written to tables; remove older rows that no summary needs any more.

    Args:
        writes: Table and what was written to it.
        published: Where a summary would be taken.
    """
    db.executemany(
        "INSERT OR REPLACE INTO table_writes(name, position, version) VALUES(?, ?, ?)",
        [(table, found.position, found.version) for table, found in writes],
    )
    db.executemany(
        "DELETE FROM table_writes WHERE name = ?1 AND position <"
        " (SELECT max(position) FROM table_writes WHERE name = ?1 AND position <= ?2)",
        [(table, published) for table in dict(writes)],
    )


def read_writes(db: sqlite3.Connection, position: int = LARGEST) -> dict[str, TableWrites]:
    """Return what was written to each table up to a run end, the queue's or the published one."""
    # SQLite takes `version` from the row that has the greatest position.
    rows = db.execute(
        "SELECT name, version, max(position) FROM table_writes WHERE position <= ? GROUP BY name",
        (position,),
    )
    return {name: TableWrites(version=version, position=at) for name, version, at in rows}


def page_counts(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Return how many pages the file has, how many are free, and the bytes of one."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return pages, free, size
