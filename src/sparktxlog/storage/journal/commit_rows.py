"""Rows of commit tables: each at the queue's end, and at the end of what is published (P36).

The newest row of each table counts.  An older one stays while a summary may need it, which is
taken at the end of what is published.  Dropped tables stay for ever: their UUIDs are never free.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from sparktxlog.model.ids import LARGEST
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.storage.journal.sqlite_schema import encode

_table_of = msgspec.msgpack.Decoder(CommitTable).decode


def put_commit_tables(
    db: sqlite3.Connection, tables: Iterable[CommitTable], published: int
) -> None:
    """Keep commit tables as runs left them; remove older rows that no summary needs any more.

    Args:
        published: Where a summary would be taken.
    """
    rows = [(table.uuid, table.changed, encode(table)) for table in tables]
    if not rows:
        return
    db.executemany(
        "INSERT OR REPLACE INTO commit_tables(uuid, position, body) VALUES(?, ?, ?)", rows
    )
    db.executemany(
        "DELETE FROM commit_tables WHERE uuid = ?1 AND position <"
        " (SELECT max(position) FROM commit_tables WHERE uuid = ?1 AND position <= ?2)",
        [(uuid, published) for uuid in dict.fromkeys(row[0] for row in rows)],
    )


def read_commit_tables(db: sqlite3.Connection, position: int = LARGEST) -> tuple[CommitTable, ...]:
    """Return the commit tables at a run end, the queue's or the published one, by UUID.

    Dropped ones too.
    """
    # SQLite takes `body` from the row that has the greatest position.
    rows = db.execute(
        "SELECT body, max(position) FROM commit_tables WHERE position <= ? GROUP BY uuid"
        " ORDER BY uuid",
        (position,),
    )
    return tuple(_table_of(body) for body, _ in rows)
