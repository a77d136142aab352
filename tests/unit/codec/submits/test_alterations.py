"""Changes of tables in requests: read, checked against the table, and written again (P33)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.containers.payload import encode_payload, read_manifest
from sparktxlog.codec.submits.alterations import prepare_change, put_change, widens
from sparktxlog.codec.submits.requests import OperationRequest, decode_request
from sparktxlog.errors import (
    ColumnInUseError,
    CommitRejectedError,
    InvalidNameError,
    InvalidRequestError,
    NameTakenError,
    SchemaMismatchError,
    UnknownColumnError,
)
from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import Block, OperationKind, RunManifest

TABLE = TableDefinition(
    name="t",
    columns=(
        Column(name="id", type="int"),
        Column(name="v", type="string"),
        Column(name="f", type="double"),
        Column(name="s", type="smallint"),
        Column(name="day", type="date"),
    ),
    keys=("id",),
    partition_by=("day",),
    schema_version=3,
)


def request(**fields: Any) -> OperationRequest:
    operation = {"kind": "alter_table", "table": "t", **fields}
    return decode_request(msgspec.json.encode({"operations": [operation]})).operations[0]


def test_a_change_is_read_and_written_again() -> None:
    given = request(
        add=[{"name": "n", "type": "LONG", "comment": "c"}],
        rename={"id": "number"},
        drop=["v"],
        widen={"s": "LONG"},
        keys=["number"],
        comment="",
        comments={"s": "of s"},
        properties={"team": None, "owner": "ada"},
    )
    prepared = prepare_change(given, TABLE)
    change = TableChange(
        add=(Column(name="n", type="bigint", comment="c"),),
        rename=(("id", "number"),),
        drop=("v",),
        widen=(("s", "bigint"),),
        keys=("number",),
        comment="",
        comments=(("s", "of s"),),
        properties=(("team", None), ("owner", "ada")),
    )
    assert (prepared.change, prepared.schema_version) == (change, 3)
    written = OperationRequest(kind=OperationKind.ALTER_TABLE, table="t")
    put_change(prepared.change, written)
    assert prepare_change(written, TABLE) == prepared
    empty = OperationRequest(kind=OperationKind.ALTER_TABLE, table="t")
    put_change(TableChange(keys=(), cluster_by=()), empty)
    none = {"kind": "alter_table", "table": "t", "keys": [], "cluster_by": []}
    assert msgspec.to_builtins(empty) == none
    unparted = replace(TABLE, partition_by=())
    assert prepare_change(request(cluster_by=["id"]), unparted).change == TableChange(
        cluster_by=("id",)
    )


def test_a_drop_is_read_and_written_again() -> None:
    given = OperationRequest(kind=OperationKind.DROP_TABLE, table="t")
    prepared = prepare_change(given, TABLE)
    assert (prepared.kind, prepared.change) == (OperationKind.DROP_TABLE, DROPPED)
    assert prepared.schema_version == 3
    put_change(prepared.change, given)
    assert msgspec.to_builtins(given) == {"kind": "drop_table", "table": "t"}


def test_a_new_table_begins_where_the_order_puts_it() -> None:
    change = Block(table="t", kind=OperationKind.ALTER_TABLE, txs=(0,), change=DROPPED)
    renamed = TableChange(rename=(("v", "w"),)).applied_to(TABLE)
    new = renamed.dropped().dropped()
    blocks = (change, Block(table="u", kind=OperationKind.CREATE_TABLE, txs=(0,), definition=new))
    payload = encode_payload(RunManifest(n=1, ids=b"i" * 16, blocks=blocks, submitted_at=1), ())
    found = read_manifest(payload).blocks
    assert found == (change, replace(blocks[1], definition=new.created_after(None)))


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({}, InvalidRequestError, "changes nothing"),
        ({"add": [{"name": "n", "type": "whole"}]}, SchemaMismatchError, "whole"),
        ({"rename": {"v": "nul.txt"}}, InvalidNameError, "nul.txt"),
        ({"rename": {"v": "__txlog_2_v"}}, InvalidNameError, "reserved"),
        ({"rename": {"v": "a b"}}, InvalidNameError, "cannot name a column"),
        ({"rename": {"v": "ID"}}, NameTakenError, "'ID'|'id'"),
        ({"drop": ["id"]}, ColumnInUseError, "key column"),
        ({"drop": ["w"]}, UnknownColumnError, "'w'"),
        ({"widen": {"w": "int"}}, UnknownColumnError, "'w'"),
        ({"widen": {"s": "whole"}}, SchemaMismatchError, "whole"),
        ({"widen": {"s": "tinyint"}}, SchemaMismatchError, "smallint does not become tinyint"),
        ({"widen": {"id": "double"}}, SchemaMismatchError, "cannot be compared"),
        ({"widen": {"day": "timestamp_ntz"}}, SchemaMismatchError, "partition column"),
        ({"widen": {"f": "double"}}, SchemaMismatchError, "double does not become double"),
        ({"keys": ["f"]}, SchemaMismatchError, "cannot be compared"),
        ({"keys": ["v", "v"]}, SchemaMismatchError, "named twice"),
    ],
)
def test_what_is_refused(
    fields: dict[str, Any], error: type[CommitRejectedError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        prepare_change(request(**fields), TABLE)
    assert caught.value.definite


_TYPES = (
    "boolean tinyint smallint int bigint float double string binary date timestamp timestamp_ntz "
    "array<int> decimal(5,2) decimal(5,3) decimal(6,3) decimal(10,0) decimal(12,2) decimal(12,4) "
    "decimal(20,0) decimal(22,2)"
).split()
_OF_WHOLE = "decimal(10,0) decimal(12,2) decimal(20,0) decimal(22,2)"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("tinyint", f"smallint int bigint double {_OF_WHOLE}"),
        ("smallint", f"int bigint double {_OF_WHOLE}"),
        ("int", f"bigint double {_OF_WHOLE}"),
        ("bigint", "decimal(20,0) decimal(22,2)"),
        ("float", "double"),
        ("decimal(5,2)", "decimal(6,3) decimal(12,2) decimal(12,4) decimal(22,2)"),
        ("decimal(10,0)", "decimal(12,2) decimal(20,0) decimal(22,2)"),
        ("date", "timestamp_ntz"),
        ("double", ""),
        ("string", ""),
        ("array<int>", ""),
    ],
)
def test_types_become_wider_ones_only(given: str, wanted: str) -> None:
    found = [kind for kind in _TYPES if widens(arrow_type(given), arrow_type(kind))]
    assert found == wanted.split()


def test_no_property_of_the_table_of_restore_points_says_a_point_that_is_none() -> None:
    points = replace(TABLE, name="sparktxlog_restore_points")
    for table, value in ((TABLE, "yes"), (points, '{"made_at": 1}'), (points, None)):
        assert prepare_change(request(properties={"point.p": value}), table).change is not None
    with pytest.raises(InvalidRequestError, match="says no restore point"):
        prepare_change(request(properties={"point.p": "yes"}), points)
