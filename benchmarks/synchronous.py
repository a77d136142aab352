"""What synchronous transactions cost while all members are there.

Single POSTs to `ordered` at one of three nodes, ordinary and synchronous in turn: with as many
holders as the acquisition quorum, which is the default, and with one more, from all three.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.posts import alternate
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client


def run(short: bool) -> list[Figure]:
    """Measure on three nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        return _posts(cluster, 500 if short else 5_000)


def _posts(cluster: Cluster, total: int) -> list[Figure]:
    url = cluster.urls["A"]
    with Client(url) as client:
        client.create_table("events", {"id": "bigint", "name": "string", "value": "double"})
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
