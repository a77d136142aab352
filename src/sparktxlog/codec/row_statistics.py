"""Delta's statistics of rows, and which columns repeat.

Statistics let readers skip files, so a wrong bound loses rows.  Bounds are therefore taken from
the rows themselves, never from a footer, and every rounding goes outwards:

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
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: As Delta's `delta.dataSkippingNumIndexedCols`.
_INDEXED_COLUMNS = 32
#: As Delta's `spark.databricks.io.skipping.stringPrefixLength`.
_PREFIX = 32
_HIGHEST = "\U0010ffff"
#: Rows looked at to see whether a column's values repeat.
_SAMPLE_ROWS = 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


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


def repeating_columns(rows: pa.Table) -> list[str]:
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
