"""Publishes ordered entries for workers and readers: segments, their files, queue rows.

The publisher (runtime) reads entries with payloads from the journal and calls `publish`.  Nothing
refers to the files before they are fsynced; the next call replaces files that an interrupted call
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sparktxlog.codec.containers.payload import checked_manifest, split_payload
from sparktxlog.errors import CorruptLogError, InvariantViolation
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    IN_ROWS,
    Block,
    OperationKind,
    RunManifest,
)
from sparktxlog.storage.interfaces import MarkPublished, Segment, StoredEntry, TableEffect
from sparktxlog.storage.log_tables.queue_rows import OperationColumns, queue_rows
from sparktxlog.storage.log_tables.queue_table import QueueTable
from sparktxlog.storage.payloads.payload_store import FileSink, PayloadStore
from sparktxlog.storage.segments.inline_files import InlineFile, InlineGroup, Int64s

#: Directory of published inline files below the payload store.
INLINE_DIRECTORY = "inline"
#: Table, kind and schema version.
_GroupKey = tuple[str, OperationKind, int]
#: Returns the tables created or changed at positions from … to, by position and name.
Creations = Callable[[int, int], Mapping[tuple[int, str], TableDefinition]]
#: Returns a table as it was at an older schema version, None if it never had that.
Definitions = Callable[[str, int], TableDefinition | None]
#: Returns the container of a prepared transaction by its id.
Prepared = Callable[[bytes], bytes | None]


def plan_segments(
    entries: Sequence[StoredEntry], signature_interval: int
) -> list[list[StoredEntry]]:
    """Cut neighbours of the queue into pieces that cross no signature boundary (S2a).

    A boundary is the first run end at or after each multiple of `signature_interval`, and the end
    of a run that makes or deletes a restore point.  The last piece may end before one: the next
    segment then begins there.
    """
    pieces: list[list[StoredEntry]] = []
    piece: list[StoredEntry] = []
    for item in entries:
        piece.append(item)
        before, end = item.entry.position - 1, item.entry.end
        crosses = before // signature_interval != end // signature_interval
        if crosses or _has_restore_point(item):
            pieces.append(piece)
            piece = []
    if piece:
        pieces.append(piece)
    return pieces


def _has_restore_point(item: StoredEntry) -> bool:
    # Few manifests name that table; the others are not read twice.
    if item.payload is None or RESTORE_POINTS.encode() not in item.payload:
        return False
    blocks = checked_manifest(item.payload).blocks
    return any(block.table == RESTORE_POINTS and block.change is not None for block in blocks)


def build_segment(
    entries: Sequence[StoredEntry],
    tables: Mapping[str, TableDefinition],
    payloads: FileSink,
    creations: Creations | None = None,
    older: Definitions | None = None,
    prepared: Prepared | None = None,
) -> tuple[Segment, pa.Table]:
    """Write the inline files of one segment and return it with its rows for the queue table.

    Args:
        entries: Neighbours in the queue, payloads included, one piece of `plan_segments`.
        tables: Catalog at or after the last entry.
        payloads: Where inline files are written; **after calling** they must be synced.
        creations: Distinguishes a creation from its repeat, which has no effect (P25b); called
            only if there is one.  None = every creation counts.
        older: Knows tables as they were before a change (P33); None = there was none.
        prepared: Knows what takes effect in the place of a mark (P35); None = nothing does.

    Raises:
        CorruptLogError: A payload is damaged or missing.
        DiskFullError: No space for the files; nothing refers to what was written (definite).
    """
    first, last = entries[0].entry.position, entries[-1].entry.end
    rejected = _rejected_positions(entries)
    groups: dict[_GroupKey, InlineGroup] = {}
    operations = OperationColumns()
    effects: list[TableEffect] = []
    created: Mapping[tuple[int, str], TableDefinition] | None = None
    submitted_at: list[int | None] = []
    for manifest, payload, start in _manifests(entries, prepared, submitted_at):
        sections = split_payload(payload)[1]
        for block in manifest.blocks:
            if block.inline is not None:
                key = (block.table, block.kind, block.schema_version)
                group = groups.get(key)
                if group is None:
                    definition = _definition(block, tables, older)
                    groups[key] = group = InlineGroup(block.table, block.kind, definition)
                group.add(block, sections[block.inline.index], start)
                continue
            if block.op == IN_ROWS:
                positions = start + np.array(block.txs or range(manifest.n), np.int64)
                operations.add_many(block, positions)
                effects += _effects_of_many(block, positions, start, rejected)
                continue
            position = start + _only_transaction(block)
            operations.add_block(block, position)
            if block.kind is OperationKind.CREATE_TABLE and creations is not None:
                created = creations(first, last) if created is None else created
                definition = created.get((position, block.table))
                if definition is None:
                    continue
                block = _effective(block, definition)
            if not _contains(rejected, position):
                effects.append(_block_effect(block, position))
    files = _write_groups(groups, payloads, first, last, rejected, operations, effects)
    effects.sort(key=lambda effect: (effect.first, effect.op))
    segment = Segment(
        first=first,
        last=last,
        from_hash=entries[0].entry.previous_hash.hex(),
        to_hash=entries[-1].entry.chain_hash.hex(),
        epoch=entries[-1].entry.header.epoch,
        transactions=last - first + 1,
        rejected=len(rejected),
        effects=tuple(effects),
        ordered_at=entries[-1].ordered_at,
    )
    return segment, queue_rows(entries, submitted_at, operations, files)


def _manifests(
    entries: Sequence[StoredEntry], prepared: Prepared | None, submitted_at: list[int | None]
) -> Iterator[tuple[RunManifest, bytes, int]]:
    """Yield each run: its manifest, its container, and the position of its first transaction.

    A prepared transaction that is committed follows the run that decides it, in the place of the
    mark that does (P35).

    Args:
        submitted_at: Gets the wall clock of each entry.
    """
    for item in entries:
        entry = item.entry
        if item.payload is None:
            raise CorruptLogError(
                f"the payload of position {entry.position} is missing and not published yet",
                position=entry.position,
            )
        manifest = checked_manifest(item.payload)
        submitted_at.append(manifest.submitted_at)
        yield manifest, item.payload, entry.position
        for one in entry.verdicts:
            if one.rejection is not None:
                continue
            payload = None if prepared is None else prepared(one.transaction_id)
            if payload is None:
                raise CorruptLogError(
                    f"what was prepared at position {one.position} is missing, and takes effect "
                    f"at {entry.position + one.index}, which is not published yet",
                    position=one.position,
                )
            yield checked_manifest(payload), payload, entry.position + one.index


def publish(
    entries: Sequence[StoredEntry],
    *,
    signature_interval: int,
    tables: Mapping[str, TableDefinition],
    payloads: PayloadStore,
    queue: QueueTable,
    creations: Creations | None = None,
    older: Definitions | None = None,
    prepared: Prepared | None = None,
    goes_on: Callable[[], None] = lambda: None,
) -> list[MarkPublished]:
    """Publish ordered entries: files, rows, fsync; return the writes for the journal.

    A repeat after a crash at any point changes nothing in the queue table: its transaction version
    says which positions it holds.

    Args:
        goes_on: Called before the queue table is written; what it raises, this raises.

    Raises:
        DiskFullError: Nothing of it counts as published; try again later (definite).
        CorruptLogError: A payload or the queue table is damaged.
        JournalLostError: The entries do not continue the queue table's end.
    """
    if not entries:
        return []
    segments, rows = [], []
    # Rows of an interrupted call name its files, so cut the same pieces.
    known = [item for item in entries if item.entry.end <= queue.position]
    for piece in (
        *plan_segments(known, signature_interval),
        *plan_segments(entries[len(known) :], signature_interval),
    ):
        segment, piece_rows = build_segment(piece, tables, payloads, creations, older, prepared)
        segments.append(segment)
        rows.append(piece_rows)
    payloads.sync(
        file.path
        for segment in segments
        for effect in segment.effects
        if effect.inline
        for file in effect.files
    )
    goes_on()
    version = queue.append(pa.concat_tables(rows), previous_hash=entries[0].entry.previous_hash)
    return [
        MarkPublished(position=segment.last, version=version, segment=segment)
        for segment in segments
    ]


def restored_rows(entries: Sequence[StoredEntry]) -> pa.Table:
    """Return queue rows of entries whose payloads may be gone: without operations and files.

    For a queue table that was lost after its rows had been published.
    """
    return queue_rows(entries, [None] * len(entries), OperationColumns(), [])


def _definition(
    block: Block, tables: Mapping[str, TableDefinition], older: Definitions | None
) -> TableDefinition | None:
    """Return the table for which a block was made."""
    newest = tables.get(block.table)
    if older is None or (newest is not None and newest.schema_version == block.schema_version):
        return newest
    return older(block.table, block.schema_version)


def _write_groups(
    groups: Mapping[_GroupKey, InlineGroup],
    payloads: FileSink,
    first: int,
    last: int,
    rejected: Int64s,
    operations: OperationColumns,
    effects: list[TableEffect],
) -> list[InlineFile]:
    files: list[InlineFile] = []
    for (table, kind, _), group in groups.items():
        operations.add_inline(table, kind, group.operations())
        effect, written = group.write(payloads, f"{INLINE_DIRECTORY}/{first}-{last}", rejected)
        files.extend(written)
        if effect is not None:
            effects.append(effect)
    return files


def _rejected_positions(entries: Sequence[StoredEntry]) -> Int64s:
    return np.array(
        [
            item.entry.position + rejection.index
            for item in entries
            for rejection in item.entry.rejections
        ],
        np.int64,
    )


def _contains(ascending: Int64s, value: int) -> bool:
    at = int(np.searchsorted(ascending, value))
    return at < len(ascending) and int(ascending[at]) == value


def _only_transaction(block: Block) -> int:
    if block.txs is None or len(block.txs) != 1:
        raise InvariantViolation(
            f"a block of kind {block.kind.value} on {block.table!r} belongs to"
            f" {'all' if block.txs is None else len(block.txs)} transactions, not to one"
        )
    return block.txs[0]


def _effective(block: Block, definition: TableDefinition) -> Block:
    """Return a create with the table as it was when created: schema versions go on (P33)."""
    return replace(block, definition=definition, schema_version=definition.schema_version)


def _effects_of_many(
    block: Block, positions: Int64s, start: int, rejected: Int64s
) -> list[TableEffect]:
    """Return the effect of staged files of many transactions, none if all were rejected.

    Args:
        positions: Of the transactions of the block, ascending.
        start: Position of their run.
    """
    out = np.isin(positions, rejected)
    if out.all():
        return []
    first, last = positions[~out][[0, -1]].tolist()
    effect = TableEffect(
        table=block.table,
        kind=block.kind.value,
        first=first,
        last=last,
        files=block.files,
        claim=block.claim.to_text() if block.claim is not None and not out.any() else "",
        schema_version=block.schema_version,
        run=start,
        left_out=tuple(positions[out].tolist()),
    )
    return [effect]


def _block_effect(block: Block, position: int) -> TableEffect:
    return TableEffect(
        table=block.table,
        kind=block.kind.value,
        first=position,
        last=position,
        op=block.op,
        files=block.files,
        definition=block.definition,
        predicate=block.predicate,
        claim=block.claim.to_text() if block.claim is not None else "",
        schema_version=block.schema_version,
        change=block.change,
    )
