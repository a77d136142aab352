"""Content signatures of tables as Spark expressions (protocol S2, S2c).

A row's hash in a lane is `xxhash64` over the lane's salt and, for each column, a pair: the
column's name in files unless the value is NULL, and the value in a canonical form.  That name stays
when the column gets another one, so a rename changes no row's hash.  `xxhash64` skips
NULLs, so a NULL adds nothing (a new nullable column changes no row's hash) while the names keep
`(NULL, a)` and `(a, NULL)` apart.  It also flattens nested values; the canonical forms undo that:

    array    its size, then one hash for each element, marked NULL or not
    map      its size, then one hash for each entry, sorted, so that the order of entries is free
    struct   each field marked NULL or not

A signature is the row count and the sum of hashes modulo 2**64 in two lanes.  It does not depend on
order or layout, and signatures of disjoint rows can be added.  Sums of whole hashes would overflow
under ANSI, so the low and the high 32 bits are summed separately, exact up to 2**31 rows, and
joined in Python.  Signatures find accidents, not attackers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.model.signature import TableSignature

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

    from sparktxlog.model.tables.table import Column as TableColumn
    from sparktxlog.model.tables.table import TableDefinition

#: First input of each lane's hash, so that the lanes are independent.
SALTS = (0x5DEECE66D, 0x2545F4914F6CDD1D)
#: Names of the aggregates of `signature_columns`, in their order.
AGGREGATES = (
    "__txlog_rows",
    "__txlog_lane0_low",
    "__txlog_lane0_high",
    "__txlog_lane1_low",
    "__txlog_lane1_high",
)
_LOW_32_BITS = 0xFFFFFFFF
#: Columns of row hashes, one for each lane.
LANE_COLUMNS = ("__txlog_lane0", "__txlog_lane1")


def signature_columns(definition: TableDefinition) -> list[Column]:
    """Return the aggregates from which `signature_from` makes a table's signature.

    They serve `DataFrame.agg` and `GroupedData.agg`; `observed` is for an `Observation`.

    **Shape:** five bigint columns named as in `AGGREGATES`; all but the first NULL for no rows.

    Raises:
        SchemaMismatchError: A column's type cannot be read (definite).

    **Source:** protocol S2, S2c.
    """
    return _sums([row_hash(definition.columns, lane) for lane in (0, 1)])


def observed(
    rows: DataFrame, observation: Observation, lanes: Sequence[Column], *others: Column
) -> DataFrame:
    """Return rows whose signature an observation counts during a job that reads them.

    The hashes are columns of their own for that: Spark sends an observation's expressions back from
    each task, and those of arrays and maps hold a piece of the last row, whose memory is free by
    then; it ended the JVM.

    Args:
        lanes: Row hashes of both lanes, as `hash_columns` makes them.
        others: Further aggregates to observe.
    """
    hashed = rows.select("*", *lanes).observe(observation, *sums_of(), *others)
    return hashed.drop(*LANE_COLUMNS)


def hash_columns(
    definition: TableDefinition, where: Column | None = None, *, hashes: Sequence[str] = ()
) -> list[Column]:
    """Return the row hashes of both lanes as `LANE_COLUMNS`, NULL where a row does not count.

    Args:
        where: Which rows count; None = all.
        hashes: Columns that have them already; empty = none has.
    """
    found = [F.col(name) for name in hashes]
    found = found or [row_hash(definition.columns, lane) for lane in (0, 1)]
    if where is not None:
        found = [F.when(where, one) for one in found]
    return [one.alias(name) for one, name in zip(found, LANE_COLUMNS, strict=True)]


def sums_of() -> list[Column]:
    """Return the aggregates of rows that have `LANE_COLUMNS`, as `signature_columns` does."""
    return _sums([F.col(name) for name in LANE_COLUMNS])


def _sums(lanes: Sequence[Column]) -> list[Column]:
    aggregates = [F.count(lanes[0]).alias(AGGREGATES[0])]
    for lane, hashed in enumerate(lanes):
        low = F.sum(hashed.bitwiseAND(F.lit(_LOW_32_BITS)))
        high = F.sum(F.shiftrightunsigned(hashed, 32))
        aggregates += [low.alias(AGGREGATES[1 + 2 * lane]), high.alias(AGGREGATES[2 + 2 * lane])]
    return aggregates


def count_columns() -> list[Column]:
    """Return aggregates as `signature_columns` does; only the first one, the rows, counts."""
    nothing = F.lit(None).cast("bigint")
    return [F.count(F.lit(1)).alias(AGGREGATES[0]), *(nothing.alias(n) for n in AGGREGATES[1:])]


def signature_of(frame: DataFrame, definition: TableDefinition) -> TableSignature:
    """Count the signature of a DataFrame's rows by a full scan; runs one Spark job."""
    row = frame.agg(*signature_columns(definition)).first()
    assert row is not None
    return signature_from(row)


def signature_from(values: Any) -> TableSignature:
    """Make a signature of aggregated values: a Row, or the result of `Observation.get`."""
    found: Mapping[str, Any] = values if isinstance(values, Mapping) else values.asDict()
    rows, *halves = (found[name] or 0 for name in AGGREGATES)
    lanes = [(halves[2 * lane] + (halves[2 * lane + 1] << 32)) % (1 << 64) for lane in (0, 1)]
    return TableSignature(rows=rows, lane0=lanes[0], lane1=lanes[1])


def row_hash(columns: Iterable[TableColumn], lane: int) -> Column:
    """Return a row's 64-bit hash in lane 0 or 1; values are cast to the declared types."""
    parts = [F.lit(SALTS[lane])]
    for column in columns:
        value = F.col(quoted_name(column.name)).cast(column.type)
        parts.append(F.when(value.isNotNull(), F.lit(column.in_files)))
        parts.append(_canonical(value, arrow_type(column.type)))
    return F.xxhash64(*parts)


def _canonical(value: Column, kind: pa.DataType) -> Column:
    """Return an expression, NULL only for NULL, whose hash differs for all different values."""
    if pa.types.is_list(kind):
        hashes = F.transform(value, _marked_hash(kind.value_type))
        return _unless_null(value, F.struct(F.size(value), hashes))
    if pa.types.is_map(kind):
        hash_key, hash_item = _marked_hash(kind.key_type), _marked_hash(kind.item_type)

        def hash_entry(entry: Column) -> Column:
            return F.xxhash64(hash_key(entry["key"]), hash_item(entry["value"]))

        hashes = F.array_sort(F.transform(F.map_entries(value), hash_entry))
        return _unless_null(value, F.struct(F.size(value), hashes))
    if pa.types.is_struct(kind):
        parts: list[Column] = []
        for field in kind:
            item = value.getField(field.name)
            parts += [item.isNull(), _canonical(item, field.type)]
        named = [part.alias(f"f{index}") for index, part in enumerate(parts)]
        return _unless_null(value, F.struct(*named))
    return value


def _marked_hash(kind: pa.DataType) -> Callable[[Column], Column]:
    def hash_of(value: Column) -> Column:
        return F.xxhash64(value.isNull(), _canonical(value, kind))

    return hash_of


def _unless_null(value: Column, made: Column) -> Column:
    return F.when(value.isNotNull(), made)
