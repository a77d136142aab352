"""Commits at three sites while everything attacks all of them at once.

One client has a token of its own and commits one row at a time, at one site after the other.  The
attacks come from another process: connections, bodies, uploads, open transactions, streams and
long polls of strangers and of a greedy client with a valid token.  `/livez` is asked every 20 ms,
memory is read with each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from tests.verification.fuzz.attacks import ANSWER_S, MEMORY_MIB, Watch
from tests.verification.fuzz.greedy import TOKENS, Honest, attacked, prepare, write_grants

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_most, informing

_CLIENT = "a token of all other clients"


def run(short: bool) -> list[Figure]:
    """Measure on three nodes."""
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        grants = str(write_grants(Path(directory)))
        settings = {"client-token": _CLIENT, "grants-file": grants}
        with Cluster(Path(directory), **settings) as cluster:
            return asyncio.run(_measure(cluster, 20 if short else 200))


async def _measure(cluster: Cluster, rounds: int) -> list[Figure]:
    await prepare(cluster.urls["A"], _CLIENT)
    for url in cluster.urls.values():
        await _until_there(url)
    ports = {name: _port(url) for name, url in cluster.urls.items()}
    watches = {name: Watch(cluster.processes[name].pid, port) for name, port in ports.items()}
    honest = {name: Honest(cluster.urls[name]) for name in cluster.names}
    async with _watching(watches, honest):
        await _commits(cluster, rounds)  # all are warm
        before = await _commits(cluster, rounds)
    memory = {name: watch.most_mib for name, watch in watches.items()}
    async with attacked(*ports.values()), _watching(watches, honest):
        during = await _commits(cluster, rounds)
    refused = {name: one.refused() for name, one in honest.items()}
    refusals = sum(sum(one.values()) for one in refused.values())
    slowest = max(watch.slowest_s for watch in watches.values())
    added = {name: watch.most_mib - memory[name] for name, watch in watches.items()}
    for name, watch in watches.items():
        print(
            f"{name}: {memory[name]:.0f} MiB before, {watch.most_mib:.0f} at most; refused to "
            f"another token: {refused[name] or 'nothing'} of {honest[name].answers.total()}"
        )
    return [
        informing("commits at three sites in turn, p50", 1e3 * _p50(before), "ms"),
        informing("commits at three sites in turn, p99", 1e3 * _p99(before), "ms"),
        informing("the same under attack, p50", 1e3 * _p50(during), "ms"),
        informing("the same under attack, p99", 1e3 * _p99(during), "ms"),
        at_most("commit under attack, p50 divided by before", _p50(during) / _p50(before), "x", 2),
        at_most("commit under attack, p99 divided by before", _p99(during) / _p99(before), "x", 2),
        at_most("slowest /livez under attack", 1e3 * slowest, "ms", 1e3 * ANSWER_S),
        at_most("memory of a node under attack, added", max(added.values()), "MiB", MEMORY_MIB),
        at_most("refusals of another token under attack", refusals, "", 0),
    ]


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _p50(times: list[float]) -> float:
    return statistics.median(times)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextlib.asynccontextmanager
async def _watching(watches: dict[str, Watch], honest: dict[str, Honest]) -> AsyncIterator[None]:
    """Ask all nodes for their health meanwhile, and do of everything a little at each."""

    async def go_on(one: Honest) -> None:
        while True:
            await one.all()
            await asyncio.sleep(1)

    async with contextlib.AsyncExitStack() as stack:
        for watch in watches.values():
            await stack.enter_async_context(watch.watching())
        tasks = [asyncio.create_task(go_on(one)) for one in honest.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error


async def _until_there(url: str) -> None:
    """Wait until a node knows the table."""
    headers = {"authorization": f"Bearer {_CLIENT}"}
    async with (
        aiohttp.ClientSession(url, headers=headers) as session,
        session.get("/v1/tables", params={"after": 1, "timeout": 60}) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def _commits(cluster: Cluster, rounds: int) -> list[float]:
    """Commit a row at each site in turn, to `ordered`; return the seconds of each commit."""
    found: list[float] = []
    headers = {"authorization": f"Bearer {TOKENS['honest']}"}
    async with contextlib.AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(aiohttp.ClientSession(url, headers=headers))
            for url in cluster.urls.values()
        ]
        for number in range(rounds):
            row = {"kind": "append", "table": "t", "rows": [{"id": number}]}
            for session in sessions:
                began = time.perf_counter()
                async with session.post("/v1/transactions", json={"operations": [row]}) as answer:
                    assert answer.status == 200, await answer.text()
                found.append(time.perf_counter() - began)
    return found
