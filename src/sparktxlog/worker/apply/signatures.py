"""Content signatures of tables as Spark expressions (protocol S2, S2c).

A row's hash is `xxhash64` over a salt and, for each column, a pair: a number made of the column's
name in files unless the value is NULL, and the value in a canonical form.  That name stays when the
column gets another one, so a rename changes no row's hash.  `xxhash64` skips NULLs, so a NULL adds
nothing (a new nullable column changes no row's hash) while the numbers keep `(NULL, a)` and
`(a, NULL)` apart.  It also flattens nested values; the canonical forms undo that:

    array    its size, which elements are NULL, and the elements; of structs, field by field
    map      its size, then one hash for each entry, sorted, so that the order of entries is free
    struct   each field as a column is, with the column and its place for its name

A signature is the row count and the sum of hashes modulo 2**64 in two lanes; the second lane's hash
is made of the first one's (decision 121).  It does not depend on order or layout, and signatures of
disjoint rows can be added.  Sums of whole hashes would overflow under ANSI, so parts of 22 bits are
summed separately, exact up to 2**41 rows, and joined in Python.  Signatures find accidents, not
attackers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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

#: First input of each lane's hash.
SALTS = (0x5DEECE66D, 0x2545F4914F6CDD1D)
#: Parts of a hash that are summed: where each begins, and the bits of one.
_PARTS, _PART = (0, 22, 44), (1 << 22) - 1
#: Names of the aggregates of `sums_of`, in their order.
AGGREGATES = (
    "__txlog_rows",
    *(f"__txlog_lane{lane}_from{begin}" for lane in range(len(SALTS)) for begin in _PARTS),
)
#: Columns of row hashes, one for each lane.
LANE_COLUMNS = ("__txlog_lane0", "__txlog_lane1")
#: The one of `hashed` rows, of which the other one is made.
HASH_COLUMN = LANE_COLUMNS[0]


def hashed(
    rows: DataFrame,
    row_hash: Column,
    where: Column | None = None,
    *,
    keep: Sequence[Column | str] = ("*",),
) -> DataFrame:
    """Return rows with their hash as `HASH_COLUMN`.

    Args:
        row_hash: As `row_hash` makes it, or a column that has it.
        where: Which rows count, the others have NULL; None = all.
        keep: What else the rows shall have.
    """
    found = row_hash if where is None else F.when(where, row_hash)
    return rows.select(*keep, found.alias(HASH_COLUMN))


def second_lane() -> Column:
    """Return the hash of `hashed` rows in the second lane."""
    first = F.col(HASH_COLUMN)
    return F.when(first.isNotNull(), F.xxhash64(F.lit(SALTS[1]), first))


def observed(
    rows: DataFrame,
    observation: Observation,
    row_hash: Column,
    *others: Column,
    where: Column | None = None,
) -> DataFrame:
    """Return rows whose signature an observation counts during a job that reads them.

    The hash is a column of its own for that: Spark sends an observation's expressions back from
    each task, and those of arrays and maps hold a piece of the last row, whose memory is free by
    then; it ended the JVM.

    Args:
        row_hash: As `row_hash` makes it, or a column that has it.
        others: Further aggregates to observe.
        where: Which rows are counted; None = all.
    """
    counted = hashed(rows, row_hash, where).observe(observation, *sums_of(), *others)
    return counted.drop(HASH_COLUMN)


def sums_of() -> list[Column]:
    """Return the aggregates from which `signature_from` makes the signature of `hashed` rows.

    They serve `DataFrame.agg` and `GroupedData.agg`; `observed` is for an `Observation`.

    **Shape:** bigint columns named as in `AGGREGATES`; all but the first NULL for no rows.

    **Source:** protocol S2, S2c.
    """
    lanes = (F.col(HASH_COLUMN), second_lane())
    parts = [
        F.sum(F.shiftrightunsigned(found, begin).bitwiseAND(F.lit(_PART)))
        for found in lanes
        for begin in _PARTS
    ]
    columns = [F.count(F.col(HASH_COLUMN)), *parts]
    return [column.alias(name) for column, name in zip(columns, AGGREGATES, strict=True)]


def count_columns() -> list[Column]:
    """Return aggregates as `sums_of` does; only the first one, the rows, counts."""
    nothing = F.lit(None).cast("bigint")
    return [F.count(F.lit(1)).alias(AGGREGATES[0]), *(nothing.alias(n) for n in AGGREGATES[1:])]


def signature_of(frame: DataFrame, definition: TableDefinition) -> TableSignature:
    """Count the signature of a DataFrame's rows by a full scan; runs one Spark job."""
    row = hashed(frame, row_hash(definition.columns), keep=()).agg(*sums_of()).first()
    assert row is not None
    return signature_from(row)


def signature_from(values: Any) -> TableSignature:
    """Make a signature of aggregated values: a Row, or the result of `Observation.get`."""
    found: Mapping[str, Any] = values if isinstance(values, Mapping) else values.asDict()
    rows, *sums = (found[name] or 0 for name in AGGREGATES)
    parts, each = iter(sums), range(len(SALTS))
    lanes = [sum(next(parts) << begin for begin in _PARTS) % (1 << 64) for _ in each]
    return TableSignature(rows=rows, lane0=lanes[0], lane1=lanes[1])


def row_hash(columns: Iterable[TableColumn], salt: int = SALTS[0]) -> Column:
    """Return a row's 64-bit hash; values are cast to the declared types.

    Raises:
        SchemaMismatchError: A column's type cannot be read (definite).
    """
    parts = [F.lit(salt)]
    for column in columns:
        value = F.col(quoted_name(column.name)).cast(column.type)
        parts += _marked(value, arrow_type(column.type), column.in_files)
    return F.xxhash64(*parts)


def _marked(value: Column, kind: pa.DataType, path: str) -> list[Column]:
    """Return what is hashed of a value and its mark; all NULL for NULL.

    Args:
        path: The column, and the places of fields in it.  Each has a mark of its own, or a field
            could be taken for one of the struct around it.
    """
    # To hash a text for each value takes longer.
    mark = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], signed=True)
    return [F.when(value.isNotNull(), F.lit(mark).cast("bigint")), *_canonical(value, kind, path)]


def _canonical(value: Column, kind: pa.DataType, path: str = "") -> list[Column]:
    """Return what is hashed of a value, NULL only for NULL; it differs for all different values.

    Lambdas are slow in Spark, so as little as can be is in them.

    Args:
        path: As of `_marked`; empty for what is hashed by itself, such as an element.
    """
    if pa.types.is_list(kind):
        element, parts = kind.value_type, [F.array_size(value)]
        if pa.types.is_list(element) or pa.types.is_map(element):
            return [*parts, F.transform(value, lambda one: _hash_of(one, element))]
        parts.append(F.transform(value, lambda one: one.isNull()))
        if not pa.types.is_struct(element):
            return [*parts, value]
        for field in element:
            parts += _canonical(value.getField(field.name), pa.list_(field.type))
        return parts
    if pa.types.is_map(kind):

        def hash_entry(entry: Column) -> Column:
            key = _canonical(entry["key"], kind.key_type, "key")
            return F.xxhash64(*key, *_marked(entry["value"], kind.item_type, "value"))

        hashes = F.sort_array(F.transform(F.map_entries(value), hash_entry))
        return [F.array_size(hashes), hashes]
    if pa.types.is_struct(kind):
        parts = []
        for place, field in enumerate(kind):
            # No name of a column has a comma.
            parts += _marked(value.getField(field.name), field.type, f"{path},{place}")
        return parts
    return [value]


def _hash_of(value: Column, kind: pa.DataType) -> Column:
    return F.xxhash64(value.isNull(), *_canonical(value, kind))
