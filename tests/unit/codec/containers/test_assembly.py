"""Runs assembled from validated transactions."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import assemble_rows, assemble_run
from sparktxlog.codec.containers.payload import (
    digest_of,
    read_manifest,
    split_payload,
    verify_payload,
)
from sparktxlog.codec.containers.sections import read_section
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import LocalProtocolError
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OP_COLUMN, TX_COLUMN, OperationKind, StagedFile

LIMIT = 1 << 22


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})


def operation(
    kind: OperationKind = OperationKind.APPEND, table: str = "orders", **more: object
) -> PreparedOperation:
    return PreparedOperation(table=table, kind=kind, **more)  # type: ignore[arg-type]


def transaction(*operations: PreparedOperation, session: str | None = None) -> PreparedTransaction:
    return PreparedTransaction(
        transaction_id=uuid.uuid4().bytes, operations=operations, session=session
    )


def test_rows_of_one_table_and_kind_share_one_section() -> None:
    transactions = [
        transaction(operation(rows=rows(1))),
        transaction(operation(rows=rows(2, 3)), operation(rows=rows(4))),
    ]
    manifest, payload = assemble_run(transactions, 17)
    assert manifest.n == 2
    assert manifest.ids == transactions[0].transaction_id + transactions[1].transaction_id
    (block,) = manifest.blocks
    assert block.txs is None and block.inline is not None and block.inline.rows == 4
    assert verify_payload(payload, digest_of(payload)) == manifest == read_manifest(payload)
    table = read_section(split_payload(payload)[1][0], LIMIT, lambda schema: None)
    assert table.column_names == ["id", "name", TX_COLUMN, OP_COLUMN]
    assert table["id"].to_pylist() == [1, 2, 3, 4]
    assert table[TX_COLUMN].to_pylist() == [0, 1, 1, 1]
    assert table[OP_COLUMN].to_pylist() == [0, 0, 0, 1]
    assert table.schema.field(TX_COLUMN).type == pa.int32()


def test_each_table_and_kind_has_its_block_and_names_its_transactions() -> None:
    transactions = [
        transaction(operation(rows=rows(1))),
        transaction(operation(OperationKind.UPSERT, rows=rows(2))),
        transaction(operation(table="other", rows=rows(3)), operation(rows=rows(5))),
    ]
    manifest, payload = assemble_run(transactions, 0)
    found = {(block.table, block.kind.value): block.txs for block in manifest.blocks}
    assert found == {
        ("orders", "append"): (0, 2),
        ("orders", "upsert"): (1,),
        ("other", "append"): (2,),
    }
    assert [b.inline.index for b in manifest.blocks if b.inline] == [0, 1, 2]
    assert len(split_payload(payload)[1]) == 3


def test_files_definitions_and_predicates_are_blocks_of_their_own() -> None:
    definition = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
    file = StagedFile(path="x/t/a.parquet", size_bytes=9, rows=2, digest="00")
    transactions = [
        transaction(operation(rows=rows(1))),
        transaction(
            operation(OperationKind.CREATE_TABLE, "t", definition=definition),
            operation(table="t", files=(file,), claim=TableSignature(rows=2)),
            operation(OperationKind.DELETE_WHERE, "t", predicate="`id` > 3"),
        ),
    ]
    manifest, _ = assemble_run(transactions, 0)
    singles = [block for block in manifest.blocks if block.inline is None]
    assert [(b.kind.value, b.txs, b.op) for b in singles] == [
        ("create_table", (1,), 0),
        ("append", (1,), 1),
        ("delete_where", (1,), 2),
    ]
    assert singles[0].definition == definition
    assert singles[1].files == (file,) and singles[1].claim == TableSignature(rows=2)
    assert singles[2].predicate == "`id` > 3"


def test_claims_are_summed_and_missing_if_one_is_missing() -> None:
    claim = TableSignature(rows=1, lane0=(1 << 64) - 1, lane1=2)
    both = [transaction(operation(rows=rows(i), claim=claim)) for i in (1, 2)]
    manifest, _ = assemble_run(both, 0)
    assert manifest.blocks[0].claim == TableSignature(rows=2, lane0=(1 << 64) - 2, lane1=4)
    manifest, _ = assemble_run([*both, transaction(operation(rows=rows(3)))], 0)
    assert manifest.blocks[0].claim is None


def test_the_same_transactions_give_the_same_bytes() -> None:
    transactions = [transaction(operation(rows=rows(i))) for i in range(5)]
    assert assemble_run(transactions, 1)[1] == assemble_run(transactions, 1)[1]


def test_runs_of_several_sessions_or_of_nothing_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        assemble_run([], 0)
    with pytest.raises(LocalProtocolError):
        assemble_run(
            [
                transaction(operation(rows=rows(1)), session="a"),
                transaction(operation(rows=rows(2)), session="b"),
            ],
            0,
        )


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_of_many_transactions(compression: str | None) -> None:
    txs = np.array([0, 0, 1, 2], dtype=np.int32)
    manifest, payload = assemble_rows(
        "orders",
        OperationKind.UPSERT,
        3,
        rows(1, 2, 3, 4),
        txs,
        b"".join(uuid.uuid4().bytes for _ in range(3)),
        5,
        session="s",
        compression=compression,
    )
    assert (manifest.n, manifest.session, manifest.blocks[0].schema_version) == (3, "s", 3)
    table = read_section(split_payload(payload)[1][0], LIMIT, lambda schema: None)
    assert table[TX_COLUMN].to_pylist() == [0, 0, 1, 2]
    assert table[OP_COLUMN].to_pylist() == [0, 0, 0, 0]
