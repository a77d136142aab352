"""Rows of `log/synchronized_queue`, one per transaction, built from columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparktxlog.codec.containers.assembly import uuid_texts
from sparktxlog.model.transactions.operation import Block, OperationKind
from sparktxlog.storage.interfaces import StoredEntry
from sparktxlog.storage.log_tables.log_schemas import OPERATION, SYNCHRONIZED_QUEUE
from sparktxlog.storage.segments.inline_files import InlineFile, InlineOperations

_KINDS = tuple(kind.value for kind in OperationKind)
_KIND_CODE = {kind: code for code, kind in enumerate(OperationKind)}


@dataclass(slots=True)
class OperationColumns:
    """Operations of a segment, gathered block by block."""

    _tables: dict[str, int] = field(default_factory=dict)
    _positions: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _ops: list[npt.NDArray[np.int32]] = field(default_factory=list)
    #: Table, kind, rows, bytes; -1 rows or bytes = NULL.
    _facts: list[npt.NDArray[np.int64]] = field(default_factory=list)
    #: Index of the operation in these lists → files or predicate.
    _files: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _predicates: dict[int, str] = field(default_factory=dict)
    _count: int = 0

    def add_inline(self, table: str, kind: OperationKind, operations: InlineOperations) -> None:
        """Add the operations of one group of inline rows."""
        count = len(operations.positions)
        facts = np.empty((count, 4), np.int64)
        facts[:, 0] = self._tables.setdefault(table, len(self._tables))
        facts[:, 1] = _KIND_CODE[kind]
        facts[:, 2] = operations.rows
        facts[:, 3] = operations.bytes
        self._append(operations.positions, operations.ops, facts)

    def add_block(self, block: Block, position: int) -> None:
        """Add the one operation of a block without inline rows; `position` is its transaction's."""
        if block.files:
            self._files[self._count] = tuple(file.path for file in block.files)
        if block.predicate is not None:
            self._predicates[self._count] = block.predicate
        carried = bool(block.files)
        facts = [
            self._tables.setdefault(block.table, len(self._tables)),
            _KIND_CODE[block.kind],
            sum(file.rows for file in block.files) if carried else -1,
            sum(file.size_bytes for file in block.files) if carried else -1,
        ]
        self._append(
            np.array([position], np.int64),
            np.array([block.op], np.int32),
            np.array([facts], np.int64),
        )

    def add_many(self, block: Block, positions: npt.NDArray[np.int64]) -> None:
        """Add the operations of a block whose files have rows of many transactions.

        How many are of which is in the files, which are at other sites: it is not said here.
        """
        count, paths = len(positions), tuple(file.path for file in block.files)
        self._files.update(dict.fromkeys(range(self._count, self._count + count), paths))
        facts = np.full((count, 4), -1, np.int64)
        facts[:, 0] = self._tables.setdefault(block.table, len(self._tables))
        facts[:, 1] = _KIND_CODE[block.kind]
        self._append(positions, np.zeros(count, np.int32), facts)

    def _append(
        self,
        positions: npt.NDArray[np.int64],
        ops: npt.NDArray[np.int32],
        facts: npt.NDArray[np.int64],
    ) -> None:
        self._positions.append(positions)
        self._ops.append(ops)
        self._facts.append(facts)
        self._count += len(positions)

    def to_lists(self, first: int, count: int, missing: npt.NDArray[np.bool_]) -> pa.ListArray:
        """Return the operations of positions `first …`, one list each, ascending by op.

        Args:
            first: Position of the first list.
            count: Number of lists.
            missing: True if the list is unknown and so NULL.
        """
        if not self._count:
            lists = pa.ListArray.from_arrays(
                np.zeros(count + 1, np.int32), pa.array([], OPERATION), mask=pa.array(missing)
            )
            return lists.cast(SYNCHRONIZED_QUEUE.field("operations").type)
        positions = np.concatenate(self._positions)
        ops = np.concatenate(self._ops)
        facts = np.concatenate(self._facts)
        order = np.lexsort((ops, positions))
        facts = facts[order]
        counts = np.bincount(positions - first, minlength=count)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        struct = pa.StructArray.from_arrays(
            [
                pa.array(ops[order]),
                pa.array(list(self._tables), pa.string()).take(pa.array(facts[:, 0])),
                pa.array(_KINDS, pa.string()).take(pa.array(facts[:, 1])),
                pa.array(facts[:, 2], mask=facts[:, 2] < 0),
                pa.array(facts[:, 3], mask=facts[:, 3] < 0),
                self._sparse(self._files, order, OPERATION.field("files").type),
                self._sparse(self._predicates, order, pa.string()),
            ],
            fields=list(OPERATION),
        )
        return pa.ListArray.from_arrays(
            pa.array(offsets),
            struct,
            type=SYNCHRONIZED_QUEUE.field("operations").type,
            mask=pa.array(missing),
        )

    @staticmethod
    def _sparse(
        values: dict[int, tuple[str, ...]] | dict[int, str],
        order: npt.NDArray[np.intp],
        kind: pa.DataType,
    ) -> pa.Array:
        """Return mostly NULLs with the few values at their places."""
        if not values:
            return pa.nulls(len(order), kind)
        held = np.full(len(order), -1, np.int64)
        held[list(values)] = np.arange(len(values))
        places = held[order]
        return pa.array(list(values.values()), kind).take(pa.array(places, mask=places < 0))


def inline_paths(files: Sequence[InlineFile], first: int, count: int) -> pa.ListArray:
    """Return for each position the paths of the files that hold its inline rows, or NULL."""
    kind = SYNCHRONIZED_QUEUE.field("inline").type
    if not files:
        return pa.nulls(count, kind)
    positions = np.concatenate([item.positions for item in files])
    numbers = np.repeat(np.arange(len(files)), [len(item.positions) for item in files])
    order = np.lexsort((numbers, positions))
    counts = np.bincount(positions - first, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    paths = pa.array([item.file.path for item in files], pa.string())
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        paths.take(pa.array(numbers[order])),
        type=kind,
        mask=pa.array(counts == 0),
    )


def queue_rows(
    entries: Sequence[StoredEntry],
    submitted_at: Sequence[int | None],
    operations: OperationColumns,
    files: Sequence[InlineFile],
) -> pa.Table:
    """Return the rows of contiguous entries, in the order of `SYNCHRONIZED_QUEUE`.

    Args:
        entries: Neighbours in the queue.
        submitted_at: Wall clock per entry, None if its payload is gone.
        operations: Gathered from the entries' payloads.
        files: Published files of the entries' inline rows.
    """
    headers = [item.entry.header for item in entries]
    lengths = np.array([header.n for header in headers], np.int64)
    first, count = entries[0].entry.position, int(lengths.sum())
    run = np.repeat(np.arange(len(entries)), lengths)
    runs = pa.array(run)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    index = np.arange(count) - starts[run]
    run_seq = np.array([header.seq for header in headers], np.int64)[run]
    missing = np.array([at is None for at in submitted_at])

    def spread(values: list[int] | list[str] | list[int | None], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(runs)

    outcome, reason = _outcomes(entries, starts, count)
    timestamp = pa.timestamp("us", tz="UTC")
    columns = [
        pa.array(np.arange(first, first + count)),
        pa.array(run_seq),
        spread([header.n for header in headers], pa.int32()),
        spread([header.epoch for header in headers], pa.int64()),
        spread([header.ts for header in headers], pa.int64()),
        spread([str(header.origin) for header in headers], pa.string()),
        spread([header.incarnation for header in headers], pa.int64()),
        pa.array(run_seq + index),
        uuid_texts(b"".join(item.ids for item in entries)),
        outcome,
        reason,
        operations.to_lists(first, count, missing[run]),
        inline_paths(files, first, count),
        spread([header.digest.hex() for header in headers], pa.string()),
        spread([item.entry.chain_hash.hex() for item in entries], pa.string()),
        spread(list(submitted_at), pa.int64()).cast(timestamp),
        spread([item.ordered_at for item in entries], pa.int64()).cast(timestamp),
    ]
    return pa.Table.from_arrays(columns, schema=SYNCHRONIZED_QUEUE)


def _outcomes(
    entries: Sequence[StoredEntry], starts: npt.NDArray[np.int64], count: int
) -> tuple[pa.Array, pa.Array]:
    """Return outcome and reason of each transaction; only rejected ones need Python objects."""
    places: list[int] = []
    texts: list[str] = []
    prepared: list[int] = []
    for start, item in zip(starts, entries, strict=True):
        for rejection in item.entry.rejections:
            places.append(int(start) + rejection.index)
            if rejection.code == "prepared":
                prepared.append(places[-1])
            texts.append(f"{rejection.code}: {rejection.text}")
    number = np.full(count, -1, np.int64)
    number[places] = np.arange(len(places))
    committed = number < 0
    kinds = committed.astype(np.int8)
    kinds[prepared] = 2
    names = pa.array(["rejected", "committed", "prepared"], pa.string())
    outcome = names.take(pa.array(kinds))
    reason = pa.array(texts, pa.string()).take(pa.array(number, mask=committed))
    return outcome, pc.cast(reason, pa.string())
