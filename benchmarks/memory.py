"""Memory of a node after 1 and 2 million small transactions, and its start with them in the log."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, at_most
from sparktxlog import Client

MIB = 2**20


def run(short: bool) -> list[Figure]:
    """Measure on one node without peers, publishing included."""
    million = 100_000 if short else 1_000_000
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        client = Client(cluster.urls["A"])
        create_table(client)
        idle = cluster.resident_bytes("A")
        after = [_after(cluster, client, million) for _ in range(2)]
        cluster.stop("A")
        cluster.start("A")
        started = cluster.wait_ready("A")
    return [
        at_most("memory above idle after 1 M transactions", (after[0] - idle) / MIB, "MiB", 150),
        at_most("memory added by the second million", (after[1] - after[0]) / MIB, "MiB", 20),
        at_most("start with 2 M transactions in the log", started, "s", 3),
    ]


def _after(cluster: Cluster, client: Client, count: int) -> int:
    """Commit `count` transactions, wait until they are published, return resident bytes."""
    share = rows_of(50_000)
    begin = cluster.get("A", "/v1/info")["position"]
    for _ in range(count // share.num_rows):
        client.submit_many(TABLE, share, run_transactions=BATCH)
    cluster.wait_published("A", begin + count)
    time.sleep(6)  # the node gives memory back a few seconds after work
    return cluster.resident_bytes("A")
