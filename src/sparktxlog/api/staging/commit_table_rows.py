"""Rows for commit tables, which Delta writes: DataFrames with the types of the tables' columns.

Delta widens few types when it appends: it refuses a `bigint` for an `int`, and Arrow has no other
type for the numbers of a dict.  So rows that are no DataFrame of Spark get the types of the table
first, by the rules of row tables: what does not fit without loss is refused.  Columns may be
missing, and what Delta does for these it does here, too.

Times without a zone are those of the session's zone in a `timestamp` column, and as they are in a
`timestamp_ntz` column.  Spark converts them, also in the hours that a clock change skips or
repeats; its own way from Arrow fails there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from sparktxlog.api.given_data import Rows, arrow_table, check_times, is_row_list
from sparktxlog.api.schema import arrow_frame, as_spark_holds, ddl_of
from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.rows import rows_to_arrow, to_json
from sparktxlog.codec.submits.column_values import check_column_values, has_null_key
from sparktxlog.codec.submits.validation import fitting_column
from sparktxlog.errors import SchemaMismatchError, first_lines


def frame_of(
    spark: SparkSession, rows: Rows, table: str, columns_of: Callable[[], T.StructType]
) -> DataFrame | None:
    """Return rows of any kind as a DataFrame for a commit table; None = no rows and no columns.

    Args:
        table: That they are for, for errors.
        columns_of: Returns the table's columns; not called for DataFrames.

    Raises:
        SchemaMismatchError: Not all rows have the same columns, or a value does not fit its
            column (definite).
        InvalidRowsError: A time, or a key of a map, that a row table does not take (definite).
        InvalidRequestError: The rows are none of the accepted kinds (definite).
    """
    if isinstance(rows, DataFrame):
        return rows
    columns = columns_of()
    found = rows_of(rows, table, columns)
    if not found.num_columns:
        return None
    try:
        frame = arrow_frame(spark, found, from_arrow_schema(found.schema, True))
    except (PySparkException, pa.ArrowException, ValueError) as error:
        raise _not_taken(table, error) from error
    is_local = spark.conf.get("spark.sql.timestampType", None) != "TIMESTAMP_NTZ"
    known = {field.name.lower(): field.dataType for field in columns.fields}
    return frame.select(
        *[
            F.col(quoted_name(field.name)).cast(kind).alias(field.name)
            if (kind := _in_zone(field.dataType, known.get(field.name.lower()), is_local))
            != field.dataType
            else F.col(quoted_name(field.name))
            for field in frame.schema.fields
        ]
    )


def rows_of(rows: Rows, table: str, columns: T.StructType) -> pa.Table:
    """Return rows as Arrow, in the types of the table's columns where they fit these.

    Times without a zone stay so.

    Raises:
        SchemaMismatchError, InvalidRowsError, InvalidRequestError: As `frame_of` (definite).
    """
    wanted = {field.name.lower(): _arrow_type(field.dataType) for field in columns.fields}
    if is_row_list(rows):
        found = _of_dicts(rows, table, wanted)
    else:
        found = _of_arrow(arrow_table(rows), table, wanted)
    arrays = []
    for name, column in zip(found.column_names, found.columns, strict=True):
        try:
            plain = as_spark_holds(column)
            from_arrow_schema(pa.schema([(name, plain.type)]))
            if any(map(has_null_key, plain.chunks)):
                raise ValueError("a dictionary of keys of a map has NULL")
        except (PySparkException, pa.ArrowException, ValueError) as error:
            raise _not_taken(table, error, column=name, value=str(column.type)) from error
        check_column_values(table, name, plain)
        arrays.append(plain)
    return pa.table(arrays, names=found.column_names)


def _not_taken(table: str, error: Exception, **fields: str) -> SchemaMismatchError:
    where = f" in column {fields['column']!r}" if fields else ""
    return SchemaMismatchError(
        f"Spark does not take rows for table {table!r}{where}: {first_lines(error, 1)}",
        hint="Cast the column to the type of the table's column.",
        table=table,
        **fields,
    )


def _of_arrow(given: pa.Table, table: str, wanted: Mapping[str, pa.DataType | None]) -> pa.Table:
    arrays = []
    for field, column in zip(given.schema, given.columns, strict=True):
        kind = wanted.get(field.name.lower())
        if kind is not None:
            target = pa.field(field.name, _without_zones(kind, field.type))
            fitting = fitting_column(table, column, target)
            column = column if fitting is None else fitting
        arrays.append(column)
    return pa.table(arrays, names=given.column_names)


def _arrow_type(kind: T.DataType) -> pa.DataType | None:
    """Return the Arrow type of a column; None = only Delta knows it, such as `variant`."""
    try:
        return arrow_type(ddl_of(kind))
    except SchemaMismatchError:
        return None


def _of_dicts(
    rows: Sequence[Mapping[str, Any]], table: str, wanted: Mapping[str, pa.DataType | None]
) -> pa.Table:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or row.keys() != rows[0].keys():
            raise SchemaMismatchError(
                f"rows for table {table!r}: row {index} has other columns than row 0",
                hint="Give each row, a dict, all columns; write None if there is no value.",
                table=table,
                row=index,
            )
    names = list(rows[0]) if rows else []
    arrays = [
        _column(table, name, [row[name] for row in rows], wanted.get(str(name).lower()))
        for name in names
    ]
    return pa.table(arrays, names=names)


def _column(table: str, name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is None:
        try:
            inferred = pa.array(values)
            check_times(name, inferred.type, values)
            return inferred
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise SchemaMismatchError(
                f"the values of {name!r} for table {table!r} have no common type: "
                f"{first_lines(error, 1)}",
                hint="Give an Arrow table, or a DataFrame.",
                table=table,
                column=name,
            ) from error
    found = [{name: to_json(value)} for value in values]
    try:
        return _converted(table, name, found, kind)
    except SchemaMismatchError:
        plain = _without_zones(kind, None)
        if plain == kind:
            raise
        with suppress(SchemaMismatchError):  # all of them without a zone
            return _converted(table, name, found, plain)
        raise


def _converted(
    table: str, name: str, rows: list[dict[str, Any]], kind: pa.DataType
) -> pa.ChunkedArray:
    return rows_to_arrow(table, rows, pa.schema([pa.field(name, kind)])).column(0)


def _without_zones(wanted: pa.DataType, given: pa.DataType | None) -> pa.DataType:
    """Return a type whose times have no zone where those of the given type, or None, have none."""
    types = pa.types
    if given is not None and types.is_dictionary(given):
        given = given.value_type
    if types.is_timestamp(wanted):
        is_plain = given is None or (types.is_timestamp(given) and given.tz is None)
        return pa.timestamp("us") if is_plain else wanted
    if not types.is_nested(wanted):
        return wanted
    inside = [wanted.field(index) for index in range(wanted.num_fields)]
    if types.is_map(wanted):
        inside = [wanted.key_field, wanted.item_field]
    others = _parts(given, len(inside)) if given is not None else [None] * len(inside)
    kinds = [_without_zones(one.type, other) for one, other in zip(inside, others, strict=True)]
    if types.is_map(wanted):
        return pa.map_(*kinds)
    fields = [one.with_type(kind) for one, kind in zip(inside, kinds, strict=True)]
    return pa.struct(fields) if types.is_struct(wanted) else pa.list_(fields[0])


def _parts(given: pa.DataType, count: int) -> list[pa.DataType]:
    """Return the types inside of a nested one; one that is alien stands for all of them."""
    if pa.types.is_map(given):
        found = [given.key_type, given.item_type]
    else:
        found = [given.field(index).type for index in range(given.num_fields)]
    return found if len(found) == count else [pa.null()] * count


def _in_zone(given: T.DataType, wanted: T.DataType | None, is_local: bool) -> T.DataType:
    """Return a type whose times without a zone are those of the session's zone.

    Except where the column has such times, and, of a column that the table does not have, where
    the session says that they are the rule.
    """
    match given, wanted:
        case T.TimestampNTZType(), None:
            return T.TimestampType() if is_local else given
        case T.TimestampNTZType(), _:
            return given if isinstance(wanted, T.TimestampNTZType) else T.TimestampType()
        case T.ArrayType(), _:
            inside = wanted.elementType if isinstance(wanted, T.ArrayType) else None
            return T.ArrayType(_in_zone(given.elementType, inside, is_local), given.containsNull)
        case T.MapType(), _:
            key, value = (
                (wanted.keyType, wanted.valueType)
                if isinstance(wanted, T.MapType)
                else (None, None)
            )
            return T.MapType(
                _in_zone(given.keyType, key, is_local),
                _in_zone(given.valueType, value, is_local),
                given.valueContainsNull,
            )
        case T.StructType(), _:
            fields = wanted.fields if isinstance(wanted, T.StructType) else []
            known = {field.name.lower(): field.dataType for field in fields}
            return T.StructType(
                [
                    T.StructField(
                        f.name,
                        _in_zone(f.dataType, known.get(f.name.lower()), is_local),
                        f.nullable,
                    )
                    for f in given.fields
                ]
            )
    return given
