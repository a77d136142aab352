"""Writes of epoch changes to the journal: votes, views, new stamps, summaries (P14–P21).

    PutBallot    before a PROMISE or ACCEPTED leaves
    PutView      ends an epoch: runs of others that are not in the queue are removed
    PutRestamp   an own run that was not in the final queue gets a stamp of the new epoch
    ResetJournal   the queue of a node that lags too far is replaced by a summary

The functions change tables only; the journal changes its memory itself, after the transaction was
committed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import InvariantViolation
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.operation import DIGEST_BYTES
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.interfaces import (
    KeptPrepared,
    PutBallot,
    PutRestamp,
    PutView,
    QueueSummary,
    ResetJournal,
)
from sparktxlog.storage.journal.commit_rows import put_commit_tables
from sparktxlog.storage.journal.placed_rows import put_taken_over
from sparktxlog.storage.journal.prepared_rows import put_kept
from sparktxlog.storage.journal.queue_ids import put_digests
from sparktxlog.storage.journal.row_pruning import Ends
from sparktxlog.storage.journal.sqlite_schema import (
    HEADER_COLUMNS,
    RUN_KEY,
    encode,
    header_of,
    insert_entry,
    put_meta,
    put_writes,
    read_meta,
)
from sparktxlog.storage.journal.waiting_ids import run_key

#: What a summary replaces, in addition to what is prepared.
_REPLACED = (
    "queue", "segments", "definitions", "watermarks", "recent_ids", "table_writes", "commit_tables",
)  # fmt: skip
#: Header and ids of a run.
_Run = tuple[RunHeader, bytes]


def put_ballot(db: sqlite3.Connection, write: PutBallot) -> None:
    """Keep a voter's state."""
    put_meta(db, ballot=encode(write.state))


def put_view(db: sqlite3.Connection, write: PutView) -> list[_Run]:
    """Keep a view; return the incoming runs that it removed."""
    put_meta(db, view=encode(write.view), incarnation=write.incarnation)
    return _drop_incoming(db, "origin <> ? OR incarnation <> ?", (write.node_id, write.incarnation))


def put_restamp(db: sqlite3.Connection, write: PutRestamp) -> _Run:
    """Keep the new stamp of an incoming run; return the run with it.

    Raises:
        InvariantViolation: No such run waits, or its content differs.
    """
    header = write.header
    row = db.execute(
        f"SELECT digest, ids FROM incoming WHERE {RUN_KEY}", run_key(header)
    ).fetchone()
    if row is None or row[0] != header.digest:
        raise InvariantViolation(
            f"run {header.origin}/{header.incarnation}/{header.seq} cannot be stamped again: "
            + ("it does not wait" if row is None else "its content differs"),
            digest=header.digest,
        )
    restamp(db, header)
    return header, row[1]


def restamp(db: sqlite3.Connection, header: RunHeader) -> None:
    """Give an incoming run the epoch and the timestamp of a header."""
    db.execute(
        f"UPDATE incoming SET epoch = ?, ts = ? WHERE {RUN_KEY}",
        (header.epoch, header.ts, *run_key(header)),
    )


def read_incoming(db: sqlite3.Connection, header: RunHeader) -> RunHeader:
    """Return the incoming run with the same origin, incarnation and number."""
    row = db.execute(
        f"SELECT {HEADER_COLUMNS} FROM incoming WHERE {RUN_KEY}", run_key(header)
    ).fetchone()
    return header_of(row)


def drop_run(db: sqlite3.Connection, header: RunHeader) -> list[_Run]:
    """Remove the incoming run with the same name, and its payload; return it."""
    return _drop_incoming(db, RUN_KEY, run_key(header))


def _drop_incoming(
    db: sqlite3.Connection, condition: str, arguments: tuple[str | int, ...]
) -> list[_Run]:
    gone = db.execute(
        f"SELECT {HEADER_COLUMNS}, ids FROM incoming WHERE {condition}", arguments
    ).fetchall()
    keys = [row[:3] for row in gone]
    db.executemany(f"DELETE FROM payloads WHERE {RUN_KEY}", keys)
    db.executemany(f"DELETE FROM incoming WHERE {RUN_KEY}", keys)
    return [(header_of(row), row[9]) for row in gone]


# -- summaries -------------------------------------------------------------------------------------


def reset(db: sqlite3.Connection, write: ResetJournal) -> tuple[Ends, list[_Run]]:
    """Replace the queue by a summary; return the new ends, and the removed incoming runs.

    Raises:
        InvariantViolation: The summary contradicts itself, or lacks own transactions that this
            node had in its queue: their numbers must never be given again.
    """
    summary = write.summary
    meta = read_meta(db, "incarnation", "view", "resets")
    before = meta.get("incarnation", 1)
    incarnation = before if write.incarnation is None else write.incarnation
    held = db.execute("SELECT seq FROM watermarks WHERE origin = ?", (write.node_id,)).fetchone()
    watermark = summary.watermarks.get(write.node_id, 0)
    _check_summary(summary)
    _check_own(write, before, 0 if held is None else held[0])
    gone = _drop_incoming(
        db,
        "origin <> ? OR incarnation <> ? OR seq <= ?",
        (write.node_id, incarnation, watermark),
    )
    db.execute(
        "DELETE FROM payloads WHERE (origin, incarnation, seq) NOT IN"
        " (SELECT origin, incarnation, seq FROM incoming)"
    )
    for table in _REPLACED:
        db.execute(f"DELETE FROM {table}")
    ends = _put_summary(db, summary)
    if (view := newer_view(meta.get("view"), summary.view)) is not None:
        put_meta(db, view=encode(view))
    put_meta(db, incarnation=incarnation, resets=meta.get("resets", 0) + 1)
    return ends, gone


def _put_summary(db: sqlite3.Connection, summary: QueueSummary) -> Ends:
    position = summary.position
    ends = Ends(position=position, published=position, forgotten=position)
    if summary.last is not None:
        entry = summary.last.entry
        before = entry.position - 1
        ends = replace(ends, chain_hash=entry.chain_hash, pruned=before, untold=before)
        digests = _digests_at(summary, entry.position, entry.header.n)
        insert_entry(db, entry, summary.last.ordered_at, summary.last.ids, digests)
    db.executemany("INSERT INTO watermarks VALUES(?, ?)", sorted(summary.watermarks.items()))
    db.executemany(
        "INSERT INTO definitions VALUES(?, ?, ?)",
        [(at, table.name, encode(table)) for at, table in summary.tables],
    )
    db.executemany(
        "INSERT INTO recent_ids(last, first, ids, content_digests) VALUES(?, ?, ?, ?)",
        (
            (first + len(ids) // 16 - 1, first, ids, _digests_at(summary, first, len(ids) // 16))
            for first, ids in summary.recent_ids
        ),
    )
    put_writes(db, list(summary.writes.items()), position)
    put_kept(db, summary.prepared, position)
    put_commit_tables(db, summary.commit_tables, position)
    put_taken_over(db, summary.commit_tables)
    put_meta(
        db,
        published=position,
        # Less than every version: the former table is another one (`queue_table.set_aside`).
        published_version=-1,
        forgotten=position,
        pruned=ends.pruned,
        untold=ends.untold,
        kept_after=position,
        files_bytes=0,
    )
    return ends


def _digests_at(summary: QueueSummary, first: int, n: int) -> bytes | None:
    """Return the digests that a summary brings of some positions, None if it brings none."""
    digests = summary.content_digests
    found = bytearray(DIGEST_BYTES * n)
    put_digests(found, first, summary.position - len(digests) // DIGEST_BYTES + 1, digests)
    return bytes(found) if any(found) else None


def _check_summary(summary: QueueSummary) -> None:
    """Check that a summary is consistent: otherwise a node could not start from it.

    Raises:
        InvariantViolation: It is not.
    """
    last = summary.last
    if last is None:
        known = (summary.watermarks, summary.tables, summary.recent_ids, summary.writes)
        whole = not any((*known, summary.prepared, summary.commit_tables))
        wanted = 0
    else:
        header = last.entry.header
        whole = (
            len(last.ids) == 16 * header.n
            and summary.watermarks.get(header.origin) == header.last
            and sum(summary.watermarks.values()) == summary.position
            and all(1 <= at <= summary.position for at, _ in summary.tables)
            and all(_fits(writes, summary.position) for writes in summary.writes.values())
            and all(_is_whole(item, summary.position) for item in summary.prepared)
            and all(1 <= one.position <= summary.position for one in summary.commit_tables)
            and all(one.renamed <= summary.position for one in summary.commit_tables)
            and _are_distinct(summary.commit_tables)
        )
        wanted = last.entry.position - 1
    if not whole or not _follow(summary.recent_ids, wanted):
        raise InvariantViolation(
            f"the summary at position {summary.position} contradicts itself",
            position=summary.position,
        )


def _fits(writes: TableWrites, position: int) -> bool:
    return 1 <= writes.position <= position and 0 <= writes.version <= position


def _is_whole(item: KeptPrepared, position: int) -> bool:
    one, manifest = item.undecided, read_manifest(item.payload)
    said = (one.transaction_id, one.participants) == (manifest.ids, manifest.participants)
    return said and 1 <= one.position <= position and bool(one.missing)


def _are_distinct(tables: Iterable[CommitTable]) -> bool:
    """Return whether no two commit tables have one UUID, or exist under one name."""
    known = list(tables)
    names = [table.name.lower() for table in known if not table.is_dropped]
    uuids = {table.uuid for table in known}
    return len(uuids) == len(known) and len(set(names)) == len(names)


def _follow(pieces: Iterable[tuple[int, bytes]], last: int) -> bool:
    """Return whether pieces of ids follow each other up to a position."""
    end = None
    for first, ids in pieces:
        if first < 1 or not ids or len(ids) % 16 or (end is not None and first != end + 1):
            return False
        end = first + len(ids) // 16 - 1
    return end is None or end == last


def _check_own(write: ResetJournal, incarnation: int, watermark: int) -> None:
    """Check that no own sequence number would be given twice.

    Args:
        incarnation: This node's former incarnation.
        watermark: The former last own sequence number in the queue.

    Raises:
        InvariantViolation: The summary lacks own transactions that this node ordered.
    """
    wanted = incarnation if write.incarnation is None else write.incarnation
    mark = write.summary.watermarks.get(write.node_id, 0)
    if wanted < incarnation or (wanted == incarnation and mark < watermark):
        raise InvariantViolation(
            f"the summary holds own transactions up to {mark}, the queue here up to {watermark}",
            hint="Let the node return with a higher incarnation.",
            incarnation=incarnation,
        )


def newer_view(held: View | None, other: View | None) -> View | None:
    """Return the view after a reset: the summary's, unless it is older."""
    if other is None or held is None:
        return other or held
    same = held.log_id == other.log_id or held.continues(other.log_id, other.epoch)
    return held if same and held.epoch >= other.epoch else other
