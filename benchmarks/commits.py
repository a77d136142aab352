"""Commits to commit tables without Spark: what the nodes and the log alone take.

A writer asks its node for the next version with a commit of one small file, and, if another one has
that version, reads the table and asks for the one after.  Commits are staged before the clock runs,
but for those of several writers at one site.  Nodes are processes of one machine, as
everywhere here.  So the figures come with the CPU that nodes and writers used for a commit, and
with the rate at which that would fill all processors: a rate near it is bounded by this machine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.cluster import Cluster
from benchmarks.commit_writers import CommitWriter
from benchmarks.epochs import wait_members
from benchmarks.results import Figure, at_least, at_most, informing

TABLES = 100
WRITERS = 8
SITES = "ABC"
#: Versions for which each of three sites has a commit ready.
PREPARED = 3_000


@dataclass(frozen=True, kw_only=True)
class _Spent:
    """What some commits took."""

    seconds: float
    #: Of CPU: of all nodes, and of the writers.
    nodes: float
    writers: float


class _Clock:
    """Measures what commits take."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._began = self._now()

    def _now(self) -> _Spent:
        nodes = sum(self._cluster.cpu_seconds(name) for name in self._cluster.names)
        return _Spent(seconds=time.perf_counter(), nodes=nodes, writers=time.process_time())

    def spent(self) -> _Spent:
        """Return what was spent since the beginning."""
        now, began = self._now(), self._began
        return _Spent(
            seconds=now.seconds - began.seconds,
            nodes=now.nodes - began.nodes,
            writers=now.writers - began.writers,
        )


def _figures(name: str, commits: int, spent: _Spent, goal: float | None) -> list[Figure]:
    """Return the rate of some commits, and what it says of the machine."""
    rate, busy = commits / spent.seconds, (spent.nodes + spent.writers) / commits
    first = informing(name, rate, "commits/s")
    if goal is not None:
        first = at_least(name, rate, "commits/s", goal)
    return [
        first,
        informing(f"{name}: CPU of all nodes for a commit", 1e3 * spent.nodes / commits, "ms"),
        informing(f"{name}: CPU of the writers", 1e3 * spent.writers / commits, "ms"),
        informing(f"{name}: rate that fills the processors", _cores() / busy, "commits/s"),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


async def _over_tables(cluster: Cluster, commits: int) -> list[Figure]:
    """Commit to many tables, each of which is written at one site; they are prepared before.

    The clock stops once all is visible at all sites.
    """
    urls = list(cluster.urls.values())
    writers: list[CommitWriter] = []
    others: list[CommitWriter] = []
    for number in range(TABLES):
        first = await CommitWriter.of_new_table(urls[0])
        mine = number % len(urls)
        there = [first, *[await first.at(url) for url in urls[1:]]]
        writers.append(there.pop(mine))
        others += there
    each = commits // 10
    for writer in writers:
        writer.prepare(each)
    os.sync()  # what is staged was written to the disk a while ago
    clock = _Clock(cluster)
    await asyncio.gather(*(writer.commit_times(each) for writer in writers))
    await asyncio.gather(*(other.visible(each) for other in others))
    spent = clock.spent()
    for writer in (*writers, *others):
        writer.close()
    return _figures(f"commit tables, {_where(cluster)}: {TABLES} tables", TABLES * each, spent, 500)


def _where(cluster: Cluster) -> str:
    return "one site" if len(cluster.names) == 1 else "three sites"


async def _at_one_site(cluster: Cluster, commits: int) -> list[Figure]:
    """Commit alone, then over many tables, then as several writers of one table."""
    url = cluster.urls["A"]
    alone = await CommitWriter.of_new_table(url)
    alone.prepare(commits)
    await alone.commit_times(commits)
    p50, p99 = (1e3 * sorted(alone.latencies)[int(commits * share)] for share in (0.5, 0.99))
    over_tables = await _over_tables(cluster, commits)
    first = await CommitWriter.of_new_table(url)
    rivals = [first, *[await first.at(url) for _ in range(WRITERS - 1)]]
    clock = _Clock(cluster)
    await asyncio.gather(*(writer.commit_times(commits // WRITERS) for writer in rivals))
    name = f"commit tables, one site: one table, {WRITERS} writers"
    found = [
        at_most("commit tables, one site: a commit of one writer, p50", p50, "ms", 30),
        informing("commit tables, one site: the same, p99", p99, "ms"),
        *over_tables,
        *_figures(name, WRITERS * (commits // WRITERS), clock.spent(), None),
        informing(f"{name}: lost attempts for a commit", _lost(rivals), ""),
    ]
    for writer in (alone, *rivals):
        writer.close()
    return found


async def _at_three_sites(cluster: Cluster, commits: int) -> list[Figure]:
    """One table: first one site writes and another one looks, then all sites write."""
    url, *others = cluster.urls.values()
    first = await CommitWriter.of_new_table(url)
    sites = [first, *[await first.at(other) for other in others]]
    first.prepare(commits)
    latencies: list[float] = []
    clock = _Clock(cluster)
    for _ in range(commits):
        begin = time.perf_counter()
        await asyncio.gather(first.commit(), sites[1].visible(first.version + 1))
        latencies.append(time.perf_counter() - begin)
    lone, told = clock.spent(), sorted(first.latencies)[commits // 2]
    for site in sites:
        site.begin()
        site.version = await site.newest()
        site.prepare(PREPARED * commits // 400)
    os.sync()
    clock, begin = _Clock(cluster), time.perf_counter()
    await asyncio.gather(*(site.commit_until(begin + commits / 20) for site in sites))
    await asyncio.gather(*(site.visible(max(one.version for one in sites)) for site in sites))
    spent, number = clock.spent(), sum(site.commits for site in sites)
    visible = 1e3 * sorted(latencies)[commits // 2]
    least = min(site.commits for site in sites) / number
    name = "commit tables, three sites: one table"
    one_at_a_time = informing(
        "commit tables, three sites: CPU of all nodes for a lone commit",
        1e3 * lone.nodes / commits,
        "ms",
    )
    found = [
        informing("commit tables, three sites: a commit at A, p50", 1e3 * told, "ms"),
        at_most("commit tables, three sites: at A to visible at B, p50", visible, "ms", 60),
        one_at_a_time,
        *await _over_tables(cluster, commits),
        *_figures(name, number, spent, 100),
        at_least(f"{name}: least share of a site", 100 * least, "%", 20),
        informing(f"{name}: lost attempts for a commit", _lost(sites), ""),
    ]
    for site in sites:
        site.close()
    return found


def _lost(writers: Sequence[CommitWriter]) -> float:
    return sum(one.lost for one in writers) / sum(one.commits for one in writers)


def run(short: bool) -> list[Figure]:
    """Measure at one node without peers, then at three."""
    found: list[Figure] = []
    # Nothing is removed before the end: some file systems search among what was removed for minutes
    # whenever a file is made.
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        for names, measure in (("A", _at_one_site), (SITES, _at_three_sites)):
            root = Path(directory, names)
            root.mkdir()
            with Cluster(root, names) as cluster:
                wait_members(cluster, names, names)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    found += runner.run(measure(cluster, 40 if short else 400))
    return found
