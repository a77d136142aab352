"""How far sites with several replicas are behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.known_replicas import report
from tests.support.named_replicas import BRONZE, GOLD, Known, named

from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.replicas.lag_history import LagHistory


def _measured(known: Known) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Return site → seconds behind, and (worker, table) of what is behind; 100 is published."""
    effects = [
        SimpleNamespace(table=name, first=91, last=100, files=()) for name in ("bronze.a", "gold.b")
    ]

    async def run_blocking(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    base: Any = SimpleNamespace(
        config=known.base.config,
        published=SimpleNamespace(value=100),
        run_blocking=run_blocking,
        journal=SimpleNamespace(
            read_backlog=lambda position, until: (0, wall_us() - (until - position) * 1_000_000),
            read_segments=lambda position, limit: [SimpleNamespace(last=100, effects=effects)],
        ),
    )
    rows = list[dict[str, Any]]()
    lag = LagHistory(base, known.replicas, lambda table, found: rows.extend(map(dict, found)))
    asyncio.run(lag.sample(()))
    seconds = {site: round(value) for site, value in lag.seconds.items()}
    return seconds, {(row["worker_id"], row["table"]) for row in rows if row["table"]}


def test_the_lag_of_a_site_is_that_of_its_furthest_replica_with_all_tables() -> None:
    known = Known("bronze.a", "gold.b")
    known.take(named(90, "one", BRONZE))
    known.take(named(70, "two", GOLD))
    seconds, tables = _measured(known)
    assert seconds == {"A": 30}, "of sets alone the least one"
    assert tables == {("one of A", "bronze.a"), ("two of A", "gold.b")}, "none that it lacks"
    known.take(report(80))
    known.take(named(50, "three"))
    assert _measured(known)[0] == {"A": 20}
