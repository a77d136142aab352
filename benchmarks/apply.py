"""Applying: 100 staged appends of 100,000 rows, and 100,000 small transactions."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, at_most, informing
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import Client, connect
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory


def run(short: bool) -> list[Figure]:
    """Measure on one node; the session is started before, as the goals say."""
    return [*_staged(short), *_small(short)]


def _apply(spark: SparkSession, url: str) -> None:
    with (
        closing(HttpLogSource(url)) as source,
        closing(ReplicaDirectory(source.info().lake_root)) as directory,
    ):
        Applier(spark, source, directory).run_once()


def _staged(short: bool) -> list[Figure]:
    appends = 10 if short else 100
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        url = cluster.urls["A"]
        log = connect(spark, url)
        log.create_table("staged", COLUMNS)
        data = frame(spark, 100_000)
        for _ in range(appends):
            receipt = log.append("staged", data)
        cluster.wait_published("A", receipt.position or 0)
        begin = time.perf_counter()
        _apply(spark, url)
        seconds = time.perf_counter() - begin
        count = log.table("staged").count()
    if count != appends * 100_000:
        raise RuntimeError(f"{count:,} rows applied instead of {appends * 100_000:,}")
    return [at_most(f"apply {appends} staged appends of 100,000 rows", seconds, "s", 2)]


def _small(short: bool) -> list[Figure]:
    total = 10_000 if short else 100_000
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        url = cluster.urls["A"]
        client = Client(url)
        create_table(client)
        begin = time.perf_counter()
        client.submit_many(TABLE, rows_of(total), run_transactions=BATCH)
        ordered = time.perf_counter() - begin
        begin = time.perf_counter()
        cluster.wait_published("A", total)
        _apply(spark, url)
        seconds = time.perf_counter() - begin
        count = connect(spark, url).table(TABLE).count()
    if count != total:
        raise RuntimeError(f"{count:,} rows applied instead of {total:,}")
    return [
        informing(f"ordering {total:,} small transactions on one node", ordered, "s"),
        at_most(f"publish and apply {total:,} small transactions", seconds, "s", 15),
    ]
