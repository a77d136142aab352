"""Rows of prepared transactions: what is undecided at a run end, and what became of it (P35).

What a prepared transaction would do is kept apart from the queue, because the queue's containers
and rows may go before it is decided.  It goes once its decision is published.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.model.ids import LARGEST
from sparktxlog.model.transactions.marks import Undecided, UndecidedChange
from sparktxlog.protocol.messages.posts import QueueEntry, Verdict
from sparktxlog.storage.interfaces import KeptPrepared, StoredEntry
from sparktxlog.storage.journal.sqlite_schema import PAYLOAD_COLUMNS, encode
from sparktxlog.storage.payload_log import PayloadLog

#: Old verdicts that one write looks at, so that none takes long.
_OLD_VERDICTS = 100
_undecided_of = msgspec.msgpack.Decoder(Undecided).decode
_verdict_of = msgspec.msgpack.Decoder(Verdict).decode


def put_undecided(
    db: sqlite3.Connection, log: PayloadLog, changes: Iterable[UndecidedChange]
) -> None:
    """Keep what came, was marked or decided; for what came also its container."""
    for end, one, undecided in changes:
        body = None if undecided is None else encode(undecided)
        db.execute("INSERT INTO undecided(id, position, body) VALUES(?, ?, ?)", (one, end, body))
        if undecided is not None and undecided.position == end:
            row = db.execute(
                f"SELECT q.staged_bytes, {PAYLOAD_COLUMNS} FROM queue q"
                " JOIN payloads p USING (origin, incarnation, seq) WHERE q.position = ?",
                (end,),
            ).fetchone()
            if row is not None:
                db.execute(
                    "INSERT INTO prepared(id, staged_bytes, payload) VALUES(?, ?, ?)",
                    (one, row[0], log.container(row)),
                )


def put_verdicts(
    db: sqlite3.Connection,
    entries: Iterable[QueueEntry],
    at: int,
    until: int,
    is_known: Callable[[Verdict], bool],
) -> None:
    """Keep what entries decide, for callers that ask for the id.

    An id whose decision was forgotten would look like one that was rejected.

    Args:
        at: Wall clock, microseconds.
        until: What was decided before this time is forgotten, unless its id is still known.
        is_known: Returns whether it is.
    """
    rows = [
        (entry.position, number, one.transaction_id, encode(one), at)
        for entry in entries
        for number, one in enumerate(entry.verdicts)
    ]
    if rows:
        db.executemany(
            "INSERT INTO verdicts(run, number, id, body, at) VALUES(?, ?, ?, ?, ?)", rows
        )
        old = db.execute(
            "SELECT run, number, body FROM verdicts WHERE at < ? LIMIT ?", (until, _OLD_VERDICTS)
        )
        gone = [(run, number) for run, number, body in old if not is_known(_verdict_of(body))]
        db.executemany("DELETE FROM verdicts WHERE run = ? AND number = ?", gone)


def forget_decided(db: sqlite3.Connection, published: int) -> None:
    """Remove what no summary at the published end, or later, needs."""
    db.execute(
        "DELETE FROM undecided WHERE position < (SELECT max(u.position) FROM undecided u"
        " WHERE u.id = undecided.id AND u.position <= ?)",
        (published,),
    )
    gone = db.execute(
        "DELETE FROM undecided WHERE body IS NULL AND position <= ? RETURNING id", (published,)
    ).fetchall()
    db.executemany("DELETE FROM prepared WHERE id = ?", gone)


def read_undecided(db: sqlite3.Connection, position: int = LARGEST) -> list[Undecided]:
    """Return what is undecided at a run end, the queue's or the published one."""
    # SQLite takes `body` from the row that has the greatest position.
    rows = db.execute(
        "SELECT body, max(position) FROM undecided WHERE position <= ? GROUP BY id", (position,)
    )
    found = [_undecided_of(body) for body, _ in rows if body is not None]
    return sorted(found, key=lambda one: one.position)


def read_container(db: sqlite3.Connection, transaction_id: bytes) -> bytes | None:
    """Return the container of a prepared transaction, None if its decision is published."""
    row = db.execute("SELECT payload FROM prepared WHERE id = ?", (transaction_id,)).fetchone()
    payload: bytes | None = None if row is None else row[0]
    return payload


def read_verdict(db: sqlite3.Connection, transaction_id: bytes) -> tuple[int, Verdict] | None:
    """Return the start of the run that decides a prepared transaction, and how."""
    row = db.execute(
        "SELECT run, body FROM verdicts WHERE id = ? ORDER BY run LIMIT 1", (transaction_id,)
    ).fetchone()
    return None if row is None else (row[0], _verdict_of(row[1]))


def with_verdicts(db: sqlite3.Connection, entries: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Return neighbours of the queue with what they decide."""
    if not entries:
        return []
    first, last = entries[0].entry.position, entries[-1].entry.position
    found: dict[int, list[Verdict]] = {}
    for run, body in db.execute(
        "SELECT run, body FROM verdicts WHERE run BETWEEN ? AND ? ORDER BY run, number",
        (first, last),
    ):
        found.setdefault(run, []).append(_verdict_of(body))
    return [
        replace(item, entry=replace(item.entry, verdicts=tuple(found[item.entry.position])))
        if item.entry.position in found
        else item
        for item in entries
    ]


def read_kept(db: sqlite3.Connection, position: int) -> tuple[KeptPrepared, ...]:
    """Return what a summary at a run end says of prepared transactions."""
    kept = []
    for one in read_undecided(db, position):
        payload = read_container(db, one.transaction_id)
        assert payload is not None, "it is kept until the decision is published"
        kept.append(KeptPrepared(undecided=one, payload=payload))
    return tuple(kept)


def put_kept(db: sqlite3.Connection, kept: Iterable[KeptPrepared], position: int) -> None:
    """Replace all of it by what a summary says at its position."""
    for table in ("undecided", "prepared", "verdicts"):
        db.execute(f"DELETE FROM {table}")
    for item in kept:
        one = item.undecided
        row = (one.transaction_id, position, encode(one))
        db.execute("INSERT INTO undecided(id, position, body) VALUES(?, ?, ?)", row)
        staged_bytes = read_manifest(item.payload).staged_bytes
        db.execute(
            "INSERT INTO prepared(id, staged_bytes, payload) VALUES(?, ?, ?)",
            (one.transaction_id, staged_bytes, item.payload),
        )
