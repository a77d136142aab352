"""Rows and definitions against the tables."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from sparktxlog.codec.submits.validation import (
    align_rows,
    check_definition,
    check_rows,
    known_table,
    row_schema,
    run_schema,
)
from sparktxlog.errors import (
    InvalidNameError,
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    UnknownTableError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OP_COLUMN, TX_COLUMN, OperationKind

ORDERS = TableDefinition(
    name="orders",
    columns=(
        Column(name="name", type="string", nullable=False),
        Column(name="id", type="bigint"),
        Column(name="day", type="date"),
        Column(name="amount", type="decimal(10,2)"),
        Column(name="at", type="timestamp"),
    ),
    keys=("id", "day"),
)
KEYLESS = TableDefinition(name="events", columns=(Column(name="id", type="bigint"),))
UPSERT, APPEND = OperationKind.UPSERT, OperationKind.APPEND


def rows(ids: list[int | None], names: list[str | None] | None = None) -> pa.Table:
    n = len(ids)
    return pa.Table.from_arrays(
        [
            pa.array(names or ["x"] * n, pa.string()),
            pa.array(ids, pa.int64()),
            pa.array([1] * n, pa.date32()),
            pa.array([None] * n, pa.decimal128(10, 2)),
            pa.array([None] * n, pa.timestamp("us", tz="UTC")),
        ],
        schema=row_schema(ORDERS, APPEND),
    )


def test_an_unknown_table_is_named_with_its_nearest() -> None:
    with pytest.raises(UnknownTableError) as caught:
        known_table({"orders": ORDERS, "events": KEYLESS}, "order")
    assert caught.value.fields == {"table": "order"}
    other = "Commit tables are written by ordinary Spark SQL."
    assert caught.value.hint == f"Did you mean 'orders'?  {other}"
    assert known_table({"orders": ORDERS}, "orders") is ORDERS


@pytest.mark.parametrize("name", ["../x", "a/b", "a\x00", "", "1a", "a" * 129, "a.b.c", "a.", ".b"])
def test_a_name_that_can_name_no_table(name: str) -> None:
    with pytest.raises(InvalidNameError):
        known_table({}, name)


def test_schemas_of_rows_and_runs() -> None:
    assert row_schema(ORDERS, UPSERT).names == ["name", "id", "day", "amount", "at"]
    assert row_schema(ORDERS, OperationKind.DELETE_KEYS).names == ["id", "day"]
    assert run_schema(ORDERS, OperationKind.DELETE_KEYS).names == [
        "id",
        "day",
        TX_COLUMN,
        OP_COLUMN,
    ]


@pytest.mark.parametrize("kind", [UPSERT, OperationKind.DELETE_KEYS])
def test_keyed_operations_want_a_table_with_keys(kind: OperationKind) -> None:
    with pytest.raises(InvalidRequestError, match="needs keys") as caught:
        row_schema(KEYLESS, kind)
    assert caught.value.fields["table"] == "events"


@pytest.mark.parametrize("kind", [OperationKind.CREATE_TABLE, OperationKind.DELETE_WHERE])
def test_other_kinds_take_no_rows(kind: OperationKind) -> None:
    with pytest.raises(InvalidRequestError, match="takes no rows"):
        row_schema(ORDERS, kind)


@pytest.mark.parametrize(
    ("keys", "partition_by", "column"),
    [
        (("f",), (), "f"),
        (("l",), (), "l"),
        ((), ("f",), "f"),
        ((), ("b",), "b"),
        ((), ("a.b",), "a.b"),
        (("i", "i"), (), None),
    ],
)
def test_keys_and_partitions_need_an_equality(
    keys: tuple[str, ...], partition_by: tuple[str, ...], column: str | None
) -> None:
    definition = TableDefinition(
        name="t",
        columns=(
            Column(name="i", type="int"),
            Column(name="f", type="double"),
            Column(name="l", type="array<int>"),
            Column(name="b", type="binary"),
            Column(name="a.b", type="int"),
        ),
        keys=keys,
        partition_by=partition_by,
    )
    with pytest.raises(SchemaMismatchError) as caught:
        check_definition(definition)
    assert caught.value.fields.get("column") == column


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ((("i", "int"), ("ı", "int")), "takes 'ı' for 'i'"),
        ((("İ", "int"), ("i", "int")), "takes 'i' for 'İ'"),
        ((("ſum", "int"), ("Sum", "int")), "takes 'Sum' for 'ſum'"),
        ((("a", "array<struct<x:int,k:map<int,struct<ſ:int,s:int>>>>"),), "takes 's' for 'ſ'"),
    ],
)
def test_names_that_spark_takes_for_one(columns: tuple[tuple[str, str], ...], text: str) -> None:
    """No worker could apply a second upsert: the table would stand still at all sites."""
    made = tuple(Column(name=name, type=kind) for name, kind in columns)
    with pytest.raises(SchemaMismatchError, match=text) as caught:
        check_definition(TableDefinition(name="t", columns=made))
    assert caught.value.definite and caught.value.fields["table"] == "t"


def test_names_that_spark_tells_apart() -> None:
    names = ("ss", "ß", "ﬁ", "fi", "é", "e", "ŉ", "ij")
    check_definition(
        TableDefinition(name="t", columns=tuple(Column(name=n, type="int") for n in names))
    )


def test_an_unknown_type() -> None:
    definition = TableDefinition(name="t", columns=(Column(name="i", type="money"),))
    with pytest.raises(SchemaMismatchError):
        check_definition(definition)


def test_rows_of_the_right_schema_pass_untouched() -> None:
    given = rows([1, 2])
    assert align_rows(ORDERS, APPEND, given) is given


def test_columns_are_put_in_order_and_widened_without_loss() -> None:
    given = pa.table(
        {
            "at": pa.array([1], pa.timestamp("ms", tz="Europe/Berlin")),
            "amount": pa.array([5], pa.int16()),
            "day": pa.array([86_400_000], pa.date64()),
            "id": pa.array([7], pa.uint32()),
            "name": pa.array(["x"]).dictionary_encode(),
        }
    )
    found = align_rows(ORDERS, APPEND, given)
    assert found.schema == row_schema(ORDERS, APPEND)
    row = found.to_pylist()[0]
    assert (row["name"], row["id"], str(row["day"]), str(row["amount"])) == (
        "x",
        7,
        "1970-01-02",
        "5.00",
    )
    assert found["at"].cast(pa.int64()).to_pylist() == [1000]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("id", pa.array([1.0])),
        ("id", pa.array(["1"])),
        ("id", pa.array([True])),
        ("id", pa.array([2**63], pa.uint64())),
        ("name", pa.array([1])),
        ("day", pa.array([1], pa.int32())),
        ("amount", pa.array([1.5])),
        ("amount", pa.array([10**9], pa.int64())),
        ("at", pa.array([1], pa.timestamp("us"))),
        ("at", pa.array([1], pa.timestamp("ns", tz="UTC"))),
        ("at", pa.array([1], pa.int64())),
    ],
)
def test_a_cast_that_may_lose_is_refused(column: str, values: pa.Array) -> None:
    given = rows([1])
    place = given.column_names.index(column)
    with pytest.raises(SchemaMismatchError) as caught:
        align_rows(ORDERS, APPEND, given.set_column(place, column, values))
    fields = caught.value.fields
    assert (fields["table"], fields["column"]) == ("orders", column)
    assert fields["expected"]


def test_unknown_missing_and_repeated_columns() -> None:
    given = rows([1])
    with pytest.raises(SchemaMismatchError, match="'nmae'") as caught:
        align_rows(ORDERS, APPEND, given.rename_columns(["nmae", "id", "day", "amount", "at"]))
    assert caught.value.hint == "Did you mean 'name'?"
    with pytest.raises(SchemaMismatchError, match="has column 'at', the Arrow data has not"):
        align_rows(ORDERS, APPEND, given.drop_columns(["at"]))
    with pytest.raises(SchemaMismatchError, match="occurs twice"):
        align_rows(ORDERS, APPEND, given.append_column("id", given["id"]))
    with pytest.raises(SchemaMismatchError, match="does not take"):
        align_rows(ORDERS, OperationKind.DELETE_KEYS, given)


def test_no_rows() -> None:
    with pytest.raises(InvalidRowsError) as caught:
        check_rows(ORDERS, APPEND, rows([]))
    assert caught.value.fields == {"table": "orders"}


@pytest.mark.parametrize(
    ("given", "column", "row"),
    [
        (rows([1, None, 3]), "id", 1),  # a key, though the column is nullable
        (rows([1, 2, 3], ["a", "b", None]), "name", 2),
    ],
)
def test_null_where_none_may_be(given: pa.Table, column: str, row: int) -> None:
    for kind in (APPEND, UPSERT):
        with pytest.raises(InvalidRowsError) as caught:
            check_rows(ORDERS, kind, given)
        assert caught.value.fields == {"table": "orders", "column": column, "row": row}


@pytest.mark.parametrize(
    ("given", "ddl", "value", "fits"),
    [
        (pa.uint64(), "decimal(20,0)", 2**64 - 1, True),
        (pa.uint64(), "decimal(38,0)", 1, True),
        (pa.int64(), "decimal(38,30)", -99_999_999, True),
        (pa.int64(), "decimal(38,30)", 100_000_000, False),
        (pa.int8(), "decimal(38,37)", 9, True),
        (pa.int8(), "decimal(38,37)", 10, False),
        (pa.int64(), "decimal(5,2)", 999, True),
        (pa.int64(), "decimal(5,2)", 1000, False),
    ],
)
def test_whole_numbers_fit_a_decimal_if_their_digits_do(
    given: pa.DataType, ddl: str, value: int, fits: bool
) -> None:
    table = TableDefinition(name="sums", columns=(Column(name="n", type=ddl),))
    numbers = pa.table({"n": pa.array([value, None], given)})
    if fits:
        assert align_rows(table, APPEND, numbers)["n"].to_pylist() == [value, None]
        return
    with pytest.raises(SchemaMismatchError, match="does not fit"):
        align_rows(table, APPEND, numbers)


def _nested(ddl: str, values: pa.Array) -> pa.Table:
    table = TableDefinition(name="t", columns=(Column(name="a", type=ddl),))
    return align_rows(table, APPEND, pa.table({"a": values}))


_WHOLE = pa.int64()


@pytest.mark.parametrize(
    ("ddl", "given", "value", "found"),
    [
        ("array<decimal(10,2)>", pa.list_(_WHOLE), [1, None], [Decimal("1.00"), None]),
        ("array<decimal(38,30)>", pa.large_list(_WHOLE), [1], [Decimal(1)]),
        ("array<array<decimal(3,1)>>", pa.list_(pa.list_(pa.int8(), 1)), [[7]], [[Decimal(7)]]),
        ("struct<x:decimal(5,1)>", pa.struct({"x": _WHOLE}), {"x": 3}, {"x": Decimal(3)}),
        ("map<string,decimal(5,1)>", pa.map_(pa.string(), _WHOLE), [("k", 1)], [("k", Decimal(1))]),
        ("map<decimal(5,1),int>", pa.map_(pa.uint8(), _WHOLE), [(1, 2)], [(Decimal(1), 2)]),
        ("array<decimal(5,1)>", pa.list_(pa.dictionary(pa.int8(), _WHOLE)), [4], [Decimal(4)]),
        ("array<double>", pa.list_(_WHOLE), [2**53], [2.0**53]),
        ("array<float>", pa.list_(pa.int16()), [5], [5.0]),
        ("float", _WHOLE, 2**24, 2.0**24),
    ],
)
def test_nested_values_follow_the_rule_of_columns(
    ddl: str, given: pa.DataType, value: object, found: object
) -> None:
    assert _nested(ddl, pa.array([value, None], given))["a"].to_pylist() == [found, None]


@pytest.mark.parametrize(
    ("ddl", "given", "value", "part"),
    [
        ("array<decimal(5,2)>", pa.list_(_WHOLE), [1, 1000], "a.element"),
        ("array<double>", pa.list_(_WHOLE), [2**53 + 1], "a.element"),
        ("array<float>", pa.list_(_WHOLE), [2**24 + 1], "a.element"),
        ("array<int>", pa.list_(_WHOLE), [2**31], "a.element"),
        ("array<date>", pa.list_(pa.date64()), [1], "a.element"),
        ("array<timestamp>", pa.list_(pa.timestamp("ns", "UTC")), [1], "a.element"),
        ("array<timestamp>", pa.list_(pa.timestamp("us")), [1], "a.element"),
        ("array<timestamp>", pa.list_(pa.date32()), [1], "a.element"),
        ("map<int,int>", pa.map_(_WHOLE, _WHOLE), [(2**31, 1)], "a.key"),
        ("map<int,int>", pa.map_(_WHOLE, _WHOLE), [(1, 2**31)], "a.value"),
        (
            "struct<x:int,y:array<struct<z:decimal(3,1)>>>",
            pa.struct({"x": _WHOLE, "y": pa.list_(pa.struct({"z": _WHOLE}))}),
            {"x": 1, "y": [{"z": 100}]},
            "a.y.element.z",
        ),
    ],
)
def test_a_nested_value_that_does_not_fit_is_named_by_its_path(
    ddl: str, given: pa.DataType, value: object, part: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=f": {part}: ") as caught:
        _nested(ddl, _of_numbers([None, value], given))
    assert (caught.value.fields["column"], caught.value.fields["part"]) == ("a", part)


def _of_numbers(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return an array also of lists of times, which are given as numbers."""
    if pa.types.is_list(kind) and pa.types.is_temporal(kind.value_type):
        plain = pa.int32() if pa.types.is_date32(kind.value_type) else pa.int64()
        return pa.array(values, pa.list_(plain)).cast(kind)
    return pa.array(values, kind)


def test_a_repeated_key_in_an_upsert() -> None:
    with pytest.raises(InvalidRowsError) as caught:
        check_rows(ORDERS, UPSERT, rows([1, 2, 3, 2]))
    fields = caught.value.fields
    assert (fields["row"], fields["keys"]) == (3, ["id", "day"])
    assert "id=2" in fields["value"] and "id=2" in caught.value.message
    check_rows(ORDERS, APPEND, rows([1, 1]))


def test_in_a_run_a_key_may_repeat_in_another_operation_only() -> None:
    given = rows([1, 1, 1])
    txs = np.array([0, 0, 1], dtype=np.int32)
    check_rows(ORDERS, UPSERT, given, txs, np.array([0, 1, 0], dtype=np.int32))
    with pytest.raises(InvalidRowsError) as caught:
        check_rows(ORDERS, UPSERT, given, txs, np.array([0, 0, 0], dtype=np.int32))
    assert caught.value.fields["row"] == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__HIVE_DEFAULT_PARTITION__", "NULL"),
        ("a\0b", "directory"),
        ("\u2028", "directory"),
        ("é" * 127, "256 bytes"),
        ("/" * 85, "257 bytes"),
        ("é" * 126, ""),
        ("/" * 84, ""),
        ("a=b/%20 'q' \t..", ""),
        ("", ""),
    ],
)
def test_texts_of_partitions_are_names_of_directories(text: str, reason: str) -> None:
    parts = TableDefinition(
        name="parts",
        columns=(Column(name="p", type="string"), Column(name="id", type="int")),
        partition_by=("p",),
    )
    rows = pa.table({"p": [text, None], "id": pa.array([1, 2], pa.int32())})
    if reason:
        with pytest.raises(InvalidRowsError, match=reason) as caught:
            check_rows(parts, APPEND, rows)
        assert caught.value.fields["column"] == "p"
    else:
        check_rows(parts, APPEND, rows)


def test_values_that_no_table_takes_are_refused_but_in_keys_to_delete() -> None:
    """Keys of a table that has such values from before can still be deleted."""
    table = TableDefinition(
        name="t",
        columns=(
            Column(name="at", type="date"),
            Column(name="m", type="map<string,int>"),
            Column(name="p", type="date"),
        ),
        keys=("at",),
        partition_by=("p",),
    )

    def given(at: int, m: list[tuple[str, int]], p: int) -> pa.Table:
        days = [pa.array([0, day], pa.int32()).cast(pa.date32()) for day in (at, p)]
        maps = pa.array([None, m], pa.map_(pa.string(), pa.int32()))
        return pa.table([days[0], maps, days[1]], schema=row_schema(table, APPEND))

    check_rows(table, UPSERT, given(1, [("a", 1)], 2))
    for column, wrong in (
        ("at", given(5_000_000, [], 0)),
        ("m", given(1, [("a", 1), ("a", 1)], 0)),
        ("p", given(1, [], -719_163)),
    ):
        with pytest.raises(InvalidRowsError) as caught:
            check_rows(table, APPEND, wrong)
        assert (caught.value.fields["column"], caught.value.fields["row"]) == (column, 1)
    check_rows(table, OperationKind.DELETE_KEYS, given(5_000_000, [], 0).select(["at"]))


def test_an_empty_text_is_refused_where_a_partition_takes_no_null() -> None:
    """Delta writes it as NULL, at every site: the worker would stand still."""
    parts = TableDefinition(
        name="parts",
        columns=(Column(name="p", type="string", nullable=False), Column(name="id", type="int")),
        partition_by=("p",),
    )
    check_rows(parts, APPEND, pa.table({"p": ["a"], "id": pa.array([1], pa.int32())}))
    with pytest.raises(InvalidRowsError, match="'' is NULL in partition column 'p'"):
        check_rows(parts, APPEND, pa.table({"p": [""], "id": pa.array([1], pa.int32())}))


def test_null_in_a_dictionary_of_keys_is_refused_before_arrow_casts_it() -> None:
    table = TableDefinition(name="t", columns=(Column(name="m", type="map<string,int>"),))

    def rows(*words: str | None) -> pa.Table:
        keys = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(words, pa.string()))
        items = pa.array([1], pa.int32())
        maps = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, items)
        return pa.table({"m": maps})

    assert align_rows(table, APPEND, rows("a", "b")).to_pylist() == [{"m": [("a", 1)]}]
    with pytest.raises(SchemaMismatchError, match="has NULL") as caught:
        align_rows(table, APPEND, rows("a", None))
    assert caught.value.fields["column"] == "m"


def test_a_form_of_a_type_that_is_not_taken_is_shown_as_it_is() -> None:
    lists = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([["a"]]))
    table = TableDefinition(name="t", columns=(Column(name="l", type="array<string>"),))
    with pytest.raises(SchemaMismatchError, match=r"is dictionary<.*, expected array<string>"):
        align_rows(table, APPEND, pa.table({"l": lists}))
