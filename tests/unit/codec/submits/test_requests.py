"""Transactions as JSON: their form, their content, and the way back."""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pytest

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.requests import (
    decode_request,
    encode_request,
    parse_level,
    prepare,
    request_of,
)
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import (
    InvalidNameError,
    InvalidRequestError,
    InvalidRowsError,
    ManifestMismatchError,
    OversizeError,
    SchemaMismatchError,
    StaleSchemaError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import Column, TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level

ORDERS = TableDefinition(
    name="orders",
    columns=(Column(name="id", type="bigint"), Column(name="amount", type="decimal(10,2)")),
    keys=("id",),
)
BULK = TableDefinition(
    name="bulk",
    columns=(
        Column(name="id", type="bigint"),
        Column(name="day", type="date"),
        Column(name="zone", type="int", nullable=False),
    ),
    partition_by=("day", "zone"),
)
TABLES = {"orders": ORDERS, "bulk": BULK}
ID = uuid.UUID("7d444840-9dc0-11d1-b245-5ffdce74fad2")
CREATE = {
    "kind": "create_table",
    "table": "new",
    "columns": [{"name": "id", "type": "LONG", "nullable": False}],
    "keys": ["id"],
}
ROW = {"id": 1, "amount": "1.50"}
FILE = {
    "path": f"{ID}/bulk/a.parquet",
    "size_bytes": 10,
    "rows": 3,
    "digest": "ab" * 32,
    "partition": {"day": "2024-01-31", "zone": "7"},
}


def make(
    *operations: dict[str, Any],
    limit: int = 1 << 22,
    tables: dict[str, TableDefinition] | None = None,
    **more: Any,
) -> PreparedTransaction:
    body = msgspec.json.encode({"operations": list(operations), **more})
    known = TABLES if tables is None else Tables.of(tables)
    return prepare(decode_request(body), ID.bytes, known, RunLimits(size_bytes=limit))


def op(kind: str, table: str = "orders", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "table": table, **more}


def files(**change: Any) -> dict[str, Any]:
    return op("append", "bulk", files=[{**FILE, **change}])


def test_a_transaction_over_two_tables() -> None:
    prepared = make(
        op("upsert", rows=[ROW]), op("delete_where", predicate="amount<0"), files(), session="s"
    )
    assert prepared.session == "s" and prepared.transaction_id == ID.bytes
    upsert, where, staged = prepared.operations
    assert upsert.rows.to_pylist()[0]["id"] == 1
    assert where.predicate == "(`amount` < 0)"
    assert staged.files[0].partition == {"day": "2024-01-31", "zone": "7"}


def test_a_client_s_partition_values_get_the_form_that_workers_read() -> None:
    """Ordered as it came, `1.5` was applied nowhere: delta-rs opens no table that has it."""
    priced = replace(BULK, columns=(*BULK.columns[:2], Column(name="zone", type="decimal(10,2)")))
    for text, form in (("1.5", "1.50"), ("-02.000", "-2.00"), ("", None)):
        staged = files(partition={"day": "2024-01-31", "zone": text})
        (append,) = make(staged, tables={"bulk": priced}).operations
        assert append.files[0].partition == {"day": "2024-01-31", "zone": form}
    with pytest.raises(SchemaMismatchError, match="no decimal") as refused:
        make(files(partition={"day": None, "zone": "1,5"}), tables={"bulk": priced})
    assert refused.value.definite


def test_a_table_may_be_created_and_used_in_one_transaction() -> None:
    prepared = make(CREATE, op("upsert", "new", rows=[{"id": 5}]))
    definition = prepared.operations[0].definition
    assert definition is not None and definition.columns[0].type == "bigint"
    with pytest.raises(UnknownTableError):
        make(op("upsert", "new", rows=[{"id": 5}]), CREATE)


def test_an_equal_table_may_be_created_again_but_no_other() -> None:
    same = {
        "kind": "create_table",
        "table": "orders",
        "columns": [{"name": "id", "type": "bigint"}, {"name": "amount", "type": "decimal(10,2)"}],
        "keys": ["id"],
    }
    assert make(same).operations[0].definition == ORDERS
    for table in ("orders", "ORDERS"):
        with pytest.raises(SchemaMismatchError, match="another definition"):
            make({**same, "table": table, "keys": []})


def test_who_does_not_say_whether_deleted_rows_are_marked_takes_the_table_as_it_is() -> None:
    marked = replace(ORDERS, deletion_vectors=True)
    tables, same = {"orders": marked}, request_of_table(ORDERS)
    for wanted in (same, {**same, "deletion_vectors": True}):
        assert make(wanted, tables=tables).operations[0].definition == marked
    with pytest.raises(SchemaMismatchError, match="its deletion_vectors is True"):
        make({**same, "deletion_vectors": False}, tables=tables)


def test_a_table_is_created_with_comments_properties_and_clustering() -> None:
    said = {
        "kind": "create_table",
        "table": "events",
        "columns": [{"name": "id", "type": "bigint", "comment": "of the event"}],
        "cluster_by": ["id"],
        "comment": "what happened",
        "properties": {"team": "sales", "delta.checkpointInterval": "20"},
    }
    prepared = make(said)
    (found,) = (operation.definition for operation in prepared.operations)
    assert found is not None and found.columns[0].comment == "of the event"
    assert (found.comment, found.cluster_by) == ("what happened", ("id",))
    assert found.properties == (("delta.checkpointInterval", "20"), ("team", "sales"))
    written = msgspec.json.decode(request_of(prepared))["operations"]
    assert make(*written).operations[0].definition == found
    # Who does not say them takes the table as it has them.
    tables = {"events": found}
    same = {name: said[name] for name in ("kind", "table", "columns", "cluster_by")}
    for again in (same, {**same, "comment": "another"}, said):
        assert make(again, tables=tables).operations[0].definition == found
    with pytest.raises(SchemaMismatchError, match="its property 'team' is 'sales', not None"):
        make({**same, "properties": {}}, tables=tables)


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"cluster_by": ["id"], "partition_by": ["day"]}, SchemaMismatchError, "not both"),
        ({"cluster_by": ["flag"]}, SchemaMismatchError, "'flag' of type boolean has no bounds"),
        ({"cluster_by": ["late"]}, SchemaMismatchError, "not among the first 32"),
        ({"cluster_by": ["nowhere"]}, SchemaMismatchError, "clustering column 'nowhere'"),
        ({"cluster_by": ["id", "id"]}, SchemaMismatchError, "a clustering column is named twice"),
        ({"cluster_by": ["id", "c0", "c1", "c2", "c3"]}, SchemaMismatchError, "5 are given"),
        ({"comment": "x" * 4001}, InvalidRequestError, "4,001 characters"),
        ({"properties": {"delta.appendOnly": "true"}}, InvalidRequestError, "upserts and deletes"),
    ],
)
def test_what_a_new_table_cannot_have_is_refused(
    said: dict[str, Any], error: type[TxLogError], text: str
) -> None:
    types = {"id": "bigint", "day": "date", "flag": "boolean"}
    types |= {f"c{index}": "int" for index in range(30)} | {"late": "int"}
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    with pytest.raises(error, match=text):
        make({"kind": "create_table", "table": "events", "columns": columns, **said})


def request_of_table(table: TableDefinition) -> dict[str, Any]:
    columns = [{"name": column.name, "type": column.type} for column in table.columns]
    keys = list(table.keys)
    return {"kind": "create_table", "table": table.name, "columns": columns, "keys": keys}


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        ({"columns": ORDERS.columns[:1]}, ["it has a column 'amount'"]),
        (
            {"columns": (*ORDERS.columns, Column(name="note", type="string"))},
            ["it has no column 'note'"],
        ),
        (
            {"columns": (ORDERS.columns[0], Column(name="amount", type="int", nullable=False))},
            ["column 'amount' is decimal(10,2), not int"],
        ),
        (
            {"columns": (replace(ORDERS.columns[0], nullable=False), ORDERS.columns[1])},
            ["column 'id' is not NOT NULL"],
        ),
        ({"columns": ORDERS.columns[::-1]}, ["its columns stand as id, amount"]),
        (
            {"keys": (), "partition_by": ("id",), "is_sync": True},
            [
                "its keys are ['id'], not []",
                "its partition columns are [], not ['id']",
                "its is_sync is False",
            ],
        ),
        (
            {"properties": (("a", "1"),), "cluster_by": ("id",)},
            [
                "its clustering columns are [], not ['id']",
                "its property 'a' is None, not '1'",
            ],
        ),
        ({"name": "Orders"}, ["its name is 'orders', not 'Orders' (case is ignored)"]),
        ({}, []),
    ],
)
def test_what_differs_from_a_table_that_is_there_is_said(
    change: dict[str, Any], differences: list[str]
) -> None:
    other = replace(ORDERS, **change)
    assert ORDERS.differences(other) == differences
    assert ORDERS.is_like(other) is (not differences)


EMPTY = base64.b64encode(
    write_section(pa.table({"id": pa.array([], pa.int64()), "amount": pa.array([], pa.int64())}))
).decode()


@pytest.mark.parametrize("kind", ["append", "upsert", "delete_keys"])
def test_operations_of_no_rows_are_checked_and_left_out(kind: str) -> None:
    assert make(op(kind, rows=[])).operations == ()
    assert make(op("append", arrow=EMPTY)).operations == ()
    assert make(op("append", "bulk", files=[])).operations == ()
    (only,) = make(
        op(kind, rows=[]), op("append", rows=[ROW]), op("append", arrow=EMPTY)
    ).operations
    assert only.rows.num_rows == 1
    with pytest.raises(SchemaMismatchError, match="does not take"):
        make(op("delete_keys", arrow=EMPTY))


@pytest.mark.parametrize("nothing", [{"rows": []}, {"arrow": EMPTY}, {"files": []}])
def test_an_overwrite_with_no_rows_empties_the_table(nothing: dict[str, Any]) -> None:
    (only,) = make(op("overwrite", **nothing)).operations
    assert (only.kind, only.predicate) == (OperationKind.DELETE_WHERE, "TRUE")


def test_arrow_rows_travel_as_base64() -> None:
    rows = pa.table({"amount": pa.array([2], pa.int8()), "id": [1]})
    text = base64.b64encode(write_section(rows)).decode()
    prepared = make(op("append", arrow=text))
    assert prepared.operations[0].rows.column_names == ["id", "amount"]
    for bad, error in (("%%%", InvalidRequestError), ("AAAA", InvalidRequestError)):
        with pytest.raises(error):
            make(op("append", arrow=bad))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"operations": 5}',
        b'{"operations": [], "extra": 1}',
        b'{"operations": [{"kind": "merge", "table": "t"}]}',
        b'{"operations": [{"table": "t"}]}',
        b'{"operations": [{"kind": "append", "table": 5}]}',
        b'{"operations": [{"kind": "append", "table": "t", "row": []}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_bodies_of_another_form(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_request(body)


@pytest.mark.parametrize(
    ("operation", "error", "match"),
    [
        (op("append", "nope", rows=[ROW]), UnknownTableError, "no table 'nope'"),
        (op("append", "a/../b", rows=[ROW]), InvalidNameError, "cannot name a table"),
        (op("append", rows=[{"id": 1}]), SchemaMismatchError, "has column 'amount', row 0 has not"),
        (op("append", rows=[{**ROW, "x": 1}]), SchemaMismatchError, "'x'"),
        (op("append", rows=[{**ROW, "id": "x"}]), SchemaMismatchError, "takes bigint"),
        (op("upsert", rows=[{**ROW, "id": None}]), InvalidRowsError, "NULL in 'id'"),
        (op("upsert", rows=[ROW, ROW]), InvalidRowsError, "repeats the key id=1"),
        (op("delete_keys", rows=[ROW]), SchemaMismatchError, "does not take"),
        (op("upsert", "bulk", rows=[]), InvalidRequestError, "needs keys"),
        (op("delete_keys", "bulk", files=[FILE]), InvalidRequestError, "needs keys"),
        (op("append"), InvalidRequestError, "exactly one of"),
        (op("append", rows=[ROW], files=[FILE]), InvalidRequestError, "exactly one of"),
        (op("append", predicate="true", rows=[ROW]), InvalidRequestError, "takes no 'predicate'"),
        (op("delete_where", rows=[ROW]), InvalidRequestError, "takes no 'rows'"),
        (op("delete_where"), InvalidRequestError, "empty"),
        (op("delete_where", predicate="rand() > 0.5"), InvalidRequestError, "not allowed"),
        (op("append", rows=[ROW], claim="x"), InvalidRequestError, "not a signature"),
        (
            op("append", rows=[ROW], claim=TableSignature(rows=2).to_text()),
            ManifestMismatchError,
            "counts 2 rows",
        ),
        ({**CREATE, "columns": []}, SchemaMismatchError, "no columns"),
        ({**CREATE, "columns": [{"name": "id", "type": "money"}]}, SchemaMismatchError, "money"),
        ({**CREATE, "keys": ["nope"]}, SchemaMismatchError, "not in its schema"),
        ({**CREATE, "table": "a b"}, InvalidNameError, "cannot name a table"),
        (
            {**CREATE, "columns": [{"name": "__txlog_tx", "type": "int"}]},
            InvalidNameError,
            "reserved",
        ),
        (files(path="a.parquet"), InvalidNameError, "not below"),
        (files(path=f"{ID}/../x"), InvalidNameError, "not a path below"),
        (files(path=f"/{ID}/x"), InvalidNameError, "not a path below"),
        (files(path=f"{ID}/a\x00b"), InvalidNameError, "not a path below"),
        (files(path=f"{uuid.UUID(int=1)}/x.parquet"), InvalidNameError, "not below"),
        (files(digest="xyz"), InvalidRequestError, r"\^\[0-9a-f\]\{64\}.*files\[0\].digest"),
        (files(size_bytes=0), InvalidRequestError, r">= 1 .*files\[0\].size_bytes"),
        (files(rows=-1), InvalidRequestError, r">= 0 .*files\[0\].rows"),
        (op("append", "nope", rows=[]), UnknownTableError, "no table 'nope'"),
        (op("append", "bulk", files=[FILE, FILE]), InvalidRequestError, "is named twice"),
        (files(partition=None), SchemaMismatchError, "partition columns"),
        (files(partition={"day": "2024-01-31"}), SchemaMismatchError, "partition columns"),
        (files(partition={"day": "2024-02-31", "zone": "1"}), SchemaMismatchError, "no date"),
        (files(partition={"day": None, "zone": "1.5"}), SchemaMismatchError, "no int"),
        (files(partition={"day": None, "zone": "9999999999"}), SchemaMismatchError, "no int"),
        (files(partition={"day": None, "zone": None}), InvalidRowsError, "takes no NULL"),
    ],
)
def test_bad_operations(operation: dict[str, Any], error: type[TxLogError], match: str) -> None:
    good = op("append", rows=[ROW])
    with pytest.raises(error, match=match) as caught:
        make(good, operation)  # the good one does not help: all or nothing
    assert caught.value.definite


def test_half_a_surrogate_pair_is_no_text() -> None:
    """Python makes such texts of bytes that are no UTF-8; nothing was sent."""
    rows = [{"id": 1, "name": b"ab\xff".decode(errors="surrogateescape")}]
    with pytest.raises(InvalidRequestError, match="half a surrogate pair") as caught:
        encode_request(rows)
    assert caught.value.definite and caught.value.fields["value"] == "'ab\\udcff'"
    str(caught.value).encode()


def test_numbers_of_operations_and_sizes() -> None:
    with pytest.raises(InvalidRequestError, match="neither operations nor commits"):
        make()
    with pytest.raises(InvalidRequestError, match="length <= 1000"):
        make(*[op("append", rows=[ROW])] * 1001)
    with pytest.raises(OversizeError) as caught:
        make(op("append", rows=[ROW] * 1000), limit=10_000)
    assert caught.value.fields["limit_bytes"] == 10_000
    assert "Stage" in caught.value.hint
    with pytest.raises(InvalidRequestError, match="session"):
        make(op("append", rows=[ROW]), session="")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("accepted", (Level.ACCEPTED, 1)),
        ("ordered", (Level.ORDERED, 1)),
        ("applied", (Level.APPLIED, 1)),
        ("applied(2)", (Level.APPLIED, 2)),
    ],
)
def test_levels(text: str, level: tuple[Level, int]) -> None:
    assert parse_level(text) == level


@pytest.mark.parametrize("text", ["", "Ordered", "ordered(2)", "applied(0)", "applied()", "done"])
def test_no_levels(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_level(text)
    assert caught.value.fields["value"] == text


def test_a_prepared_transaction_comes_back_through_its_json() -> None:
    prepared = make(
        CREATE,
        op("upsert", rows=[ROW], claim=TableSignature(rows=1, lane0=2, lane1=3).to_text()),
        op("delete_where", predicate="id in (1, 2)"),
        files(),
        session="s",
    )
    request = decode_request(request_of(prepared, level="accepted", timeout_s=5))
    assert (request.level, request.timeout, request.transaction_id) == ("accepted", 5, str(ID))
    again = prepare(request, ID.bytes, TABLES, RunLimits())
    assert again == prepared
    assert [o.kind for o in again.operations][1] is OperationKind.UPSERT


@pytest.mark.parametrize(
    "operation",
    [
        op("append", rows=[{"id": 1}]),
        op("append", "bulk", files=[FILE]),
        op("delete_where", predicate="gone > 0"),
        op("alter_table", drop=["gone"]),
    ],
)
def test_what_was_made_for_another_schema_is_told_so_before_its_content(
    operation: dict[str, Any],
) -> None:
    changed = {name: replace(table, schema_version=3) for name, table in TABLES.items()}

    def checked(**more: Any) -> PreparedTransaction:
        body = msgspec.json.encode({"operations": [{**operation, **more}]})
        return prepare(decode_request(body), ID.bytes, changed, RunLimits())

    for version in (2, 4):
        with pytest.raises(StaleSchemaError, match=f"version 3 here.* made for {version}") as told:
            checked(schema_version=version)
        fields = {"table": operation["table"], "schema_version": 3, "made_for": version}
        assert (told.value.fields, told.value.definite) == (fields, True)
    if "files" in operation:
        assert checked(schema_version=3) == checked()
        return
    for same in ({"schema_version": 3}, {}):
        with pytest.raises(TxLogError) as other:
            checked(**same)
        assert not isinstance(other.value, StaleSchemaError)


def test_a_create_is_made_for_no_version() -> None:
    with pytest.raises(InvalidRequestError, match="takes no 'schema_version'"):
        make({**CREATE, "schema_version": 1})
    with pytest.raises(InvalidRequestError, match="schema_version"):
        make(op("append", rows=[ROW], schema_version=0))


@pytest.mark.parametrize("kind", ["alter_table", "drop_table"])
def test_a_table_is_changed_or_dropped_alone(kind: str) -> None:
    change = op(kind, "orders", **({"is_sync": True} if kind == "alter_table" else {}))
    create = op("create_table", "more", columns=[{"name": "id", "type": "bigint"}])
    made = prepare(
        decode_request(msgspec.json.encode({"operations": [create, change]})),
        ID.bytes,
        TABLES,
        RunLimits(),
    )
    assert [operation.kind.value for operation in made.operations] == ["create_table", kind]
    for others in ([change, change], [change, op("delete_where", "orders", predicate="id = 1")]):
        body = msgspec.json.encode({"operations": others})
        with pytest.raises(InvalidRequestError, match="another operation on it") as caught:
            prepare(decode_request(body), ID.bytes, TABLES, RunLimits())
        assert caught.value.definite and caught.value.fields["table"] == "orders"


def test_a_creation_after_a_drop_begins_with_the_next_schema_version() -> None:
    former = TABLES["orders"].dropped()
    create = op("create_table", "Orders", columns=[{"name": "id", "type": "bigint"}])
    rows = op("append", "Orders", rows=[{"id": 1}])
    body = msgspec.json.encode({"operations": [create, rows]})
    tables = Tables({"orders": former})
    made = prepare(decode_request(body), ID.bytes, tables, RunLimits()).operations
    assert made[0].definition is not None
    assert made[0].definition.schema_version == made[1].schema_version == 3
    body = msgspec.json.encode({"operations": [op("drop_table", "orders")]})
    with pytest.raises(UnknownTableError):
        prepare(decode_request(body), ID.bytes, tables, RunLimits())


@pytest.mark.parametrize(
    ("name", "properties", "text"),
    [
        ("SparkTxLog_Groups", {}, "is called 'sparktxlog_groups'"),
        ("default.SPARKTXLOG_RESTORE_POINTS", {}, "is called 'sparktxlog_restore_points'"),
        ("sparktxlog_restore_points", {"point.p": "yes"}, "says no restore point"),
        ("sparktxlog_groups", {"group.g": "yes"}, "says no group"),
    ],
)
def test_the_log_s_own_tables_are_not_made_in_another_form(
    name: str, properties: dict[str, str], text: str
) -> None:
    """Names ignore case, and what all sites agree on is looked for under one."""
    columns = [{"name": "name", "type": "string"}]
    create = op("create_table", name, columns=columns, properties=properties)
    body = msgspec.json.encode({"operations": [create]})
    with pytest.raises(InvalidRequestError, match=text):
        prepare(decode_request(body), ID.bytes, TABLES, RunLimits())


def test_a_creation_looks_at_no_other_table() -> None:
    """There may be tens of thousands; those that the transaction creates are known in it."""

    class Unscanned(dict[str, TableDefinition]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all tables are looked at")

        keys = values = items = copy = __iter__

    tables = Tables(Unscanned(TABLES))
    columns = [{"name": "id", "type": "bigint"}]
    create = [op("create_table", name, columns=columns) for name in ("more", "Most")]
    rows = op("append", "Most", rows=[{"id": 1}])
    body = msgspec.json.encode({"operations": [*create, rows]})
    made = prepare(decode_request(body), ID.bytes, tables, RunLimits())
    assert [operation.table for operation in made.operations] == ["more", "Most", "Most"]
    create.append(op("create_table", "most", columns=[{"name": "id", "type": "int"}]))
    body = msgspec.json.encode({"operations": create})
    with pytest.raises(SchemaMismatchError, match="table 'Most' exists"):
        prepare(decode_request(body), ID.bytes, tables, RunLimits())
    assert tables.alike("more") is tables.alike("most") is None
