"""Commits to commit tables without Spark: what the node and the log alone take.

A writer stages a commit of one small file, asks its node for the next version, and, if another one
has it, reads the table and asks for the one after.  Nodes are processes, as everywhere here.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.delta_writer import BEGIN, DELTA, StagedTable, path_of

from benchmarks.cluster import Cluster
from benchmarks.epochs import wait_members
from benchmarks.results import Figure, at_least, at_most, informing

TABLES = 100
WRITERS = 8
SITES = "ABC"
#: Bytes of a file.
FILE_BYTES = 4_000
#: Seconds between two looks whether a version is placed at another site.
_LOOK_S = 0.001


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
        add = self._table.add(bytes(FILE_BYTES))
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
            self.version = await self.newest()
        self.commits += 1
        self.latencies.append(time.perf_counter() - begin)

    async def newest(self) -> int:
        """Return the newest version that the node shows."""
        loaded = await _answer(self._session.get(self._url + self._path))
        return int(loaded["latest-table-version"])

    async def commit_until(self, end: float) -> None:
        while time.perf_counter() < end:
            await self.commit()

    async def at(self, url: str) -> _Writer:
        """Return a writer of the same table at another site, once it is placed there."""
        while True:
            async with self._session.get(url + self._path) as answer:
                if answer.status == 200:
                    location = (await answer.json())["metadata"]["location"]
                    break
            await asyncio.sleep(_LOOK_S)
        directory = Path(location.removeprefix("file:"))
        return _Writer(
            self._session, url, replace(self._table, directory=directory, location=location)
        )

    async def visible(self, version: int) -> None:
        """Wait until the node shows a version; who asks too early waits at the directory."""
        published = self._table.published(version)
        while not published.exists():
            await asyncio.sleep(_LOOK_S)
        while await self.newest() < version:
            await asyncio.sleep(_LOOK_S)


async def _answer(request: Any) -> dict[str, Any]:
    async with request as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        found: dict[str, Any] = await answer.json()
        return found


async def _made(session: aiohttp.ClientSession, url: str) -> StagedTable:
    path = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"
    return StagedTable.of(await _answer(session.post(url + path, json={"name": "staged"})))


async def _measure(cluster: Cluster, commits: int) -> list[Figure]:
    url = cluster.urls["A"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        writers = [_Writer(session, url, await _made(session, url)) for _ in range(TABLES)]
        for writer in writers:
            await writer.create()
        alone = writers[0]
        for _ in range(commits):
            await alone.commit()
        latencies = sorted(alone.latencies)
        number, cpu, begin = TABLES * (commits // 10), cluster.cpu_seconds("A"), time.perf_counter()
        await asyncio.gather(*(_many(writer, commits // 10) for writer in writers))
        over_all = number / (time.perf_counter() - begin)
        cpu = (cluster.cpu_seconds("A") - cpu) / number
        table = await _made(session, url)
        rivals = [_Writer(session, url, table) for _ in range(WRITERS)]
        await rivals[0].create()
        begin = time.perf_counter()
        await asyncio.gather(*(_many(writer, commits // WRITERS) for writer in rivals))
        rate = WRITERS * (commits // WRITERS) / (time.perf_counter() - begin)
    p50, p99 = (1e3 * latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    return [
        at_most("commit tables: a commit of one writer, p50", p50, "ms", 30),
        informing("commit tables: the same, p99", p99, "ms"),
        at_least(f"commit tables: commits over {TABLES} tables", over_all, "commits/s", 500),
        informing("commit tables: the same, CPU of the node for a commit", 1e3 * cpu, "ms"),
        informing(f"commit tables: one table, {WRITERS} writers", rate, "commits/s"),
        informing("commit tables: the same, lost attempts for a commit", _lost(rivals), ""),
    ]


async def _measure_sites(cluster: Cluster, commits: int) -> list[Figure]:
    """One table: first one site writes and another one looks, then all sites write."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        url, *others = cluster.urls.values()
        first = _Writer(session, url, await _made(session, url))
        await first.create()
        sites = [first, *[await first.at(other) for other in others]]
        latencies: list[float] = []
        for _ in range(commits):
            begin = time.perf_counter()
            await asyncio.gather(first.commit(), sites[1].visible(first.version + 1))
            latencies.append(time.perf_counter() - begin)
        told = sorted(first.latencies)[commits // 2]
        cpu = {name: cluster.cpu_seconds(name) for name in SITES}
        for site in sites:
            site.commits = site.lost = 0
            site.version = await site.newest()
        begin = time.perf_counter()
        await asyncio.gather(*(site.commit_until(begin + commits / 20) for site in sites))
        await asyncio.gather(*(site.visible(max(one.version for one in sites)) for site in sites))
        number, seconds = sum(site.commits for site in sites), time.perf_counter() - begin
        used = sum(cluster.cpu_seconds(name) - cpu[name] for name in SITES) / number
    visible = 1e3 * sorted(latencies)[commits // 2]
    least = min(site.commits for site in sites) / number
    return [
        informing("commit tables, three sites: a commit at A, p50", 1e3 * told, "ms"),
        at_most("commit tables, three sites: at A to visible at B, p50", visible, "ms", 60),
        at_least("commit tables, three sites: one table", number / seconds, "commits/s", 100),
        at_least("commit tables, three sites: least share of a site", 100 * least, "%", 20),
        informing("commit tables, three sites: lost attempts for a commit", _lost(sites), ""),
        informing("commit tables, three sites: CPU of all nodes for a commit", 1e3 * used, "ms"),
    ]


def _lost(writers: Sequence[_Writer]) -> float:
    return sum(one.lost for one in writers) / sum(one.commits for one in writers)


async def _many(writer: _Writer, commits: int) -> None:
    for _ in range(commits):
        await writer.commit()


def run(short: bool) -> list[Figure]:
    """Measure at one node without peers, then at three."""
    found: list[Figure] = []
    for names, measure in (("A", _measure), (SITES, _measure_sites)):
        with (
            tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
            Cluster(Path(directory), names) as cluster,
        ):
            wait_members(cluster, names, names)
            found += asyncio.run(measure(cluster, 40 if short else 400))
    return found
