"""Pruning of the journal: payload containers of the queue, and rows older than the id window.

Containers of the queue stay until all members have them.  For lagging nodes that are not members
they stay longer, up to a bound of bytes (P21): such a node then fetches them run by run; beyond the
bound it needs a summary.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.storage.interfaces import ForgetPayloads
from sparktxlog.storage.journal.sqlite_schema import put_meta

#: Bounds of one ForgetPayloads, so that no write takes long (P3b).
_FORGET_RUNS = 20_000
_FORGET_BYTES = 128 << 20
_PRUNE_RUNS = 20_000
#: Bytes that a run counts in addition to its container, so that many tiny ones are bounded too.
RUN_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of the queue and of its parts; forgotten <= published <= position."""

    position: int = 0
    chain_hash: bytes = bytes(32)
    published: int = 0
    #: Payloads up to here are removed.
    forgotten: int = 0
    #: Queue rows up to here are removed.
    pruned: int = 0
    #: Ids up to here came with a summary, which does not say what became of them.
    untold: int = 0
    #: Bytes of the containers after `forgotten`, `RUN_BYTES` included.
    held_bytes: int = 0


def read_named_files(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return the files of the payload log that rows name, and where that ends in each."""
    return db.execute(
        "SELECT file, max(start + size) FROM payloads WHERE file IS NOT NULL GROUP BY file"
    ).fetchall()


def read_named_bytes(db: sqlite3.Connection) -> int:
    """Return the bytes of the containers in the payload log."""
    statement = (
        "SELECT total(size) FROM payloads INDEXED BY payloads_by_file WHERE file IS NOT NULL"
    )
    return int(db.execute(statement).fetchone()[0])


def is_file_named(db: sqlite3.Connection, file: int) -> bool:
    """Return whether a row names a file of the payload log."""
    found = db.execute("SELECT 1 FROM payloads WHERE file = ? LIMIT 1", (file,)).fetchone()
    return found is not None


def held_bytes_of(header: RunHeader) -> int:
    """Return the bytes that a run in the queue counts."""
    return header.size_bytes + RUN_BYTES


def read_held_bytes(db: sqlite3.Connection, forgotten: int) -> int:
    """Return the bytes of the queue's containers after a position; costs O(runs held)."""
    held: int = db.execute(
        "SELECT coalesce(sum(size_bytes + ?), 0) FROM queue WHERE position > ?",
        (RUN_BYTES, forgotten),
    ).fetchone()[0]
    return held


def forget(
    db: sqlite3.Connection, write: ForgetPayloads, ends: Ends, id_window: int, filed: int
) -> Ends:
    """Delete a bounded part of what `write` allows; return the new ends.

    Args:
        filed: Last position whose id is in an id file.
    """
    ends = _forget_payloads(db, write, ends)
    # The last published row always stays: a summary ends there, with its whole id window.
    horizon = min(ends.forgotten, ends.published - max(id_window, 1), filed)
    pruned = db.execute(
        "SELECT max(last) FROM (SELECT position + n - 1 AS last FROM queue"
        " WHERE position > ? AND position <= ? ORDER BY position LIMIT ?) WHERE last <= ?",
        (ends.pruned, horizon, _PRUNE_RUNS, horizon),
    ).fetchone()[0]
    db.execute("DELETE FROM recent_ids WHERE last <= ?", (horizon,))
    if pruned is None:
        return ends
    db.execute("DELETE FROM queue WHERE position <= ?", (pruned,))
    put_meta(db, pruned=pruned)
    return replace(ends, pruned=int(pruned))


def _forget_payloads(db: sqlite3.Connection, write: ForgetPayloads, ends: Ends) -> Ends:
    # The publisher still reads unpublished runs.
    limit = min(write.position, ends.published)
    wanted = limit if write.spare_after is None else min(limit, write.spare_after)
    excess = ends.held_bytes - write.spare_bytes if write.spare_after is not None else 0
    if excess <= 0:
        limit = wanted
    if limit <= ends.forgotten:
        return ends
    row = db.execute(
        "SELECT last, through FROM (SELECT position + n - 1 AS last, size_bytes + ?1 AS own,"
        " sum(size_bytes + ?1) OVER (ORDER BY position) AS through FROM queue"
        " WHERE position > ?2 AND position + n - 1 <= ?3 ORDER BY position LIMIT ?4)"
        " WHERE through - own < ?5 AND (last <= ?6 OR through - own < ?7)"
        " ORDER BY last DESC LIMIT 1",
        (RUN_BYTES, ends.forgotten, limit, _FORGET_RUNS, _FORGET_BYTES, wanted, excess),
    ).fetchone()
    if row is None:
        return ends
    forgotten, size_bytes = row
    db.execute(
        "DELETE FROM payloads WHERE rowid IN (SELECT p.rowid FROM queue q JOIN payloads p"
        " USING (origin, incarnation, seq) WHERE q.position > ? AND q.position <= ?)",
        (ends.forgotten, forgotten),
    )
    put_meta(db, forgotten=forgotten)
    return replace(ends, forgotten=forgotten, held_bytes=ends.held_bytes - size_bytes)
