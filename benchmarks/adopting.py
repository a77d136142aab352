"""Adopting an existing Delta table, beside scans of it; following one that is written directly."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_most, beside, informing
from benchmarks.sparks import frame, session
from sparktxlog import connect
from sparktxlog.api.adopting.table_follower import TableFollower
from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import columns_of
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.signatures import signature_of

#: Rows that are made at once.
_PART = 1_000_000


def run(short: bool) -> list[Figure]:
    """Measure the scans and the adoption in turn, so that other load meets all of them."""
    rows, turns, appends = (100_000, 1, 3) if short else (10_000_000, 3, 15)
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=300) as log,
    ):
        source = str(Path(directory) / "source")
        for first in range(0, rows, _PART):
            part = frame(spark, min(_PART, rows), first)
            part.write.format("delta").mode("append").save(source)
            part.unpersist()
        times = _in_turn(spark, log, source, turns)
        late = _followed(spark, log, source, appends)
    counted, plain = times["signature"], times["scan"]
    return [
        beside(
            f"adopt {rows:,} rows at one site, to `ordered`",
            times["adopt"],
            "s",
            "one full scan that counts the signature",
            counted,
            1.5,
        ),
        informing("adopting: with keys that are checked", times["keys"], "s"),
        informing("adopting: a full scan that only reads", plain, "s"),
        at_most(
            "version of a followed table, commit to ordered, p50", statistics.median(late), "s", 2
        ),
        at_most("version of a followed table, slowest", max(late), "s", 2),
    ]


def _in_turn(spark: SparkSession, log: TxLog, source: str, turns: int) -> dict[str, float]:
    """Return the median seconds of each act; the first turn warms up."""
    found: dict[str, list[float]] = {}
    definition = TableDefinition(name="t", columns=columns_of(_read(spark, source)))
    for turn in range(turns + 1):
        acts: dict[str, Callable[[], object]] = {
            "scan": lambda: _read(spark, source).write.format("noop").mode("overwrite").save(),
            "signature": lambda: signature_of(_read(spark, source), definition),
            "adopt": partial(log.adopt_table, f"plain{turn}", source),
            "keys": partial(log.adopt_table, f"keyed{turn}", source, keys=["id"]),
        }
        for name, act in acts.items():
            begin = time.perf_counter()
            act()
            if turn:
                found.setdefault(name, []).append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in found.items()}


def _followed(spark: SparkSession, log: TxLog, source: str, appends: int) -> list[float]:
    """Append to a followed table; return the seconds from each commit until it is ordered."""
    seen, stop = threading.Event(), threading.Event()

    def tell(line: str) -> None:
        if line.startswith("version ") and "append" in line:
            seen.set()

    follower = TableFollower(log, "plain0", source, tell=tell)
    running = threading.Thread(target=follower.follow, args=(stop,), daemon=True)
    running.start()
    data, late = frame(spark, 100), []
    log_directory = Path(source) / "_delta_log"
    for turn in range(appends + 1):
        seen.clear()
        data.write.format("delta").mode("append").save(source)
        assert seen.wait(120), "the version is not followed"
        newest = max(log_directory.glob("[0-9]*.json"))
        if turn:
            late.append(time.time() - newest.stat().st_mtime)
    stop.set()
    running.join()
    return late


def _read(spark: SparkSession, source: str) -> DataFrame:
    return spark.read.format("delta").load(source)
