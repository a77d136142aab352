"""Shortens the log in the journal: expired positions, their files, a smaller file.

Shortening takes two writes, so that a kill between them loses no track of files:

    ExpireLog    one transaction: `kept_after` moves; from then on readers get ExpiredError, and
                 the expired segments stay, out of reach, as the list of files to remove
    (the files of those segments are removed, again and again until the next write)
    DropExpired  one transaction: the segments whose files are gone

Queue rows stay for the id window even if they are expired: every site must decide alike whether an
id is a repeat (P25c), and a repeated submit still gets its first receipt.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import structlog

from sparktxlog.errors import InvariantViolation
from sparktxlog.storage.interfaces import DropExpired, ExpireLog
from sparktxlog.storage.journal.sqlite_schema import (
    fold_by_itself,
    has_room_to_fold,
    page_counts,
    put_meta,
    read_number,
    segment_of,
)

_log = structlog.get_logger("sparktxlog.storage")

#: VACUUM blocks the writer for about 4 ms per MB of live data (measured), and needs as much memory;
#: a file with more live bytes keeps its free pages for later writes.
_MAX_LIVE_BYTES = 128 << 20


def expire_log(db: sqlite3.Connection, write: ExpireLog) -> None:
    """Move `kept_after`; see the module's text.

    Raises:
        InvariantViolation: No published segment ends at the position with that hash.
    """
    kept_after = read_number(db, "kept_after")
    if write.position <= kept_after:
        return
    row = db.execute("SELECT segment FROM segments WHERE last = ?", (write.position,)).fetchone()
    if row is None or segment_of(row[0]).to_hash != write.chain_hash.hex():
        raise InvariantViolation(
            f"the log cannot expire up to {write.position}: no segment ends there with that hash",
            position=write.position,
            chain_hash=write.chain_hash,
        )
    put_meta(db, kept_after=write.position)


def drop_expired(db: sqlite3.Connection, write: DropExpired) -> None:
    """Forget expired segments up to a position: their files are gone."""
    position = min(write.position, read_number(db, "kept_after"))
    gone = db.execute("SELECT segment FROM segments WHERE last <= ?", (position,)).fetchall()
    add_files_bytes(db, -sum(segment_of(body).files_bytes for (body,) in gone))
    db.execute("DELETE FROM segments WHERE last <= ?", (position,))


def add_files_bytes(db: sqlite3.Connection, size_bytes: int) -> None:
    """Add to the bytes of the files that the segments name."""
    put_meta(db, files_bytes=max(read_number(db, "files_bytes") + size_bytes, 0))


def shrink(db: sqlite3.Connection, path: Path, least_free_bytes: int) -> None:
    """Return free pages and the write-ahead log to the disk, if it is worth it.

    Earlier writes stay durable; if this fails, the file only stays larger.
    """
    try:
        if not has_room_to_fold(db, path):
            return
        fold_by_itself(db, on=True)
        pages, free, page_bytes = page_counts(db)
        wasteful = free * page_bytes >= least_free_bytes and 3 * free > pages
        if wasteful and (pages - free) * page_bytes <= _MAX_LIVE_BYTES:
            db.execute("VACUUM")
        # Readers at work keep the log's file; they are not waited for.
        db.execute("PRAGMA busy_timeout=0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        _log.warning("the journal keeps its size", reason=str(error))
    finally:
        db.execute("PRAGMA busy_timeout=5000")
