"""Rows of ordered commits, and up to which version this site placed each commit table (P36).

A row lists the files of a version in the payload store.  It stays until the version is placed and
the log before its position has expired: until then a peer may still ask for the files.  Then only
what the version consists of is kept, as for versions that came from another site.  Files that
the run carried have a row of their own until the version is placed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from sparktxlog.codec.containers.payload import carried_contents, checked_manifest
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.commit_table import CommitTable, commit_file_prefix
from sparktxlog.model.tables.table_versions import (
    NamedTable,
    OrderedVersion,
    OrderedVersions,
    VersionFiles,
)
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import DropPlaced, OrderedCommit, PutPlaced
from sparktxlog.storage.journal.sqlite_schema import PAYLOAD_COLUMNS, encode, read_number
from sparktxlog.storage.payload_log import PayloadLog

_commit_of = msgspec.msgpack.Decoder(OrderedCommit).decode
_contents_of = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode
_table_of = msgspec.msgpack.Decoder(CommitTable).decode
_version_files_of = msgspec.msgpack.Decoder(VersionFiles).decode


def put_ordered(
    db: sqlite3.Connection, log: PayloadLog, tables: Iterable[CommitTable], first: int
) -> None:
    """Keep the versions that runs made, with the files that their containers name.

    Args:
        first: Position of the first run; what a run renamed may have an older version.
    """
    #: Of the run that made the last version, by its last position: several tables share a run.
    last, files = 0, dict[tuple[bytes, str], tuple[StagedFile, ...]]()
    contents: dict[str, bytes] = {}
    for table in sorted(tables, key=lambda table: table.position):
        if table.is_dropped or table.position < first:
            continue
        if table.position > last:
            last, files, contents = _files_at(db, log, table.position)
        own = files.get((table.transaction_id, table.uuid), ())
        _put(db, table, own, [contents[file.path] for file in own if file.path in contents])


def _files_at(
    db: sqlite3.Connection, log: PayloadLog, position: int
) -> tuple[int, dict[tuple[bytes, str], tuple[StagedFile, ...]], dict[str, bytes]]:
    """Return the last position of the run at a position, and the files of each of its commits.

    And the bytes of those that the run carried.
    """
    row = db.execute(
        f"SELECT q.position + q.n - 1, {PAYLOAD_COLUMNS} FROM ("
        " SELECT * FROM queue WHERE position <= ? ORDER BY position DESC LIMIT 1) q"
        " LEFT JOIN payloads p USING (origin, incarnation, seq)",
        (position,),
    ).fetchone()
    payload = None if row is None or row[0] < position else log.container(row)
    if payload is None:
        return position, {}, {}
    manifest = checked_manifest(payload)
    return row[0], manifest.files_by_commit(), carried_contents(payload, manifest)


def put_taken_over(db: sqlite3.Connection, tables: Iterable[CommitTable]) -> None:
    """Keep the newest versions that a summary names; their files never were here.

    What this site itself has of the same history stays.
    """
    for table in tables:
        if _contradicts(db, table):
            for name in ("ordered_commits", "placed_commits", "carried_files", "version_files"):
                db.execute(f"DELETE FROM {name} WHERE uuid = ?", (table.uuid,))
        if not table.is_dropped and not read_ordered(db, table.uuid, table.version - 1):
            _put(db, table, ())


def _contradicts(db: sqlite3.Connection, table: CommitTable) -> bool:
    """Return whether this site has another history of a table than a summary says."""
    later = any(
        db.execute(f"SELECT 1 FROM {name} WHERE uuid = ? AND version > ?", key).fetchone()
        for name in ("ordered_commits", "placed_commits")
        for key in [(table.uuid, table.version)]
    )
    other = db.execute(
        "SELECT body FROM ordered_commits WHERE uuid = ? AND version = ?",
        (table.uuid, table.version),
    ).fetchone()
    who = None if other is None or table.is_dropped else _commit_of(other[0]).transaction_id
    return later or who not in (None, table.transaction_id)


def _put(
    db: sqlite3.Connection,
    table: CommitTable,
    files: tuple[StagedFile, ...],
    contents: Sequence[bytes] = (),
) -> None:
    commit = OrderedCommit(
        uuid=table.uuid,
        version=table.version,
        timestamp=table.timestamp,
        position=table.position,
        transaction_id=table.transaction_id,
        files=files,
        is_carried=bool(contents),
    )
    if contents:
        db.execute(
            "INSERT OR REPLACE INTO carried_files(uuid, version, contents) VALUES(?, ?, ?)",
            (table.uuid, table.version, encode(contents)),
        )
    db.execute(
        "INSERT OR REPLACE INTO ordered_commits(uuid, version, position, body) VALUES(?, ?, ?, ?)",
        (table.uuid, table.version, table.position, encode(commit)),
    )


def put_placed(db: sqlite3.Connection, write: PutPlaced) -> None:
    """Keep up to where a table is placed."""
    db.execute(
        "INSERT OR REPLACE INTO placed_commits(uuid, version, state) VALUES(?, ?, ?)",
        (write.uuid, write.version, write.state),
    )
    db.execute(
        "DELETE FROM carried_files WHERE uuid = ? AND version <= ?", (write.uuid, write.version)
    )


def drop_placed(db: sqlite3.Connection, write: DropPlaced) -> None:
    """Forget commits whose files are removed."""
    position = min(write.position, read_number(db, "kept_after"))
    done = read_done(db, position)
    for commit in done:
        if commit.files:
            put_version_files(db, commit.uuid, [version_files_of(commit)])
    gone = [(commit.uuid, commit.version) for commit in done]
    db.executemany("DELETE FROM ordered_commits WHERE uuid = ? AND version = ?", gone)


def put_version_files(db: sqlite3.Connection, uuid: str, versions: Iterable[VersionFiles]) -> None:
    """Keep what versions consist of."""
    db.executemany(
        "INSERT OR REPLACE INTO version_files(uuid, version, body) VALUES(?, ?, ?)",
        [(uuid, one.version, encode(one)) for one in versions],
    )


def version_files_of(commit: OrderedCommit) -> VersionFiles:
    """Return what an ordered commit consists of, by paths below the table's directory."""
    prefix = commit_file_prefix(commit.transaction_id, commit.uuid)
    files = (replace(file, path=file.path.removeprefix(prefix)) for file in commit.files)
    return VersionFiles(version=commit.version, files=tuple(files))


def read_version_files(
    db: sqlite3.Connection, uuid: str, after: int, limit: int
) -> list[VersionFiles]:
    """Return what the versions of a table after one consist of, as far as known, ascending."""
    kept = db.execute(
        "SELECT version, body FROM version_files WHERE uuid = ? AND version > ?"
        " ORDER BY version LIMIT ?",
        (uuid, after, limit),
    )
    found = {version: _version_files_of(body) for version, body in kept}
    rows = db.execute(
        "SELECT body FROM ordered_commits WHERE uuid = ? AND version > ? ORDER BY version LIMIT ?",
        (uuid, after, limit),
    )
    for (body,) in rows:
        commit = _commit_of(body)
        if commit.files:
            found[commit.version] = version_files_of(commit)
    return [found[version] for version in sorted(found)][:limit]


def read_done(db: sqlite3.Connection, position: int) -> list[OrderedCommit]:
    """Return the placed commits up to a position, whose files may go.

    Those of one transaction go together: until then it is known which tables are shown together.
    """
    rows = db.execute(
        "SELECT c.body FROM ordered_commits c JOIN placed_commits p USING (uuid)"
        " WHERE c.position <= ? AND c.version <= p.version AND NOT EXISTS ("
        " SELECT 1 FROM ordered_commits o LEFT JOIN placed_commits q USING (uuid)"
        " WHERE o.position = c.position AND o.version > coalesce(q.version, -1))"
        " ORDER BY c.position",
        (position,),
    )
    return [_commit_of(body) for (body,) in rows]


def read_unplaced_of_others(
    db: sqlite3.Connection, uuid: str, after: int, version: int
) -> list[tuple[str, int]]:
    """Return UUID and version that wait, and are of the transactions of versions of a table."""
    return db.execute(
        "SELECT o.uuid, o.version FROM ordered_commits c JOIN ordered_commits o USING (position)"
        " LEFT JOIN placed_commits p ON p.uuid = o.uuid"
        " WHERE c.uuid = ?1 AND c.version > ?2 AND c.version <= ?3 AND o.uuid <> ?1"
        " AND o.version > coalesce(p.version, -1) ORDER BY o.position, o.uuid",
        (uuid, after, version),
    ).fetchall()


def read_ordered(db: sqlite3.Connection, uuid: str, after: int) -> list[OrderedCommit]:
    """Return what is known of the versions of a table after one, ascending.

    One whose files were carried, and placed since, has no files: if its directory lacks it now, it
    is as if they had never come.
    """
    rows = db.execute(
        "SELECT o.body, c.uuid FROM ordered_commits o"
        " LEFT JOIN carried_files c USING (uuid, version)"
        " WHERE o.uuid = ? AND o.version > ? ORDER BY o.version",
        (uuid, after),
    )
    commits = ((_commit_of(body), kept is not None) for body, kept in rows)
    return [replace(one, files=()) if one.is_carried and not kept else one for one, kept in commits]


def read_to_place(
    db: sqlite3.Connection, uuid: str, after: int, limit: int
) -> list[tuple[OrderedCommit, tuple[bytes, ...]]]:
    """Return the next versions of a table after one whose files the journal has, with these."""
    rows = db.execute(
        "SELECT o.version, o.body, c.contents FROM ordered_commits o"
        " LEFT JOIN carried_files c USING (uuid, version)"
        " WHERE o.uuid = ? AND o.version > ? ORDER BY o.version LIMIT ?",
        (uuid, after, limit),
    )
    found = list[tuple[OrderedCommit, tuple[bytes, ...]]]()
    for version, body, contents in rows:
        if contents is None or version != after + 1 + len(found):
            break
        found.append((_commit_of(body), _contents_of(contents)))
    return found


def read_carried(db: sqlite3.Connection, uuid: str, version: int) -> tuple[bytes, ...]:
    """Return the files of a version that its run carried, none once it is placed."""
    row = db.execute(
        "SELECT contents FROM carried_files WHERE uuid = ? AND version = ?", (uuid, version)
    ).fetchone()
    return () if row is None else _contents_of(row[0])


def read_all_ordered(db: sqlite3.Connection) -> list[OrderedCommit]:
    """Return all commits whose files are in the payload store."""
    return [_commit_of(body) for (body,) in db.execute("SELECT body FROM ordered_commits")]


def read_at(db: sqlite3.Connection, position: int) -> list[OrderedCommit]:
    """Return the commits that a position ordered."""
    rows = db.execute("SELECT body FROM ordered_commits WHERE position = ?", (position,))
    return [_commit_of(body) for (body,) in rows]


def read_after(db: sqlite3.Connection, after: int, upto: int, limit: int) -> OrderedVersions:
    """Return what was ordered of commit tables after one position and up to another one.

    Args:
        limit: About so many versions; those of one position stay together.
    """
    row = db.execute(
        "SELECT position FROM ordered_commits WHERE position > ? AND position <= ?"
        " ORDER BY position LIMIT 1 OFFSET ?",
        (after, upto, limit - 1),
    ).fetchone()
    end = upto if row is None else int(row[0])
    rows = db.execute(
        "SELECT body FROM ordered_commits WHERE position > ? AND position <= ?"
        " ORDER BY position, uuid",
        (after, end),
    )
    tables = db.execute(
        "SELECT body FROM commit_tables WHERE position > ? AND position <= ?"
        " ORDER BY position, uuid",
        (after, end),
    )
    return OrderedVersions(
        upto=end,
        versions=tuple(_version_of(_commit_of(body)) for (body,) in rows),
        tables=tuple(_named(_table_of(body)) for (body,) in tables),
    )


def _version_of(commit: OrderedCommit) -> OrderedVersion:
    return OrderedVersion(
        uuid=commit.uuid,
        version=commit.version,
        position=commit.position,
        transaction_id=transaction_id_to_text(commit.transaction_id),
        files=version_files_of(commit).files,
    )


def _named(table: CommitTable) -> NamedTable:
    return NamedTable(
        uuid=table.uuid, name=table.name, position=table.changed, is_dropped=table.is_dropped
    )


def read_placed(db: sqlite3.Connection, uuid: str) -> bytes | None:
    """Return the state of a table at the newest version that is placed, None = none is."""
    row = db.execute("SELECT state FROM placed_commits WHERE uuid = ?", (uuid,)).fetchone()
    state: bytes | None = None if row is None else row[0]
    return state


def read_placed_versions(db: sqlite3.Connection) -> dict[str, int]:
    """Return the version up to which each table is placed, by UUID."""
    return dict(db.execute("SELECT uuid, version FROM placed_commits").fetchall())


def read_unplaced(db: sqlite3.Connection, after: int) -> list[tuple[str, int]]:
    """Return tables with versions that were ordered after a position, and are not noted as placed.

    With the newest version of each.
    """
    rows = db.execute(
        "SELECT c.uuid, max(c.version) FROM ordered_commits c"
        " LEFT JOIN placed_commits p USING (uuid)"
        " WHERE c.position > ? AND c.version > coalesce(p.version, -1) GROUP BY c.uuid",
        (after,),
    )
    return rows.fetchall()
