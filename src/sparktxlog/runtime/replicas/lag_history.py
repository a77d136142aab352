"""How far replicas and tables are behind, every few seconds, for `log/lag`.

A replica that has everything gets one row when it has caught up, and no more, so a quiet cluster
writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from sparktxlog.errors import ExpiredError, TxLogError
from sparktxlog.model.answers import CommitTableLine
from sparktxlog.model.replicas import holds
from sparktxlog.model.report import WorkerReport
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.judged_replicas import Replicas

_log = structlog.get_logger("sparktxlog.lag")

#: A replica that is further behind is not looked at table by table: positions, and segments.
_NEAR, _SEGMENTS = 50_000, 500

Row = dict[str, Any]


class LagHistory:
    """Measures the lag of all sites as this node knows it; belongs to the event loop.

    Args:
        note: Takes rows for the table `lag`.
    """

    def __init__(
        self, base: Foundation, replicas: Replicas, note: Callable[[str, Sequence[Row]], None]
    ) -> None:
        self._base = base
        self._replicas = replicas
        self._note = note
        #: Replicas and commit tables that were behind at the last look, and all that were seen.
        self._behind: set[tuple[str, str, str | None]] = set()
        self._seen: set[tuple[str, str, str | None]] = set()
        self._last_us = 0
        #: Site → seconds since the oldest transaction was ordered that its furthest replica lacks,
        #: one with all tables if there is; without sites that are too far behind to say.
        self.seconds: dict[str, float] = {}

    async def watch(self, commit_tables: Callable[[], Awaitable[list[CommitTableLine]]]) -> None:
        """Measure every `lag-interval` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._base.config.lag_interval)
            try:
                await self.sample(await commit_tables())
            except TxLogError as error:
                _log.warning("the lag is not measured", reason=str(error))

    async def sample(self, commit_tables: Sequence[CommitTableLine]) -> None:
        """Measure once."""
        published = self._base.published.value
        reports = [state.report for state in self._replicas.states()]
        rows = await self._base.run_blocking(self._measured, reports, published)
        said = {
            (one["node_id"], one["worker_id"]): one["seconds"] for one in rows if not one["table"]
        }
        found = {one.node_id: said[one.node_id, one.worker_id] for one in _furthest(reports)}
        self.seconds = {site: value for site, value in found.items() if value is not None}
        own = self._base.config.node_id
        rows += [
            _row(own, "", table["name"], table["version"] or 0, table["lag"], None, None)
            for table in commit_tables
        ]
        # Rows are read on from a time: it rises, whatever the clock does.
        now = self._last_us = max(self._last_us + 1, wall_us())
        behind = {_key(row) for row in rows if row["transactions"]}
        samples = [
            row | {"sampled_at": now}
            for row in rows
            if (key := _key(row)) in behind or key in self._behind or key not in self._seen
        ]
        self._behind, self._seen = behind, self._seen | {_key(row) for row in rows}
        if samples:
            self._note("lag", samples)

    def _measured(self, reports: Sequence[WorkerReport], published: int) -> list[Row]:
        """Return the rows of replicas, and of the tables of those that are not far behind."""
        rows, wall = list[Row](), wall_us()
        for report in reports:
            site, worker, position = report.node_id, report.worker_id, report.position
            behind = max(0, published - position)
            size_bytes, seconds = (0, 0.0) if not behind else (None, None)
            tables = list[Row]()
            if behind:
                try:
                    size_bytes, oldest = self._base.journal.read_backlog(position, published)
                    seconds = None if not oldest else max(0.0, (wall - oldest) / 1e6)
                    tables = self._of_tables(report, published)
                except ExpiredError:  # it needs a copy
                    pass
            rows += [_row(site, worker, None, position, behind, size_bytes, seconds), *tables]
        return rows

    def _of_tables(self, report: WorkerReport, published: int) -> list[Row]:
        position = report.position
        if published - position > _NEAR:
            return []
        segments = self._base.journal.read_segments(position, _SEGMENTS)
        if not segments or segments[-1].last < published:
            return []
        ranges: dict[str, dict[tuple[int, int], int]] = {}
        for segment in segments:
            for effect in segment.effects:
                if not holds(report.only, effect.table):
                    continue
                found = ranges.setdefault(effect.table, {})
                place = effect.first, effect.last
                size_bytes = sum(file.size_bytes for file in effect.files)
                found[place] = found.get(place, 0) + size_bytes
        return [
            _row(
                report.node_id,
                report.worker_id,
                table,
                position,
                sum(last - first + 1 for first, last in found),
                sum(found.values()),
                None,
            )
            for table, found in sorted(ranges.items())
        ]


def _furthest(reports: Sequence[WorkerReport]) -> list[WorkerReport]:
    """Return the report of each site that says how far it is, as `verdicts.furthest_lines`."""
    found: dict[str, WorkerReport] = {}
    for report in sorted(reports, key=lambda one: (bool(one.only), -one.position)):
        known = found.setdefault(report.node_id, report)
        if known.only:
            found[report.node_id] = report  # of sets alone the least one
    return list(found.values())


def _row(
    site: str,
    worker: str,
    table: str | None,
    position: int,
    transactions: int,
    size_bytes: int | None,
    seconds: float | None,
) -> Row:
    return {
        "node_id": site,
        "worker_id": worker,
        "table": table,
        "position": position,
        "transactions": transactions,
        "size_bytes": size_bytes,
        "seconds": None if seconds is None else round(seconds, 3),
    }


def _key(row: Row) -> tuple[str, str, str | None]:
    return row["node_id"], row["worker_id"], row["table"]
