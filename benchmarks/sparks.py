"""Spark sessions and data of the measurements that need a JVM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparktxlog.api.session import build_session

#: Ten columns, as users' event tables have them.
COLUMNS = (
    "id bigint, customer bigint, amount decimal(12,2), price double, quantity int, "
    "country string, status string, created timestamp, day date, note string"
)


def session() -> SparkSession:
    """Return the session of this process."""
    return build_session("local[2]", app_name="sparktxlog-benchmarks")


def frame(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    """Return `count` rows of ten columns, held in memory so that making them is not measured."""
    numbers = spark.range(first, first + count, numPartitions=2)
    made = numbers.select(
        F.col("id"),
        (F.col("id") % 100_003).alias("customer"),
        (F.col("id") % 99_991 / 100).cast("decimal(12,2)").alias("amount"),
        (F.rand(7) * 1_000).alias("price"),
        (F.col("id") % 17).cast("int").alias("quantity"),
        F.element_at(
            F.array(*[F.lit(c) for c in ("DE", "FR", "US", "IN", "BR")]),
            (F.col("id") % 5 + 1).cast("int"),
        ).alias("country"),
        F.when(F.col("id") % 3 == 0, "open").otherwise("closed").alias("status"),
        F.timestamp_seconds(1_700_000_000 + F.col("id") % 1_000_000).alias("created"),
        F.date_add(F.lit("2024-01-01").cast("date"), (F.col("id") % 365).cast("int")).alias("day"),
        F.concat(F.lit("note "), F.col("id").cast("string")).alias("note"),
    ).cache()
    made.count()
    return made


def median_seconds(repeat: int, act: Callable[[], object]) -> float:
    """Return the median time of `repeat` calls."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
