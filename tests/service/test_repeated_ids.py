"""A repeated id is the same transaction, however much was ordered meanwhile (P25c)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from tests.service.local_nodes import cluster

from sparktxlog import Client
from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.errors import ExpiredTransactionError, InvalidRequestError
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.runtime.node import Node

_WINDOW = 1_000


def _append(client: Client, transaction_id: str, valid_until: datetime | None = None) -> Receipt:
    with client.transaction(transaction_id=transaction_id, valid_until=valid_until) as transaction:
        transaction.append("t", [{"id": 1}])
    return transaction.receipt


def _order_many(client: Client, transactions: int) -> None:
    client.submit_many("t", pa.table({"id": range(transactions)}), run_transactions=100)


def test_a_repeat_is_the_first_one_beyond_the_window_and_after_a_restart(tmp_path: Path) -> None:
    one = str(uuid.uuid4())

    def before(node: Node) -> tuple[Receipt, Receipt]:
        with Client(node.config.master_url) as client:
            client.create_table("t", {"id": "bigint"})
            first = _append(client, one)
            _order_many(client, 3 * _WINDOW)
            return first, _append(client, one)

    def after(node: Node) -> tuple[Receipt, int]:
        with Client(node.config.master_url) as client:
            _append(client, one)
            return client.receipt(one), client.info()["position"]

    async def main() -> None:
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes:
            first, again = await asyncio.to_thread(before, nodes["A"])
        assert (again.position, again.outcome) == (first.position, "committed")
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes:
            found, end = await asyncio.to_thread(after, nodes["A"])
        # Nothing was ordered for either repeat, and what the client was told stays.
        assert (found.position, found.outcome, end) == (first.position, "committed", 3_002)

    asyncio.run(main())


def test_a_repeat_that_is_ordered_hides_no_first_one(tmp_path: Path) -> None:
    """It stands as rejected in the queue; its id still is the committed transaction."""
    one, other = uuid.uuid4(), uuid.uuid4()

    def submit(node: Node) -> tuple[Receipt, Receipt, Receipt]:
        with Client(node.config.master_url) as client:
            client.create_table("t", {"id": "bigint"})
            first = _append(client, str(one))
            _order_many(client, _WINDOW - 100)
            # The repeat is inside of a run: it is ordered, and rejected.
            rows = pa.table({"id": [1, 2]}, schema=pa.schema([("id", pa.int64())]))
            _, run = assemble_rows(
                "t", OperationKind.APPEND, 1, rows, [0, 1], other.bytes + one.bytes, 1
            )
            client._link.submit(run, other.bytes, is_run=True)
            near = client.receipt(str(one))
            # Now the first one has left the window, the repeat has not.
            _order_many(client, 200)
            return first, near, client.receipt(str(one))

    async def main() -> None:
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes:
            first, *later = await asyncio.to_thread(submit, nodes["A"])
        for found in later:
            assert (found.position, found.outcome) == (first.position, "committed")

    asyncio.run(main())


def test_valid_until_is_kept_and_bounded(tmp_path: Path) -> None:
    def submit(node: Node) -> None:
        now = datetime.now(UTC)
        with Client(node.config.master_url) as client:
            client.create_table("t", {"id": "bigint"})
            _append(client, str(uuid.uuid4()), now + timedelta(hours=1))
            late = str(uuid.uuid4())
            with pytest.raises(ExpiredTransactionError):
                _append(client, late, now - timedelta(seconds=1))
            with pytest.raises(InvalidRequestError, match="id-window-time"):
                _append(client, late, now + timedelta(days=2))
            with pytest.raises(InvalidRequestError, match="time zone"):
                _append(client, late, datetime(2099, 1, 1))
            assert client.info()["position"] == 2

    async def main() -> None:
        async with cluster(tmp_path, "A", id_window=_WINDOW) as nodes:
            await asyncio.to_thread(submit, nodes["A"])

    asyncio.run(main())
