"""Rows of views: what was answered once for all of them, and pages of kept tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from sparktxlog.codec.state_views import VIEWS
from sparktxlog.errors import InvalidRequestError
from sparktxlog.runtime.view_rows import ViewRows, row_dicts
from sparktxlog.storage.log_tables.history_tables import HistoryTables

_T = TypeVar("_T")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PEERS = [{"id": name, "url": f"http://{name}", "acquired": {"A": 3}} for name in "BC"]


def views_of(data_dir: Path, asked: list[str]) -> ViewRows:
    """Return the views of a node that notes what it is asked."""

    async def run_blocking(work: Any, *given: Any) -> Any:
        return work(*given)

    async def differences() -> list[Any]:
        asked.append("differences")
        return []

    def status() -> dict[str, Any]:
        asked.append("status")
        return {"node_id": "A", "peers": PEERS}

    config = SimpleNamespace(data_dir=data_dir)
    base: Any = SimpleNamespace(config=config, run_blocking=run_blocking)
    return ViewRows(
        base,
        {
            "status": status,
            "status_with_tables": status,
            "info": dict,
            "differences": differences,
        },
    )


def run(work: Awaitable[_T]) -> _T:
    async def main() -> _T:
        return await work

    return asyncio.run(main())


def test_views_of_one_moment_ask_each_question_once(tmp_path: Path) -> None:
    asked: list[str] = []
    found = run(views_of(tmp_path, asked).tables(["masters", "workers", "signatures"]))
    assert asked == ["status", "status", "differences"]  # one of them with tables
    assert {name: table.schema for name, table in found.items()} == {
        name: VIEWS[name].schema for name in found
    }
    rows = row_dicts(found["masters"])
    assert [row["node_id"] for row in rows] == ["A", "B", "C"]
    assert rows[1]["acquired"] == {"A": 3}


def test_a_view_of_now_has_the_first_rows_and_no_order(tmp_path: Path) -> None:
    views = views_of(tmp_path, [])
    assert run(views.table("masters", limit=2))["node_id"].to_pylist() == ["A", "B"]
    with pytest.raises(InvalidRequestError, match="'masters' is read as a whole") as caught:
        run(views.table("masters", after=1))
    assert caught.value.hint == "Leave after out. Views that take it: queue, lag."
    with pytest.raises(InvalidRequestError, match="there is no view 'plans'"):
        run(views.table("plans"))


def test_a_kept_table_is_read_in_pages(tmp_path: Path) -> None:
    views = views_of(tmp_path, [])
    assert run(views.table("lag")).num_rows == 0
    row = {"node_id": "A", "worker_id": "w", "position": 1, "transactions": 0}
    times = [BEGIN + timedelta(seconds=second) for second in range(4)]
    tables = HistoryTables(tmp_path / "log", "i")
    tables.append_rows("lag", [row | {"sampled_at": at} for at in times])

    def sampled(**page: Any) -> list[datetime]:
        found: pa.Table = run(views.table("lag", **page))
        return [at.astimezone(UTC) for at in found["sampled_at"].to_pylist()]

    assert sampled() == times
    assert sampled(limit=1) == times[-1:]
    assert sampled(after=round(times[1].timestamp() * 1e6), limit=1) == times[2:3]
