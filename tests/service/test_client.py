"""The Python client without Spark against a real node."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.node_processes import NodeProcess

import sparktxlog
from sparktxlog import Client
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    LocalProtocolError,
    NotFoundError,
    OversizeError,
    SchemaMismatchError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.transactions.receipt import Level


@pytest.fixture
def table(client: Client) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    client.create_table(
        name, {"id": "bigint not null", "v": "string", "amount": "decimal(10,2)"}, keys=["id"]
    )
    return name


def rows(n: int, start: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": np.arange(start, start + n),
            "v": ["x"] * n,
            "amount": pa.array([Decimal("1.50")] * n, pa.decimal128(10, 2)),
        }
    )


def test_a_call_may_take_longer_than_a_node_waits(node: NodeProcess, table: str) -> None:
    with Client(node.url, timeout=2 * LONGEST_WAIT_S) as client:
        position = client.append(table, rows(1), level="ordered").position
        assert position is not None and client.table(table).name == table


def test_a_table_is_there_once_created(client: Client, table: str) -> None:
    definition = client.table(table)
    assert definition.keys == ("id",)
    assert [(c.name, c.type, c.nullable) for c in definition.columns] == [
        ("id", "bigint", False),
        ("v", "string", True),
        ("amount", "decimal(10,2)", True),
    ]
    assert definition in client.tables()


def test_all_operations_in_one_transaction(client: Client, table: str) -> None:
    before = client.info()["position"]
    with client.transaction() as tx:
        tx.append(table, rows(3))
        tx.upsert(table, [{"id": 1, "v": None, "amount": Decimal("2.25")}])
        tx.delete_keys(table, [{"id": 2}])
        tx.delete_where(table, "amount > 100")
        tx.overwrite(table, rows(1))
        tx.create_table(f"{table}_b", pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
        tx.append(f"{table}_b", [{"at": datetime(2024, 1, 31, tzinfo=UTC)}])
    receipt = tx.receipt
    assert (receipt.transaction_id, receipt.n, receipt.outcome) == (tx.id, 1, "committed")
    assert receipt.position == before + 1
    assert receipt.level is Level.ORDERED
    assert client.receipt(tx.id).position == receipt.position


def test_an_error_inside_the_block_submits_nothing(client: Client, table: str) -> None:
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        tx.append(table, rows(1))
        1 / 0  # noqa: B018
    with pytest.raises(NotFoundError):
        client.receipt(tx.id)
    with pytest.raises(TxLogError, match="no receipt"):
        _ = tx.receipt


def test_commit_submits_without_a_with_block(client: Client, table: str) -> None:
    tx = client.transaction()
    tx.append(table, rows(1))
    with pytest.raises(LocalProtocolError, match="no receipt"):
        _ = tx.receipt
    assert tx.commit() == tx.receipt == tx.commit()
    assert client.receipt(tx.id).position == tx.receipt.position
    with pytest.raises(LocalProtocolError, match="no more operations"):
        tx.append(table, rows(1))


def test_the_same_id_again_is_the_same_transaction(client: Client, table: str) -> None:
    transaction_id = str(uuid.uuid4())
    first = client.append(table, rows(1), transaction_id=transaction_id)
    before = client.info()["position"]
    assert client.append(table, rows(1), transaction_id=transaction_id) == first
    assert client.info()["position"] == before


@pytest.mark.parametrize(
    ("table_name", "given", "error", "fields"),
    [
        ("nope", [{"id": 1}], UnknownTableError, {"table": "nope"}),
        (None, [{"id": 1, "v": "x"}], SchemaMismatchError, {"column": "amount"}),
        (None, [{"id": "x", "v": "x", "amount": "1"}], SchemaMismatchError, {"row": 0}),
        (None, [{"id": None, "v": "x", "amount": "1"}], InvalidRowsError, {"column": "id"}),
        (None, [{"id": 1, "v": "x", "amount": 1.5}], SchemaMismatchError, {"column": "amount"}),
        (None, [{"id": 1, "v": "x", "amount": "1"}] * 2, InvalidRowsError, {"row": 1}),
        (None, rows(2).drop_columns(["v"]), SchemaMismatchError, {"column": "v"}),
        ("nope", [], UnknownTableError, {"table": "nope"}),
        (None, rows(0).drop_columns(["v"]), SchemaMismatchError, {"column": "v"}),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_stored(
    client: Client,
    table: str,
    table_name: str | None,
    given: Any,
    error: type[TxLogError],
    fields: dict[str, Any],
) -> None:
    before = client.info()["position"]
    transaction_id = str(uuid.uuid4())
    with pytest.raises(error) as caught:
        client.upsert(table_name or table, given, transaction_id=transaction_id)
    assert caught.value.definite
    assert caught.value.fields == caught.value.fields | {"table": table_name or table} | fields
    assert client.info()["position"] == before
    with pytest.raises(NotFoundError):
        client.receipt(transaction_id)


@pytest.mark.parametrize("nothing", [[], rows(0)], ids=["list", "arrow"])
def test_no_rows_are_no_transaction_unless_it_has_an_id(
    client: Client, table: str, nothing: Any
) -> None:
    before = client.info()["position"]
    for act in (client.append, client.upsert):
        receipt = act(table, nothing)
        assert (receipt.rows, receipt.n, receipt.position) == (0, 0, None)
        assert (receipt.level, receipt.outcome) == (Level.ORDERED, "committed")
    assert client.delete_keys(table, []).n == 0
    with pytest.raises(LocalProtocolError, match="nothing to wait for"):
        client.wait(receipt)
    assert client.info()["position"] == before
    identity = str(uuid.uuid4())
    receipt = client.append(table, nothing, transaction_id=identity)
    assert (receipt.rows, receipt.position, receipt.transaction_id) == (0, before + 1, identity)
    assert client.append(table, nothing, transaction_id=identity) == receipt
    with client.transaction() as tx:  # the other operation counts
        tx.append(table, nothing)
        tx.append(table, rows(2))
    assert (tx.receipt.rows, tx.receipt.position) == (2, before + 2)
    assert client.overwrite(table, nothing).position == before + 3


def test_a_batch_of_no_rows_is_empty(client: Client, table: str) -> None:
    before = client.info()["position"]
    for kind in ("append", "overwrite"):
        batch = client.submit_many(table, rows(0), kind=kind)
        assert (batch.n, batch.rows, batch.receipts, batch.late) == (0, 0, (), False)
    given = rows(0).append_column("g", pa.array([], pa.string()))
    assert client.submit_many(table, given, transaction_column="g").n == 0
    with pytest.raises(SchemaMismatchError):
        client.submit_many(table, rows(0).drop_columns(["v"]))
    assert client.info()["position"] == before
    assert client.submit_many(table, rows(2)).rows == 2


def test_rows_beyond_the_inline_limit_are_refused_with_the_way_out(
    client: Client, table: str
) -> None:
    large = rows(1).set_column(1, "v", pa.array(["x" * (4 << 20)]))
    with pytest.raises(OversizeError, match=r"Stage|stage") as caught:
        client.append(table, large)
    assert caught.value.definite
    fits = rows(1).set_column(1, "v", pa.array(["x" * (3 << 20)]))
    assert client.append(table, fits).outcome == "committed"


def test_a_body_over_the_limit_of_the_node_is_a_refusal(client: Client, table: str) -> None:
    given = [{"id": i, "v": "z" * (1 << 20), "amount": "1"} for i in range(30)]
    with pytest.raises(OversizeError) as caught:
        client.append(table, given, timeout=10)
    assert caught.value.fields["limit_bytes"] == 8 << 20


def test_a_batch_of_many_transactions(client: Client, table: str) -> None:
    before = client.info()["position"]
    batch = client.submit_many(table, rows(2500), run_transactions=1000)
    assert batch.n == 2500 and len(batch.receipts) == 3
    assert {receipt.level for receipt in batch.receipts} == {Level.ORDERED}
    positions = [
        (receipt.position or 0) + index for receipt in batch.receipts for index in range(receipt.n)
    ]
    assert sorted(positions) == list(range(before + 1, before + 2501))
    assert batch.rejections == ()
    ids = {uuid.UUID(batch.transaction_id(i)) for i in range(batch.n)}
    assert len(ids) == 2500 and {found.version for found in ids} == {4}
    index = 1234
    assert client.receipt(batch.transaction_id(index)).position == positions[index]


def test_a_batch_grouped_by_a_column(client: Client, table: str) -> None:
    given = rows(6).append_column("g", pa.array(["a", "b", "a", "c", "b", "a"]))
    batch = client.submit_many(table, given, transaction_column="g", kind="upsert")
    assert batch.n == 3
    with pytest.raises(SchemaMismatchError):
        client.submit_many(table, given, transaction_column="nope")


def test_a_batch_keeps_runs_within_their_bytes(client: Client, table: str) -> None:
    wide = rows(40).set_column(1, "v", pa.array(["y" * (300 << 10)] * 40))
    batch = client.submit_many(table, wide)
    assert batch.n == 40 and len(batch.receipts) >= 3
    over = rows(1).set_column(1, "v", pa.array(["y" * (5 << 20)]))
    with pytest.raises(OversizeError):
        client.submit_many(table, over)


def test_bad_batches(client: Client, table: str) -> None:
    before = client.info()["position"]
    with pytest.raises(InvalidRequestError):
        client.submit_many(table, rows(1), kind="merge")
    with pytest.raises(InvalidRequestError, match="list of dicts"):
        client.submit_many(table, 5)
    with pytest.raises(UnknownTableError):
        client.submit_many("nope", rows(1))
    assert client.info()["position"] == before


def test_upserts_of_a_batch_keep_their_order(client: Client, table: str) -> None:
    given = rows(2000).set_column(0, "id", pa.array([1] * 2000, pa.int64()))
    batch = client.submit_many(table, given, kind="upsert", run_transactions=500)
    assert len(batch.receipts) == 4
    starts = [receipt.position or 0 for receipt in batch.receipts]
    assert starts == sorted(starts)


def test_waiting(client: Client, table: str) -> None:
    receipt = client.append(table, rows(1), level="accepted")
    assert client.wait(receipt).level is Level.ORDERED
    batch = client.submit_many(table, rows(10), level="accepted")
    assert client.wait(batch).level is Level.ORDERED
    late = client.wait(receipt, "applied", timeout=0.1)  # nobody applies here
    assert (late.level, late.late, late.position) == (
        Level.ORDERED,
        True,
        client.wait(receipt).position,
    )
    with pytest.raises(NotFoundError):
        client.wait(str(uuid.uuid4()))


def test_a_level_not_reached_in_time_is_a_receipt_that_says_so(client: Client, table: str) -> None:
    receipt = client.append(table, rows(1), level="applied", timeout=2)
    assert (receipt.level, receipt.late, receipt.outcome) == (Level.ORDERED, True, "committed")
    assert client.receipt(receipt.transaction_id or "").position == receipt.position
    batch = client.submit_many(table, rows(3), level="applied", timeout=2)
    assert batch.late and [r.late for r in batch.receipts] == [True]
    assert not client.submit_many(table, rows(3)).late


def test_state(client: Client, table: str) -> None:
    client.append(table, rows(1))
    assert client.status()["node_id"] == "A"
    last = client.queue(client.info()["position"] - 1)[-1]
    assert last["n"] >= 1 and last["origin"] == "A"


def test_public_names_load_without_spark_and_web() -> None:
    code = (
        "import sys, sparktxlog; sparktxlog.Client; sparktxlog.errors; sparktxlog.BusyError;"
        "heavy = {'pyspark', 'fastapi', 'httptools', 'starlette', 'pandas', 'pyarrow', 'numpy'};"
        "loaded = heavy & set(sys.modules);"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd="src", capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert sparktxlog.errors.BusyError is sparktxlog.BusyError
    assert not hasattr(sparktxlog, "nope")


_WITHOUT_ARROW = """
import sys; sys.modules["pyarrow"] = sys.modules["numpy"] = None
import sparktxlog
client, table = sparktxlog.Client(sys.argv[1]), sys.argv[2]
row = {"v": "x", "amount": "1.50"}
client.create_table(table, "id Bigint not null, v string, amount decimal(10, 2)", keys=["id"])
print(client.table(table).columns[0].type, client.upsert(table, [{"id": 1} | row]))
with client.transaction() as one:
    one.append(table, [{"id": 2} | row])
    one.delete_where(table, "id = 1")
with client.open_transaction() as one:
    one.upsert(table, [{"id": 3} | row])
client.alter_table(table, add={"note": "string"})
print(client.status(), client.queue()[-1]["position"])
class Frame:
    def __arrow_c_stream__(self, requested_schema=None): raise AssertionError("it is not read")
for call in (
    lambda: client.view("queue"), client.background, lambda: client.submit_many(table, []),
    lambda: client.append(table, Frame()), lambda: client.create_table(table + "2", "id bigit"),
    lambda: client.append(table, 7),
):
    try: call()
    except sparktxlog.TxLogError as error: print(error.code, error.definite, error)
assert not sys.modules["numpy"] and not sys.modules["pyarrow"]
"""


def test_rows_that_are_dicts_need_no_arrow(node: NodeProcess, client: Client) -> None:
    """What needs it says so before anything is sent."""
    table = f"t{uuid.uuid4().hex[:12]}"
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ARROW, node.url, table],
        check=False,
        cwd="src",
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("bigint transaction ")
    said = found.stdout.splitlines()[-6:]
    install = "needs numpy, which is not installed  Run: pip install 'sparktxlog[arrow]'"
    for line, what in zip(
        said, ("a view of the state", "client.background", "client.submit_many"), strict=False
    ):
        assert line == f"missing-dependency True [missing-dependency] {what} {install}"
    assert f"rows as a __main__.Frame {install}" in said[3]
    assert said[4].startswith("schema-mismatch True") and "'bigit'" in said[4]
    assert said[5].startswith("invalid-request True")
    assert [column.name for column in client.table(table).columns][-1] == "note"


def test_a_missing_extra_is_answered_with_its_command() -> None:
    for library in ("pyspark", "pyarrow", "structlog"):
        code = (
            f"import sys; sys.modules[{library!r}] = None\n"
            "import sparktxlog\n"
            "try: sparktxlog.connect\n"
            "except sparktxlog.errors.MissingDependencyError as error: print(error)\n"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], check=False, cwd="src", capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        assert f"needs {library}" in found.stdout
        assert "pip install 'sparktxlog[spark]'" in found.stdout
