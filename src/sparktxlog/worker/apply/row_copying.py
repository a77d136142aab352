"""The part of `rewriting` that executors run: it needs neither Delta nor the driver.

A task copies the files of one partition into a new one, without the rows that have a bit.  It hands
these to Spark, and says at last what it made.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.arrow import arrow_schema, file_schema
from sparktxlog.codec.calendars import TODAYS_CALENDAR, open_parquet
from sparktxlog.codec.parquet_columns import exact_columns
from sparktxlog.codec.partitions import partition_directories
from sparktxlog.codec.row_statistics import RowStatistics, repeating_columns
from sparktxlog.delta.file_paths import path_in_log
from sparktxlog.model.tables.table import TableDefinition

#: Rows of a part of a file: as many as `bitmap_construct_agg` of Spark has bits.
PART_ROWS = 32_768
_PART_BYTES = PART_ROWS // 8
#: What a task gets: values of a partition as JSON, its files, and a bit for each row to leave out.
TASK = pa.schema(
    {"partition": pa.string(), "paths": pa.list_(pa.string()), "gone": pa.list_(pa.binary())}
)
#: What a task says of the file that it made, as JSON; NULL in a row that it left out.
MADE_COLUMN = "__txlog_made"
#: Rows that are decoded at once, and rows and bytes of a row group.
_BATCH_ROWS, _GROUP_ROWS, _GROUP_BYTES = 1 << 16, 1 << 19, 64 << 20


class RowPlaces:
    """Some rows of one file: a bit for each, which Spark makes part by part."""

    def __init__(self) -> None:
        #: How many there are.
        self.rows = 0
        self._parts: dict[int, bytes] = {}

    def add(self, part: int, rows: int, bits: bytes) -> None:
        """Add the rows of one part."""
        self.rows += rows
        self._parts[part] = bits

    def to_bytes(self) -> bytes:
        """Return a bit for each row, up to the last part that has one; the lowest bit is first."""
        nothing = bytes(_PART_BYTES)
        parts = range(max(self._parts, default=-1) + 1)
        return b"".join(self._parts.get(part, nothing) for part in parts)


def are_marked(bits: bytes, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `count` rows from `first` on have a bit of `RowPlaces.to_bytes`."""
    skipped = first % 8
    held = np.frombuffer(bits, np.uint8)[first // 8 : (first + count + 7) // 8]
    found = np.unpackbits(held, bitorder="little")[skipped : skipped + count].astype(np.bool_)
    return np.pad(found, (0, count - len(found)))


def same_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what is given: executors that can do it have this module."""
    return iter(batches)


def stored_columns(definition: TableDefinition) -> pa.Schema:
    """Return the columns that files of a table have."""
    names = [c.name for c in definition.columns if c.name not in definition.partition_by]
    return file_schema(definition, names)


def names_in(wanted: pa.Schema, found: pa.Schema) -> list[str]:
    """Return the columns that both have, in the order of the first."""
    return [name for name in wanted.names if name in found.names]


def copied_files(
    batches: Iterable[pa.RecordBatch], *, table: Path, definition: TableDefinition
) -> Iterator[pa.RecordBatch]:
    """Do the tasks of some rows, on an executor; yield what is left out, and what was made."""
    for batch in batches:
        for task in batch.to_pylist():
            copying = _Copying(table, definition, json.loads(task["partition"]))
            try:
                for path, gone in zip(task["paths"], task["gone"], strict=True):
                    yield from copying.copy(path, gone)
                yield copying.close()
            except BaseException:
                copying.discard()
                raise


class _Copying:
    """Copies files of one partition into a new one; another one begins where columns differ."""

    def __init__(
        self, table: Path, definition: TableDefinition, partition: dict[str, str | None]
    ) -> None:
        self._table, self._definition, self._partition = table, definition, partition
        self._wanted = stored_columns(definition)
        self._open: _NewFile | None = None
        self._made: list[_NewFile] = []

    def copy(self, path: str, gone: bytes) -> Iterator[pa.RecordBatch]:
        """Copy a file; yield the rows that are left out."""
        with open_parquet(self._table / path) as file:
            names, first = names_in(self._wanted, file.schema_arrow), 0
            # Files say different things of NULLs, which are the table's affair.
            schema = pa.schema([self._wanted.field(name).with_nullable(True) for name in names])
            for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                # A name with a dot also selects a field of a struct.
                batch = pa.RecordBatch.from_arrays(batch.select(names).columns, schema=schema)
                marked = are_marked(gone, first, batch.num_rows)
                first += batch.num_rows
                if marked.any():
                    yield self._left_out(batch.filter(pa.array(marked)))
                    batch = batch.filter(pa.array(~marked))
                if batch.num_rows:
                    self._file(batch).write(batch)

    def close(self) -> pa.RecordBatch:
        """Finish the files; return a row for each that says what it is."""
        for file in self._made:
            file.close()
        said = [json.dumps(file.add) for file in self._made]
        # Without a file there is a row all the same: NULL would be a row that is left out.
        return self._rows({}, pa.array(said or ["null"], pa.string()))

    def discard(self) -> None:
        """Remove what was written."""
        for file in self._made:
            file.discard()

    def _file(self, batch: pa.RecordBatch) -> _NewFile:
        if self._open is None or self._open.schema.names != batch.schema.names:
            if self._open is not None:
                self._open.close()
            self._open = _NewFile(self._table, self._partition, batch)
            self._made.append(self._open)
        return self._open

    def _left_out(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        found = dict(zip(rows.schema.names, rows.columns, strict=True))
        return self._rows(found, pa.nulls(rows.num_rows, pa.string()))

    def _rows(self, found: dict[str, pa.Array], made: pa.Array) -> pa.RecordBatch:
        """Return rows as Spark takes them: with all columns, those of partitions as texts."""
        arrays, count = [], len(made)
        for column, kind in zip(
            self._definition.columns, arrow_schema(self._definition).types, strict=True
        ):
            stored = column.in_files
            if column.name in self._definition.partition_by:
                value = self._partition.get(stored) or None
                arrays.append(pa.repeat(pa.scalar(value, pa.string()), count))
            else:
                arrays.append(found[stored] if stored in found else pa.nulls(count, kind))
        names = [*(column.name for column in self._definition.columns), MADE_COLUMN]
        return pa.RecordBatch.from_arrays([*arrays, made], names)


class _NewFile:
    """A data file while it is written."""

    def __init__(
        self, table: Path, partition: dict[str, str | None], first: pa.RecordBatch
    ) -> None:
        self.schema = first.schema.with_metadata(TODAYS_CALENDAR)
        self._partition = partition
        self._name = f"{partition_directories(partition)}part-{uuid.uuid4()}.snappy.parquet"
        self._path = table / self._name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._statistics = RowStatistics(self.schema)
        repeated = repeating_columns(pa.Table.from_batches([first]))
        try:
            self._writer = pq.ParquetWriter(
                self._path, self.schema, store_schema=False, **exact_columns(self.schema, repeated)
            )
        except BaseException:  # nobody else knows its name yet
            self._path.unlink(missing_ok=True)
            raise
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._statistics.take(batch)
        self._waiting.append(batch)
        rows = sum(one.num_rows for one in self._waiting)
        if rows >= _GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.Table.from_batches(self._waiting).cast(self.schema)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._waiting.clear()

    def close(self) -> None:
        """Finish the file; it may be called again."""
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError, pa.ArrowException):  # its end is written, on a full disk perhaps
            self._writer.close()
        self._path.unlink(missing_ok=True)

    @property
    def add(self) -> dict[str, Any]:
        """The action that adds the file."""
        added: dict[str, Any] = {
            "path": path_in_log(self._name),
            "partitionValues": self._partition,
            "size": self._path.stat().st_size,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": self._statistics.to_json(),
        }
        return added
