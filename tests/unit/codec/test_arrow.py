from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.arrow_types import UserType

from sparktxlog.codec.arrow import arrow_schema, arrow_type, columns_of, ddl_type, normal_type
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition

SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,38)": pa.decimal128(38, 38),
}


@pytest.mark.parametrize(("ddl", "kind"), SIMPLE.items())
def test_simple_types_go_both_ways(ddl: str, kind: pa.DataType) -> None:
    assert arrow_type(ddl) == kind
    assert ddl_type(kind) == ddl


types = st.recursive(
    st.sampled_from(sorted(SIMPLE)),
    lambda inner: st.one_of(
        inner.map(lambda t: f"array<{t}>"),
        st.tuples(st.sampled_from(["string", "int"]), inner).map(lambda t: f"map<{t[0]},{t[1]}>"),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda ts: "struct<" + ",".join(f"f{i}:{t}" for i, t in enumerate(ts)) + ">"
        ),
    ),
    max_leaves=6,
)


@given(types)
def test_every_type_survives_the_round_trip(ddl: str) -> None:
    assert ddl_type(arrow_type(ddl)) == ddl
    assert normal_type(ddl.upper().replace("F", "f")) == ddl or "struct" in ddl


@pytest.mark.parametrize(
    ("given_ddl", "normal"),
    [
        ("LONG", "bigint"),
        (" Integer ", "int"),
        ("decimal", "decimal(10,0)"),
        ("DEC( 7 , 3 )", "decimal(7,3)"),
        ("numeric(5)", "decimal(5,0)"),
        ("Array< Short >", "array<smallint>"),
        ("struct<`a b`: int, C string>", "struct<`a b`:int,C:string>"),
        ("struct<`x``y`:int>", "struct<`x``y`:int>"),
        ("timestamp_ltz", "timestamp"),
    ],
)
def test_aliases_have_one_normal_form(given_ddl: str, normal: str) -> None:
    assert normal_type(given_ddl) == normal


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "varchar(10)",
        "interval day",
        "array<>",
        "array<int",
        "map<int>",
        "struct<>",
        "struct<a>",
        "struct<a:int,A:int>",
        "decimal(39,0)",
        "decimal(3,4)",
        "decimal(x)",
        "int>",
        "int int",
        "array<" * 40 + "int" + ">" * 40,
        "`int`",
        "decimal(0,0)",
        "int\0",
    ],
)
def test_unknown_types_are_named(ddl: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_type(ddl)
    assert caught.value.definite
    assert repr(ddl[:140]) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.timestamp("ms", tz="Europe/Paris"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.large_list(pa.int32()), "array<int>"),
        (pa.decimal256(20, 3), "decimal(20,3)"),
    ],
)
def test_arrow_types_that_fit_are_taken(kind: pa.DataType, ddl: str) -> None:
    assert ddl_type(kind) == ddl


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.timestamp("ns"), "microseconds"),
        (pa.uint64(), "signed"),
        (pa.null(), "no type"),
        (pa.time64("us"), "since midnight"),
        (pa.duration("s"), "microseconds"),
        (pa.struct([pa.field("v", pa.binary(), metadata={b"variant": b"true"})]), "to_json"),
        (pa.decimal256(50, 3), "Known types"),
        (pa.struct([]), "Known types"),
        (UserType(), "Known types"),
        (pa.list_(UserType()), "Known types"),
    ],
)
def test_arrow_types_that_do_not_fit_say_what_to_do(kind: pa.DataType, advice: str) -> None:
    with pytest.raises(SchemaMismatchError, match=advice):
        columns_of(pa.schema([("c", kind)]))


def test_a_schema_follows_the_table() -> None:
    definition = TableDefinition(
        name="t",
        columns=(
            Column(name="id", type="bigint", nullable=False),
            Column(name="at", type="timestamp"),
            Column(name="tags", type="array<string>"),
        ),
        keys=("id",),
    )
    schema = arrow_schema(definition)
    assert schema.names == ["id", "at", "tags"]
    assert not schema.field("id").nullable
    assert columns_of(schema) == definition.columns
    assert arrow_schema(definition, ["at", "id"]).names == ["id", "at"]
