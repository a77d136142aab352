"""Compares the schemas of DataFrames with the tables of the log, and casts DataFrames to them.

A DataFrame fits a table if it has exactly the table's columns, in any order, and if every type
widens to the table's without loss (`int` to `bigint`, `decimal(5,2)` to `decimal(10,2)`).  Nothing
is narrowed or parsed silently: the user has to write such a cast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from sparktxlog.codec.arrow import normal_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.refused_types import check_not_refused
from sparktxlog.codec.rows import nearest, rows_to_arrow, to_json
from sparktxlog.codec.submits.validation import row_schema
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    first_lines,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import SparkSession

#: Metadata of a string column that was declared CHAR or VARCHAR, or has these inside: its type.
LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
#: How many rows have a key; no column of a table has this name.
HOW_OFTEN = "__txlog_rows"
#: Digits of the whole numbers, and the floating types that hold them all exactly.
_WHOLE: dict[type[T.DataType], tuple[int, tuple[type[T.DataType], ...]]] = {
    T.ByteType: (3, (T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)),
    T.ShortType: (5, (T.IntegerType, T.LongType, T.FloatType, T.DoubleType)),
    T.IntegerType: (10, (T.LongType, T.DoubleType)),
    T.LongType: (19, ()),
}


def check_no_lengths(struct: T.StructType) -> None:
    """Refuse CHAR and VARCHAR, which Spark keeps as strings with metadata.

    Raises:
        SchemaMismatchError: A column is one, or has one inside (definite).
    """
    for field in struct.fields:
        kind, words = lengths_of(field)
        for word in words:
            with _of_column(field.name):
                check_not_refused(word, kind)


def lengths_of(field: T.StructField) -> tuple[str, list[str]]:
    """Return the declared type of a field with CHAR or VARCHAR, and which of them are in it.

    **Shape:** `("array<varchar(3)>", ["varchar"])`; `("", [])` of other fields.
    """
    kind = str(field.metadata.get(LENGTHS) or "")
    return kind, re.findall("varchar|char", kind)


def columns_of(schema: T.StructType | DataFrame) -> tuple[Column, ...]:
    """Return the columns that a new table gets.

    Args:
        schema: A StructType, or a DataFrame whose names, types and comments are taken; all its
            columns become nullable.

    Raises:
        SchemaMismatchError: A type is none that a table can hold (definite).
    """
    is_struct = isinstance(schema, T.StructType)
    struct = schema if isinstance(schema, T.StructType) else schema.schema
    columns = []
    for field in struct.fields:
        with _of_column(field.name):
            kind = normal_type(ddl_of(field.dataType))
        nullable = field.nullable or not is_struct
        comment = str(field.metadata.get("comment") or "")
        columns.append(Column(name=field.name, type=kind, nullable=nullable, comment=comment))
    return tuple(columns)


@contextmanager
def _of_column(name: str) -> Iterator[None]:
    """Name the column of a type that is refused."""
    try:
        yield
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"column {name!r}: {error.message}", hint=error.hint, column=name
        ) from error


def ddl_of(kind: T.DataType) -> str:
    """Return a type of Spark as DDL, also one that no table holds; names are quoted."""
    match kind:
        case T.ArrayType():
            return f"array<{ddl_of(kind.elementType)}>"
        case T.MapType():
            return f"map<{ddl_of(kind.keyType)},{ddl_of(kind.valueType)}>"
        case T.StructType():
            fields = (f"{quoted_name(f.name)}:{ddl_of(f.dataType)}" for f in kind.fields)
            return f"struct<{','.join(fields)}>"
    return kind.simpleString()


def arrow_schema_of(schema: T.StructType) -> pa.Schema:
    """Return a schema of Spark as one of Arrow, with points in time in UTC."""
    # Spark 4.1 knows no other zone.
    zone: Any = {} if pyspark.__version__.startswith("4.1.") else {"timezone": "UTC"}
    return to_arrow_schema(schema, **zone)


def arrow_frame(
    spark: SparkSession, rows: pa.Table, struct: T.StructType | None = None
) -> DataFrame:
    """Return rows of Arrow as a DataFrame.

    Args:
        struct: Its columns; None = as Spark understands those of the rows.

    Raises:
        InvalidRequestError: Arrow's own check fails, as of a text that is no UTF-8: Spark would
            read something else (definite).
    """
    try:
        rows.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequestError(
            f"the rows are no valid Arrow: {first_lines(error, 1)}",
            hint="Make them by pyarrow.array, or cast the column.",
            field="rows",
        ) from error
    columns = [_as_spark_takes(column) for column in rows.columns]
    return spark.createDataFrame(pa.table(columns, names=rows.column_names), struct)


def _as_spark_takes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without views, and as no piece of another one.

    PySpark takes neither: no nested column with NULLs of a slice, nor one without any piece.
    """
    column = as_spark_holds(column)
    if not pa.types.is_nested(column.type):
        return column
    pieces = column.chunks or [pa.array([], column.type)]
    return pa.chunked_array([pa.concat_arrays([piece]) for piece in pieces], column.type)


def as_spark_holds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without views, which polars has for texts, and in microseconds.

    Raises:
        pyarrow.ArrowInvalid: A time has digits below, which Spark would drop.
    """
    plain = _type_in_spark(column.type)
    return column if plain == column.type else column.cast(plain)


def _type_in_spark(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_type_in_spark(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_type_in_spark(kind.key_type), _type_in_spark(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_spark(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_type_in_spark(kind.value_type)))
    if types.is_fixed_size_list(kind):
        field = kind.value_field.with_type(_type_in_spark(kind.value_type))
        return pa.list_(field, kind.list_size)
    return kind


def rows_by_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return each key, with `HOW_OFTEN` for the number of its rows.

    Args:
        keys: Quoted names of columns; one may be called `count`, as Spark's own count is.
    """
    return rows.groupBy(*keys).agg(F.count(F.lit(1)).alias(HOW_OFTEN))


def repeated_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the keys that more than one row has, as `rows_by_key` does."""
    return rows_by_key(rows, keys).where(f"{HOW_OFTEN} > 1")


@lru_cache(maxsize=1024)
def struct_of(definition: TableDefinition, kind: OperationKind) -> T.StructType:
    """Return the columns that an operation's rows have: all, or only the keys for delete_keys.

    Raises:
        InvalidRequestError: The kind needs keys and the table has none (definite).
    """
    return from_arrow_schema(row_schema(definition, kind), prefer_timestamp_ntz=True)


def check_fit(
    given: T.StructType, definition: TableDefinition, kind: OperationKind
) -> list[tuple[str, T.StructField]]:
    """Return for each column of the operation its name in the data.

    Raises:
        SchemaMismatchError: An extra or missing column, or a type that would lose something
            (definite).
    """
    table = definition.name
    expected = struct_of(definition, kind)
    found = _by_name(given, definition)
    wanted = {field.name.lower(): field for field in expected.fields}
    extra = [field.name for name, field in found.items() if name not in wanted]
    missing = [field.name for name, field in wanted.items() if name not in found]
    if extra or missing:
        raise _other_columns(definition, kind, extra, missing, list(found.values()))
    result = []
    for name, field in wanted.items():
        source = found[name]
        if not widens(source.dataType, field.dataType):
            raise SchemaMismatchError(
                f"the DataFrame has {source.dataType.simpleString()} in column {source.name!r}, "
                f"table {table!r} takes {field.dataType.simpleString()}",
                hint=f"Cast it: df.withColumn({field.name!r}, "
                f"F.col({source.name!r}).cast({field.dataType.simpleString()!r})).",
                table=table,
                column=field.name,
            )
        result.append((source.name, field))
    return result


def _other_columns(
    definition: TableDefinition,
    kind: OperationKind,
    extra: list[str],
    missing: list[str],
    given: list[T.StructField],
) -> SchemaMismatchError:
    """Say which columns only one side has, and the way out for the first of them."""
    table = f"table {definition.name!r}"
    keys_only = kind is OperationKind.DELETE_KEYS
    known = {column.name.lower() for column in definition.columns}
    complaints = []
    for name in extra:
        if keys_only and name.lower() in known:
            complaints.append(f"the DataFrame has column {name!r}, which is no key of {table}")
        else:
            complaints.append(f"the DataFrame has column {name!r}, {table} has not")
    complaints += [f"{table} has column {name!r}, the DataFrame has not" for name in missing]
    if extra and missing:
        hint = nearest(extra[0], missing)
    elif extra:
        hint = f"Leave it out: df.drop({extra[0]!r})"
        if not keys_only:
            hint += ", or add it to the table: log.append(…, merge_schema=True), log.alter_table(…)"
        hint += "."
    else:
        hint = (
            f"Give it; where there is no value: df.withColumn({missing[0]!r}, F.lit(None)). "
            f"The DataFrame has {', '.join(field.name for field in given)}."
        )
    return SchemaMismatchError(
        f"{'; '.join(complaints[:5])}",
        hint=hint,
        table=definition.name,
        extra=extra,
        missing=missing,
    )


def _by_name(given: T.StructType, definition: TableDefinition) -> dict[str, T.StructField]:
    found: dict[str, T.StructField] = {}
    for field in given.fields:
        if found.setdefault(field.name.lower(), field) is not field:
            raise SchemaMismatchError(
                f"the DataFrame for table {definition.name!r} has column {field.name!r} twice "
                "(case is ignored)",
                hint="Rename or drop one of them.",
                table=definition.name,
                column=field.name,
            )
    return found


def conform(
    frame: DataFrame,
    definition: TableDefinition,
    kind: OperationKind,
    *,
    keep: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows cast to the table's exact columns, types and order.

    Args:
        frame: Rows; columns in any order.
        definition: The table.
        kind: A kind that carries rows.
        keep: New name → column of `frame` that is kept in addition to the table's columns, and need
            not be one of them.

    **Shape:** the table's columns (only the keys for delete_keys), then those of `keep`.  An
    empty string in a partition column becomes NULL, as it does in every Delta table.

    Raises:
        SchemaMismatchError: The data does not fit (definite); no Spark job ran.
    """
    kept = keep or {}
    expected = struct_of(definition, kind).names
    given = [f for f in frame.schema.fields if f.name not in kept.values() or f.name in expected]
    fields = check_fit(T.StructType(given), definition, kind)
    types = {f.name: f.dataType for f in frame.schema.fields}
    columns = [_cast(name, types[name], field, definition) for name, field in fields]
    return frame.select(
        *columns, *(F.col(quoted_name(old)).alias(new) for new, old in kept.items())
    )


def with_missing(frame: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return rows with NULL in the columns of the table that they do not have."""
    given = {name.lower() for name in frame.columns}
    fields = struct_of(definition, OperationKind.APPEND).fields
    missing = [field for field in fields if field.name.lower() not in given]
    if not missing:
        return frame
    return frame.select("*", *[F.lit(None).cast(f.dataType).alias(f.name) for f in missing])


def _cast(
    name: str, given: T.DataType, field: T.StructField, definition: TableDefinition
) -> SparkColumn:
    column = F.col(quoted_name(name))
    if given != field.dataType:  # each cast takes several calls into the JVM
        column = column.cast(field.dataType)
    if field.name in definition.partition_by and isinstance(field.dataType, T.StringType):
        column = F.nullif(column, F.lit(""))
    return column.alias(field.name)


def key_values(definition: TableDefinition, key: object) -> dict[str, Any]:
    """Return key column → value of one key.

    Args:
        definition: A table with keys.
        key: Key column → value, or the value alone if there is one key column.

    Raises:
        InvalidRequestError: The table has no keys (definite).
        SchemaMismatchError: A key column is missing, or has a value of another type (definite).
        InvalidRowsError: A value is NULL (definite).
    """
    schema = row_schema(definition, OperationKind.DELETE_KEYS)
    given = key if isinstance(key, Mapping) else {schema.names[0]: key}
    for column, value in given.items():
        if value is None:
            raise InvalidRowsError(
                f"table {definition.name!r}: key column {column!r} is never NULL",
                table=definition.name,
                column=column,
            )
    row = {column: to_json(value) for column, value in given.items()}
    found: dict[str, Any] = rows_to_arrow(definition.name, [row], schema).to_pylist()[0]
    return found


def widens(source: T.DataType, target: T.DataType) -> bool:
    """Return whether every value of one type is unchanged in the other."""
    match source, target:
        case (T.NullType(), _):
            return True
        case (T.ArrayType(), T.ArrayType()):
            return widens(source.elementType, target.elementType)
        case (T.MapType(), T.MapType()):
            return widens(source.keyType, target.keyType) and widens(
                source.valueType, target.valueType
            )
        case (T.StructType(), T.StructType()):
            return source.names == target.names and all(
                widens(one.dataType, other.dataType)
                for one, other in zip(source.fields, target.fields, strict=True)
            )
        case (T.DecimalType(), T.DecimalType()):
            whole = target.precision - target.scale
            return target.scale >= source.scale and whole >= source.precision - source.scale
        case (T.FloatType(), T.DoubleType()):
            return True
        case (T.CharType() | T.VarcharType() | T.StringType(), T.StringType()):
            return True  # a collation is how texts compare, not what they are
    if type(source) in _WHOLE:
        digits, wider = _WHOLE[type(source)]
        if isinstance(target, T.DecimalType):
            return target.precision - target.scale >= digits
        if isinstance(target, wider):
            return True
    return source == target
