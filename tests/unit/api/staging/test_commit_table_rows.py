"""Rows that are no DataFrame of Spark, for a commit table: they get the types of its columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.support.arrow_types import UserType

from sparktxlog.api.staging.commit_table_rows import rows_of
from sparktxlog.errors import InvalidRequestError, InvalidRowsError, SchemaMismatchError

NAIVE = datetime(2024, 3, 31, 2, 30)
COLUMNS = T.StructType(
    [
        T.StructField("id", T.IntegerType()),
        T.StructField("note", T.StringType()),
        T.StructField("price", T.DecimalType(10, 2)),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("plain", T.TimestampNTZType()),
        T.StructField("times", T.ArrayType(T.TimestampType())),
        T.StructField("parts", T.MapType(T.StringType(), T.DoubleType())),
        T.StructField("any", T.VariantType()),
    ]
)


def framed(rows: Any) -> pa.Table:
    return rows_of(rows, "facts", COLUMNS)


def test_rows_of_the_same_columns_are_taken_in_any_order_of_these() -> None:
    rows = [{"id": 1, "note": None}, {"note": "x", "id": None}]
    assert framed(rows).to_pylist() == rows
    assert framed([]).num_columns == 0


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1}, {"id": 2, "note": "lost"}],
        [{"id": 1, "note": "x"}, {"id": 2}],
        [{"id": 1}, (2,)],
    ],
)
def test_a_row_with_other_columns_is_refused(rows: list[Any]) -> None:
    with pytest.raises(SchemaMismatchError, match="row 1 has other columns") as caught:
        framed(rows)
    assert caught.value.fields == {"table": "facts", "row": 1} and caught.value.definite


def test_a_time_after_a_date_keeps_its_time_where_the_column_has_no_type() -> None:
    with pytest.raises(InvalidRequestError, match=r"dates .* and times without a zone"):
        framed([{"unknown": date(2024, 3, 31)}, {"unknown": NAIVE}])


@pytest.mark.parametrize("column", ["parts", "unknown"])
def test_a_map_that_has_a_key_twice_is_refused(column: str) -> None:
    maps = pa.array([[("a", 1.0)], [("a", 1.0), ("a", 2.0)]], pa.map_(pa.string(), pa.float64()))
    with pytest.raises(InvalidRowsError, match="row 1 has the key 'a' twice") as caught:
        framed(pa.table({column: maps}))
    assert (caught.value.fields["table"], caught.value.fields["column"]) == ("facts", column)


DAYS = pa.array([date(2024, 3, 31)])
TWO = pa.array([0, 2], pa.int32())


@pytest.mark.parametrize("column", ["at", "parts", "note", "unknown"])
@pytest.mark.parametrize(
    "values",
    [
        pa.RunEndEncodedArray.from_arrays([1], pa.array([NAIVE])),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [DAYS]),
        pa.ListViewArray.from_arrays([0], [1], DAYS),
        pa.ExtensionArray.from_storage(UserType(), pa.array(["a"])),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16))),
        pa.array([[(DAYS[0].as_py(), 1)]], pa.map_(pa.date64(), pa.int64())),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    ],
    ids=lambda values: str(values.type)[:30],
)
def test_types_that_spark_does_not_take_are_refused(column: str, values: pa.Array) -> None:
    with pytest.raises(SchemaMismatchError, match=f"in column '{column}'") as caught:
        framed(pa.table({column: values}))
    fields = caught.value.fields
    assert (fields["table"], fields["column"]) == ("facts", column) and caught.value.hint


@pytest.mark.parametrize(
    "maps",
    [
        pa.MapArray.from_arrays(TWO, pa.array(["a", "b"]).dictionary_encode(), pa.array([1, 2])),
        pa.array([[(1, 1), (2, 2)]], pa.map_(pa.decimal32(5, 1), pa.int64())),
        pa.array([[(1, 1), (2, 2)]], pa.map_(pa.decimal64(12, 1), pa.int64())),
    ],
    ids=lambda maps: str(maps.type.key_type)[:20],
)
def test_keys_of_each_type_that_spark_takes_are_taken(maps: pa.Array) -> None:
    assert framed(pa.table({"unknown": maps})).column(0).chunk(0).equals(maps)


@pytest.mark.parametrize("column", ["parts", "unknown"])
def test_null_in_a_dictionary_of_keys_is_refused(column: str) -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", "b", None]))
    maps = pa.MapArray.from_arrays(TWO, keys, pa.array([1.0, 2.0]))
    with pytest.raises(SchemaMismatchError, match="has NULL") as caught:
        framed(pa.table({column: maps}))
    assert caught.value.fields["column"] == column


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns"), pa.time64("ns")]
)
def test_digits_below_a_microsecond_are_refused_in_a_new_column(kind: pa.DataType) -> None:
    def lists(*numbers: int) -> pa.Table:
        values = pa.array([list(numbers)], pa.list_(pa.int64())).cast(pa.list_(kind))
        return pa.table({"unknown": values})

    item = framed(lists(1000)).schema.field("unknown").type.value_type
    assert item.unit == "us" and getattr(item, "tz", None) == getattr(kind, "tz", None)
    with pytest.raises(SchemaMismatchError, match="would lose data") as caught:
        framed(lists(1000, 1))
    assert caught.value.fields["column"] == "unknown"


def test_no_rows_get_the_types_of_their_columns_too() -> None:
    rows = framed(pa.table({"id": pa.array([], pa.uint8()).dictionary_encode()}))
    assert rows.schema.field("id").type == pa.int32()


def test_texts_and_bytes_of_polars_are_taken_in_a_new_column() -> None:
    views = pa.array([[{"a": "x"}]], pa.list_(pa.struct([("a", pa.string_view())]), 1))
    found = framed(pa.table({"unknown": views, "more": pa.array([b"x"], pa.binary_view())}))
    assert found.schema.types == [pa.list_(pa.struct([("a", pa.string())]), 1), pa.binary()]
    assert found.to_pylist() == [{"unknown": [{"a": "x"}], "more": b"x"}]


def test_numbers_of_numpy_that_no_type_holds_are_refused_by_name() -> None:
    with pytest.raises(SchemaMismatchError, match="no common type") as caught:
        framed([{"unknown": date(2024, 3, 31)}, {"unknown": np.datetime64("2024-03-31T05")}])
    assert caught.value.fields["column"] == "unknown"


@pytest.mark.parametrize("values", [(1, "x"), (object(),), (2**70,), ("\ud800",)])
@pytest.mark.parametrize("column", ["id", "any", "unknown"])
def test_values_that_fit_no_type_are_refused(column: str, values: tuple[Any, ...]) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        framed([{column: value} for value in values])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("column", "value", "kind", "found"),
    [
        ("ID", 7, pa.int32(), 7),
        ("price", 2, pa.decimal128(10, 2), Decimal("2.00")),
        ("price", Decimal("2.5"), pa.decimal128(10, 2), Decimal("2.50")),
        ("day", date(2024, 1, 1), pa.date32(), date(2024, 1, 1)),
        ("parts", {"x": 1}, pa.map_(pa.string(), pa.float64()), [("x", 1.0)]),
        ("at", NAIVE, pa.timestamp("us"), NAIVE),
        ("plain", NAIVE, pa.timestamp("us"), NAIVE),
        ("times", [NAIVE, None], pa.list_(pa.field("element", pa.timestamp("us"))), [NAIVE, None]),
        (
            "at",
            datetime(2024, 1, 1, tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            datetime(2024, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_values_get_the_type_of_their_column(
    column: str, value: object, kind: pa.DataType, found: object
) -> None:
    table = framed([{column: value}, {column: None}])
    assert table.schema.types == [kind]
    assert table[column].to_pylist() == [found, None]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("id", [2**31]),
        ("id", [1.0]),
        ("price", [Decimal("1.005")]),
        # Arrow cuts off the time, and takes the one without a zone for UTC.
        ("day", [date(2024, 1, 1), datetime(2024, 1, 1, 5, tzinfo=UTC)]),
        ("at", [NAIVE, datetime(2024, 1, 1, tzinfo=UTC)]),
        ("plain", [datetime(2024, 1, 1, tzinfo=UTC)]),
    ],
)
def test_a_value_that_would_be_another_one_is_refused(column: str, values: list[Any]) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        framed([{column: value} for value in values])
    assert (caught.value.fields["table"], caught.value.fields["column"]) == ("facts", column)


def test_arrow_rows_get_the_types_that_keep_their_values() -> None:
    found = framed(
        pa.table(
            {
                "id": pa.array([1], pa.uint64()),
                "price": pa.array([3], pa.int64()),
                "at": pa.array([NAIVE], pa.timestamp("ns")),
                "times": pa.array([[NAIVE]], pa.large_list(pa.timestamp("ms"))),
                "other": pa.array([1], pa.int64()),
            }
        )
    )
    assert found.schema.types == [
        pa.int32(),
        pa.decimal128(10, 2),
        pa.timestamp("us"),
        pa.list_(pa.field("element", pa.timestamp("us"))),
        pa.int64(),
    ]
    assert found["times"].to_pylist() == [[NAIVE]]
    with pytest.raises(SchemaMismatchError, match="not in range"):
        framed(pa.table({"id": [2**40]}))
    # Delta says of these whether it takes them.
    assert framed(pa.table({"day": ["2024-01-01"]})).schema.types == [pa.string()]


def test_rows_of_pandas_lose_no_part_of_a_second() -> None:
    fine = pd.DataFrame({"at": [pd.Timestamp("2024-01-01 00:00:00.123456")]})
    assert framed(fine).schema.types == [pa.timestamp("us")]
    with pytest.raises(SchemaMismatchError, match="would lose data"):
        framed(pd.DataFrame({"at": [pd.Timestamp("2024-01-01 00:00:00.123456789")]}))
