"""Commits to commit tables without Spark: what the node and the log alone take.

A writer stages a commit of one small file, asks its node for the next version, and, if another one
has it, reads the table and asks for the one after.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.delta_writer import BEGIN, DELTA, StagedTable, path_of

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, at_most, informing

TABLES = 100
WRITERS = 8


class _Writer:
    """Commits to one table at one node."""

    def __init__(self, session: aiohttp.ClientSession, url: str, table: StagedTable) -> None:
        self._session, self._url, self._table = session, url, table
        self._path = path_of(f"t{table.table_id[:8]}")
        self.version = 0
        self.commits = self.lost = 0
        self.latencies: list[float] = []

    async def create(self) -> None:
        self._table.write_first()
        body = self._table.creation(f"t{self._table.table_id[:8]}")
        await _answer(self._session.post(self._url + path_of(), json=body))

    async def commit(self) -> None:
        """Commit once, however often that takes."""
        begin = time.perf_counter()
        add = self._table.add()
        while True:
            version = self.version + 1
            body = self._table.update(self._table.stage(version, add, timestamp=BEGIN + version))
            async with self._session.post(self._url + self._path, json=body) as answer:
                if answer.status == 200:
                    self.version = version
                    break
                if answer.status != 409:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")
            self.lost += 1
            loaded = await _answer(self._session.get(self._url + self._path))
            self.version = int(loaded["latest-table-version"])
        self.commits += 1
        self.latencies.append(time.perf_counter() - begin)


async def _answer(request: Any) -> dict[str, Any]:
    async with request as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        found: dict[str, Any] = await answer.json()
        return found


async def _made(session: aiohttp.ClientSession, url: str) -> StagedTable:
    path = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"
    return StagedTable.of(await _answer(session.post(url + path, json={"name": "staged"})))


async def _measure(urls: Sequence[str], commits: int) -> list[Figure]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        writers = [_Writer(session, urls[0], await _made(session, urls[0])) for _ in range(TABLES)]
        for writer in writers:
            await writer.create()
        alone = writers[0]
        for _ in range(commits):
            await alone.commit()
        latencies = sorted(alone.latencies)
        begin = time.perf_counter()
        await asyncio.gather(*(_many(writer, commits // 10) for writer in writers))
        over_all = TABLES * (commits // 10) / (time.perf_counter() - begin)
        table = await _made(session, urls[0])
        rivals = [_Writer(session, urls[0], table) for _ in range(WRITERS)]
        await rivals[0].create()
        begin = time.perf_counter()
        await asyncio.gather(*(_many(writer, commits // WRITERS) for writer in rivals))
        rate = WRITERS * (commits // WRITERS) / (time.perf_counter() - begin)
    p50, p99 = (1e3 * latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    return [
        at_most("commit tables: a commit of one writer, p50", p50, "ms", 30),
        informing("commit tables: the same, p99", p99, "ms"),
        at_least(f"commit tables: commits over {TABLES} tables", over_all, "commits/s", 500),
        at_least(f"commit tables: one table, {WRITERS} writers", rate, "commits/s", 100),
        informing(
            "commit tables: the same, lost attempts for a commit",
            sum(rival.lost for rival in rivals) / sum(rival.commits for rival in rivals),
            "",
        ),
    ]


async def _many(writer: _Writer, commits: int) -> None:
    for _ in range(commits):
        await writer.commit()


def run(short: bool) -> list[Figure]:
    """Measure at one node without peers."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        return asyncio.run(_measure([cluster.urls["A"]], 40 if short else 400))
