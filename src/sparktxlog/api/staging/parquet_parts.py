"""Parquet files written by a task in Python, one or more for each partition value."""

from __future__ import annotations

import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from sparktxlog.codec.calendars import TODAYS_CALENDAR
from sparktxlog.codec.parquet_columns import exact_columns
from sparktxlog.codec.partitions import (
    NULL_PARTITION,
    check_partition_text,
    partition_directories,
    split_by_partition,
)
from sparktxlog.codec.submits.validation import align_rows, check_rows
from sparktxlog.errors import InvalidRowsError, PayloadStoreError
from sparktxlog.lazy_arrow import pa, pq
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

#: Rows of a row group; Spark passes 10,000 at a time.
_GROUP_ROWS = 128 << 10
#: Bytes of rows that wait for row groups, in all files of a task.
_WAITING_BYTES = 64 << 20
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
    size_bytes: int = 0


class FileStage:
    """Writes the rows of one task below one directory.

    Args:
        root: The payload store, or a directory in place of it.
        folder: Directory of the operation, relative to the root.  It must be there: so a task that
            goes on after the write was aborted leaves no files.
        name: Start of the file names, different for each attempt.
        definition: The table.
        kind: What becomes of the rows.
        checks: Whether rows are checked for what the table does not take.
        limits: Most bytes of a file, and of all that are not closed: a file is closed when it has
            more, or if it is the largest when all together have more.  None = there are no limits.
    """

    def __init__(
        self,
        root: Path,
        folder: str,
        name: str,
        definition: TableDefinition,
        kind: OperationKind = OperationKind.APPEND,
        *,
        checks: bool = True,
        limits: tuple[int, int] | None = None,
    ) -> None:
        self._root = root
        self._folder = root / folder
        self._name = name
        self._definition = definition
        self._kind = kind
        self._checks = checks
        self._limits = limits
        self._partitions = file_partitions(definition, kind)
        self._open: dict[Values, _Open] = {}
        self._closed: list[StagedFile] = []
        self._made = 0
        #: Bytes of the batches that hold waiting rows: a slice keeps all of its batch in memory.
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, columns in any order.

        Raises:
            SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
            PayloadStoreError: The operation's directory does not exist (definite).
        """
        if not batch.num_rows:
            return
        table = rows_in_order(pa.Table.from_batches([batch]), self._definition)
        table = align_rows(self._definition, self._kind, table)
        if self._checks:
            check_rows(self._definition, self._kind, table)
        self._waiting_bytes += table.nbytes
        table = table.rename_columns(list(self._definition.in_files(table.column_names)))
        names = self._partitions
        parts = split_by_partition(table, names) if names else [({}, table)]
        for values, part in parts:
            self._add(tuple(values.values()), part)
        if self._waiting_bytes > _WAITING_BYTES:
            for key in list(self._open):
                if key in self._open:  # it may be closed meanwhile, as the largest one
                    self._flush(key)
            self._waiting_bytes = 0

    def _add(self, values: Values, part: pa.Table) -> None:
        file = self._open.get(values)
        if file is None:
            file = self._open[values] = self._create(values, part.schema)
        file.waiting.append(part)
        file.waiting_rows += part.num_rows
        if file.waiting_rows >= _GROUP_ROWS:
            self._flush(values)

    def _flush(self, values: Values) -> None:
        file = self._open[values]
        _write_group(file)
        if self._limits is None:
            return
        of_one, of_all = self._limits
        file.size_bytes = file.path.stat().st_size
        if file.size_bytes > of_one:
            self._close(values)
        if sum(other.size_bytes for other in self._open.values()) > of_all:
            self._close(max(self._open, key=lambda key: self._open[key].size_bytes))

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
            for name, value in zip(self._partitions, values, strict=True):
                directory = partition_directories({name: value})
                if not directory:
                    check_partition_text(self._definition.name, name, value or "")
                folder /= directory
                folder.mkdir(exist_ok=True)
            path = folder / f"{self._name}-{self._made:03d}.parquet"
            self._made += 1
            schema = schema.with_metadata(TODAYS_CALENDAR)
            writer = pq.ParquetWriter(path, schema, **exact_columns(schema))
            return _Open(path=path, writer=writer, waiting=[])
        except FileNotFoundError as error:
            raise PayloadStoreError(
                f"there is no {self._folder} on {socket.gethostname()}",
                hint="Either the write was aborted, or executors do not share the node's payload "
                "store with the driver: then use the option staging=http.",
                path=str(self._folder),
            ) from error

    def _close(self, values: Values) -> None:
        file = self._open[values]
        _write_group(file)
        file.writer.close()
        self._closed.append(describe_file(self._root, self._folder, file.path))
        del self._open[values]

    def take_closed(self) -> tuple[StagedFile, ...]:
        """Return the files that were closed since the last call; the caller may remove them."""
        found = tuple(self._closed)
        self._closed.clear()
        return found

    def close(self) -> tuple[StagedFile, ...]:
        """Finish the files, and describe those that `take_closed` did not return."""
        for values in list(self._open):
            self._close(values)
        return self.take_closed()

    def discard(self) -> None:
        """Remove what this task wrote, but for what `take_closed` returned."""
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):  # its end is written, on a full disk perhaps
                file.writer.close()
            file.path.unlink(missing_ok=True)
        for closed in self._closed:
            (self._root / closed.path).unlink(missing_ok=True)


def file_partitions(definition: TableDefinition, kind: OperationKind) -> tuple[str, ...]:
    """Return the columns by which files are split, as files name them; they are not in the files.

    Parquet files need a column; the node takes partition columns in them.
    """
    if kind is OperationKind.DELETE_KEYS or len(definition.partition_by) == len(definition.columns):
        return ()
    return tuple(definition.in_files(definition.partition_by))


def list_files(root: Path, target: Path) -> tuple[StagedFile, ...]:
    """Describe the Parquet files below a directory; several are hashed at once.

    Spark's checksum files are removed: the digests replace them.
    """
    paths = []
    for folder, _, names in os.walk(target):
        for name in names:
            path = Path(folder, name)
            if name.endswith(".crc"):
                path.unlink()
            elif name.endswith(".parquet"):
                paths.append(path)
    paths.sort()
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda path: describe_file(root, target, path), paths))
    return tuple(file for file in found if file.rows)


def describe_file(root: Path, target: Path, path: Path) -> StagedFile:
    """Describe a Parquet file below the directory of an operation, with its digest."""
    with path.open("rb", buffering=0) as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    return StagedFile(
        path=path.relative_to(root).as_posix(),
        size_bytes=path.stat().st_size,
        rows=pq.read_metadata(path).num_rows,
        digest=digest,
        partition=_partition(path.relative_to(target)),
    )


def _partition(relative: Path) -> dict[str, str | None] | None:
    """Read the partition values that Spark wrote into directory names."""
    values: dict[str, str | None] = {}
    for part in relative.parts[:-1]:
        name, _, value = part.partition("=")
        values[unquote(name)] = None if value == NULL_PARTITION else unquote(value)
    return values or None


def _write_group(file: _Open) -> None:
    if file.waiting:
        file.writer.write_table(pa.concat_tables(file.waiting), row_group_size=_GROUP_ROWS)
    file.waiting, file.waiting_rows = [], 0


def rows_in_order(table: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return the columns with the table's spelling of their names: the session may ignore case."""
    spelling = {column.name.lower(): column.name for column in definition.columns}
    return table.rename_columns([spelling.get(name.lower(), name) for name in table.column_names])
