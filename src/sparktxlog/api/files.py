"""Parquet files written by a task of the data source, one for each partition value."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.api.frame_staging import describe_file
from sparktxlog.codec.partitions import split_by_partition
from sparktxlog.codec.validation import align_rows, check_rows
from sparktxlog.errors import InvalidRowsError, PayloadStoreError
from sparktxlog.model.operation import OperationKind, StagedFile
from sparktxlog.model.table import TableDefinition

#: Rows of a row group; Spark passes 10,000 at a time.
_GROUP_ROWS = 128 << 10
#: Files that one task may hold open; more partition values than that need log.append.
_MAX_OPEN = 500

Values = tuple[str | None, ...]


@dataclass(slots=True)
class _Open:
    """An open file, and the rows that wait for its next row group."""

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
        """Add rows, columns in any order.

        Raises:
            SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
            PayloadStoreError: The operation's directory does not exist (definite).
        """
        if not batch.num_rows:
            return
        table = _in_order(pa.Table.from_batches([batch]), self._definition)
        table = align_rows(self._definition, OperationKind.APPEND, table)
        check_rows(self._definition, OperationKind.APPEND, table)
        table = table.rename_columns(list(self._definition.in_files(table.column_names)))
        names = self._definition.in_files(self._definition.partition_by)
        parts = split_by_partition(table, names) if names else [({}, table)]
        for values, part in parts:
            self._add(tuple(values.values()), part)

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
            names = self._definition.in_files(self._definition.partition_by)
            for name, value in zip(names, values, strict=True):
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
    """Return the columns with the table's spelling of their names: the session may ignore case."""
    spelling = {column.name.lower(): column.name for column in definition.columns}
    return table.rename_columns([spelling.get(name.lower(), name) for name in table.column_names])


def _quoted(value: str) -> str:
    return quote(value, safe=" ,;@$~()&+!-_.")
