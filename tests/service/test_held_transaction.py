"""`client.open_transaction`: begin … commit over the network, in pieces, over lossy ways."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.faulty_way import Fault, faulty_way
from tests.support.node_processes import NodeProcess, free_ports, wait_until

from sparktxlog import Client
from sparktxlog.errors import (
    CommitStateUnknownError,
    ConflictError,
    InvalidRequestError,
    LocalProtocolError,
    OversizeError,
    PeerTimeoutError,
    SchemaMismatchError,
    StaleSchemaError,
    TransactionNotOpenError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.transactions.receipt import Level, Receipt

COLUMNS = {"id": "bigint not null", "v": "string"}


@pytest.fixture
def table(client: Client) -> str:
    """A new table with keys."""
    name = f"open_{uuid.uuid4().hex}"
    client.create_table(name, COLUMNS, keys=["id"])
    return name


def row(number: int) -> list[dict[str, object]]:
    return [{"id": number, "v": "x"}]


def opened(client: Client) -> list[str]:
    return [one["transaction_id"] for one in client._link.get("/v1/open-transactions")]


def test_t69_begin_replace_delete_commit_over_http_synchronously(
    client: Client, node: NodeProcess, table: str
) -> None:
    """No code at the node: requests that open it, add to it, and commit it."""
    client.append(table, [{"id": 1, "v": "old"}, {"id": 2, "v": "old"}])
    before = client.info()["position"]
    with client.open_transaction(lease=30, is_sync=True) as tx:
        tx.upsert(table, [{"id": 1, "v": "new"}])
        tx.delete_where(table, "id = 2")
        assert tx.id in opened(client) and client.info()["position"] == before
        command = [sys.executable, "-m", "sparktxlog.cli", "tx", "open", "--url", node.url]
        shown = subprocess.run(
            [*command, "--json"], capture_output=True, text=True, check=True, timeout=60
        )
        mine = [one for one in json.loads(shown.stdout) if one["transaction_id"] == tx.id]
        assert [(one["operations"], one["lease"]) for one in mine] == [(2, 30.0)]
    assert (tx.receipt.position, tx.receipt.outcome) == (before + 1, "committed")
    assert tx.commit() == tx.receipt and tx.id not in opened(client)
    with pytest.raises(LocalProtocolError):
        tx.append(table, row(3))
    with pytest.raises(LocalProtocolError):
        tx.rollback()


def test_it_takes_more_than_a_request_or_a_run_may_have(client: Client, table: str) -> None:
    """Rows of 20 MiB: the limits of this node are 8 MiB for a body, and 4 MiB for rows of a run."""
    text = "x" * 1000

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 20_000, 1_000):
            ids = pa.array(range(first, first + 1_000), pa.int64())
            yield pa.record_batch({"id": ids, "v": pa.array([f"{n}{text}" for n in range(1_000)])})

    schema = next(batches()).schema
    created = f"{table}_new"
    with client.open_transaction() as tx:
        tx.create_table(created, COLUMNS, keys=["id"])
        tx.append(created, pa.RecordBatchReader.from_batches(schema, batches()))
        tx.upsert(table, pa.Table.from_batches(batches()))
        for number in range(3):
            tx.append(table, [{"id": -number, "v": text * 200} for _ in range(10)])  # of JSON
        tx.append(created, [])
        tx.append(created, pa.RecordBatchReader.from_batches(schema, iter(())))
    assert tx.receipt.rows == 2 * 20_000 + 30
    assert {client.table(name).version for name in (table, created)} == {1}
    with client.open_transaction() as small:
        for number in range(20):  # each travels with its request, together they may not
            small.append(table, [{"id": number, "v": text * 240}])
    assert small.receipt.rows == 20


def test_what_gets_lost_is_asked_again_and_adds_nothing_twice(
    node: NodeProcess, client: Client, table: str
) -> None:
    requests, turn = itertools.count(), threading.Lock()

    def every_other(method: str) -> Fault:
        with turn:
            return Fault.LOST if method != "GET" and next(requests) % 2 == 0 else Fault.NONE

    with faulty_way(node.url, every_other) as way, Client(way.url) as lossy:
        with lossy.open_transaction() as tx:
            tx.upsert(table, row(1))
            tx.append(table, row(2))
            tx.append(table, pa.table({"id": range(100_000), "v": ["y"] * 100_000}))
            assert lossy._link.get(f"/v1/open-transactions/{tx.id}")["operations"] == 3
        assert tx.receipt.outcome == "committed"
        assert way.happened[Fault.LOST] >= 4
    assert client.table(table).version == 1
    assert client.receipt(tx.id).position == tx.receipt.position


def test_an_error_rolls_it_back_and_a_refused_operation_is_not_in_it(
    client: Client, table: str
) -> None:
    with pytest.raises(ZeroDivisionError), client.open_transaction() as tx:
        tx.append(table, row(1))
        assert tx.id in opened(client)
        raise ZeroDivisionError
    assert tx.id not in opened(client) and client.table(table).version == 0
    with client.open_transaction() as tx:
        tx.append(table, row(1))
        with pytest.raises(SchemaMismatchError):
            tx.append(table, [{"id": "one", "v": "x"}])
        with pytest.raises(UnknownTableError):
            tx.append("nowhere_at_all", row(1))
        tx.append(table, row(2))
    assert tx.receipt.rows == 2
    with client.open_transaction() as nothing:
        pass
    assert nothing.receipt.n == 0 and nothing.id not in opened(client)
    with client.open_transaction(transaction_id=uuid.uuid4()) as recorded:
        pass
    assert recorded.receipt.position is not None
    with client.open_transaction() as full:
        for _ in range(1_000):
            full.delete_where(table, "id = 1")
        with pytest.raises(OversizeError):
            full.append(table, row(3))


def test_conditions_come_first_and_are_judged_at_the_commit(client: Client, table: str) -> None:
    lost = client.open_transaction(isolation="serializable")
    lost.read_at(client.info()["position"], table)
    lost.expect_version(table, 0)
    lost.append(table, row(1))
    with pytest.raises(LocalProtocolError):
        lost.expect_version(table, 0)
    with pytest.raises(LocalProtocolError):
        lost.read_at(1, table)
    client.append(table, row(2))
    with pytest.raises(ConflictError):
        lost.commit()
    with pytest.raises(ConflictError):
        lost.commit()  # again the same
    with client.open_transaction() as tx:
        tx.expect_version(table, 1)
        tx.append(table, row(3))
    assert client.table(table).version == 2


@pytest.mark.parametrize("rows", [1, 3_000])
def test_rows_of_an_expected_schema_are_refused_by_another_one(
    client: Client, table: str, rows: int
) -> None:
    """Few travel with the request, many as files."""
    ids = pa.array(range(rows), pa.int64())
    given = pa.table({"id": ids, "v": pa.array(["x" * 200] * rows), "w": pa.nulls(rows, pa.int8())})
    expected = client.table(table).schema_version
    client.alter_table(table, add={"w": "tinyint"})
    with client.open_transaction() as tx:
        tx.expect_schema(table, expected)
        with pytest.raises(StaleSchemaError) as raised:
            tx.append(table, given)
        assert raised.value.fields["made_for"] == expected and raised.value.definite
    with client.open_transaction() as tx:
        tx.expect_schema(table, expected + 1)
        tx.append(table, given)
    assert tx.receipt.rows == rows


def test_a_lease_ends_unless_it_is_renewed(client: Client, table: str) -> None:
    with pytest.raises(InvalidRequestError):
        client.open_transaction(lease=0)
    tx = client.open_transaction(lease=3)
    tx.append(table, row(1))
    began = time.monotonic()
    while time.monotonic() - began < 4:
        tx.renew()
        threading.Event().wait(0.1)  # a lease is time
    assert tx.id in opened(client)
    wait_until(lambda: tx.id not in opened(client), what="the lease has ended")
    with pytest.raises(TransactionNotOpenError, match="its lease of 3 s ended"):
        tx.commit()
    assert client.table(table).version == 0


def test_what_an_earlier_attempt_only_reached_is_not_enough(
    client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that restarted says of a commit that it is accepted; more was asked for."""
    tx = client.open_transaction()
    tx.append(table, row(1))
    accepted = Receipt(transaction_id=tx.id, n=1, level=Level.ACCEPTED)
    answer = tx._answer

    def lost(*given: Any) -> Receipt:
        answer(*given)
        return accepted

    monkeypatch.setattr(tx, "_answer", lost)
    found = tx.commit()
    assert (found.level, found.outcome) == (Level.ORDERED, "committed") and found.position


@pytest.mark.parametrize(("incarnation", "definite"), [(1, True), (2, False)])
def test_a_node_that_lost_its_disk_knows_nothing_of_an_earlier_attempt(
    incarnation: int,
    definite: bool,
    client: Client,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its peers may have what it took before: that it is not open there is no answer."""
    tx = client.open_transaction()
    tx.append(table, row(1))
    answers: Iterator[TxLogError] = iter(
        [
            PeerTimeoutError("no answer"),
            TransactionNotOpenError("no such transaction is open", incarnation=incarnation),
        ]
    )

    def lost(*given: Any) -> Receipt:
        raise next(answers)

    monkeypatch.setattr(tx, "_answer", lost)
    with pytest.raises(TransactionNotOpenError if definite else CommitStateUnknownError) as raised:
        tx.commit()
    assert raised.value.definite is definite
    monkeypatch.undo()
    assert tx.commit().outcome == "committed"


def test_it_ends_with_its_node_and_the_client_says_so(tmp_path: Path) -> None:
    process = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    process.start()
    process.wait_ready()
    try:
        with Client(process.url) as client:
            client.create_table("t", COLUMNS)
            tx = client.open_transaction()
            tx.append("t", row(1))
            process.kill()
            process.start()
            process.wait_ready()
            with pytest.raises(TransactionNotOpenError) as raised:
                tx.append("t", row(2))
            assert raised.value.definite
            assert client.table("t").version == 0
    finally:
        process.stop()
