"""What a page shows of a Delta table: how large a version is, and some of its rows.

It reads a table's log, and the beginning of as few of its files as have the rows.  Everything has a
limit, since anybody who may read may ask: what is larger is left out, and the answer says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.calendars import FileCalendar, open_parquet
from sparktxlog.delta.deletion_vectors import deleted_rows
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.delta.log_segments import LogSegment
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name

#: Rows and columns of a sample, and characters of a value, at most.
ROWS, COLUMNS, CHARACTERS = 20, 40, 120
#: Largest log, and largest group of rows of a file, that is read for a page, bytes.
LOG_BYTES, GROUP_BYTES = 64 << 20, 64 << 20
#: Files that are looked into, and rows of one.
_FILES, _LOOKED = 8, 1_000
#: Characters of why a file has no rows here.
_PROBLEM = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSample:
    """A version of a table: its size and some of its rows."""

    version: int
    files: int
    #: Bytes of the files that the version has.
    size_bytes: int
    #: Rows, None = its log does not say it of each file.
    rows: int | None
    columns: tuple[str, ...]
    #: Columns of the table that are left out of the sample.
    more_columns: int
    #: Values as text, shortened; None = NULL.
    sample: tuple[tuple[str | None, ...], ...]
    #: What is left out of the sample and why, empty = nothing is.
    left_out: str = ""


def read_sample(table: TablePlace, version: int | None) -> TableSample:
    """Return how large a version is, and rows of it; blocks.

    Args:
        version: None = the newest.

    Raises:
        CorruptLogError: There is no such version, or it cannot be read.
        StorageError: Its log is too large for a page, or has features that are not known here
            (definite); or as `Store`.
    """
    _check_log(table, version)
    log = LogState.read(table, version, known=True)
    names = {column: stored for stored, column in log.names_in_files.items()}
    shown = dict(list(names.items())[:COLUMNS])
    found: list[tuple[str | None, ...]] = []
    left_out, looked = "", 0
    for path, add in log.adds.items():
        if len(found) >= ROWS or looked >= _FILES:
            break
        looked += 1
        try:
            rows, problem = _rows_of(table, path, add, shown, ROWS - len(found))
        except (pa.ArrowException, OSError, TxLogError) as error:
            rows, problem = [], f"File {path} cannot be read: {error}"[:_PROBLEM]
        found += rows
        left_out = left_out or problem
    counted = _counted(log)
    if not left_out and len(found) < ROWS and looked < len(log.adds):
        left_out = f"Only the first {looked} files were looked into."
    return TableSample(
        version=log.version,
        files=len(log.adds),
        size_bytes=sum(add["size"] for add in log.adds.values()),
        rows=counted,
        columns=tuple(shown),
        more_columns=len(names) - len(shown),
        sample=tuple(found),
        left_out=left_out,
    )


def _check_log(table: TablePlace, version: int | None) -> None:
    """Refuse a version whose log is too large for a page.

    Raises:
        StorageError: It is (definite).
    """
    segment = LogSegment.of(table, version)
    base = segment.checkpoint
    first = 0 if base is None else base.version + 1
    wanted = {commit_file_name(number) for number in range(first, segment.version + 1)}
    wanted |= set() if base is None else {*base.tops, *base.sidecars}
    listed = segment.table.list(COMMIT_LOG.rstrip("/"))
    size = sum(found.size_bytes for found in listed if found.key in wanted)
    if size > LOG_BYTES:
        url = segment.table.url
        raise StorageError(
            f"the log of {url} has {size:,} bytes, for a page {LOG_BYTES:,} at most are read",
            hint="Read the table with Spark, or any reader of Delta tables.",
            path=url,
        )


def _counted(log: LogState) -> int | None:
    """Return the rows of a version, None = its log does not say it of each file."""
    total = 0
    for path, add in log.adds.items():
        if '"numRecords"' not in (add.get("stats") or ""):
            return None
        total += log.rows(path) - ((add.get("deletionVector") or {}).get("cardinality") or 0)
    return total


def _rows_of(
    table: TablePlace, path: str, add: dict[str, Any], names: dict[str, str], most: int
) -> tuple[list[tuple[str | None, ...]], str]:
    """Return the first rows of a file, and why there are none.

    Args:
        names: Column → its name in files.
    """
    values: dict[str, str | None] = add.get("partitionValues") or {}
    with store_of(table).reader(path) as source, open_parquet(source) as file:
        wanted = [stored for stored in names.values() if stored not in values]
        present = [stored for stored in wanted if stored in file.schema_arrow.names]
        if not file.metadata.num_row_groups:
            return [], ""
        if _group_bytes(file.metadata.row_group(0), present) > GROUP_BYTES:
            text = f"The groups of rows of {path} have more than {GROUP_BYTES:,} bytes."
            return [], text
        batches = file.iter_batches(_LOOKED, row_groups=[0], columns=present)
        batch = next(batches, None) if present else None
        rows = min(file.metadata.row_group(0).num_rows, _LOOKED)
        if batch is not None and (column := FileCalendar(file).old_column(batch)):
            return [], f"Column {column} of {path} has dates in the old calendar."
    gone = deleted_rows(table, add)
    left = np.setdiff1d(np.arange(rows), gone, assume_unique=True)[:most].tolist()
    columns = [
        [values[stored]] * rows
        if stored in values
        else [None] * rows
        if batch is None or stored not in batch.schema.names
        else batch.column(stored)
        for stored in names.values()
    ]
    return [tuple(_text(column[row]) for column in columns) for row in left], ""


def _group_bytes(group: pq.RowGroupMetaData, stored: list[str]) -> int:
    """Return the bytes of some columns of a group of rows, as they are in memory."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return sum(
        one.total_uncompressed_size
        for one in columns
        if one.path_in_schema.partition(".")[0] in stored
    )


def _text(value: Any) -> str | None:
    """Return a value as a page shows it."""
    try:
        found = value.as_py() if isinstance(value, pa.Scalar) else value
    except (OverflowError, ValueError):
        found = "outside the years 1 to 9999"
    if found is None:
        return None
    text = found.hex() if isinstance(found, bytes) else str(found)
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"
