"""Ids of the last positions: of a summary, and of the rows of the queue after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from sparktxlog.model.transactions.operation import DIGEST_BYTES, LONGEST_RUN
from sparktxlog.storage.journal.sqlite_schema import rejections_of


class UnfiledIds(NamedTuple):
    """Ids of neighbouring positions, 16 bytes each."""

    first: int
    ids: bytes
    rejected: list[int]
    ts: int
    digests: bytes


#: Most ids in one piece.
_PIECE_IDS = 8_192


def read_recent_ids(
    db: sqlite3.Connection, after: int, before: int | None = None
) -> list[tuple[int, bytes]]:
    """Return the ids of positions after `after`; neighbours are joined into larger pieces.

    Args:
        before: Leave out the run that starts at this position and all after it.
    """
    pieces: list[tuple[int, bytes]] = []
    start = size = 0
    parts: list[bytes] = []
    for position, ids in chain(_summary_ids(db, after, before), _queue_ids(db, after, before)):
        if size + len(ids) > 16 * _PIECE_IDS and parts:
            pieces.append((start, b"".join(parts)))
            parts, size = [], 0
        if not parts:
            start = position
        parts.append(ids)
        size += len(ids)
    if parts:
        pieces.append((start, b"".join(parts)))
    return pieces


def read_repeats(db: sqlite3.Connection, after: int) -> list[tuple[int, int]]:
    """Return (position, first position of its id) of the repeats after `after`."""
    rows = db.execute(
        "SELECT position, rejections FROM queue WHERE position > ? AND rejections IS NOT NULL"
        " ORDER BY position",
        (after,),
    )
    return [
        (position + rejection.index, rejection.first)
        for position, body in rows
        for rejection in rejections_of(body)
        if rejection.first is not None
    ]


def read_unfiled(db: sqlite3.Connection, after: int, most: int) -> UnfiledIds | None:
    """Return the ids of the next `most` positions after `after`, or more; None if fewer are there.

    A summary's ids have neither time nor outcome.  They get the time of the first row after them;
    the journal keeps the fact that nobody knows their outcomes (`Ends.untold`).
    """
    newest = db.execute("SELECT ts FROM queue ORDER BY position LIMIT 1").fetchone()
    rows = chain(
        ((first, ids, newest[0], None) for first, ids in _summary_ids(db, after, None)),
        db.execute(
            "SELECT position, ids, ts, rejections FROM queue WHERE position > ? ORDER BY position",
            (after,),
        ),
    )
    start = ts = size = 0
    parts: list[bytes] = []
    rejected: list[int] = []
    for first, ids, row_ts, body in rows:
        start = start or first
        parts.append(ids)
        size += len(ids) // 16
        ts = max(ts, row_ts)
        rejected += [first + rejection.index for rejection in rejections_of(body)]
        if size >= most:
            digests = bytes(read_digests(db, start, size))
            return UnfiledIds(start, b"".join(parts), rejected, ts, digests)
    return None


def read_digests(db: sqlite3.Connection, first: int, n: int) -> bytearray:
    """Return the digests of the contents at `n` positions, zeros where they are not known."""
    found = bytearray(DIGEST_BYTES * n)
    last = first + n - 1
    rows = chain(
        db.execute(
            "SELECT first, content_digests FROM recent_ids WHERE last >= ? AND first <= ?"
            " AND content_digests IS NOT NULL",
            (first, last),
        ),
        db.execute(
            "SELECT position, content_digests FROM queue WHERE position > ? AND position <= ?"
            " AND content_digests IS NOT NULL",
            (first - LONGEST_RUN, last),
        ),
    )
    for start, digests in rows:
        put_digests(found, first, start, digests)
    return found


def put_digests(found: bytearray, first: int, start: int, digests: bytes) -> None:
    """Put digests of positions from `start` on into those from `first` on, as far as both go."""
    low = max(first, start)
    high = min(first + len(found) // DIGEST_BYTES, start + len(digests) // DIGEST_BYTES)
    if low < high:
        size = DIGEST_BYTES
        piece = digests[size * (low - start) : size * (high - start)]
        found[size * (low - first) : size * (high - first)] = piece


def _summary_ids(db: sqlite3.Connection, after: int, before: int | None) -> list[tuple[int, bytes]]:
    """Return the ids before the first queue row, as a summary brought them."""
    return db.execute(
        "SELECT first, ids FROM recent_ids WHERE last > ?1 AND (?2 IS NULL OR first < ?2)"
        " ORDER BY last",
        (after, before),
    ).fetchall()


def _queue_ids(
    db: sqlite3.Connection, after: int, before: int | None
) -> Iterator[tuple[int, bytes]]:
    yield from db.execute(
        "SELECT position, ids FROM queue WHERE position > ?1 AND position + n - 1 > ?2"
        " AND (?3 IS NULL OR position < ?3) ORDER BY position",
        (after - LONGEST_RUN, after, before),
    )
