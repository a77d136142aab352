"""Rows of a stream: of the queue, or the changes of one table, each from files in tasks.

The planner names files and bounds (`QueueRows`, `TableChanges`), tasks read them with Arrow.  The
changes of a table come from the files that the log names, staged or published: the replica's Delta
table has other versions at each site, and joins what a batch of the log contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import dataset
from pyspark.sql import types as T
from pyspark.sql.datasource import InputPartition

from sparktxlog.api.schema import struct_of
from sparktxlog.api.streams.positions import ReadOptions
from sparktxlog.api.streams.published import StreamedLog
from sparktxlog.codec.calendars import SPARK_READS_IT, batches_of, open_parquet
from sparktxlog.errors import InvalidRequestError, PayloadStoreError, UnknownTableError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    OP_COLUMN,
    POSITION_COLUMN,
    OperationKind,
    StagedFile,
)
from sparktxlog.storage.interfaces import TableEffect

CHANGE_TYPE, POSITION, OPERATION = "_change_type", "_position", "_operation"
TIMESTAMP, PREDICATE = "_commit_timestamp", "_predicate"
#: Columns in addition to those of the table; `PREDICATE` only with markers.
_ADDED = (
    T.StructField(CHANGE_TYPE, T.StringType()),
    T.StructField(POSITION, T.LongType()),
    T.StructField(OPERATION, T.IntegerType()),
    T.StructField(TIMESTAMP, T.TimestampType()),
)
#: Name of a column in files, kept in the schema with the column, if it is another one (P33).
STORED = "sparktxlog.stored"
#: The same: the schema version with which the table was created, if there was one before it.
FIRST_VERSION = "sparktxlog.first_version"
#: Kinds that remove rows without naming them.
_REMOVES = (OperationKind.DELETE_WHERE.value, OperationKind.OVERWRITE.value)
_CREATES, _DROPS = OperationKind.CREATE_TABLE.value, OperationKind.DROP_TABLE.value
#: An overwrite removes all rows before it adds its own.
_ALL_ROWS = "TRUE"
#: Bytes of files that one task reads.
_TASK_BYTES = 64 << 20
_BATCH_ROWS = 64 << 10

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePiece:
    """Rows of one file after a position and up to another one, or one marker."""

    kind: str
    #: Absolute; empty: a marker, whose predicate is the row.
    path: str = ""
    size_bytes: int = 0
    partition: tuple[tuple[str, str | None], ...] = ()
    #: Place of the operation; None: each row of the file has its own.
    place: tuple[int, int] | None = None
    #: Added to positions in the file, and those among the sums whose rows do not count.
    run: int = 0
    left_out: tuple[int, ...] = ()
    predicate: str | None = None


class RowsPart(InputPartition):
    """What one task reads: pieces after a position and up to another one.

    Args:
        queue_files: Files of the queue table with these positions.
    """

    def __init__(
        self, pieces: Sequence[ChangePiece], queue_files: Sequence[str], after: int, upto: int
    ) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.queue_files = tuple(queue_files)
        self.after = after
        self.upto = upto


class QueueRows:
    """Rows of the queue itself: one for each transaction, rejected ones too."""

    def cut(self, log: StreamedLog, after: int, upto: int, max_rows: int | None) -> int:
        """Return the last position of a batch."""
        return upto if max_rows is None else min(upto, after + max_rows)

    def plan(self, log: StreamedLog, after: int, upto: int) -> list[RowsPart]:
        """Return what tasks read."""
        return [RowsPart((), [file], after, upto) for file in log.queue_files(after, upto)]

    def read(self, part: RowsPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; runs in a task."""
        place = (pc.field("position") > part.after) & (pc.field("position") <= part.upto)
        # Columns that an older file lacks are NULL.
        source = dataset(list(part.queue_files), schema=schema, format="parquet")
        yield from source.to_batches(filter=place)


def changes_schema(definition: TableDefinition, options: ReadOptions) -> T.StructType:
    """Return the columns of a table's changes: its own, all nullable, then those of the log.

    Raises:
        InvalidRequestError: The table has a column of that name (definite).
    """
    added = [*_ADDED, T.StructField(PREDICATE, T.StringType())] if options.markers else _ADDED
    names = {column.name.lower() for column in definition.columns}
    taken = [field.name for field in added if field.name in names]
    if taken:
        raise InvalidRequestError(
            f"table {definition.name!r} has a column {taken[0]!r}, which its changes also have",
            hint="Read the queue with .load('queue'), or the table with log.table(name).",
            table=definition.name,
        )
    first = definition.first_version
    of_table = {FIRST_VERSION: first} if first > 1 else {}
    own = [
        T.StructField(
            f.name, f.dataType, metadata=of_table | ({STORED: c.stored} if c.stored else {})
        )
        for f, c in zip(
            struct_of(definition, OperationKind.APPEND).fields, definition.columns, strict=True
        )
    ]
    return T.StructType([*own, *added])


class TableChanges:
    """The changes of one table, rejected transactions left out.

    Args:
        options: Table, and what is made of deletes by predicate.
        schema: Columns of the stream, as `changes_schema` made them.
    """

    def __init__(self, options: ReadOptions, schema: T.StructType) -> None:
        self._options = options
        #: Names in files stay, so files from before and after a rename are read alike.
        self._stored = {f.name: f.metadata[STORED] for f in schema if STORED in f.metadata}
        #: What was made for older schema versions is of a dropped table of that name.
        self._first_version = max((f.metadata.get(FIRST_VERSION, 1) for f in schema), default=1)

    def cut(self, log: StreamedLog, after: int, upto: int, max_rows: int | None) -> int:
        """Return the last position of a batch: of at most so many rows, and before a refused one.

        A transaction is never cut, so a batch of one may have more rows.

        Raises:
            InvalidRequestError: The next transaction removes rows by a predicate, and no option
                says what to make of it (definite).
            UnknownTableError: It drops the table (definite).
        """
        rows = 0
        for segment in log.segments(after, upto):
            effects = [e for e in segment.effects if self._concerns(e, after, upto)]
            log.check_held(effects)
            refused = min(
                (p for e in effects for p in self._refused(log, e, after, upto)), default=None
            )
            if refused is not None:
                upto = refused - 1
                if upto == after:
                    raise self._refusal(refused, effects)
            carried = sum(file.rows for effect in effects for file in effect.files)
            if max_rows is None or rows + carried <= max_rows:
                rows += carried
            else:
                return self._crossing(log, effects, after, upto, max_rows - rows)
            if refused is not None:
                return upto
        return upto

    def plan(self, log: StreamedLog, after: int, upto: int) -> list[RowsPart]:
        """Return what tasks read.

        Raises:
            InvalidRequestError, UnknownTableError: As `cut`.
        """
        pieces: list[ChangePiece] = []
        for segment in log.whole(after, upto):
            for effect in segment.effects:
                if self._concerns(effect, after, upto):
                    log.check_held([effect])
                    if refused := self._refused(log, effect, after, upto):
                        raise self._refusal(refused[0], [effect])
                    pieces += self._pieces(log, effect, after, upto)
        if not pieces:
            return []
        queue_files = log.queue_files(after, upto)
        return [RowsPart(some, queue_files, after, upto) for some in _packed(pieces)]

    def read(self, part: RowsPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part; runs in a task."""
        place = (pc.field("position") > part.after) & (pc.field("position") <= part.upto)
        times = dataset(list(part.queue_files)).to_table(
            columns=["position", "submitted_at"], filter=place
        )
        for piece in part.pieces:
            for rows in _rows_of(piece, part.after, part.upto):
                if rows.num_rows:
                    yield from _shaped(piece, rows, times, schema, self._stored).to_batches()

    # -- the planner's part ------------------------------------------------------------------------

    def _concerns(self, effect: TableEffect, after: int, upto: int) -> bool:
        is_other = effect.table.lower() != (self._options.table or "").lower()
        if is_other or effect.last <= after or effect.first > upto:
            return False
        if effect.kind == _CREATES or effect.schema_version < self._first_version:
            return False
        if effect.kind == _DROPS:
            return True
        return effect.kind == OperationKind.APPEND.value or not self._options.appends_only

    def _refused(self, log: StreamedLog, effect: TableEffect, after: int, upto: int) -> list[int]:
        """Return the first position of an effect that the options say nothing about, if any."""
        if effect.kind == _DROPS:
            return [effect.first]
        if self._options.markers or effect.kind not in _REMOVES:
            return []
        places = _places(log, effect, after, upto)
        return [int(places[0, 0])] if len(places) else []

    def _refusal(
        self, position: int, effects: Sequence[TableEffect]
    ) -> InvalidRequestError | UnknownTableError:
        if any(effect.kind == _DROPS and effect.first == position for effect in effects):
            return UnknownTableError(
                f"table {self._options.table!r} was dropped at position {position}; all before it "
                "is delivered",
                hint="Started again, the query goes on with the table that was created under that "
                "name since, if there is one.",
                table=self._options.table,
                position=position,
            )
        return InvalidRequestError(
            f"the transaction at position {position} removes rows of table "
            f"{self._options.table!r} without naming them (delete_where or overwrite); all before "
            "it is delivered",
            hint="Start the query again with .option('deleteMarkers', 'true') to get its predicate "
            "as a row, or with .option('skipChangeCommits', 'true') to get appended rows only.",
            position=position,
        )

    def _crossing(
        self, log: StreamedLog, effects: Sequence[TableEffect], after: int, upto: int, left: int
    ) -> int:
        """Return the last position up to which the effects of a segment have `left` rows or less.

        At least one transaction is taken if the batch is empty so far.
        """
        places = [_places(log, effect, after, upto) for effect in effects]
        found = np.concatenate(places) if places else np.empty((0, 3), np.int64)
        positions, index = np.unique(found[:, 0], return_inverse=True)
        total = np.cumsum(np.bincount(index, weights=found[:, 2], minlength=len(positions)))
        fitting = int(np.searchsorted(total, left, side="right"))
        if fitting == len(positions):
            return upto
        first = int(positions[fitting])
        nothing_yet = fitting == 0 and left == (self._options.max_rows or 0)
        return first if nothing_yet else first - 1

    def _pieces(
        self, log: StreamedLog, effect: TableEffect, after: int, upto: int
    ) -> Iterator[ChangePiece]:
        place = None if effect.says_places else (effect.first, effect.op)
        if effect.kind == OperationKind.DELETE_WHERE.value:
            yield ChangePiece(kind=effect.kind, place=place, predicate=effect.predicate)
            return
        if effect.kind == OperationKind.OVERWRITE.value:
            removed = OperationKind.DELETE_WHERE.value
            for position, op, _ in _places(log, effect, after, upto).tolist():
                yield ChangePiece(kind=removed, place=(position, op), predicate=_ALL_ROWS)
        for file in effect.files:
            yield ChangePiece(
                kind=effect.kind,
                path=str(log.payload_root / file.path),
                size_bytes=file.size_bytes,
                partition=tuple((file.partition or {}).items()),
                place=place,
                run=effect.run,
                left_out=effect.left_out,
            )


def _places(log: StreamedLog, effect: TableEffect, after: int, upto: int) -> Int64s:
    """Return position, operation and rows of the operations of an effect, ascending."""
    if not effect.says_places:
        rows = sum(file.rows for file in effect.files)
        within = after < effect.first <= upto
        return np.array([[effect.first, effect.op, rows]] if within else [], np.int64).reshape(
            -1, 3
        )
    found = [_place_columns(log, file) for file in effect.files]
    places, rows_of = np.unique(np.concatenate(found), axis=0, return_counts=True)
    places[:, 0] += effect.run
    kept = (places[:, 0] > after) & (places[:, 0] <= upto)
    kept &= ~np.isin(places[:, 0], effect.left_out)
    return np.column_stack((places[kept], rows_of[kept])).astype(np.int64)


def _place_columns(log: StreamedLog, file: StagedFile) -> Int64s:
    with _opened(str(log.payload_root / file.path)) as source:
        table = source.read(columns=[POSITION_COLUMN, OP_COLUMN])
    columns = (table[POSITION_COLUMN].to_numpy(), table[OP_COLUMN].to_numpy())
    return np.column_stack(columns).astype(np.int64)


def _packed(pieces: Sequence[ChangePiece]) -> list[list[ChangePiece]]:
    """Return the pieces in groups of about `_TASK_BYTES`, in their order."""
    groups: list[list[ChangePiece]] = []
    size = _TASK_BYTES
    for piece in pieces:
        if size >= _TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.size_bytes
    return groups


# -- the tasks' part -------------------------------------------------------------------------------


def _opened(path: str) -> pq.ParquetFile:
    try:
        return open_parquet(path)
    except FileNotFoundError as error:
        raise PayloadStoreError(
            f"there is no file {path}",
            hint="Either the log was shortened while the stream read it, or Spark does not share "
            "the node's payload store.",
            path=path,
        ) from error


def _rows_of(piece: ChangePiece, after: int, upto: int) -> Iterator[pa.Table]:
    """Yield the rows of a piece within the bounds; a marker is one row without columns."""
    if not piece.path:
        yield pa.table({PREDICATE: pa.array([piece.predicate], pa.string())})
        return
    with _opened(piece.path) as source:
        for batch in batches_of(source, piece.path, SPARK_READS_IT, batch_size=_BATCH_ROWS):
            rows = pa.Table.from_batches([batch])
            if piece.place is None:
                position = _positions_of(rows, piece)
                kept = pc.and_(pc.greater(position, after), pc.less_equal(position, upto))
                if piece.left_out:
                    rejected = pc.is_in(position, value_set=pa.array(piece.left_out, pa.int64()))
                    kept = pc.and_(kept, pc.invert(rejected))
                rows = rows.filter(kept)
            yield rows


def _positions_of(rows: pa.Table, piece: ChangePiece) -> pa.ChunkedArray:
    """Return the positions that rows say: those of a run begin at 0 in the file."""
    return pc.add(rows[POSITION_COLUMN], piece.run) if piece.run else rows[POSITION_COLUMN]


def _shaped(
    piece: ChangePiece,
    rows: pa.Table,
    times: pa.Table,
    schema: pa.Schema,
    stored: Mapping[str, str],
) -> pa.Table:
    """Return rows with the columns of the stream; one that a file lacks is NULL."""
    given = dict(piece.partition)
    count = rows.num_rows
    if piece.place is None:
        position, operation = _positions_of(rows, piece), rows[OP_COLUMN]
    else:
        position = pa.chunked_array([pa.repeat(pa.scalar(piece.place[0], pa.int64()), count)])
        operation = pa.chunked_array([pa.repeat(pa.scalar(piece.place[1], pa.int32()), count)])
    own = {
        CHANGE_TYPE: pa.repeat(pa.scalar(piece.kind), count),
        POSITION: position,
        OPERATION: operation,
        TIMESTAMP: times["submitted_at"].take(
            pc.index_in(position.combine_chunks(), value_set=times["position"].combine_chunks())
        ),
    }
    columns = []
    for field in schema:
        if field.name in own:
            found = own[field.name]
        elif (name := stored.get(field.name, field.name)) in rows.column_names and (
            name not in given
        ):
            found = rows[name]
        else:
            value = partition_value(given.get(name), field.type)
            found = pa.repeat(value, count)
        columns.append(found.cast(field.type))
    return pa.table(columns, schema=schema)


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition's value from the text that Delta or Spark writes for it.

    An empty one is NULL, of whatever type, as Delta says.
    """
    if not text:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Without a zone it is UTC, that of every session that stages.
        plain = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us"))
        return plain.cast(pa.timestamp("us", "UTC")).cast(kind)
    return pa.scalar(text).cast(kind)
