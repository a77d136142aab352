"""Committing a large DataFrame, beside Spark's own Delta append of the same rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, beside
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import Client, Receipt, connect


def run(short: bool) -> list[Figure]:
    """Measure in turns: Delta append, commit to `accepted`, commit to `ordered` at three sites."""
    rows = 100_000 if short else 1_000_000
    repeat = 2 if short else 7
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        log, client = connect(spark, cluster.urls["A"]), Client(cluster.urls["A"])
        log.create_table("bulk", COLUMNS)
        data = frame(spark, rows)
        target = str(Path(directory) / "plain")
        times: dict[str, list[float]] = {"delta": [], "accepted": [], "ordered": []}
        for turn in range(repeat + 1):
            acts: dict[str, Callable[[], Receipt | None]] = {
                "delta": lambda: data.write.format("delta").mode("append").save(target),
                "accepted": lambda: log.append("bulk", data, level="accepted"),
                "ordered": lambda: log.append("bulk", data, level="ordered"),
            }
            for name, act in acts.items():
                begin = time.perf_counter()
                receipt = act()
                if turn:  # the first turn warms up
                    times[name].append(time.perf_counter() - begin)
                if name == "accepted" and receipt is not None:
                    client.wait(receipt, "ordered")
    medians = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    peer = "plain Delta append by Spark"
    return [
        beside(
            f"commit of {rows:,} rows to {level}", medians[level], "s", peer, medians["delta"], goal
        )
        for level, goal in (("accepted", 1.1), ("ordered", 1.7))
    ]
