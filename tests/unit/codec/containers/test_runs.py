"""Runs that clients assembled: what is let through, and what is not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import inline_section
from sparktxlog.codec.containers.payload import MAGIC, encode_payload
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.validation import run_schema
from sparktxlog.errors import (
    DuplicateTransactionError,
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
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import Block, OperationKind, RunManifest

T = TableDefinition(
    name="t",
    columns=(Column(name="id", type="bigint", nullable=False), Column(name="v", type="string")),
    keys=("id",),
)
TABLES = {"t": T}
APPEND, UPSERT = OperationKind.APPEND, OperationKind.UPSERT


def ids(n: int) -> bytes:
    return b"".join(i.to_bytes(8, "big") + i.to_bytes(8, "little") for i in range(1, n + 1))


def section(
    txs: list[int],
    ops: list[int] | None = None,
    keys: list[int | None] | None = None,
    schema: pa.Schema | None = None,
) -> bytes:
    n = len(txs)
    schema = schema or run_schema(T, APPEND)
    columns = [
        pa.array(keys or list(range(n)), pa.int64()),
        pa.array(["v"] * n),
        pa.array(txs, pa.int32()),
        pa.array(ops or [0] * n, pa.int32()),
    ]
    return write_section(pa.Table.from_arrays(columns, schema=schema))


def container(*parts: tuple[dict[str, Any], bytes], n: int = 3, **manifest: Any) -> bytes:
    blocks = []
    for index, (more, data) in enumerate(parts):
        known: dict[str, Any] = {
            "table": "t",
            "kind": APPEND,
            "inline": inline_section(index, data, pa.ipc.open_stream(data).read_all().num_rows),
        }
        blocks.append(Block(**(known | more)))
    of: dict[str, Any] = {"n": n, "ids": ids(n), "blocks": tuple(blocks), "submitted_at": 1}
    return encode_payload(RunManifest(**(of | manifest)), [data for _, data in parts])


def check(payload: bytes, **limits: int) -> RunManifest:
    return validate_run(payload, TABLES, RunLimits(**limits))


def refused(error: type[TxLogError], payload: bytes, match: str, **limits: int) -> TxLogError:
    with pytest.raises(error, match=match) as caught:
        check(payload, **limits)
    assert caught.value.definite
    return caught.value


def test_a_good_run_passes() -> None:
    manifest = check(container(({}, section([0, 1, 1, 2]))))
    assert manifest.n == 3
    two = container(
        ({"txs": (0, 2)}, section([0, 2])),
        ({"kind": UPSERT, "txs": (1, 2)}, section([1, 2], [0, 1])),
    )
    assert len(check(two).blocks) == 2


def test_limits() -> None:
    payload = container(({}, section([0, 1, 2])))
    error = refused(OversizeError, payload, "transactions", transactions=2)
    assert (error.fields["transactions"], error.fields["limit"]) == (3, 2)
    error = refused(OversizeError, payload, "bytes", size_bytes=100)
    assert error.fields["size_bytes"] == len(payload)


def test_repeated_ids() -> None:
    twice = ids(2) + ids(1)
    error = refused(
        DuplicateTransactionError, container(({}, section([0, 1, 2])), ids=twice), "occurs twice"
    )
    assert error.fields["transaction_id"] == "00000000-0000-0001-0100-000000000000"


def test_ids_that_share_one_half_are_distinct() -> None:
    shared = b"".join(i.to_bytes(8, "big") + bytes(8) for i in range(3))
    check(container(({}, section([0, 1, 2])), ids=shared))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"digest": hashlib.sha256(b"x").hexdigest()}, "digest"),
        ({"size_bytes": 7}, "bytes, the manifest says 7"),
        ({"rows": 4}, "3 rows, the manifest says 4"),
    ],
)
def test_a_section_that_is_not_what_the_manifest_says(change: dict[str, Any], match: str) -> None:
    data = section([0, 1, 2])
    inline = replace(inline_section(0, data, 3), **change)
    refused(ManifestMismatchError, container(({"inline": inline}, data)), match)


def test_a_claim_that_counts_other_rows() -> None:
    payload = container(({"claim": TableSignature(rows=2)}, section([0, 1, 2])))
    refused(ManifestMismatchError, payload, "3 rows")


def test_torn_bytes() -> None:
    payload = container(({}, section([0, 1, 2])))
    refused(ManifestMismatchError, payload[:-1], "torn")
    refused(ManifestMismatchError, b"x" * 100, "not a payload container")
    refused(ManifestMismatchError, encode_payload_of({"n": 1}), "cannot be read")


def encode_payload_of(value: Any) -> bytes:
    body = msgspec.msgpack.encode(value)
    head = MAGIC + len(body).to_bytes(4, "little") + (0).to_bytes(4, "little")
    return head + body


@pytest.mark.parametrize(
    ("txs", "ops", "match"),
    [
        ([0, 2, 1], None, "not ascending"),
        ([0, 1, 3], None, "outside"),
        ([-1, 0, 1, 2], None, "outside"),
        ([0, 1, 1, 2], [0, 1, 0, 0], "not ascending"),
        ([0, 1, 2], [0, -1, 0], "below 0"),
        ([0, 1, 2], [0, 1000, 0], "may have 1000 operations"),
        ([0, 2], None, "other transactions"),
    ],
)
def test_rows_whose_transactions_make_no_sense(
    txs: list[int], ops: list[int] | None, match: str
) -> None:
    refused(InvalidRequestError, container(({}, section(txs, ops))), match)


def test_a_block_that_names_other_transactions_than_its_rows() -> None:
    payload = container(({"txs": (0, 1)}, section([0, 1, 2])))
    refused(InvalidRequestError, payload, "other transactions")


def test_a_transaction_without_operation() -> None:
    payload = container(({"txs": (0, 2)}, section([0, 2])))
    refused(InvalidRequestError, payload, "has no operation")


def test_an_operation_in_two_blocks() -> None:
    payload = container(
        ({}, section([0, 1, 2])), ({"kind": UPSERT, "txs": (1,)}, section([1], [0]))
    )
    refused(InvalidRequestError, payload, "is in two blocks")


def test_blocks_that_a_client_may_not_send() -> None:
    data = section([0, 1, 2])
    where = Block(table="t", kind=OperationKind.DELETE_WHERE, txs=(0,), predicate="true")
    payload = encode_payload(RunManifest(n=1, ids=ids(1), blocks=(where,), submitted_at=1), [])
    error = refused(InvalidRequestError, payload, "only hold inline rows")
    assert "/v1/transactions" in error.hint
    refused(InvalidRequestError, container(({"op": 1}, data)), "only hold inline rows")
    refused(InvalidRequestError, container(({}, data), ({}, data)), "one block per table")
    refused(InvalidRequestError, container(({}, data), blocks=()), "1 to 1000 blocks")
    refused(InvalidRequestError, container(({}, data), version=2), "version 1")
    refused(InvalidRequestError, container(({}, data), session="x" * 129), "session")
    spare = encode_payload(check(container(({}, data))), [data, data])
    refused(InvalidRequestError, spare, "exactly one block")


def test_unknown_tables_and_stale_schemas() -> None:
    data = section([0, 1, 2])
    refused(UnknownTableError, container(({"table": "u"}, data)), "no table 'u'")
    error = refused(StaleSchemaError, container(({"schema_version": 2}, data)), "version 1")
    assert error.fields == {"table": "t", "schema_version": 1, "made_for": 2}


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (pa.schema([("id", pa.int64()), *list(run_schema(T, APPEND))[1:]]), "id"),
        (run_schema(T, APPEND).set(1, pa.field("w", pa.string())), "v"),
    ],
)
def test_another_schema(schema: pa.Schema, column: str) -> None:
    error = refused(
        SchemaMismatchError, container(({}, section([0, 1, 2], schema=schema))), "is wanted"
    )
    assert error.fields["column"] == column


def test_extra_columns_and_wrong_types() -> None:
    good = pa.ipc.open_stream(section([0, 1, 2])).read_all()
    extra = write_section(good.append_column("x", good["id"]))
    refused(SchemaMismatchError, container(({}, extra)), "further columns: x")
    wide = good.set_column(
        2, pa.field("__txlog_tx", pa.int64(), False), good["__txlog_tx"].cast("int64")
    )
    refused(SchemaMismatchError, container(({}, write_section(wide))), "int is wanted|int not null")


def test_nulls_and_repeated_keys() -> None:
    nulls = section([0, 1, 2], keys=[1, None, 3])
    error = refused(InvalidRowsError, container(({}, nulls)), "NULL in 'id'")
    assert error.fields["row"] == 1
    same = section([0, 1, 1, 2], keys=[1, 5, 5, 5])
    error = refused(InvalidRowsError, container(({"kind": UPSERT}, same)), "repeats the key id=5")
    assert error.fields["row"] == 2
    check(container(({}, same)))
    apart = section([0, 1, 1, 2], [0, 0, 1, 0], keys=[1, 5, 5, 5])
    check(container(({"kind": UPSERT}, apart)))


def test_a_section_that_inflates_too_far() -> None:
    columns = [pa.array([1]), pa.array(["v" * 40_000_000])]
    marks = [pa.array([0], pa.int32())] * 2
    rows = pa.Table.from_arrays([*columns, *marks], schema=run_schema(T, APPEND))
    data = write_section(rows, compression="zstd")
    assert len(data) < 100_000
    refused(OversizeError, container(({}, data), n=1), "inflates")
