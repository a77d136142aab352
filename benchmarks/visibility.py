"""From the write call at A to rows visible at B, beside Delta append and a running stream."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, beside
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import TxLog, connect

JOB = Path(__file__).resolve().parent.parent / "jobs" / "apply.py"


def run(short: bool) -> list[Figure]:
    """Measure both ways in turn; each has its own second JVM that follows."""
    repeat = 3 if short else 21
    spark = session()
    figures = []
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "AB") as cluster,
    ):
        log = connect(spark, cluster.urls["A"])
        source, target = (str(Path(directory) / name) for name in ("source", "target"))
        for rows, goal in ((100, 1.0), (100_000 if short else 1_000_000, 0.8)):
            data = frame(spark, rows)
            table = f"visible_{rows}"
            ours = _ours(cluster, log, table, data, repeat)
            peer = _stream(f"{source}{rows}", f"{target}{rows}", data, rows, repeat)
            data.unpersist()
            figures.append(
                beside(
                    f"write at A to visible at B, {rows:,} rows, p50",
                    ours,
                    "s",
                    "Delta append + running Structured Streaming query",
                    peer,
                    goal,
                )
            )
    return figures


def _ours(cluster: Cluster, log: TxLog, table: str, data: DataFrame, repeat: int) -> float:
    log.create_table(table, COLUMNS)
    worker = subprocess.Popen(
        [sys.executable, str(JOB), "--url", cluster.urls["B"], "--follow"],
        stdout=subprocess.DEVNULL,
    )
    try:
        times = []
        for turn in range(repeat + 2):
            begin = time.perf_counter()
            receipt = log.append(table, data)
            path = f"/v1/snapshot?at_least={receipt.position}&timeout=120"
            cluster.get("B", path, timeout=130)
            if turn >= 2:
                times.append(time.perf_counter() - begin)
    finally:
        worker.terminate()
        worker.wait()
    return statistics.median(times)


def _stream(source: str, target: str, data: DataFrame, rows: int, repeat: int) -> float:
    data.write.format("delta").save(source)
    peer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stream_peer", source, target],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    peer.stdout.readline()  # the query runs and has copied the first rows
    try:
        times = []
        for turn in range(repeat + 2):
            before = DeltaTable(target).version()
            begin = time.perf_counter()
            data.write.format("delta").mode("append").save(source)
            while not DeltaTable.is_deltatable(target) or DeltaTable(target).version() == before:
                time.sleep(0.002)
            if turn >= 2:
                times.append(time.perf_counter() - begin)
    finally:
        peer.terminate()
        peer.wait()
    return statistics.median(times)
