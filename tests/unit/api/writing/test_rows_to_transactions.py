"""Many transactions out of Arrow rows: ids, cuts, claims, limits."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparktxlog.api.writing.rows_to_transactions import (
    GroupedReceipt,
    GroupedRows,
    GroupedTransactions,
)
from sparktxlog.codec.containers.assembly import uuid_texts
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.errors import (
    DuplicateTransactionError,
    InvalidRowsError,
    OversizeError,
    SchemaMismatchError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, RunManifest

COLUMNS = (Column(name="id", type="bigint"), Column(name="v", type="string"))
FLIGHTS = TableDefinition(name="flights", columns=COLUMNS)
AIRCRAFT = TableDefinition(name="aircraft", columns=COLUMNS, keys=("id",))
TABLES = {"flights": FLIGHTS, "aircraft": AIRCRAFT}


def _rows(
    definition: TableDefinition,
    kind: OperationKind,
    place: int,
    transactions: list[Any],
    ids: list[int] | None = None,
    texts: list[str] | None = None,
) -> GroupedRows:
    keys = list(range(len(transactions))) if ids is None else ids
    columns = {"id": pa.array(keys, pa.int64())}
    lanes: tuple[np.ndarray[Any, Any], ...] = ()
    if kind is not OperationKind.DELETE_KEYS:
        columns["v"] = pa.array([f"v{key}" for key in keys])
        lanes = (np.array(keys, np.int64) * 3, -np.array(keys, np.int64) - 1)
    return GroupedRows(
        definition=definition,
        kind=kind,
        place=place,
        rows=pa.table(columns),
        values=pa.chunked_array([pa.array(transactions)]),
        ids=None if texts is None else pa.chunked_array([pa.array(texts)]),
        lanes=lanes,
    )


def _manifests(
    grouped: GroupedTransactions, n: int = 8192, size: int = 4 << 20
) -> list[RunManifest]:
    limits = RunLimits(transactions=n, size_bytes=size)
    return [
        validate_run(run.payload, TABLES, limits)
        for run in grouped.runs(n, size, 1_000_000, Session("s"))
    ]


def test_transactions_of_several_tables_become_one_run_the_node_accepts() -> None:
    grouped = GroupedTransactions(
        [
            _rows(FLIGHTS, OperationKind.APPEND, 0, [30, 10, 10, 20]),
            _rows(AIRCRAFT, OperationKind.UPSERT, 1, [20, 10], ids=[7, 7]),
            _rows(AIRCRAFT, OperationKind.DELETE_KEYS, 2, [40], ids=[9]),
        ]
    )
    assert (len(grouped), grouped.rows) == (4, 7)
    assert [value.as_py() for value in grouped.values] == [10, 20, 30, 40]
    (manifest,) = _manifests(grouped)
    assert manifest.n == 4
    assert manifest.session == "s"
    found = {(block.table, block.kind): block for block in manifest.blocks}
    assert found["flights", OperationKind.APPEND].txs == (0, 1, 2)
    assert found["aircraft", OperationKind.UPSERT].txs == (0, 1)
    assert found["aircraft", OperationKind.DELETE_KEYS].txs == (3,)
    assert found["aircraft", OperationKind.DELETE_KEYS].claim is None
    claim = found["flights", OperationKind.APPEND].claim
    assert claim is not None
    assert (claim.rows, claim.lane0) == (4, 3 * (0 + 1 + 2 + 3))
    assert claim.lane1 == (1 << 64) - (1 + 2 + 3 + 4)


def test_two_operations_of_one_kind_on_one_table_share_a_block() -> None:
    grouped = GroupedTransactions(
        [
            _rows(FLIGHTS, OperationKind.APPEND, 0, [1, 2]),
            _rows(FLIGHTS, OperationKind.APPEND, 1, [2, 1]),
        ]
    )
    (manifest,) = _manifests(grouped)
    assert len(manifest.blocks) == 1


def test_runs_are_cut_at_transactions_and_the_same_again() -> None:
    grouped = GroupedTransactions(
        [_rows(FLIGHTS, OperationKind.APPEND, 0, [i // 3 for i in range(300)])]
    )
    sizes = [manifest.n for manifest in _manifests(grouped, n=40)]
    assert sizes == [40, 40, 20]
    alone = [run.payload for run in grouped.runs(40, 4 << 20, 5, Session("s", "transaction"))]
    said = [(one.session, one.stands_alone) for one in map(read_manifest, alone)]
    assert set(said) == {("s", True)}
    runs = list(grouped.runs(40, 4 << 20, 5, Session(None)))
    assert [run.payload for run in runs] == [
        r.payload for r in grouped.runs(40, 4 << 20, 5, Session(None))
    ]
    assert [run.first for run in runs] == [0, 40, 80]
    claims = [manifest.blocks[0].claim for manifest in _manifests(grouped, n=40)]
    assert sum(claim.rows for claim in claims if claim) == 300


def test_runs_keep_the_limit_of_bytes() -> None:
    grouped = GroupedTransactions([_rows(FLIGHTS, OperationKind.APPEND, 0, list(range(2000)))])
    runs = list(grouped.runs(8192, 20_000, 0, Session(None)))
    assert max(len(run.payload) for run in runs) <= 20_000
    assert len(runs) < 10
    assert sum(run.n for run in runs) == 2000


def test_one_transaction_over_the_limit_is_refused_before_anything_is_sent() -> None:
    grouped = GroupedTransactions([_rows(FLIGHTS, OperationKind.APPEND, 0, [0] + [1] * 5000)])
    with pytest.raises(OversizeError, match=r"transaction '1'") as caught:
        next(grouped.runs(8192, 20_000, 0, Session(None)))
    assert "log.transaction()" in caught.value.hint


def test_no_rows_are_no_transactions() -> None:
    none = _rows(FLIGHTS, OperationKind.APPEND, 0, [])
    none = replace(none, values=none.values.cast("int64"))
    grouped = GroupedTransactions([none])
    assert (len(grouped), grouped.rows, list(grouped.runs(8192, 20_000, 0, Session(None)))) == (
        0,
        0,
        [],
    )
    receipt = GroupedReceipt.of(grouped, [], [])
    assert (receipt.transactions, receipt.rows, receipt.late) == (0, 0, False)
    assert receipt.mapping.num_rows == 0
    some = _rows(FLIGHTS, OperationKind.APPEND, 1, [1, 2])
    assert len(GroupedTransactions([none, some])) == 2


def test_given_ids_are_kept_in_the_order_of_the_transactions() -> None:
    one, two = (str(uuid.uuid4()) for _ in range(2))
    grouped = GroupedTransactions(
        [
            _rows(
                FLIGHTS,
                OperationKind.APPEND,
                0,
                ["b", "a", "b"],
                texts=[two, one, two],
            )
        ]
    )
    assert uuid_texts(grouped.ids).to_pylist() == [one, two]


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["x"] * 3, InvalidRowsError),
        ([str(uuid.UUID(int=1)), str(uuid.UUID(int=2)), str(uuid.UUID(int=3))], InvalidRowsError),
        ([str(uuid.UUID(int=1))] * 3, DuplicateTransactionError),
    ],
    ids=["no-uuid", "two-in-one", "one-for-two"],
)
def test_bad_ids_are_refused(texts: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        GroupedTransactions([_rows(FLIGHTS, OperationKind.APPEND, 0, ["a", "b", "b"], texts=texts)])


def test_a_key_twice_in_one_transaction_is_refused_in_two_it_is_fine() -> None:
    GroupedTransactions([_rows(AIRCRAFT, OperationKind.UPSERT, 0, [1, 2], ids=[5, 5])])
    with pytest.raises(InvalidRowsError, match="repeats the key"):
        GroupedTransactions([_rows(AIRCRAFT, OperationKind.UPSERT, 0, [1, 1], ids=[5, 5])])


def test_transaction_columns_of_two_types_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="different types"):
        GroupedTransactions(
            [
                _rows(FLIGHTS, OperationKind.APPEND, 0, [1]),
                _rows(FLIGHTS, OperationKind.APPEND, 1, ["1"]),
            ]
        )


def test_random_ids_are_uuids_and_shown_as_such() -> None:
    grouped = GroupedTransactions([_rows(FLIGHTS, OperationKind.APPEND, 0, [3, 1, 2])])
    texts = uuid_texts(grouped.ids).to_pylist()
    assert [uuid.UUID(text).version for text in texts] == [4, 4, 4]
    assert b"".join(uuid.UUID(text).bytes for text in texts) == grouped.ids
