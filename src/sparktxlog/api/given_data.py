"""What users give as columns and rows, in both clients: Arrow is the common form.

pandas, polars and PySpark are imported here only if the user did so before: their objects are
known by Arrow's C stream, or by the module of their class.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

from sparktxlog.codec.arrow import arrow_schema, normal_type
from sparktxlog.codec.arrow import columns_of as arrow_columns
from sparktxlog.codec.submits.arguments import flag_given, text_given
from sparktxlog.errors import InvalidRequestError, SchemaMismatchError
from sparktxlog.lazy_arrow import has_arrow, load_arrow, pa
from sparktxlog.model.tables.table import Column, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class ArrowStream(Protocol):
    """An object with Arrow's C stream: Arrow and polars tables, DataFrames of pandas and Spark."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return its rows as a stream of Arrow batches."""


#: Rows of one operation.
Rows: TypeAlias = "Sequence[Mapping[str, Any]] | ArrowStream"
#: Columns of a new table: DDL text, name → DDL type, `Column`s, an Arrow schema (which has no type
#: stubs), a StructType, or a DataFrame of Spark that has them.  All but Arrow may have comments.
Columns: TypeAlias = "str | Mapping[str, str] | Iterable[Column] | StructType | DataFrame | Any"

_NOT_NULL = re.compile(r"\s*(.+?)\s+not\s+null\s*", re.IGNORECASE | re.DOTALL)
#: A column in DDL text: its name, its type and what follows.
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s`:]+)(?:\s*:\s*|\s+)(.+)", re.IGNORECASE | re.DOTALL)
#: A comment at the end of a column.
_COMMENT = re.compile(
    r"(.+?)\s+comment\s+(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*",
    re.IGNORECASE | re.DOTALL,
)
#: Commas between columns: not inside `<>`, `()`, quoted names and comments.
_PARTS = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[<>(),]", re.DOTALL)


def columns_given(columns: Columns) -> tuple[Column, ...]:
    """Return the columns of a new table.

    Raises:
        SchemaMismatchError: DDL that cannot be parsed, or a type that no table holds (definite).
        InvalidRequestError: None of the accepted forms (definite).
    """
    if isinstance(columns, str):
        return tuple(_column(part, columns) for part in _split(columns))
    if "pyarrow" in sys.modules and isinstance(columns, pa.Schema):
        return arrow_columns(columns)
    if isinstance(columns, Mapping):
        return tuple(_typed(name, text) for name, text in columns.items())
    if _is_spark(columns):
        from pyspark.sql.types import StructType

        from sparktxlog.api.schema import check_no_lengths, columns_of

        if isinstance(columns, StructType):  # rows of a DataFrame are strings
            check_no_lengths(columns)
        return columns_of(cast("StructType | DataFrame", columns))
    if isinstance(columns, Iterable):
        found = tuple(columns)
        if all(isinstance(column, Column) for column in found):
            return tuple(_normal(c.name, c.type, c.nullable, c.comment) for c in found)
    raise InvalidRequestError(
        f"columns are given as {type(columns).__name__}",
        hint="Give DDL text such as 'id bigint not null, name string', a dict of name to type, an "
        "Arrow schema, a StructType, a Spark DataFrame, or a list of sparktxlog.Column.",
        field="columns",
    )


def _split(ddl: str) -> list[str]:
    """Return the columns of DDL text as texts."""
    parts, depth, start = [], 0, 0
    for match in _PARTS.finditer(ddl):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(match[0], 0)
        if match[0] == "," and depth == 0:
            parts.append(ddl[start : match.start()])
            start = match.end()
    return [*parts, ddl[start:]]


def _column(part: str, ddl: str) -> Column:
    found = _COLUMN.fullmatch(part)
    if found is None:
        raise SchemaMismatchError(
            f"the schema {ddl[:140]!r} cannot be parsed at {part.strip()[:60]!r}",
            hint="Write columns as in SQL: 'id bigint not null, name string'.",
        )
    name = found[1]
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    return _typed(name, found[2])


def _typed(name: str, text: str) -> Column:
    if not (isinstance(name, str) and isinstance(text, str)):
        raise InvalidRequestError(
            f"column {name!r} is given as {text!r}"[:200],
            hint="Give name and DDL type as texts: {'id': 'bigint not null'}.",
            field="columns",
        )
    said, comment = _COMMENT.fullmatch(text), ""
    if said is not None:
        text, comment = said[1], re.sub(r"\\(.)", r"\1", said[2] or said[3] or "")
    match = _NOT_NULL.fullmatch(text)
    return _normal(name, match[1] if match else text, match is None, comment)


def _normal(name: str, kind: str, nullable: bool, comment: str) -> Column:
    for text in (name, kind, comment):
        text_given(text, "columns")
    flag_given(nullable, "columns")
    if not has_arrow():  # the node says what is wrong with a type
        return Column(name=name, type=kind, nullable=nullable, comment=comment)
    try:
        return Column(name=name, type=normal_type(kind), nullable=nullable, comment=comment)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"column {name!r}: {error.message}", hint=error.hint, column=name
        ) from error


def columns_in(rows: Any) -> tuple[Column, ...]:
    """Return names and types of rows.

    Raises:
        SchemaMismatchError: No table can hold one of the types (definite).
        InvalidRequestError: The rows do not say their types (definite).
    """
    if is_row_list(rows):
        raise InvalidRequestError(
            "a list of rows does not say which types its columns have",
            hint="Give an Arrow table, or use alter_table(…, add={'note': 'string'}).",
            field="merge_schema",
        )
    return columns_given(rows if _is_spark(rows) else arrow_table(rows).schema)


def with_missing(rows: Any, definition: TableDefinition) -> Any:
    """Return rows with NULL in the columns of the table that they do not have."""
    if _is_spark(rows):
        from sparktxlog.api.schema import with_missing as added

        return added(rows, definition)
    found = arrow_table(rows)
    for field in arrow_schema(definition):
        if field.name not in found.column_names:
            found = found.append_column(field.name, pa.nulls(found.num_rows, field.type))
    return found


def _is_spark(given: object) -> bool:
    return type(given).__module__.partition(".")[0] == "pyspark"


def check_is_frame(source: object) -> None:
    """Refuse what is no DataFrame of Spark, and a stream of rows.

    Raises:
        InvalidRequestError: (definite).
    """
    if not (_is_spark(source) and hasattr(type(source), "isStreaming")):
        raise InvalidRequestError(
            f"the source is given as {type(source).__name__}",
            hint="Give a DataFrame of Spark, such as spark.createDataFrame(rows).",
            field="source",
        )
    check_is_no_stream(source)


def check_is_no_stream(rows: object) -> None:
    """Refuse a streaming DataFrame: it has no end.

    Raises:
        InvalidRequestError: (definite).
    """
    if _is_spark(rows) and getattr(rows, "isStreaming", False):
        raise InvalidRequestError(
            "the rows are a streaming DataFrame, which has no end",
            hint="Use sparktxlog.write_stream(log, frame, table, mode); see docs/streams.md.",
            field="rows",
        )


def is_row_list(rows: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return whether rows are given as a list of mappings."""
    return isinstance(rows, Sequence) and not isinstance(rows, (str, bytes))


def kept_rows(rows: Any) -> Any:
    """Return rows that can be read more than once: a stream has none the second time.

    Raises:
        InvalidRequestError, MissingDependencyError: As `arrow_table` (definite).
    """
    return rows if _is_spark(rows) or is_row_list(rows) else arrow_table(rows)


def arrow_table(rows: Any) -> pa.Table:
    """Return any object with Arrow data as a table; the index of pandas is left out.

    Rows of pandas may be changed after the call: the table stays as it is.

    Raises:
        InvalidRequestError: It has none, or it cannot be read (definite).
        MissingDependencyError: pyarrow or NumPy is not installed (definite).
    """
    given = f"{type(rows).__module__.partition('.')[0]}.{type(rows).__name__}"
    is_pandas = given.startswith("pandas.") and hasattr(rows, "columns")
    if not is_pandas and (given == "pandas.Series" or not hasattr(rows, "__arrow_c_stream__")):
        raise InvalidRequestError(
            f"rows are given as {type(rows).__name__}",
            hint="Give a DataFrame of Spark, pandas or polars, an Arrow table, or a list of dicts.",
            field="rows",
        )
    load_arrow(f"rows as a {given}")
    try:
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if is_pandas:
            # Arrow takes the numbers where they lie, and `df["n"] += 1` would change them later.
            found = pa.Table.from_pandas(rows.copy(), preserve_index=False)
            for index, field in enumerate(found.schema):
                dtype = rows.dtypes.iloc[index]
                # Of categories, these are what the values are made of.
                if str(getattr(getattr(dtype, "categories", None), "dtype", dtype)) == "object":
                    check_times(field.name, field.type, rows.iloc[:, index])
            return found.replace_schema_metadata()
        return pa.RecordBatchReader.from_stream(rows).read_all()
    # Of pandas: a column named twice, a number that no type of Arrow holds.
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidRequestError(
            f"the rows cannot be read as Arrow: {error}",
            hint="Give an Arrow table, whose columns say their types, or a list of dicts.",
            field="rows",
        ) from error


def check_times(column: str, kind: pa.DataType, values: Iterable[Any]) -> None:
    """Refuse times in objects of Python of which Arrow keeps a part only.

    It takes the type of the first one: of a `datetime` after a `date` it drops the time, of times
    with and without zones it takes the one for the other.

    Args:
        column: Its name.
        kind: The type that Arrow found.
        values: What it is made of.

    Raises:
        InvalidRequestError: (definite).
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not _has_times(kind):
        return
    there, types = (value for value in values if value is not None), pa.types
    if types.is_struct(kind):
        dicts = [value for value in there if isinstance(value, Mapping)]
        for field in kind:
            check_times(column, field.type, (one.get(field.name) for one in dicts))
    elif types.is_nested(kind):  # lists, arrays of numpy, and what else has items to Arrow
        lists = (value for value in there if isinstance(value, Iterable))
        check_times(column, kind.value_type, (item for one in lists for item in one))
    else:
        found = {_kind_of_time(value): value for value in there}
        found.pop("", None)
        if len(found) > 1 or _FINE in found or _ZONED in found:
            shown = " and ".join(f"{name} ({value})" for name, value in found.items())
            raise InvalidRequestError(
                f"column {column!r} has {shown}, of which Arrow would keep a part only",
                hint="Give all of them in one form, to the microsecond, and times of a day without "
                "a zone: frame[name] = pandas.to_datetime(frame[name], utc=True).dt.floor('us').",
                field="rows",
                column=column,
            )


def _has_times(kind: pa.DataType) -> bool:
    """Return whether a type that Arrow found has times in it.

    Maps are none of Python: Arrow finds them in values of its own, which it takes as they are.
    """
    if pa.types.is_temporal(kind):
        return True
    if pa.types.is_map(kind):
        return False
    return any(_has_times(kind.field(index).type) for index in range(kind.num_fields))


#: Times of pandas that have digits below a microsecond, and times of a day in a zone.
_FINE, _ZONED = "nanoseconds", "times of a day with a zone"


def _kind_of_time(value: object) -> str:
    """Return which kind of date or time a value is, empty = none that Arrow could change."""
    if isinstance(value, timedelta):
        return _FINE if getattr(value, "nanoseconds", 0) else ""
    if isinstance(value, time):
        return "" if value.tzinfo is None else _ZONED
    if not isinstance(value, date) or value != value:  # pandas has NaT for none
        return ""
    if not isinstance(value, datetime):
        return "dates"
    if getattr(value, "nanosecond", 0):
        return _FINE
    return "times without a zone" if value.tzinfo is None else "times with a zone"
