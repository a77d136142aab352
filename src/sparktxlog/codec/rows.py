"""JSON rows to Arrow and back, without losing a digit.

    type                     JSON
    boolean                  true, false
    tinyint … bigint         number, or string of digits (JavaScript loses digits above 2^53)
    float, double            number, "NaN", "Infinity", "-Infinity", or {"$double": "NaN"} and so
                             on, which no other type takes
    decimal(p,s)             string, or a number without fraction
    string                   string
    binary                   base64, or {"$base64": "…"}, which no other type takes
    date                     "2024-01-31"
    timestamp                "2024-01-31T10:00:00.123456+01:00"; a zone is required
    timestamp_ntz            "2024-01-31T10:00:00.123456"; a zone is refused
    array                    array
    struct                   object
    map                      array of [key, value]; an object where keys are strings

A converter per type is built once and kept; a column is converted by one list comprehension and
one call into Arrow.  What does not fit exactly is refused, never rounded.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sparktxlog.codec.arrow import ddl_type
from sparktxlog.errors import InvalidRowsError, SchemaMismatchError
from sparktxlog.lazy_arrow import pa

_Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NTZ = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without zone
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
#: First microsecond of year 1 and last of year 9999, the range of Spark's timestamps.
_MIN_MICROS = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX_MICROS = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND
#: Bits of a whole number that is greater than all doubles, and than all decimals.
_MOST_BITS = 1024
_MAX_DEPTH = 32

_DIGITS = re.compile(r"-?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,60}(\.[0-9]{1,60})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.([0-9]+))?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint that names the nearest of the known names, or all of them."""
    lowered = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    if found:
        return f"Did you mean {lowered[found[0]]!r}?"
    return f"Known: {', '.join(known[:50])}." if known else ""


def check_columns(table: str, given: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Raise SchemaMismatchError unless both name the same columns, in whatever order.

    Args:
        table: For the text.
        given: Names in the data.
        expected: Names the operation needs.
        where: For the text: `row 3`, `the Arrow stream`.
    """
    for name in given:
        if name not in expected:
            raise SchemaMismatchError(
                f"{where} has column {str(name)[:140]!r}, which table {table!r} does not take",
                hint=nearest(str(name), [item for item in expected if item not in given])
                if set(expected) - set(given)
                else f"Leave it out; columns are {', '.join(expected)}.",
                table=table,
                column=str(name)[:140],
            )
    for name in expected:
        if name not in given:
            raise SchemaMismatchError(
                f"table {table!r} has column {name!r}, {where} has not",
                hint="Give every column; write null if there is no value.",
                table=table,
                column=name,
            )


def rows_to_arrow(table: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return decoded JSON rows as a table of exactly `schema`.

    Args:
        table: Name of the table, for errors.
        rows: One mapping per row with exactly the schema's columns.
        schema: Columns wanted; nullability is enforced.

    Raises:
        SchemaMismatchError: Unknown or missing column, or a value of another type; fields
            `table`, `column`, `row` (0-based), `value`, `expected` (definite).
        InvalidRowsError: NULL in a column that is not nullable (definite).
    """
    names = schema.names
    wanted = set(names)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(
                f"table {table!r}: row {index} is not an object", table=table, row=index
            )
        if row.keys() != wanted:
            check_columns(table, list(row), names, f"row {index}")
    arrays = []
    for name, kind, nullable, convert in _plan(schema):
        values = [row[name] for row in rows]
        try:
            values = [None if value is None else convert(value) for value in values]
            array = pa.array(values, kind)
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            raise _wrong_value(table, name, kind, convert, [row[name] for row in rows]) from None
        if not nullable and array.null_count:
            raise InvalidRowsError(
                f"table {table!r}: row {values.index(None)} has NULL in {name!r}, which takes none",
                hint="Key columns and columns declared NOT NULL need a value.",
                table=table,
                column=name,
                row=values.index(None),
            )
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=1024)
def _plan(schema: pa.Schema) -> tuple[tuple[str, pa.DataType, bool, _Convert], ...]:
    return tuple((f.name, f.type, f.nullable, converter_of(f.type)) for f in schema)


def _wrong_value(
    table: str, column: str, kind: pa.DataType, convert: _Convert, values: list[Any]
) -> SchemaMismatchError:
    """Find the first value that does not convert, and say why."""
    for index, value in enumerate(values):
        if value is None:
            continue
        try:
            pa.array([convert(value)], kind)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            return SchemaMismatchError(
                f"table {table!r}: row {index} has {_shown(value)} in {column!r}, which takes "
                f"{type_name(kind)}: {error}",
                hint=_HINTS.get(type_name(kind).partition("(")[0], ""),
                table=table,
                column=column,
                row=index,
                value=_shown(value),
                expected=type_name(kind),
            )
    return SchemaMismatchError(
        f"table {table!r}: the values of {column!r} do not fit {type_name(kind)}",
        table=table,
        column=column,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


#: Name of the one field of a value that says of which type it is: a text would fit a string, too.
_BASE64, _DOUBLE = "$base64", "$double"
_HINTS = {
    **dict.fromkeys(
        ("tinyint", "smallint", "int", "bigint"), "Give a whole number, or a string of digits."
    ),
    "decimal": 'Give a string such as "12.50"; a JSON number with a fraction may lose digits.',
    "timestamp": 'Give ISO 8601 with a zone, such as "2024-01-31T10:00:00.123456Z".',
    "timestamp_ntz": 'Give ISO 8601 without a zone, such as "2024-01-31T10:00:00.123456".',
    "date": 'Give "2024-01-31".',
    "binary": "Give base64.",
    "double": 'Give a number, "NaN", "Infinity" or "-Infinity".',
    "float": 'Give a number, "NaN", "Infinity" or "-Infinity".',
    "map": "Give an array of [key, value] pairs.",
}


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name of an Arrow type for messages, else Arrow's own."""
    try:
        return ddl_type(kind)
    except SchemaMismatchError:
        return str(kind)


@lru_cache(maxsize=4096)
def converter_of(kind: pa.DataType, depth: int = 0) -> _Convert:
    """Return the function from a JSON value (not null) to what `pa.array` takes exactly.

    It raises ValueError, TypeError or OverflowError for a value that is of no such type.
    """
    if depth > _MAX_DEPTH:
        raise SchemaMismatchError(f"types nest at most {_MAX_DEPTH} deep")
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_signed_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _float32 if kind.bit_width == 32 else _float64
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_string(kind):
        return _string
    if pa.types.is_binary(kind):
        return _binary
    if pa.types.is_date32(kind):
        return _days
    if pa.types.is_timestamp(kind):
        return _micros if kind.tz else _micros_ntz
    if pa.types.is_map(kind):
        return _map(kind, depth)
    if pa.types.is_list(kind):
        return _list(kind, depth)
    if pa.types.is_struct(kind):
        return _struct(kind, depth)
    raise SchemaMismatchError(
        f"rows of the type {kind} cannot be sent as JSON", hint="Send them as Arrow."
    )


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError("expected true or false")


def _integer(bits: int) -> _Convert:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is not int:
            if type(value) is not str or not _DIGITS.fullmatch(value):
                raise ValueError("expected a whole number")
            value = int(value)
        if not low <= value <= high:
            raise ValueError(f"it is outside {low} … {high}")
        return int(value)

    return convert


def _float64(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        number = float(value)
        if int(number) != value:
            raise ValueError("a double does not hold this whole number exactly")
        return number
    if type(value) is dict and value.keys() == {_DOUBLE}:
        value = value[_DOUBLE]
    if type(value) is str and value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    raise ValueError("expected a number")


def _float32(value: Any) -> float:
    number = _float64(value)
    if math.isfinite(number) and abs(number) >= 3.4028235677973366e38:
        raise ValueError("it is outside the range of a float")
    if type(value) is int and abs(value) > 1 << 24 and float(_as_float32(number)) != value:
        raise ValueError("a float does not hold this whole number exactly")
    return number


def _as_float32(number: float) -> float:
    return float(pa.scalar(number, pa.float32()).as_py())


def _decimal(precision: int, scale: int) -> _Convert:
    def convert(value: Any) -> Decimal:
        if type(value) is int:
            value = str(value)
        if type(value) is not str or not _DECIMAL.fullmatch(value):
            raise ValueError("expected a string of digits")
        whole, _, fraction = value.lstrip("+-").partition(".")
        if len(fraction.rstrip("0")) > scale:
            raise ValueError(f"it has more than {scale} digits after the point")
        if len(whole.lstrip("0")) > precision - scale:
            raise ValueError(f"it has more than {precision - scale} digits before the point")
        sign = "-" if value.startswith("-") else ""
        # Not one digit more than needed: Arrow would count it.
        return Decimal(f"{sign}{whole}.{fraction[:scale]}")

    return convert


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("expected a string")
    return value


def _binary(value: Any) -> bytes:
    if type(value) is dict and value.keys() == {_BASE64}:
        value = value[_BASE64]
    if type(value) is not str:
        raise ValueError("expected base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not base64") from None


def parse_date(value: Any) -> int:
    """Return the proleptic ordinal of an ISO date; raises ValueError."""
    if type(value) is not str or not _DATE.fullmatch(value):
        raise ValueError("expected an ISO 8601 date")
    return date.fromisoformat(value).toordinal()


def parse_timestamp(value: str, *, zone: bool) -> str:
    """Return a moment as Spark's literal, in UTC if `zone`; raises ValueError.

    A date is its midnight, as in Spark's literals.
    """
    found, moment = _moment(f"{value} 00:00" if _DATE.fullmatch(value) else value)
    if zone:
        moment = moment.astimezone(UTC) if found else moment.replace(tzinfo=UTC)
    elif found:
        raise ValueError("it has a zone")
    return moment.isoformat(sep=" ")


def _days(value: Any) -> int:
    return parse_date(value) - _EPOCH_DAY


def _micros(value: Any) -> int:
    zone, moment = _moment(value)
    if not zone:
        raise ValueError("it has no zone")
    micros = (moment - _EPOCH) // _MICROSECOND
    if not _MIN_MICROS <= micros <= _MAX_MICROS:
        raise ValueError("it is outside the years 1 … 9999 UTC")
    return micros


def _micros_ntz(value: Any) -> int:
    zone, moment = _moment(value)
    if zone:
        raise ValueError("it has a zone")
    return (moment - _EPOCH_NTZ) // _MICROSECOND


def _moment(value: Any) -> tuple[str | None, datetime]:
    match = _TIMESTAMP.fullmatch(value) if type(value) is str else None
    if match is None:
        raise ValueError("expected an ISO 8601 date and time")
    if match[1] is not None and len(match[1]) > 6:
        raise ValueError("it has more than 6 digits of a second")
    return match[2], datetime.fromisoformat(value)


def _list(kind: pa.DataType, depth: int) -> _Convert:
    convert = converter_of(kind.value_type, depth + 1)
    nullable = kind.value_field.nullable

    def convert_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("expected an array")
        if not nullable and None in value:
            raise ValueError("its elements may not be null")
        return [None if item is None else convert(item) for item in value]

    return convert_list


def _struct(kind: pa.DataType, depth: int) -> _Convert:
    fields = [(f.name, f.nullable, converter_of(f.type, depth + 1)) for f in kind]
    names = {name for name, _, _ in fields}

    def convert_struct(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError("expected an object")
        if value.keys() != names:
            extra = sorted(set(value) - names)
            if extra:
                raise ValueError(f"it has no field {extra[0][:80]!r}")
            raise ValueError(f"the field {min(names - set(value))!r} is missing")
        result: dict[str, Any] = {}
        for name, nullable, convert in fields:
            item = value[name]
            if item is None:
                if not nullable:
                    raise ValueError(f"the field {name!r} may not be null")
                result[name] = None
            else:
                result[name] = convert(item)
        return result

    return convert_struct


def _map(kind: pa.DataType, depth: int) -> _Convert:
    convert_key = converter_of(kind.key_type, depth + 1)
    convert_item = converter_of(kind.item_type, depth + 1)
    text_keys = pa.types.is_string(kind.key_type)
    nullable = kind.item_field.nullable

    def convert_map(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is dict and text_keys:
            value = [list(pair) for pair in value.items()]
        if type(value) is not list:
            raise ValueError("expected an array of [key, value] pairs")
        pairs = []
        for pair in value:
            if type(pair) is not list or len(pair) != 2:
                raise ValueError("each entry is an array of key and value")
            if pair[0] is None:
                raise ValueError("a key may not be null")
            if pair[1] is None and not nullable:
                raise ValueError("its values may not be null")
            item = None if pair[1] is None else convert_item(pair[1])
            pairs.append((convert_key(pair[0]), item))
        return pairs

    return convert_map


def to_json(value: Any) -> Any:
    """Return a Python value as the JSON value of the table above.

    Args:
        value: What `to_pylist` yields or a user's row holds; nested values too.

    Raises:
        SchemaMismatchError: The value has no JSON form (definite).
    """
    if value is None or value is True or value is False or type(value) is str:
        return value
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        if value.bit_length() > _MOST_BITS:
            raise SchemaMismatchError(
                f"a whole number of {value.bit_length():,} bits fits no column",
                hint="Keep it as a string.",
            )
        return int(value)  # nodes read all digits; as a text it would fit a string, too
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _special(value)
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else _special(_float_of(value))
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_BASE64: base64.b64encode(value).decode("ascii")}
    return _nested_to_json(value)


def _float_of(value: Decimal) -> float:
    return math.nan if value.is_nan() else float(value)


def _special(value: float) -> dict[str, str]:
    """Return a number that is not finite; pandas has NaN for a text that is missing."""
    text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {_DOUBLE: text}


def _utc(value: datetime) -> datetime:
    """Return a time in UTC, if it has a zone and a year there.

    Raises:
        SchemaMismatchError: It is the NaT of pandas (definite).
    """
    if value != value:
        raise SchemaMismatchError(
            f"a {type(value).__name__} is no time", hint="Write None where there is no value."
        )
    with suppress(OverflowError):  # then who reads it says in which row and column it is
        return value if value.tzinfo is None else value.astimezone(UTC)
    return value


def _nested_to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):  # a map
            return [[to_json(name), to_json(item)] for name, item in value.items()]
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):  # Arrow's maps too: pairs of key and value
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # numpy: arrays, which pandas has for lists, and scalars
        found = value.tolist()
        if type(found) is not type(value):
            return to_json(found)
    raise SchemaMismatchError(
        f"a {type(value).__name__} has no JSON form", hint="Send the rows as an Arrow table."
    )
