"""What wrote to a table between the last position that was equal and the first that was not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparktxlog.runtime.replicas import differences
from sparktxlog.runtime.replicas.differences import Differences
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES
from sparktxlog.storage.log_tables.log_table import LogTable

SCHEMA = LOG_TABLES["synchronized_queue"]
_TYPED: dict[Any, Any] = {pa.int64(): 0, pa.int32(): 0, pa.string(): ""}


def transaction(position: int, *tables: str, outcome: str = "committed") -> dict[str, Any]:
    needed = [field for field in SCHEMA if not field.nullable]
    operations = [
        {"op": op, "table": table, "kind": "append", "rows": 1, "bytes": 1, "files": []}
        for op, table in enumerate(tables)
    ]
    return {field.name: _TYPED.get(field.type, datetime.now(UTC)) for field in needed} | {
        "position": position,
        "transaction_id": f"t{position}",
        "origin": "A",
        "outcome": outcome,
        "operations": operations,
    }


def found_by(directory: Path, *intervals: tuple[str, int, int]) -> Differences:
    """Return the differences of a node whose replicas differ in these tables and intervals."""

    async def run_blocking(work: Any, *given: Any) -> Any:
        return work(*given)

    base: Any = SimpleNamespace(
        config=SimpleNamespace(data_dir=directory), run_blocking=run_blocking
    )
    told = [
        {"site": "C", "table": table, "equal_to": after, "position": until, "transactions": []}
        for table, after, until in intervals
    ]
    replicas: Any = SimpleNamespace(differences=lambda: told)
    return Differences(base, replicas)


def writers(named: Any) -> list[list[str]]:
    return [[one["transaction_id"] for one in found["transactions"]] for found in named]


def test_only_what_took_effect_on_the_table_in_between_is_named(tmp_path: Path) -> None:
    queue = LogTable(tmp_path / "log" / "synchronized_queue", SCHEMA)
    rows = [
        transaction(1, "t"),
        transaction(2, "t", outcome="rejected"),
        transaction(3, "u", "t"),
        transaction(4, "u"),
        transaction(5, "t"),
    ]
    queue.append(pa.Table.from_pylist(rows, SCHEMA))
    found = found_by(tmp_path, ("t", 1, 4), ("u", 0, 5), ("u", 4, 4))
    assert writers(found.found()) == [[], [], []], "nothing was looked for yet"
    assert writers(asyncio.run(found.named())) == [["t3"], ["t3", "t4"], []]
    assert writers(found.found()) == [["t3"], ["t3", "t4"], []]


def test_what_was_found_is_kept_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = LogTable(tmp_path / "log" / "synchronized_queue", SCHEMA)
    queue.append(pa.Table.from_pylist([transaction(n, "t") for n in range(1, 31)], SCHEMA))
    found = found_by(tmp_path, ("t", 0, 30))
    ((*named,),) = writers(asyncio.run(found.named()))
    assert named == [f"t{n}" for n in range(1, 21)]

    def read_again(*_: Any) -> None:
        raise AssertionError("the queue was read again")

    monkeypatch.setattr(differences, "read_rows", read_again)
    assert writers(asyncio.run(found.named())) == [named]
