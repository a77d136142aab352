"""JSON rows to Arrow and back."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparktxlog.codec.rows import rows_to_arrow, to_json
from sparktxlog.errors import InvalidRowsError, SchemaMismatchError

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 2),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "array": pa.list_(pa.int64()),
    "struct": pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())]),
    "map": pa.map_(pa.string(), pa.decimal128(38, 4)),
    "map_ints": pa.map_(pa.int32(), pa.string()),
    "nested": pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.date32())))])),
}


def convert(kind: str, value: Any) -> Any:
    schema = pa.schema([("c", TYPES[kind])])
    return rows_to_arrow("t", [{"c": value}], schema)["c"][0].as_py()


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("boolean", True, True),
        ("tinyint", -128, -128),
        ("bigint", 9007199254740993, 9007199254740993),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("double", 1, 1.0),
        ("double", -0.0, -0.0),
        ("double", "Infinity", math.inf),
        ("double", "-Infinity", -math.inf),
        ("float", 0.5, 0.5),
        ("float", 3.4028235677973362e38, 3.4028234663852886e38),
        ("decimal", "12345678.90", Decimal("12345678.90")),
        ("decimal", "1.5000", Decimal("1.50")),
        ("decimal", "-0.5", Decimal("-0.50")),
        ("decimal", 7, Decimal("7.00")),
        ("string", "ü\x00😀", "ü\x00😀"),
        ("binary", "AP8=", b"\x00\xff"),
        ("date", "0001-01-01", date(1, 1, 1)),
        (
            "timestamp",
            "2024-01-31T10:00:00.123456+01:00",
            datetime(2024, 1, 31, 9, 0, 0, 123456, tzinfo=UTC),
        ),
        (
            "timestamp",
            "2024-01-31T10:00:00.5Z",
            datetime(2024, 1, 31, 10, 0, 0, 500000, tzinfo=UTC),
        ),
        ("timestamp", "1890-01-31 10:00-0530", datetime(1890, 1, 31, 15, 30, tzinfo=UTC)),
        ("timestamp_ntz", "2024-01-31T10:00:00.000001", datetime(2024, 1, 31, 10, 0, 0, 1)),
        ("array", [1, None, "3"], [1, None, 3]),
        ("array", [], []),
        ("struct", {"a": 1, "b": None}, {"a": 1, "b": None}),
        ("map", {"k": "1.5"}, [("k", Decimal("1.5000"))]),
        ("map", [["k", None]], [("k", None)]),
        ("map_ints", [[1, "x"]], [(1, "x")]),
        ("nested", [{"m": {"k": ["2024-01-31"]}}], [{"m": [("k", [date(2024, 1, 31)])]}]),
        ("bigint", None, None),
        ("struct", None, None),
    ],
)
def test_values(kind: str, value: Any, wanted: Any) -> None:
    assert convert(kind, value) == wanted


def test_nan_is_a_number_and_no_null() -> None:
    assert math.isnan(convert("double", "NaN"))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("boolean", 1, "true or false"),
        ("boolean", "true", "true or false"),
        ("tinyint", 128, "outside"),
        ("bigint", 2**63, "outside"),
        ("bigint", 1.0, "whole number"),
        ("bigint", True, "whole number"),
        ("bigint", "1e3", "whole number"),
        ("bigint", " 1", "whole number"),
        ("bigint", "١", "whole number"),
        ("double", True, "number"),
        ("double", "1.5", "number"),
        ("double", 2**53 + 1, "exactly"),
        ("float", 1e300, "outside"),
        ("float", -3.4028235677973366e38, "outside"),  # half-way: Arrow makes it infinite
        ("float", 2**24 + 1, "exactly"),
        ("decimal", 1.5, "string of digits"),
        ("decimal", "1.555", "more than 2 digits after"),
        ("decimal", "123456789.0", "more than 8 digits before"),
        ("decimal", "1e5", "string of digits"),
        ("decimal", "NaN", "string of digits"),
        ("string", 5, "string"),
        ("binary", "AP8", "base64"),
        ("binary", "A P8=", "base64"),
        ("date", "2024-02-30", "day"),
        ("date", "20240131", "date"),
        ("timestamp", "2024-01-31T10:00:00", "no zone"),
        ("timestamp", "2024-01-31T10:00:00.1234567Z", "6 digits"),
        ("timestamp", 1706695200, "ISO 8601"),
        ("timestamp", "2024-01-31", "ISO 8601"),
        ("timestamp", "0001-01-01T00:00:00+01:00", "outside"),
        ("timestamp_ntz", "2024-01-31T10:00:00Z", "has a zone"),
        ("array", {"a": 1}, "array"),
        ("array", [1, "x"], "whole number"),
        ("struct", {"a": 1}, "'b' is missing"),
        ("struct", {"a": 1, "b": "x", "z": 1}, "no field 'z'"),
        ("struct", {"a": None, "b": "x"}, "'a' may not be null"),
        ("map", [[None, "1"]], "key may not be null"),
        ("map", [["k"]], "key and value"),
        ("map_ints", {"1": "x"}, "pairs"),
    ],
)
def test_what_does_not_fit_is_refused_by_row_and_column(kind: str, value: Any, why: str) -> None:
    schema = pa.schema([("c", TYPES[kind]), ("other", pa.int64())])
    rows = [{"c": None, "other": 1}, {"c": value, "other": 2}]
    with pytest.raises(SchemaMismatchError, match=why) as caught:
        rows_to_arrow("orders", rows, schema)
    fields = caught.value.fields
    assert (fields["table"], fields["column"], fields["row"]) == ("orders", "c", 1)
    assert fields["value"] == repr(value) and fields["expected"]


def test_null_in_a_column_that_takes_none() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(InvalidRowsError) as caught:
        rows_to_arrow("orders", [{"id": 1}, {"id": None}], schema)
    assert caught.value.fields == {"table": "orders", "column": "id", "row": 1}


@pytest.mark.parametrize(
    ("row", "column", "hint"),
    [
        ({"id": 1, "name": "x", "nmae": "x"}, "nmae", "Leave it out"),
        ({"id": 1, "nmae": "x"}, "nmae", "Did you mean 'name'?"),
        ({"id": 1}, "name", "null if there is no value"),
        ({"ID": 1, "name": "x"}, "ID", "Did you mean 'id'?"),
    ],
)
def test_unknown_and_missing_columns(row: dict[str, Any], column: str, hint: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(SchemaMismatchError) as caught:
        rows_to_arrow("orders", [{"id": 1, "name": "x"}, row], schema)
    assert caught.value.fields["column"] == column
    assert "row 1" in caught.value.message
    assert hint in caught.value.hint


def test_a_row_that_is_no_object() -> None:
    with pytest.raises(SchemaMismatchError, match="row 0 is not an object"):
        rows_to_arrow("orders", [[1]], pa.schema([("id", pa.int64())]))  # type: ignore[list-item]


VALUES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal": st.decimals(-99999999, 99999999, places=2),
    "string": st.text(),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "array": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    "map_ints": st.dictionaries(st.integers(-5, 5), st.none() | st.text()).map(
        lambda d: list(d.items())
    ),
}


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", sorted(VALUES))
def test_every_value_comes_back_through_json(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=5))
    schema = pa.schema([("c", TYPES[kind])])
    table = pa.table({"c": pa.array(values, TYPES[kind])}, schema=schema)
    rows = msgspec.json.decode(msgspec.json.encode(to_json(table.to_pylist())))
    again = rows_to_arrow("t", rows, schema)
    assert str(again.to_pylist()) == str(table.to_pylist())


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"binary"}))
def test_bytes_are_no_value_of_another_type(kind: str) -> None:
    """As base64 alone they would be the text of a string column."""
    rows = to_json([{"c": b"abc"}])
    assert rows_to_arrow("t", rows, pa.schema([("c", pa.binary())])).to_pylist() == [{"c": b"abc"}]
    with pytest.raises(SchemaMismatchError) as caught:
        rows_to_arrow("t", rows, pa.schema([("c", TYPES[kind])]))
    assert caught.value.fields["column"] == "c"


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"double", "float"}))
@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.nan, "nan"), (-math.inf, "-inf"), (Decimal("NaN"), "nan"), (Decimal("sNaN"), "nan")],
)
def test_what_is_no_number_is_no_text(kind: str, value: Any, shown: str) -> None:
    """pandas has NaN for a text that is missing."""
    rows = msgspec.json.decode(msgspec.json.encode(to_json([{"c": value}])))
    for of_floats in ("double", "float"):
        found = rows_to_arrow("t", rows, pa.schema([("c", TYPES[of_floats])])).to_pylist()
        assert str(found[0]["c"]) == shown
    with pytest.raises(SchemaMismatchError) as caught:
        rows_to_arrow("t", rows, pa.schema([("c", TYPES[kind])]))
    assert caught.value.fields["column"] == "c"


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), 2**63, 10**38 - 1, 2**1023])
def test_a_large_whole_number_is_a_number(value: int) -> None:
    """As digits in quotes it would be the text of a string column, and no value of a double."""
    rows = msgspec.json.decode(msgspec.json.encode(to_json([{"c": value}])))
    assert rows == [{"c": value}]
    fitting = [
        name
        for name, kind in TYPES.items()
        if name in VALUES and _taken(rows, kind) == [{"c": value}]
    ]
    wanted = ["bigint"] * (-(2**63) <= value < 2**63)
    wanted += ["double"] * (int(float(value)) == value)
    assert [name for name in fitting if name in ("bigint", "double", "string")] == wanted
    with pytest.raises(SchemaMismatchError, match="expected a string"):
        rows_to_arrow("t", rows, pa.schema([("c", pa.string())]))
    if "double" not in wanted:
        with pytest.raises(SchemaMismatchError, match="does not hold this whole number exactly"):
            rows_to_arrow("t", rows, pa.schema([("c", pa.float64())]))


def _taken(rows: Any, kind: pa.DataType) -> Any:
    try:
        return rows_to_arrow("t", rows, pa.schema([("c", kind)])).to_pylist()
    except SchemaMismatchError:
        return None


def test_a_whole_number_that_fits_no_column_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="16,610 bits fits no column"):
        to_json([{"c": -(10**5000)}])


def test_arrays_of_numpy_are_lists_and_no_scalars() -> None:
    """pandas has them for the lists of a Parquet file."""
    rows = to_json([{"c": np.array(given)} for given in ([1], [1, 2], [])])
    found = rows_to_arrow("t", rows, pa.schema([("c", TYPES["array"])])).to_pylist()
    assert [row["c"] for row in found] == [[1], [1, 2], []]


def test_a_time_of_pandas_that_is_none_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="Write None"):
        to_json([{"c": pd.NaT}])


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_a_time_without_a_year_in_utc_is_refused_by_row_and_column(moment: datetime) -> None:
    hours = 14 if moment == datetime.min else -14
    rows = to_json([{"at": moment.replace(tzinfo=timezone(timedelta(hours=hours)))}])
    with pytest.raises(SchemaMismatchError, match="outside the years 1 … 9999 UTC") as caught:
        rows_to_arrow("t", rows, pa.schema([("at", pa.timestamp("us", "UTC"))]))
    assert caught.value.fields["column"] == "at"
