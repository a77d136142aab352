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
from sparktxlog.api.connect import TxLog

PEER = "plain MERGE of the same rows, Spark"
#: Rows that are made at once.
_PART = 1_000_000


def run(short: bool) -> list[Figure]:
    """Measure each size in turn with the peer, three times, so that other load meets both.

    In a table with deletion vectors, of both sides, few rows are written: those that are new.
    """
    total, sizes = (100_000, (1_000,)) if short else (10_000_000, (1_000, 100_000, 1_000_000))
    spark, figures = session(), []
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=300) as log,
    ):
        for name, vectors in (("large", False), ("vectors", True)):
            log.create_table(name, COLUMNS, keys=["id"], deletion_vectors=vectors)
            pair = _Pair(spark, log, cluster, name, Path(directory))
            pair.fill(total)
            pair.measured(sizes[0], total, 0)  # warms up
            for count in sizes:
                numbers = range(1, 2 if short else 4)
                both = [pair.measured(count, total, number) for number in numbers]
                ours, peer = (statistics.median(seconds) for seconds in zip(*both, strict=True))
                what = f"upsert {count:,} rows into {total:,}"
                what += " with deletion vectors" if vectors else ""
                figures.append(beside(what, ours, "s", PEER, peer, 1.2))
    return figures


class _Pair:
    """A table of the log, and for each measurement a plain twin of it."""

    def __init__(
        self, spark: SparkSession, log: TxLog, cluster: Cluster, name: str, directory: Path
    ) -> None:
        self._spark, self._log, self._cluster = spark, log, cluster
        self._name, self._directory = name, directory
        self._table = Path(cluster.get("A", "/v1/info")["lake_root"]) / name

    def fill(self, total: int) -> None:
        """Append the rows that upserts meet."""
        for first in range(0, total, _PART):
            part = frame(self._spark, min(_PART, total), first)
            receipt = self._log.append(self._name, part)
            part.unpersist()
        self._cluster.wait_published("A", receipt.position or 0)
        apply(self._spark, self._cluster.urls["A"])

    def measured(self, count: int, total: int, number: int) -> tuple[float, float]:
        """Return the seconds of the log and of the peer, which take turns to be the first."""
        spark = self._spark
        rows = _rows(spark, count, total, number, self._directory / "rows")
        # Under a name of its own: Spark remembers the versions of a table by its path.
        twin = _twin(self._table, self._directory / f"twin-{self._name}-{count}-{number}")
        receipt = self._log.upsert(self._name, rows)
        self._cluster.wait_published("A", receipt.position or 0)
        peer = _merge(spark, twin, rows) if number % 2 else 0.0
        ours = apply(spark, self._cluster.urls["A"])
        peer = peer or _merge(spark, twin, rows)
        left = spark.read.format("delta").load(str(twin)).count()
        if self._log.table(self._name).count() != left:
            raise RuntimeError(f"{count:,} upserts left other rows than the MERGE")
        shutil.rmtree(twin)
        return ours, peer


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
