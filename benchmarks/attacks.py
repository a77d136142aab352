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
        with Cluster(Path(directory), "ABC", None, **settings) as cluster:
            return asyncio.run(_measure(cluster, *((1, 20) if short else (2, 60))))


async def _measure(cluster: Cluster, turns: int, rounds: int) -> list[Figure]:
    await prepare(cluster.urls["A"], _CLIENT)
    for url in cluster.urls.values():
        await _until_there(url)
    ports = {name: _port(url) for name, url in cluster.urls.items()}
    watches = {name: Watch(cluster.processes[name].pid, port) for name, port in ports.items()}
    honest = {name: Honest(cluster.urls[name]) for name in cluster.names}
    calm, hard = _Phases(), _Phases()
    async with _watching(watches, honest):
        await _commits(cluster, rounds)  # all are warm
    for _ in range(turns):  # in turn: the machine may be busier at one time than at another
        async with _watching(watches, honest):
            calm.note(watches, await _commits(cluster, rounds))
        async with attacked(*ports.values()), _watching(watches, honest):
            hard.note(watches, await _commits(cluster, rounds))
    for name in cluster.names:
        print(
            f"{name}: {calm.most_mib[name]} MiB before, {hard.most_mib[name]} under attack; refused"
            f" to another token: {honest[name].refused() or 'nothing'} of "
            f"{honest[name].answers.total()} requests"
        )
    refusals = sum(sum(one.refused().values()) for one in honest.values())
    p50, p99 = (how(hard.times) / how(calm.times) for how in (_p50, _p99))
    return [
        informing("commits at three sites in turn, p50", 1e3 * _p50(calm.times), "ms"),
        informing("commits at three sites in turn, p99", 1e3 * _p99(calm.times), "ms"),
        informing("the same under attack, p50", 1e3 * _p50(hard.times), "ms"),
        informing("the same under attack, p99", 1e3 * _p99(hard.times), "ms"),
        at_most("commits under attack: p50 divided by before", p50, "x", 2),
        at_most("commits under attack: p99 divided by before", p99, "x", 2),
        informing("slowest /livez before", 1e3 * calm.slowest_s, "ms"),
        at_most("slowest /livez under attack", 1e3 * hard.slowest_s, "ms", 1e3 * ANSWER_S),
        at_most("memory of a node under attack, added", hard.above(calm), "MiB", MEMORY_MIB),
        at_most("refusals of another token under attack", refusals, "", 0),
    ]


class _Phases:
    """What was seen while nothing attacked, or everything."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.slowest_s = 0.0
        #: Of each node in each phase.
        self.most_mib: dict[str, list[int]] = {}

    def note(self, watches: dict[str, Watch], times: list[float]) -> None:
        """Add what was seen in one phase."""
        self.times += times
        for name, watch in watches.items():
            self.slowest_s = max(self.slowest_s, watch.slowest_s)
            self.most_mib.setdefault(name, []).append(round(watch.most_mib))

    def above(self, before: _Phases) -> int:
        """Return by how much most memory of a node grew from one phase to the next, MiB."""
        return max(
            now - then
            for name, found in self.most_mib.items()
            for now, then in zip(found, before.most_mib[name], strict=True)
        )


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
