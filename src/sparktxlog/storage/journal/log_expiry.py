"""What the journal does when the log is shortened: expired positions, their files, a smaller file.

Shortening takes two writes, so that a kill between them loses no track of files:

    ExpireLog    one transaction: `kept_after` moves; from then on readers get ExpiredError, and
                 the segments behind it stay, out of reach, as the list of files to remove
    (the files of those segments are removed, again and again until the next write)
    DropExpired  one transaction: the segments whose files are gone

Queue rows stay for the id window, whatever expires: whether an id is a repeat must be answered the
same at every site (P25c), and a repeated submit still gets its first receipt.
"""

from __future__ import annotations

import sqlite3

import structlog

from sparktxlog.errors import ExpiredError, InvariantViolation
from sparktxlog.storage.interfaces import DropExpired, ExpireLog, LogExtent, Segment, SegmentCut
from sparktxlog.storage.journal.sqlite_schema import put_meta, segment_of

_log = structlog.get_logger("sparktxlog.storage")

#: VACUUM holds the writer up for about 4 ms per MB of what is live (measured), and needs as much
#: memory; a file with more live bytes keeps its free pages for later writes.
_MAX_LIVE_BYTES = 128 << 20
_WAITING = (
    "SELECT payload FROM announcements",
    (
        "SELECT p.payload FROM incoming JOIN payloads p USING (origin, incarnation, seq)"
        " WHERE staged_bytes > 0"
    ),
    (
        "SELECT p.payload FROM queue q JOIN payloads p USING (origin, incarnation, seq)"
        " WHERE q.staged_bytes > 0 AND q.position + q.n - 1 >"
        " coalesce((SELECT value FROM meta WHERE name = 'published'), 0)"
    ),
)


def expire_log(db: sqlite3.Connection, write: ExpireLog) -> None:
    """Move `kept_after`; see the head of this module.

    Raises:
        InvariantViolation: The position is no end of a published segment, or has another hash.
    """
    kept_after = _meta(db, "kept_after")
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
    position = min(write.position, _meta(db, "kept_after"))
    gone = db.execute("SELECT segment FROM segments WHERE last <= ?", (position,)).fetchall()
    add_files_bytes(db, -sum(segment_of(body).files_bytes for (body,) in gone))
    db.execute("DELETE FROM segments WHERE last <= ?", (position,))


def add_files_bytes(db: sqlite3.Connection, size_bytes: int) -> None:
    """Add to the bytes of the files that the segments name."""
    put_meta(db, files_bytes=max(_meta(db, "files_bytes") + size_bytes, 0))


def read_published_hash(db: sqlite3.Connection, position: int) -> bytes | None:
    """Return the chain hash at a position without a queue row, None if no run ends there.

    Raises:
        ExpiredError: A run may have ended there; its hash is not known any more (definite).
    """
    holding = next(iter(read_segments(db, position - 1, 1)), None)
    if holding is not None and holding.last == position:
        return bytes.fromhex(holding.to_hash)
    if holding is not None and holding.first == position + 1:
        return bytes.fromhex(holding.from_hash)
    gone = max(_meta(db, "pruned"), _meta(db, "kept_after"))
    if position > gone:
        return None
    raise ExpiredError(
        f"the chain hash at position {position} is not known any more: rows are kept after {gone}",
        position=position,
    )


def read_segments(db: sqlite3.Connection, after: int, limit: int) -> list[Segment]:
    """Return segments that end after a position, ascending."""
    rows = db.execute(
        "SELECT segment FROM segments WHERE last > ? ORDER BY last LIMIT ?", (after, limit)
    )
    return [segment_of(body) for (body,) in rows]


def read_extent(db: sqlite3.Connection) -> LogExtent:
    """Return what is kept, and its bytes."""
    pages, free, page_bytes = _pages(db)
    return LogExtent(
        kept_after=_meta(db, "kept_after"),
        files_bytes=_meta(db, "files_bytes"),
        live_bytes=(pages - free) * page_bytes,
        resets=_meta(db, "resets"),
    )


def read_cuts(db: sqlite3.Connection, after: int, limit: int) -> list[SegmentCut]:
    """Return where the log after a position may be cut, ascending."""
    return [
        SegmentCut(
            last=segment.last,
            chain_hash=bytes.fromhex(segment.to_hash),
            ordered_at=segment.ordered_at,
            files_bytes=segment.files_bytes,
        )
        for segment in read_segments(db, after, limit)
    ]


def read_expired(db: sqlite3.Connection, limit: int) -> list[Segment]:
    """Return expired segments whose files are not known to be gone, ascending."""
    rows = db.execute(
        "SELECT segment FROM segments WHERE last <= ? ORDER BY last LIMIT ?",
        (_meta(db, "kept_after"), limit),
    ).fetchall()
    return [segment_of(body) for (body,) in rows]


def read_waiting_payloads(db: sqlite3.Connection) -> list[bytes]:
    """Return the containers of all runs that name staged files and are not published."""
    return [payload for statement in _WAITING for (payload,) in db.execute(statement)]


def shrink(db: sqlite3.Connection, least_free_bytes: int) -> None:
    """Give free pages and the write-ahead log back to the disk, where that pays.

    What was written before is durable and stays so; if this fails the file is only larger.
    """
    try:
        pages, free, page_bytes = _pages(db)
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


def _pages(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Return how many pages the file has, how many are free, and the bytes of one."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return pages, free, size


def _meta(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])
