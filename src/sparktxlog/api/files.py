"""Parquet files written by a task of the data source, one for each partition value."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparktxlog.api.frame_staging import describe_file
from sparktxlog.codec.validation import align_rows, check_rows
from sparktxlog.errors import InvalidRowsError, PayloadStoreError
from sparktxlog.model.operation import OperationKind, StagedFile
from sparktxlog.model.table import TableDefinition

#: Rows of a row group; Spark hands over 10,000 at a time.
_GROUP_ROWS = 128 << 10
#: Files that one task may hold open; more partition values than that need log.append.
_MAX_OPEN = 500

_ROW = "__txlog_row"

Values = tuple[str | None, ...]


@dataclass(slots=True)
class _Open:
    """A file under way and the rows that wait for its next row group."""

    path: Path
    writer: pq.ParquetWriter
    waiting: list[pa.Table]
    waiting_rows: int = 0


class FileStage:
    """Writes the rows of one task below one directory.

    Args:
        root: The payload store.
        folder: Directory of the operation, relative to the root.  It must be there: a task that
            goes on after the write was aborted leaves nothing behind.
        name: Start of the file names, different for each attempt.
        definition: The table.
    """

    def __init__(self, root: Path, folder: str, name: str, definition: TableDefinition) -> None:
        self._root = root
        self._folder = root / folder
        self._name = name
        self._definition = definition
        self._open: dict[Values, _Open] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take in rows, columns in any order.

        Raises:
            SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
            PayloadStoreError: The operation's directory is not there (definite).
        """
        if not batch.num_rows:
            return
        table = _in_order(pa.Table.from_batches([batch]), self._definition)
        table = align_rows(self._definition, OperationKind.APPEND, table)
        for values, part in _parts(table, self._definition.partition_by):
            check_rows(self._definition, OperationKind.APPEND, part)
            self._add(values, part.drop_columns(list(self._definition.partition_by)))

    def _add(self, values: Values, part: pa.Table) -> None:
        file = self._open.get(values)
        if file is None:
            file = self._open[values] = self._create(values, part.schema)
        file.waiting.append(part)
        file.waiting_rows += part.num_rows
        if file.waiting_rows >= _GROUP_ROWS:
            _flush(file)

    def _create(self, values: Values, schema: pa.Schema) -> _Open:
        if len(self._open) >= _MAX_OPEN:
            raise InvalidRowsError(
                f"one task holds rows of more than {_MAX_OPEN} partitions of table "
                f"{self._definition.name!r}",
                hint="Repartition by the partition columns first, or use log.append.",
                table=self._definition.name,
            )
        folder = self._folder
        try:
            for name, value in zip(self._definition.partition_by, values, strict=True):
                part = "__HIVE_DEFAULT_PARTITION__" if value is None else _quoted(value)
                folder /= f"{name}={part}"
                folder.mkdir(exist_ok=True)
            path = folder / f"{self._name}-{len(self._open):03d}.parquet"
            return _Open(path=path, writer=pq.ParquetWriter(path, schema), waiting=[])
        except FileNotFoundError as error:
            raise PayloadStoreError(
                f"there is no {self._folder} on {socket.gethostname()}",
                hint="Either the write was aborted, or executors do not share the node's payload "
                "store with the driver.",
                path=str(self._folder),
            ) from error

    def close(self) -> tuple[StagedFile, ...]:
        """Finish the files and describe them."""
        for file in self._open.values():
            _flush(file)
            file.writer.close()
        return tuple(
            describe_file(self._root, self._folder, file.path) for file in self._open.values()
        )

    def discard(self) -> None:
        """Remove what this task wrote."""
        for file in self._open.values():
            file.writer.close()
            file.path.unlink(missing_ok=True)


def _flush(file: _Open) -> None:
    if file.waiting:
        file.writer.write_table(pa.concat_tables(file.waiting), row_group_size=_GROUP_ROWS)
    file.waiting, file.waiting_rows = [], 0


def _in_order(table: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return the columns under the table's own spelling: the session may ignore case."""
    spelling = {column.name.lower(): column.name for column in definition.columns}
    return table.rename_columns([spelling.get(name.lower(), name) for name in table.column_names])


def _parts(table: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[Values, pa.Table]]:
    """Split rows by partition value; an empty string is NULL, as in every Delta table."""
    if not partition_by:
        yield (), table
        return
    for name in partition_by:
        column = table[name]
        if pa.types.is_string(column.type):
            emptied = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
            table = table.set_column(
                table.schema.get_field_index(name), table.schema.field(name), emptied
            )
    names = list(partition_by)
    numbered = table.select(names).append_column(_ROW, pa.array(np.arange(table.num_rows)))
    groups = numbered.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for index, values in enumerate(groups.select(names).to_pylist()):
        rows = groups[f"{_ROW}_list"][index].values
        yield tuple(_text(values[name]) for name in names), table.take(rows)


def _text(value: Any) -> str | None:
    """Return a partition value as Delta writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, bytes):
        raise InvalidRowsError(
            "the data source cannot write binary partition values", hint="Use log.append."
        )
    return format(value, "f") if hasattr(value, "as_tuple") else str(value)


def _quoted(value: str) -> str:
    return quote(value, safe=" ,;@$~()&+!-_.")
