"""What synchronous transactions cost while all members are there.

Single POSTs to `ordered` at one of three nodes, ordinary and synchronous in turn: with as many
holders as the acquisition quorum, which is the default, and with one more, from all three.

Before that lone commits, one after the other: what the second copy adds to the first.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.posts import alternate
from benchmarks.results import Figure, at_least, beside, informing
from sparktxlog import Client

#: Name of a lone commit → its level, and whether it is synchronous.
_LONE = {
    "one copy, `accepted`": ("accepted", False),
    "two copies, `acquired`": ("acquired", False),
    "two copies, `ordered`": ("ordered", False),
    "two copies, `ordered` and synchronous": ("ordered", True),
}


def run(short: bool) -> list[Figure]:
    """Measure on three nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        url = cluster.urls["A"]
        with Client(url) as client:
            client.create_table("events", {"id": "bigint", "name": "string", "value": "double"})
            lone = _lone(client, 20 if short else 300)
        return [*lone, *_posts(cluster, 500 if short else 5_000)]


def _lone(client: Client, turns: int) -> list[Figure]:
    """Measure commits of one row of each kind in turn, each after the one before is ordered."""
    taken: dict[str, list[float]] = {name: [] for name in _LONE}
    for turn in range(turns + 10):
        for name, (level, is_sync) in _LONE.items():
            begin = time.perf_counter()
            with client.transaction(level=level, is_sync=is_sync) as t:
                t.append("events", [{"id": turn, "name": "lone", "value": 0.5}])
            spent = time.perf_counter() - begin
            client.wait(t.receipt, "ordered")
            if turn >= 10:  # those before warm up
                taken[name].append(1e3 * spent)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    one, *others, last = medians
    return [
        *(informing(f"lone commit, p50: {name}", medians[name], "ms") for name in (one, *others)),
        beside(f"lone commit, p50: {last}", medians[last], "ms", one, medians[one], 1.2),
    ]


def _posts(cluster: Cluster, total: int) -> list[Figure]:
    url = cluster.urls["A"]
    port = int(url.rsplit(":", 1)[1])
    ordinary, two_holders = alternate(port, total, is_sync=True)
    _need(url, "N")
    again, three_holders = alternate(port, total, is_sync=True)
    return [
        informing(
            "single POSTs to ordered, 3 nodes, 64 clients, beside synchronous", ordinary, "tx/s"
        ),
        informing("the same, synchronous with 2 holders", two_holders, "tx/s"),
        at_least(
            "synchronous rate divided by ordinary rate, 2 holders", two_holders / ordinary, "x", 0.9
        ),
        informing(
            "synchronous rate divided by ordinary rate, 3 holders", three_holders / again, "x"
        ),
    ]


def _need(url: str, rule: str) -> None:
    """Let synchronous transactions need another number of holders."""
    body = json.dumps({"synchro_rule": rule}).encode()
    request = urllib.request.Request(f"{url}/v1/quorum?timeout=60", data=body)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=90) as answer:
        answer.read()
