"""Columns as Unity Catalog's API for lists shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparktxlog.codec.delta_catalog.listed_columns import columns_of
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.commit_contents import TableMetadata, TableProtocol

LONGS = {"type": "array", "elementType": "long", "containsNull": True}
STRUCT = {
    "type": "struct",
    "fields": [{"name": "a b", "type": "short", "nullable": True, "metadata": {}}],
}
MAP = {"type": "map", "keyType": "string", "valueType": STRUCT, "valueContainsNull": True}


def shown(*fields: dict[str, Any], partition_columns: tuple[str, ...] = ()) -> list[Any]:
    metadata = TableMetadata(
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=partition_columns,
    )
    state = DeltaTableState(
        version=0,
        timestamp=1,
        metadata=metadata,
        protocol=TableProtocol(min_reader_version=3, min_writer_version=7),
        domains={},
        created=1,
        changed_version=0,
        changed_timestamp=1,
    )
    return columns_of(state)


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}} | more


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("boolean", "BOOLEAN", "boolean"),
        ("byte", "BYTE", "tinyint"),
        ("short", "SHORT", "smallint"),
        ("integer", "INT", "int"),
        ("long", "LONG", "bigint"),
        ("float", "FLOAT", "float"),
        ("double", "DOUBLE", "double"),
        ("date", "DATE", "date"),
        ("timestamp", "TIMESTAMP", "timestamp"),
        ("timestamp_ntz", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("string", "STRING", "string"),
        ("binary", "BINARY", "binary"),
        ("variant", "VARIANT", "variant"),
        ("void", "NULL", "void"),
        (LONGS, "ARRAY", "array<bigint>"),
        (STRUCT, "STRUCT", "struct<`a b`:smallint>"),
        (MAP, "MAP", "map<string,struct<`a b`:smallint>>"),
    ],
)
def test_a_type_has_the_names_of_the_api(kind: Any, name: str, text: str) -> None:
    given = field("c", kind)
    (column,) = shown(given)
    assert (column.type_name, column.type_text) == (name, text)
    assert json.loads(column.type_json) == given
    assert (column.type_precision, column.type_scale) == (0, 0)


def test_columns_say_place_comment_and_partition() -> None:
    found = shown(
        field("d", "decimal(10,2)", nullable=False),
        field("p", "string", metadata={"comment": "a part"}),
        field("Q", "date"),
        partition_columns=("q", "p"),
    )
    assert [one.position for one in found] == [0, 1, 2]
    assert [one.nullable for one in found] == [False, True, True]
    assert [one.comment for one in found] == [None, "a part", None]
    assert [one.partition_index for one in found] == [None, 1, 0]
    d = found[0]
    assert (d.type_name, d.type_precision, d.type_scale) == ("DECIMAL", 10, 2)


def test_a_table_that_is_not_placed_here_has_no_columns() -> None:
    assert columns_of(None) == []
