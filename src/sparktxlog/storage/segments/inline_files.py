"""Inline rows of a segment: gathered per (table, kind, schema version), written as Parquet files.

No Python object is made per row or transaction: positions, orders and partitions are arrays.  The
files have the table's columns (for deletions its keys) under their names in files,
`POSITION_COLUMN` and `OP_COLUMN`, sorted by these two, without rejected transactions.  Rows that
are added to a partitioned table are split by partition and lack the partition columns, as Delta
requires, so that the files can be added to the table as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.partitions import split_by_partition
from sparktxlog.codec.row_statistics import RowStatistics
from sparktxlog.errors import CorruptLogError
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    OP_COLUMN,
    POSITION_COLUMN,
    TX_COLUMN,
    Block,
    OperationKind,
    StagedFile,
)
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.storage.parquet_files import write_parquet
from sparktxlog.storage.payloads.payload_store import FileSink

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

_OWN_COLUMNS = (POSITION_COLUMN, OP_COLUMN)
#: Kinds whose rows enter the table as they are.
_ADDED = frozenset({OperationKind.APPEND, OperationKind.OVERWRITE})


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineOperations:
    """Operations that carry inline rows, one array element each."""

    positions: Int64s
    ops: Int32s
    rows: Int64s
    bytes: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineFile:
    """A written file and the transactions whose rows it holds."""

    file: StagedFile
    #: Ascending, each once.
    positions: Int64s


@dataclass(slots=True)
class InlineGroup:
    """Inline rows of one (table, kind, schema version) of a segment."""

    table: str
    kind: OperationKind
    #: None: the table is unknown, so every transaction that touches it was rejected.
    definition: TableDefinition | None
    _parts: list[pa.Table] = field(default_factory=list)
    _positions: list[Int64s] = field(default_factory=list)
    _ops: list[Int32s] = field(default_factory=list)
    _row_bytes: list[float] = field(default_factory=list)
    _claims: list[Block] = field(default_factory=list)

    def add(self, block: Block, section: memoryview, position: int) -> None:
        """Add the section of a run whose first transaction is at `position`."""
        try:
            rows = pa.ipc.open_stream(section).read_all()
            txs = _int32s(rows, TX_COLUMN)
            self._ops.append(_int32s(rows, OP_COLUMN))
        except (pa.ArrowException, KeyError) as error:
            raise CorruptLogError(
                f"inline rows of table {self.table!r} at position {position} cannot be read:"
                f" {error}",
                position=position,
            ) from error
        self._positions.append(txs.astype(np.int64) + position)
        self._row_bytes.append(len(section) / max(rows.num_rows, 1))
        self._parts.append(rows)
        self._claims.append(block)

    def operations(self) -> InlineOperations:
        """Return the operations of all transactions, including rejected ones."""
        positions, ops = np.concatenate(self._positions), np.concatenate(self._ops)
        lengths = [part.num_rows for part in self._parts]
        weights = np.repeat(np.array(self._row_bytes), lengths)
        order = _order(positions, ops)
        if order is not None:
            positions, ops, weights = positions[order], ops[order], weights[order]
        if not len(positions):
            empty = np.empty(0, np.int64)
            return InlineOperations(positions=empty, ops=ops, rows=empty, bytes=empty)
        starts = np.flatnonzero(
            np.concatenate(([True], (np.diff(positions) != 0) | (np.diff(ops) != 0)))
        )
        return InlineOperations(
            positions=positions[starts],
            ops=ops[starts],
            rows=np.diff(np.append(starts, len(positions))),
            bytes=np.add.reduceat(weights, starts).astype(np.int64),
        )

    def write(
        self, sink: FileSink, directory: str, rejected: Int64s
    ) -> tuple[TableEffect | None, list[InlineFile]]:
        """Write the files; returns the effect, None if every row was rejected.

        Args:
            sink: Payload store.
            directory: Directory of this segment only, relative to the payload store.
            rejected: Positions of rejected transactions, ascending.
        """
        rows = self._rows(rejected)
        if rows is None or not rows.num_rows or self.definition is None:
            return None, []
        written = [
            self._write_file(sink, f"{directory}/{self._name(k, many)}", piece, partition)
            for k, many, partition, piece in self._pieces(rows)
        ]
        positions = rows.column(POSITION_COLUMN)
        effect = TableEffect(
            table=self.table,
            kind=self.kind.value,
            first=positions[0].as_py(),
            last=positions[-1].as_py(),
            files=tuple(item.file for item in written),
            inline=True,
            claim=self._claim(rejected),
            schema_version=self.definition.schema_version,
        )
        return effect, written

    def _rows(self, rejected: Int64s) -> pa.Table | None:
        """Return the rows that take effect, sorted by (position, op)."""
        if self.definition is None:
            self._check_all_rejected(rejected)
            return None
        keys = self.definition.keys if self.kind is OperationKind.DELETE_KEYS else None
        schema = arrow_schema(self.definition, keys)
        # What was rejected may be rows of another table, which lost to the creation of this one.
        given = [
            (rows, positions, ops)
            for rows, positions, ops in zip(self._parts, self._positions, self._ops, strict=True)
            if not np.isin(positions, rejected).all()
        ]
        if not given:
            return None
        try:
            table = pa.concat_tables([_conform(rows, schema) for rows, _, _ in given])
            table = table.rename_columns(list(self.definition.in_files(schema.names)))
        except (pa.ArrowException, KeyError) as error:
            raise CorruptLogError(
                f"inline rows do not have the columns of table {self.table!r}: {error}"
            ) from error
        positions = np.concatenate([at for _, at, _ in given])
        ops = np.concatenate([at for _, _, at in given])
        table = table.append_column(POSITION_COLUMN, pa.array(positions))
        table = table.append_column(OP_COLUMN, pa.array(ops))
        if len(rejected):
            kept = ~np.isin(positions, rejected)
            if not kept.all():
                table = table.filter(pa.array(kept))
                positions, ops = positions[kept], ops[kept]
        order = _order(positions, ops)
        return table if order is None else table.take(pa.array(order))

    def _check_all_rejected(self, rejected: Int64s) -> None:
        known = np.isin(np.concatenate(self._positions), rejected)
        if not known.all():
            raise CorruptLogError(f"the log has no table {self.table!r}")

    def _claim(self, rejected: Int64s) -> str:
        """Return the sum of the submitters' claims, "" if one is missing or covers too much."""
        total = EMPTY_SIGNATURE
        for block, positions in zip(self._claims, self._positions, strict=True):
            if block.claim is None or (len(rejected) and np.isin(positions, rejected).any()):
                return ""
            total += block.claim
        return total.to_text()

    def _name(self, k: int, many: bool) -> str:
        assert self.definition is not None
        version, number = self.definition.schema_version, f"-{k}" if many else ""
        schema = f"-s{version}" if version > 1 else ""
        return f"{self.table}-{self.kind.value}{schema}{number}.parquet"

    def _pieces(
        self, rows: pa.Table
    ) -> Iterable[tuple[int, bool, dict[str, str | None] | None, pa.Table]]:
        assert self.definition is not None
        names = self.definition.in_files(self.definition.partition_by)
        if not names or self.kind not in _ADDED:
            yield 0, False, None, rows
            return
        pieces = split_by_partition(rows, names)
        for k, (partition, piece) in enumerate(pieces):
            yield k, len(pieces) > 1, partition, piece

    def _write_file(
        self,
        sink: FileSink,
        relative: str,
        rows: pa.Table,
        partition: dict[str, str | None] | None,
    ) -> InlineFile:
        view = memoryview(write_parquet(rows))
        stats = RowStatistics(rows.drop_columns(list(_OWN_COLUMNS)).schema)
        stats.take(rows)
        sink.write_file(relative, view)
        file = StagedFile(
            path=relative,
            size_bytes=len(view),
            rows=rows.num_rows,
            digest=hashlib.sha256(view).hexdigest(),
            partition=partition,
            stats=stats.to_json(),
        )
        positions = rows.column(POSITION_COLUMN).to_numpy()
        changes = np.concatenate(([True], np.diff(positions) != 0))
        return InlineFile(file=file, positions=positions[changes])


def _int32s(rows: pa.Table, name: str) -> Int32s:
    values: Int32s = rows.column(name).to_numpy().astype(np.int32, copy=False)
    return values


def _conform(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table's columns in its order, nullable, in whatever form they were sent."""
    columns = []
    for wanted in schema:
        column = part.column(wanted.name)
        columns.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.table(columns, names=schema.names)


def _order(positions: Int64s, ops: Int32s) -> npt.NDArray[np.intp] | None:
    """Return the stable order by (position, op), None if it is the present one."""
    steps = np.diff(positions)
    if np.all((steps > 0) | ((steps == 0) & (np.diff(ops) >= 0))):
        return None
    return np.lexsort((ops, positions))
