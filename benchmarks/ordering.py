"""Ordering: one-row transactions in batches of 1,000, until three nodes hold them."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client

BATCH = 1_000
TABLE = "readings"


def rows_of(count: int, seed: int = 7) -> pa.Table:
    """Return `count` rows of about 200 bytes."""
    chance = np.random.default_rng(seed)
    text = chance.integers(97, 123, size=(count, 168), dtype=np.uint8)
    values = pa.array(memoryview(text.tobytes()).cast("B"), pa.uint8())
    payload = (
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(168), count, [None, values.buffers()[1]])
        .cast(pa.binary())
        .cast(pa.string())
    )
    return pa.table(
        {
            "id": np.arange(count, dtype=np.int64),
            "sensor": chance.integers(0, 1_000, count),
            "value": chance.random(count),
            "note": payload,
        }
    )


def create_table(client: Client, name: str = TABLE) -> None:
    """Create the table of `rows_of`."""
    client.create_table(
        name,
        {"id": "bigint", "sensor": "bigint", "value": "double", "note": "string"},
    )


def run(short: bool) -> list[Figure]:
    """Measure; three nodes, one client process with one thread per node."""
    total = 60_000 if short else 600_000
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        clients = [Client(url) for url in cluster.urls.values()]
        create_table(clients[0])
        cluster.wait_position(1)
        share = rows_of(total // 3)
        clients[0].submit_many(TABLE, share.slice(0, 3 * BATCH), run_transactions=BATCH)  # warm
        start = cluster.get("A", "/v1/info")["position"]
        cpu = {name: cluster.cpu_seconds(name) for name in cluster.names}
        begin = time.perf_counter()
        threads = [
            threading.Thread(
                target=client.submit_many, args=(TABLE, share), kwargs={"run_transactions": BATCH}
            )
            for client in clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cluster.wait_position(start + 3 * (total // 3))
        seconds = time.perf_counter() - begin
        spent = sum(cluster.cpu_seconds(name) - cpu[name] for name in cluster.names)
    rate = 3 * (total // 3) / seconds
    return [
        at_least("ordering: transactions in the queue of 3 nodes", rate, "tx/s", 60_000),
        informing("ordering: batches of 1,000", rate / BATCH, "batches/s"),
        informing("ordering: rows", rate, "rows/s"),
        informing("ordering: node CPU a batch, 3 nodes", 1e3 * spent / (total / BATCH), "ms"),
    ]
