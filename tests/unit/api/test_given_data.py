"""Columns and rows in each form that both clients take."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from sparktxlog.api.given_data import (
    arrow_table,
    check_is_frame,
    columns_given,
    is_row_list,
    kept_rows,
)
from sparktxlog.errors import InvalidRequestError, SchemaMismatchError
from sparktxlog.model.tables.table import Column

_WANTED = (
    Column(name="id", type="bigint", nullable=False),
    Column(name="price", type="decimal(10,2)"),
    Column(name="tags", type="array<struct<a:int,b:string>>"),
)


@pytest.mark.parametrize(
    "given",
    [
        "id bigint not null, price decimal(10, 2), tags array<struct<a:int, b:string>>",
        "`id` LONG NOT  NULL,price dec(10,2),\n tags array<struct<a:int,b:string>>",
        "id: bigint not null, price: decimal(10,2), tags: array<struct<a: int, b: string>>",
        {
            "id": "bigint not null",
            "price": "decimal(10,2)",
            "tags": "array<struct<a:int,b:string>>",
        },
        _WANTED,
        iter([Column(name="id", type="Long", nullable=False), *_WANTED[1:]]),
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("price", pa.decimal128(10, 2)),
                pa.field("tags", pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()}))),
            ]
        ),
        T.StructType()
        .add("id", T.LongType(), nullable=False)
        .add("price", T.DecimalType(10, 2))
        .add("tags", T.ArrayType(T.StructType().add("a", T.IntegerType()).add("b", "string"))),
    ],
)
def test_columns_mean_the_same_in_each_form(given: Any) -> None:
    assert columns_given(given) == _WANTED


@pytest.mark.parametrize("kind", ["char(5)", "varchar(3)", "array<struct<a:char(5)>>"])
def test_lengths_that_spark_keeps_beside_strings_are_refused(kind: str) -> None:
    """So that columns of a table's schema are refused as the same columns in DDL are."""
    metadata = {"__CHAR_VARCHAR_TYPE_STRING": kind}
    with pytest.raises(SchemaMismatchError) as of_struct:
        columns_given(T.StructType().add("c", "string", True, metadata))
    with pytest.raises(SchemaMismatchError) as of_ddl:
        columns_given(f"c {kind}")
    assert "nobody would check its length" in of_struct.value.message
    assert of_struct.value.hint == of_ddl.value.hint == "Use string."


def test_comments_are_taken_from_ddl_and_from_spark() -> None:
    wanted = (
        Column(name="id", type="bigint", nullable=False, comment="the customer's, a number"),
        Column(name="price", type="decimal(10,2)", comment='in "EUR"'),
        Column(name="comment", type="string"),
    )
    ddl = r"id long not null COMMENT 'the customer\'s, a number', price dec(10,2) comment "
    ddl += r'"in \"EUR\"", comment string'
    assert columns_given(ddl) == wanted
    struct = (
        T.StructType()
        .add("id", T.LongType(), False, metadata={"comment": "the customer's, a number"})
        .add("price", T.DecimalType(10, 2), metadata={"comment": 'in "EUR"'})
        .add("comment", "string")
    )
    assert columns_given(struct) == wanted
    assert columns_given(wanted) == wanted


def test_a_quoted_name_may_have_what_separates_others() -> None:
    (column, other) = columns_given("`a, ``b`` c` string, d int")
    assert (column.name, other.name) == ("a, `b` c", "d")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("id", "'id'"),
        ("id int,", "''"),
        ("id int, v hue", "'v'"),
        ({"v": "int int"}, "'v'"),
    ],
)
def test_wrong_ddl_is_named(given: Any, named: str) -> None:
    with pytest.raises(SchemaMismatchError, match=named):
        columns_given(given)


@pytest.mark.parametrize("given", [7, ["id"], None])
def test_other_forms_of_columns_are_refused_with_those_there_are(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="Arrow schema"):
        columns_given(given)


def test_rows_become_arrow_without_an_index() -> None:
    wanted = pa.table({"id": [1, 2]})
    frame = pd.DataFrame({"id": [0, 1, 2]})
    assert arrow_table(frame[frame["id"] > 0]).equals(wanted)
    assert arrow_table(wanted) is wanted
    assert arrow_table(wanted.to_batches()[0]).equals(wanted)
    assert arrow_table(wanted.to_reader()).equals(wanted)
    assert is_row_list([{"id": 1}]) and not is_row_list("id") and not is_row_list(wanted)
    with pytest.raises(InvalidRequestError, match="given as int"):
        arrow_table(7)
    twice = pd.DataFrame([[1, 2]], columns=["id", "id"])
    for unreadable in (pd.DataFrame({"mixed": [1, "x"]}), twice):
        with pytest.raises(InvalidRequestError, match="cannot be read as Arrow"):
            arrow_table(unreadable)


def test_a_stream_is_read_once_and_kept() -> None:
    wanted = pa.table({"id": [1, 2]})
    kept = kept_rows(wanted.to_reader())
    assert arrow_table(kept).equals(wanted) and arrow_table(kept).equals(wanted)
    rows = [{"id": 1}]
    assert kept_rows(rows) is rows and kept_rows(wanted) is wanted


def test_rows_of_pandas_that_change_after_the_call_stay_as_they_were() -> None:
    """A transaction keeps them until its end, a commit in the background until it is sent."""
    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, 1.5], "s": ["a", "b"]})
    kept = arrow_table(frame)
    before = kept.to_pylist()
    frame["n"] += 10
    frame.loc[0, "x"] = 9.0
    frame.loc[1, "s"] = "z"
    assert kept.to_pylist() == before
    assert arrow_table(frame)["n"].to_pylist() == [11, 12]


@pytest.mark.parametrize("given", [pd.Series([1]), pa.array([1]), pd.Index([1])])
def test_a_column_alone_is_no_set_of_rows(given: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        arrow_table(given)
    assert caught.value.definite


@pytest.mark.parametrize("given", [[{"id": 1}], pd.DataFrame({"id": [1]}), None])
def test_the_source_of_a_merge_is_a_frame_of_spark(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="source") as caught:
        check_is_frame(given)
    assert "createDataFrame" in caught.value.hint


@pytest.mark.parametrize("columns", [{"id": 1}, {1: "int"}, {"id": None}])
def test_names_and_types_of_columns_are_texts(columns: Any) -> None:
    with pytest.raises(InvalidRequestError, match="is given as") as caught:
        columns_given(columns)
    assert caught.value.fields["field"] == "columns"


DAY, NAIVE, AWARE = date(2024, 1, 1), datetime(2024, 1, 1, 5), datetime(2024, 1, 1, 5, tzinfo=UTC)
FINE = pd.Timestamp("2024-01-01 05:00:00.000000001")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([None, DAY, NAIVE], "dates .2024-01-01. and times without a zone"),
        ([DAY, AWARE], "dates .* and times with a zone"),
        ([NAIVE, AWARE], "times without a zone .* and times with a zone"),
        ([AWARE, NAIVE], "times with a zone .* and times without a zone"),
        ([FINE], "nanoseconds"),
        ([[DAY], None, [DAY, NAIVE]], "dates"),
        ([{"a": {"b": DAY}}, {"a": {"b": NAIVE}}], "dates"),
        ([np.array([DAY, NAIVE], dtype=object)], "dates"),
        ([[np.array([NAIVE, AWARE], dtype=object)]], "times without a zone"),
        ([{"a": DAY, "b": NAIVE}.values()], "dates"),
        ([pd.Timedelta(1, unit="ns")], "nanoseconds"),
        ([AWARE.timetz()], "times of a day with a zone"),
        ([2**64], "too large"),
    ],
)
def test_objects_of_which_arrow_would_keep_a_part_are_refused(values: list[Any], why: str) -> None:
    """A column of pandas without a type: Arrow takes that of the first value."""
    frame = pd.DataFrame({"id": range(len(values)), "c": pd.Series(values, dtype=object)})
    with pytest.raises(InvalidRequestError, match=why) as caught:
        arrow_table(frame)
    assert caught.value.fields["field"] == "rows" and caught.value.hint


def test_categories_keep_their_times_or_are_refused() -> None:
    def frame(*values: object) -> pd.DataFrame:
        kinds = pd.Index(values, dtype=object, tupleize_cols=False)
        return pd.DataFrame({"c": pd.Categorical.from_codes([0, -1, 1], categories=kinds)})

    assert arrow_table(frame(DAY, date(2024, 1, 2)))["c"].to_pylist()[:2] == [DAY, None]
    for wrong in ((DAY, datetime(2024, 1, 2, 5)), ((DAY,), (DAY, NAIVE))):
        with pytest.raises(InvalidRequestError, match="dates"):
            arrow_table(frame(*wrong))


def test_columns_of_pandas_that_have_arrows_types_are_taken_as_they_are() -> None:
    fine = pa.timestamp("ns")
    given = pa.table(
        {
            "m": pa.array([[("a", DAY)], None], pa.map_(pa.string(), pa.date32())),
            "l": pa.array([[FINE.value], []], pa.list_(fine)),
            "s": pa.array([{"at": FINE.value}, None], pa.struct([("at", fine)])),
        }
    )
    frame = given.to_pandas(types_mapper=pd.ArrowDtype)
    assert arrow_table(frame).equals(given)
    frame["m"] = pd.Series([pa.scalar([("a", DAY)], given["m"].type), None], dtype=object)
    assert arrow_table(frame).equals(given)


@pytest.mark.parametrize(
    "values",
    [
        [None, DAY],
        [NAIVE, pd.NaT],
        [AWARE, AWARE.astimezone()],
        [{"a": DAY, "b": NAIVE, "c": [AWARE]}, None],
        [pd.Timestamp(NAIVE), NAIVE],
        [pd.NA, "x"],
        [pd.NA, [DAY], [DAY, None]],
        [AWARE.time(), None],
        [pd.Timedelta(1, unit="us"), pd.NaT],
    ],
)
def test_objects_of_one_kind_are_taken(values: list[Any]) -> None:
    found = arrow_table(pd.DataFrame({"c": pd.Series(values, dtype=object)}))["c"].to_pylist()
    wanted = [None if isinstance(v, type(pd.NaT)) or v is pd.NA else v for v in values]
    assert found == wanted
