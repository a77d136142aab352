"""Level applied where a table stands still: reached by transactions of the others only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.errors import StorageError
from sparktxlog.model.transactions.receipt import Appliers, Level, Receipt
from sparktxlog.runtime.replicas import standing_tables
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.standing_tables import where_tables_stand_still

ORDERED = Receipt(transaction_id="x", n=1, level=Level.ORDERED, late=True, position=15)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is published from the asked position on: row by row."""
    rows: list[dict[str, Any]] = []

    def read_rows(directory: Any, schema: Any, column: str, after: int, limit: int) -> pa.Table:
        if not rows:
            raise StorageError("the table cannot be read")
        assert after == rows[0]["position"] - 1
        return pa.Table.from_pylist(rows[:limit])

    monkeypatch.setattr(standing_tables, "read_rows", read_rows)
    return rows


def answer(tmp_path: Any, receipt: Receipt = ORDERED, sites: int = 1) -> Receipt:
    """Return the answer of A, which is at 20; at B, which is at 30, the table t stands still."""
    base = base_of("A", hash_at, position=100)
    base.config.data_dir = tmp_path

    async def run_blocking(work: Any, *args: Any) -> Any:
        return work(*args)

    base.run_blocking = run_blocking
    replicas = Replicas(base)
    replicas.accept(report(20), 1)
    replicas.accept(report(30, "B", diverged="foreign commit"), 1)
    return asyncio.run(where_tables_stand_still(base, replicas, receipt, Appliers(sites)))


def written(position: int, *tables: str) -> dict[str, Any]:
    return {"position": position, "operations": [{"table": table} for table in tables]}


def test_a_transaction_of_other_tables_is_applied(tmp_path: Any, queue: list[Any]) -> None:
    queue += [written(15, "u")]
    assert answer(tmp_path, sites=2) == replace(ORDERED, level=Level.APPLIED, late=False)
    fewer = replace(ORDERED, holders=1)
    assert answer(tmp_path, fewer, sites=2).late, "fewer hold it than were to"


def test_one_of_that_table_says_why_it_waits(tmp_path: Any, queue: list[Any]) -> None:
    queue += [written(15, "t", "u")]
    held_up = "table t of site B stands still: foreign commit"
    assert answer(tmp_path, sites=2) == replace(ORDERED, held_up=held_up)
    assert answer(tmp_path, sites=1).level is Level.APPLIED, "it is here"


@pytest.mark.parametrize("rows", [[], [written(15, "u")], [written(15, "u"), written(17, "u")]])
def test_what_cannot_be_looked_up_may_be_of_that_table(
    tmp_path: Any, queue: list[Any], rows: list[Any]
) -> None:
    queue += rows
    found = answer(tmp_path, replace(ORDERED, transaction_id=None, n=2), sites=2)
    assert found.level is Level.ORDERED and "stands still" in (found.held_up or "")


@pytest.mark.parametrize(
    "receipt",
    [
        replace(ORDERED, level=Level.APPLIED),
        replace(ORDERED, position=None),
        replace(ORDERED, position=21),
    ],
)
def test_others_stay_as_they_are(tmp_path: Any, queue: list[Any], receipt: Receipt) -> None:
    assert answer(tmp_path, receipt, sites=2) == receipt
