"""What fits a table: columns and types, without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import _check_arrow_table_timestamps_localize, from_arrow_schema

from sparktxlog.api.schema import (
    arrow_frame,
    check_fit,
    columns_of,
    key_values,
    struct_of,
    widens,
)
from sparktxlog.api.writing.schema_merge import change_table_to_fit, change_to_fit
from sparktxlog.codec.submits.validation import required_columns
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    NameTakenError,
    SchemaMismatchError,
    StaleSchemaError,
)
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

ORDERS = TableDefinition(
    name="orders",
    columns=(
        Column(name="Id", type="bigint"),
        Column(name="amount", type="decimal(10,2)"),
        Column(name="note", type="string", nullable=False),
    ),
    keys=("Id",),
)


def _struct(**types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        (T.IntegerType(), T.LongType(), True),
        (T.LongType(), T.IntegerType(), False),
        (T.IntegerType(), T.FloatType(), False),
        (T.ShortType(), T.FloatType(), True),
        (T.IntegerType(), T.DoubleType(), True),
        (T.LongType(), T.DoubleType(), False),
        (T.FloatType(), T.DoubleType(), True),
        (T.IntegerType(), T.DecimalType(12, 2), True),
        (T.IntegerType(), T.DecimalType(11, 2), False),
        (T.DecimalType(5, 2), T.DecimalType(10, 2), True),
        (T.DecimalType(5, 2), T.DecimalType(10, 1), False),
        (T.DecimalType(10, 2), T.DecimalType(10, 4), False),
        (T.NullType(), T.StringType(), True),
        (T.StringType(), T.IntegerType(), False),
        (T.IntegerType(), T.StringType(), False),
        (T.TimestampType(), T.TimestampNTZType(), False),
        (T.DateType(), T.TimestampType(), False),
        (T.ArrayType(T.IntegerType()), T.ArrayType(T.LongType()), True),
        (
            T.MapType(T.StringType(), T.LongType()),
            T.MapType(T.StringType(), T.IntegerType()),
            False,
        ),
    ],
)
def test_only_lossless_types_fit(source: T.DataType, target: T.DataType, fits: bool) -> None:
    assert widens(source, target) is fits


def test_structs_fit_by_the_order_and_names_of_their_fields() -> None:
    one = _struct(a=T.IntegerType(), b=T.StringType())
    assert widens(one, _struct(a=T.LongType(), b=T.StringType()))
    assert not widens(one, _struct(b=T.StringType(), a=T.LongType()))


def test_columns_fit_in_any_order_and_case() -> None:
    given = _struct(note=T.StringType(), AMOUNT=T.DecimalType(4, 2), id=T.IntegerType())
    found = check_fit(given, ORDERS, OperationKind.APPEND)
    assert [(name, field.name) for name, field in found] == [
        ("id", "Id"),
        ("AMOUNT", "amount"),
        ("note", "note"),
    ]


def test_extra_and_missing_columns_are_named() -> None:
    given = _struct(id=T.LongType(), amount=T.DecimalType(10, 2), colour=T.StringType())
    with pytest.raises(SchemaMismatchError) as caught:
        check_fit(given, ORDERS, OperationKind.UPSERT)
    assert caught.value.message == (
        "the DataFrame has column 'colour', table 'orders' has not; "
        "table 'orders' has column 'note', the DataFrame has not"
    )
    assert (caught.value.fields["extra"], caught.value.fields["missing"]) == (["colour"], ["note"])
    given = _struct(id=T.LongType(), amount=T.DecimalType(10, 2), nite=T.StringType())
    with pytest.raises(SchemaMismatchError) as caught:
        check_fit(given, ORDERS, OperationKind.APPEND)
    assert caught.value.hint == "Did you mean 'note'?"
    with pytest.raises(SchemaMismatchError, match=r"'amount', which is no key of table 'orders'"):
        check_fit(_struct(id=T.LongType(), amount=T.LongType()), ORDERS, OperationKind.DELETE_KEYS)


def test_a_wrong_type_names_column_types_and_the_cast() -> None:
    given = _struct(id=T.LongType(), amount=T.DoubleType(), note=T.StringType())
    with pytest.raises(
        SchemaMismatchError,
        match=r"the DataFrame has double in column 'amount', table 'orders' takes decimal\(10,2\)",
    ) as caught:
        check_fit(given, ORDERS, OperationKind.APPEND)
    assert "cast('decimal(10,2)')" in caught.value.hint


def test_a_column_twice_is_refused() -> None:
    given = _struct(id=T.LongType(), ID=T.LongType())
    with pytest.raises(SchemaMismatchError, match="twice"):
        check_fit(given, ORDERS, OperationKind.DELETE_KEYS)


def test_deletes_take_keys_only_and_need_a_table_with_keys() -> None:
    assert struct_of(ORDERS, OperationKind.DELETE_KEYS).names == ["Id"]
    plain = TableDefinition(name="plain", columns=ORDERS.columns)
    with pytest.raises(InvalidRequestError, match="needs keys"):
        check_fit(_struct(id=T.LongType()), plain, OperationKind.DELETE_KEYS)


def test_keys_take_no_null() -> None:
    for kind in (OperationKind.APPEND, OperationKind.UPSERT):
        assert required_columns(ORDERS, kind) == ("Id", "note")
    assert required_columns(ORDERS, OperationKind.DELETE_KEYS) == ("Id",)


def test_columns_of_a_struct_keep_their_nullability() -> None:
    struct = T.StructType(
        [
            T.StructField("id", T.LongType(), False),
            T.StructField("tags", T.ArrayType(T.StringType())),
            T.StructField("at", T.TimestampNTZType()),
        ]
    )
    assert [(c.name, c.type, c.nullable) for c in columns_of(struct)] == [
        ("id", "bigint", False),
        ("tags", "array<string>", True),
        ("at", "timestamp_ntz", True),
    ]


def test_a_type_that_no_table_holds_is_refused() -> None:
    with pytest.raises(SchemaMismatchError):
        columns_of(_struct(nothing=T.NullType()))


def test_a_key_is_one_value_for_each_key_column() -> None:
    two = TableDefinition(name="two", columns=ORDERS.columns, keys=("Id", "note"))
    assert key_values(ORDERS, 7) == key_values(ORDERS, {"Id": 7}) == {"Id": 7}
    assert key_values(two, {"note": "a", "Id": 2**60}) == {"Id": 2**60, "note": "a"}
    for definition, wrong, error in (
        (ORDERS, 7.5, SchemaMismatchError),
        (ORDERS, "seven", SchemaMismatchError),
        (ORDERS, True, SchemaMismatchError),
        (ORDERS, {"Id": 7, "note": "a"}, SchemaMismatchError),
        (ORDERS, {"id": 7}, SchemaMismatchError),
        (two, 7, SchemaMismatchError),
        (ORDERS, None, InvalidRowsError),
        (TableDefinition(name="none", columns=ORDERS.columns), 7, InvalidRequestError),
    ):
        with pytest.raises(error):
            key_values(definition, wrong)


def test_merging_adds_columns_and_makes_types_wider() -> None:
    table = TableDefinition(
        name="t",
        columns=(
            Column(name="Id", type="int"),
            Column(name="n", type="int"),
            Column(name="s", type="string"),
            Column(name="p", type="int"),
        ),
        partition_by=("p",),
    )
    given = columns_of(
        _struct(
            id=T.LongType(), n=T.ShortType(), s=T.IntegerType(), P=T.LongType(), new=T.DateType()
        )
    )
    change = change_to_fit(given, table)
    assert [(c.name, c.type) for c in change.add] == [("new", "date")]
    # Narrower rows, other types and partition columns are left to the check of the rows.
    assert change.widen == (("Id", "bigint"),)
    assert change_to_fit(given, change.applied_to(table)).is_nothing


def test_of_several_writers_that_merge_one_changes_the_table() -> None:
    given = (Column(name="Id", type="bigint"), Column(name="colour", type="string"))
    tables = [ORDERS]

    def alter(change: TableChange) -> None:
        tables.append(change.applied_to(tables[-1]))
        if len(tables) == 2:  # somebody else was faster, with the same change
            raise NameTakenError("there is a column 'colour' already")

    found = change_table_to_fit(given, lambda: tables[-1], alter)
    assert found is tables[-1] and len(tables) == 2 and found.column("colour") is not None

    def lose(change: TableChange) -> None:
        tries.append(change)
        raise StaleSchemaError("the table changed")

    tries: list[TableChange] = []
    with pytest.raises(StaleSchemaError):
        change_table_to_fit(given, lambda: ORDERS, lose)
    assert len(tries) == 5


class _Session:
    """What PySpark does with rows of Arrow before they reach the JVM."""

    def createDataFrame(self, rows: pa.Table, struct: Any) -> pa.Table:
        return _check_arrow_table_timestamps_localize(
            rows, struct or from_arrow_schema(rows.schema), True, "Europe/Berlin"
        )


_AT = datetime(1800, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string_view(), ["a", None]),
        (pa.large_list(pa.string_view()), [["a", None], None, []]),
        (pa.map_(pa.string_view(), pa.binary_view()), [[("k", b"1")], None]),
        (pa.struct([("b", pa.binary_view()), ("n", pa.int8())]), [{"b": b"1", "n": 1}, None]),
        (pa.list_(pa.timestamp("us", "UTC")), [[_AT, None], None, [_AT], None]),
        (pa.list_(pa.list_(pa.int8())), [[[1], None], None, [None, [2]], None]),
        (pa.map_(pa.string(), pa.list_(pa.int8())), [[("k", [1])], None, [("k", None)], None]),
    ],
    ids=str,
)
def test_rows_of_arrow_and_each_piece_of_them_become_a_frame(
    kind: pa.DataType, values: list[Any]
) -> None:
    whole = pa.table({"c": pa.array([*values, *values], kind)})
    pieces = [whole.slice(first, count) for first in range(len(values)) for count in (0, 1, 9)]
    for piece in (whole, *pieces, pa.concat_tables(pieces)):
        found = cast(Any, arrow_frame(cast(Any, _Session()), piece))
        assert found.to_pylist() == piece.to_pylist()


def test_rows_that_arrow_itself_finds_wrong_never_reach_spark() -> None:
    """As bytes they pass the cast to a text that is not checked."""
    text = pa.array([b"\xff"]).view(pa.string())
    spark: Any = None  # it is not asked
    with pytest.raises(InvalidRequestError, match="no valid Arrow") as caught:
        arrow_frame(spark, pa.table({"s": text}))
    assert caught.value.fields["field"] == "rows" and caught.value.hint
