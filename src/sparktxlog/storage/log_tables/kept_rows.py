"""Reads pages of a Delta table in `log/`: the rows after a value of its order, or the last rows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, StorageError


def read_rows(
    directory: Path, schema: pa.Schema, order: str, after: int | None, limit: int
) -> pa.Table:
    """Return rows in their order, at most `limit`; without the table none.

    Files are named in the order of their rows (see `LogTable`), so few of them are opened.

    Args:
        directory: Of the table.
        schema: Its columns.
        order: Column that rises from row to row, a number or a time.
        after: Rows with a greater value, of a time in microseconds; None = the last rows.
        limit: Rows at most.

    Raises:
        StorageError: It cannot be read: its files changed meanwhile, or are damaged.
    """
    if newest_commit(directory) < 0:
        return schema.empty_table()
    for attempt in (1, 2):
        try:
            return _read(directory, schema, order, after, limit)
        except (CorruptLogError, OSError, pa.ArrowException) as error:
            # The node removes expired files and commits at once.
            if attempt == 2 or not isinstance(error, (CorruptLogError, FileNotFoundError)):
                raise StorageError(
                    f"{directory} cannot be read: {error}", hint="Ask again.", path=str(directory)
                ) from error
    raise AssertionError("two attempts return or raise")


def _read(
    directory: Path, schema: pa.Schema, order: str, after: int | None, limit: int
) -> pa.Table:
    state = LogState.read(directory)
    found: list[pa.Table] = []
    missing = limit
    if after is None:
        paths = sorted(state.adds)
        while paths and missing > 0:
            rows = _rows_of(directory / paths.pop(), schema)
            found.insert(0, rows.slice(max(0, rows.num_rows - missing)))
            missing -= rows.num_rows
    else:
        least = pa.scalar(after, schema.field(order).type)
        try:
            bound = least.as_py()
        except OverflowError:
            return schema.empty_table()  # no row is of a year after 9999
        if isinstance(bound, datetime):
            bound = bound.isoformat(timespec="milliseconds")
        for path in state.files_between(order, bound):
            if missing <= 0:
                break
            rows = _rows_of(directory / path, schema)
            rows = rows.filter(pc.greater(rows[order], least)).slice(0, missing)
            found.append(rows)
            missing -= rows.num_rows
    return pa.concat_tables(found) if found else schema.empty_table()


def _rows_of(path: Path, schema: pa.Schema) -> pa.Table:
    rows = pq.ParquetFile(path).read()
    return pa.table(
        [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)  # a column that a later release added
            for field in schema
        ],
        schema=schema,
    )
