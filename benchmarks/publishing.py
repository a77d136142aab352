"""Publishing under full load: how long ordered transactions wait for it, with a bound and without.

As `ordering`, for 50 s at three nodes, in runs of 4,000: then ordering is faster than publishing.
Without a bound is `publish-lag-limit` of a day.  Before it, what publishing costs (`publish_cost`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import pyarrow as pa

from benchmarks.cluster import Cluster
from benchmarks.ordering import TABLE, create_table, rows_of
from benchmarks.publish_cost import costs
from benchmarks.results import Figure, at_most, informing
from sparktxlog import Client

#: Half the default, so that a minute shows it, and none.
_LIMIT_S, _NONE_S = 5.0, 86_400.0
_BATCH = 4_000


def run(short: bool) -> list[Figure]:
    """Measure both."""
    figures = costs(short)
    seconds = 10 if short else 50
    without, lag_without = _measure(seconds, _NONE_S)
    bounded, lag_bounded = _measure(seconds, _LIMIT_S)
    return [
        *figures,
        informing("publishing: longest wait without a bound", lag_without, "s"),
        informing("publishing: transactions ordered without a bound", without, "tx/s"),
        at_most(f"publishing: longest wait, {_LIMIT_S:g} s allowed", lag_bounded, "s", 10),
        informing("publishing: transactions ordered with the bound", bounded, "tx/s"),
    ]


def _measure(seconds: float, limit_s: float) -> tuple[float, float]:
    """Return the rate of three nodes, and how long a transaction waited there to be published."""
    share = rows_of(20 * _BATCH)
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "ABC", None, **{"publish-lag-limit": limit_s}) as cluster,
    ):
        # Who is held up repeats its batch, for as long as it takes.
        clients = [Client(url, timeout=600) for url in cluster.urls.values()]
        create_table(clients[0])
        cluster.wait_position(1)
        clients[0].submit_many(TABLE, share.slice(0, 3 * _BATCH), run_transactions=_BATCH)  # warm
        start, begin = cluster.get("A", "/v1/info")["position"], time.perf_counter()
        threads = [
            threading.Thread(target=_load, args=(client, share, begin + seconds))
            for client in clients
        ]
        for thread in threads:
            thread.start()
        longest = _watch(cluster, threads)
        rate = (cluster.get("A", "/v1/info")["position"] - start) / (time.perf_counter() - begin)
    return rate, longest


def _load(client: Client, share: pa.Table, until: float) -> None:
    while time.perf_counter() < until:
        client.submit_many(TABLE, share, run_transactions=_BATCH)


def _watch(cluster: Cluster, threads: list[threading.Thread]) -> float:
    """Return how long what a node had ordered waited, at most, until it was published there.

    By positions as each node tells them, a few times a second; it needs nothing of the node.
    """
    longest = 0.0
    ends: dict[str, deque[tuple[int, float]]] = {name: deque() for name in cluster.names}
    pause = threading.Event()
    while any(thread.is_alive() for thread in threads):
        for name, waiting in ends.items():
            info, now = cluster.get(name, "/v1/info"), time.perf_counter()
            while waiting and waiting[0][0] <= info["published"]:
                waiting.popleft()
            if waiting:
                longest = max(longest, now - waiting[0][1])
            if info["position"] > info["published"]:
                waiting.append((info["position"], now))
        pause.wait(0.2)
    return longest
