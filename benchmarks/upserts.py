"""Upserts through the log into a large table, beside a plain MERGE of the same rows into a twin."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cluster import Cluster
from benchmarks.replay import apply
from benchmarks.results import Figure, beside
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import connect

PEER = "plain MERGE of the same rows, Spark"
#: Rows that are made at once.
_PART = 1_000_000


def run(short: bool) -> list[Figure]:
    """Measure each size in turn with the peer, three times, so that other load meets both."""
    total, sizes = (100_000, (1_000,)) if short else (10_000_000, (1_000, 100_000, 1_000_000))
    spark, figures = session(), []
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=300) as log,
    ):
        url = cluster.urls["A"]
        log.create_table("large", COLUMNS, keys=["id"])
        for first in range(0, total, _PART):
            part = frame(spark, min(_PART, total), first)
            receipt = log.append("large", part)
            part.unpersist()
        cluster.wait_published("A", receipt.position)
        apply(spark, url)
        lake = Path(cluster.get("A", "/v1/info")["lake_root"])
        rows_at = Path(directory) / "rows"

        def measured(count: int, number: int) -> tuple[float, float]:
            """Return the seconds of the log and of the peer, which take turns to be the first."""
            rows = _rows(spark, count, total, number, rows_at)
            # Under a name of its own: Spark remembers the versions of a table by its path.
            twin = _twin(lake / "large", Path(directory) / f"twin-{count}-{number}")
            receipt = log.upsert("large", rows)
            cluster.wait_published("A", receipt.position)
            peer = _merge(spark, twin, rows) if number % 2 else 0.0
            ours = apply(spark, url)
            peer = peer or _merge(spark, twin, rows)
            if log.table("large").count() != spark.read.format("delta").load(str(twin)).count():
                raise RuntimeError(f"{count:,} upserts left other rows than the MERGE")
            shutil.rmtree(twin)
            return ours, peer

        measured(sizes[0], 0)  # warms up
        for count in sizes:
            both = [measured(count, number) for number in range(1, 2 if short else 4)]
            ours, peer = (statistics.median(seconds) for seconds in zip(*both, strict=True))
            figures.append(
                beside(f"upsert {count:,} rows into {total:,}", ours, "s", PEER, peer, 1.2)
            )
    return figures


def _rows(spark: SparkSession, count: int, total: int, number: int, path: Path) -> DataFrame:
    """Return rows that are spread over the table: of five, four are in it and one is new."""
    made = frame(spark, count)
    step = total * 5 // 4 // count
    spread = (F.col("id") * step + (F.col("id") % 7 + number) % step).alias("id")
    others = [F.col(name) for name in made.columns if name not in ("id", "note")]
    rows = made.select(spread, *others, F.lit("upserted").alias("note"))
    rows.write.mode("overwrite").parquet(str(path))
    made.unpersist()
    return spark.read.parquet(str(path))


def _twin(table: Path, path: Path) -> Path:
    """Return a second table of the same files."""
    shutil.copytree(table, path, copy_function=os.link)
    return path


def _merge(spark: SparkSession, table: Path, rows: DataFrame) -> float:
    begin = time.perf_counter()
    (
        DeltaTable.forPath(spark, str(table))
        .alias("t")
        .merge(rows.alias("s"), "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )
    return time.perf_counter() - begin
