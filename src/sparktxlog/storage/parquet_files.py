"""Parquet files of the payload store: those of submitters, and those made of inline rows.

Delta's statistics let readers skip files, so a wrong bound loses rows.  Bounds are therefore
taken from the rows themselves, never from a footer, and every rounding goes outwards:

* integers, dates, decimals and booleans as they are (Spark reads no bounds of booleans; deltalake's
  `filters=` finds nothing in a column that has none);
* strings cut to 32 characters, the maximum followed by a character above any that was cut off;
* timestamps in milliseconds, the minimum rounded down, the maximum up;
* floats only of a column without NaN and infinities;
* nothing for binary and nested columns, and for columns after the first 32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparktxlog.codec.arrow import schema_of_file
from sparktxlog.codec.calendars import TODAYS_CALENDAR, batches_of, open_parquet
from sparktxlog.codec.parquet_columns import exact_columns
from sparktxlog.errors import ManifestMismatchError, TxLogError
from sparktxlog.files.durability import storage_error
from sparktxlog.files.foreign_files import goes_on

#: As Delta's `delta.dataSkippingNumIndexedCols`.
_INDEXED_COLUMNS = 32
#: As Delta's `spark.databricks.io.skipping.stringPrefixLength`.
_PREFIX = 32
_HIGHEST = "\U0010ffff"
#: Rows looked at to see whether a column's values repeat.
_SAMPLE_ROWS = 256
#: Rows that are decoded at once, and bytes that are read at once of each column.
_BATCH_ROWS = 65_536
_READ_BYTES = 1 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFacts:
    """Facts of a Parquet file, read from its footer and its pages."""

    #: Decoded rows, which equal the footer's number.
    rows: int
    size_bytes: int
    #: Schema as Arrow reads it.
    schema: pa.Schema
    #: NULLs of each column, counted.
    nulls: dict[str, int]
    #: Delta's statistics JSON.
    stats: str


def inspect_parquet(path: str | Path, check: Callable[[pa.Schema], None]) -> ParquetFacts:
    """Read an untrusted file: its footer, then every page.

    Memory is that of a batch, not of the file.  Only the footer's schema and number of rows are
    used, and checked: reading the statistics of a damaged footer crashes the process, and wrong
    bounds would lose rows.

    Args:
        path: The file.
        check: Called with the schema before a page is read; raises what does not fit.

    Raises:
        ManifestMismatchError: It is no Parquet file, a page is damaged, or the footer says another
            number of rows (definite).
        InvalidRowsError: It has days of the old calendar (definite).
        StorageError: The disk failed.
    """
    with _reading(path):
        with open_parquet(path, buffer_size=_READ_BYTES, page_checksum_verification=True) as file:
            metadata, schema = file.metadata, schema_of_file(file)
            check(schema)
            found = RowStatistics(schema)
            for batch in batches_of(file, path, batch_size=_BATCH_ROWS, use_threads=False):
                batch.validate(full=True)
                found.take(batch)
                goes_on(path)
        if found.rows != metadata.num_rows:
            raise ManifestMismatchError(
                f"{Path(path).name!r} holds {found.rows:,} rows, its footer says "
                f"{metadata.num_rows:,}",
                path=str(path),
                rows=found.rows,
            )
        return ParquetFacts(
            rows=found.rows,
            size_bytes=Path(path).stat().st_size,
            schema=schema,
            nulls=found.nulls,
            stats=found.to_json(),
        )


def count_rows(path: str | Path, opened: BinaryIO | None = None) -> int:
    """Return the number of rows in the footer; errors as `inspect_parquet`.

    Args:
        opened: The file, if it is open.
    """
    with _reading(path):
        return int(pq.read_metadata(path if opened is None else opened).num_rows)


class RowStatistics:
    """Statistics of rows, computed batch by batch.

    Args:
        schema: The columns that count; other columns of a batch are left out.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        #: NULLs of each column.
        self.nulls = dict.fromkeys(schema.names, 0)
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._indexed = [
            f for f in list(schema)[:_INDEXED_COLUMNS] if not pa.types.is_nested(f.type)
        ]

    def take(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Count one batch."""
        self.rows += batch.num_rows
        for name in self.nulls:
            self.nulls[name] += batch.column(name).null_count
        for field in self._indexed:
            values = _ordered(batch.column(field.name))
            if values is None or values.null_count == len(values):
                continue
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
                values = pa.array([-math.inf, math.inf], values.type)  # for good
            low, high = (bound.as_py() for bound in pc.min_max(values).values())
            if field.name in self._ranges:
                before = self._ranges[field.name]
                low, high = min(low, before[0]), max(high, before[1])
            self._ranges[field.name] = (low, high)

    def to_json(self) -> str:
        """Return Delta's statistics JSON."""
        bounds = {
            json.dumps(field.name): found
            for field in self._indexed
            if field.name in self._ranges and (found := self._bounds(field)) is not None
        }
        minima = ",".join(f"{name}:{low}" for name, (low, _) in bounds.items())
        maxima = ",".join(f"{name}:{high}" for name, (_, high) in bounds.items())
        nulls = ",".join(f"{json.dumps(f.name)}:{self.nulls[f.name]}" for f in self._indexed)
        return (
            f'{{"numRecords":{self.rows},"minValues":{{{minima}}},'
            f'"maxValues":{{{maxima}}},"nullCount":{{{nulls}}}}}'
        )

    def _bounds(self, field: pa.Field) -> tuple[str, str] | None:
        low, high = self._ranges[field.name]
        kind = _plain(field.type)
        if pa.types.is_date(kind):
            return _date_bounds(low, high)
        if pa.types.is_timestamp(kind):
            return _timestamp_bounds(low, high, "Z" if kind.tz else "")
        if isinstance(low, str):
            return _string_bounds(low, high)
        if isinstance(low, bool):
            return json.dumps(low), json.dumps(high)
        if isinstance(low, float):
            # Zeros of both signs are equal and have no order.
            return (repr(low or -0.0), repr(high or 0.0)) if math.isfinite(low) else None
        form = "f" if isinstance(low, Decimal) else "d"
        return format(low, form), format(high, form)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _ordered(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Return a column as values whose order is that of its bounds, None = no bounds."""
    kind = _plain(column.type)
    if kind != column.type:
        column = column.cast(kind)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()) if kind.unit == "us" else None
    types = pa.types
    checks = (
        types.is_boolean,
        types.is_signed_integer,
        types.is_decimal,
        types.is_string,
        types.is_float32,
        types.is_float64,
    )
    return column if any(check(kind) for check in checks) else None


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Convert errors of reading an untrusted file: the file is wrong, or the disk fails."""
    try:
        yield
    except TxLogError:
        raise
    except Exception as error:
        # Damaged bytes cause any kind of error; only system errors have numbers.
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, path) from error
        raise ManifestMismatchError(
            f"{Path(path).name!r} cannot be read as Parquet: {str(error)[:500]}",
            hint="Write the file again, and submit it under a new transaction id.",
            path=str(path),
        ) from error


def write_parquet(rows: pa.Table) -> pa.Buffer:
    """Return rows as one Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        rows.schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        store_schema=False,
        **exact_columns(rows.schema, _repeating_columns(rows)),
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(TODAYS_CALENDAR)
    return sink.getvalue()


def _repeating_columns(rows: pa.Table) -> list[str]:
    """Return the columns worth a dictionary; for unique values it costs a third more time."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    found = []
    for number, field in enumerate(rows.schema):
        if (
            pa.types.is_nested(field.type)
            or 2 * pc.count_distinct(sample.column(number)).as_py() <= sample.num_rows
        ):
            found.append(field.name)
    return found


def _string_bounds(least: str, most: str) -> tuple[str, str]:
    if len(most) > _PREFIX:
        end = _PREFIX
        # The added character must be greater than the first one that is cut off.
        while end < len(most) and most[end] == _HIGHEST:
            end += 1
        most = most[:end] + (_HIGHEST if end < len(most) else "")
    return json.dumps(least[:_PREFIX]), json.dumps(most)


def _date_bounds(low: int, high: int) -> tuple[str, str] | None:
    try:
        least = date.fromordinal(low + _EPOCH_DAY)
        most = date.fromordinal(high + _EPOCH_DAY)
    except (ValueError, OverflowError):
        return None
    return f'"{least.isoformat()}"', f'"{most.isoformat()}"'


def _timestamp_bounds(low: int, high: int, zone: str) -> tuple[str, str] | None:
    try:
        least = _EPOCH + timedelta(milliseconds=low // 1000)
        most = _EPOCH + timedelta(milliseconds=-(-high // 1000))
    except OverflowError:
        return None
    return _timestamp(least, zone), _timestamp(most, zone)


def _timestamp(at: datetime, zone: str) -> str:
    return f'"{at.replace(tzinfo=None).isoformat(timespec="milliseconds")}{zone}"'
