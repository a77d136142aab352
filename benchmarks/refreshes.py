"""Refreshes in the manner of TPC-H, in one batch of a worker, beside plain Spark one by one.

Four tables get 24 transactions: twelve upsert orders and their line items, twelve delete by keys or
by a predicate, or upsert customers.  For plain Spark these are 36 commits.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cluster import Cluster
from benchmarks.replay import apply
from benchmarks.results import Figure, beside
from benchmarks.sparks import session
from sparktxlog import connect
from sparktxlog.api.connect import TxLog

PEER = "the same operations by plain Spark, 36 commits"
#: Table → keys.
_TABLES = {
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
}


@dataclass(frozen=True, slots=True)
class _Write:
    """One operation: rows to upsert, keys to delete, or a predicate."""

    table: str
    upserts: DataFrame | None = None
    keys: DataFrame | None = None
    predicate: str = ""


@dataclass(frozen=True, slots=True)
class _Load:
    """Rows of the four tables, of a scale: orders at the beginning."""

    spark: SparkSession
    orders: int

    def rows(self, table: str, first: int, count: int, turn: int = 0) -> DataFrame:
        """Return the rows of `count` orders (customers, parts) from a number on."""
        numbers = self.spark.range(first, first + count, numPartitions=1)
        at, day = F.col("id"), F.date_add(F.lit("1992-01-01").cast("date"), 0)
        return {
            "orders": lambda: numbers.select(
                at.alias("o_orderkey"),
                (at % 15_001).alias("o_custkey"),
                F.element_at(F.array(F.lit("O"), F.lit("F"), F.lit(None)), (at % 3 + 1).cast("int"))
                .cast("string")
                .alias("o_orderstatus"),
                (at % 99_991 / 7 + turn).cast("decimal(15,2)").alias("o_totalprice"),
                F.date_add(day, (at % 2_400).cast("int")).alias("o_orderdate"),
                F.concat(F.lit("order "), at.cast("string")).alias("o_comment"),
            ),
            "lineitem": lambda: numbers.select(
                at.alias("l_orderkey"), F.explode(F.sequence(F.lit(1), F.lit(4))).alias("line")
            ).select(
                "l_orderkey",
                F.col("line").alias("l_linenumber"),
                (F.col("l_orderkey") * 7 % 20_011).alias("l_partkey"),
                ((F.col("l_orderkey") + F.col("line")) % 50 + turn).alias("l_quantity"),
                (F.col("l_orderkey") % 104_729 / 11).cast("decimal(15,2)").alias("l_extendedprice"),
                F.date_add(day, (F.col("l_orderkey") % 2_500).cast("int")).alias("l_shipdate"),
            ),
            "customer": lambda: numbers.select(
                at.alias("c_custkey"),
                F.concat(F.lit("Customer#"), at.cast("string")).alias("c_name"),
                (at % 9_973 / 3 + turn).cast("decimal(15,2)").alias("c_acctbal"),
            ),
            "part": lambda: numbers.select(
                at.alias("p_partkey"),
                F.concat(F.lit("Brand#"), (at % 55).cast("string")).alias("p_brand"),
                (at % 50).cast("int").alias("p_size"),
            ),
        }[table]()

    def refreshes(self) -> list[list[_Write]]:
        """Return 24 transactions."""
        made: list[list[_Write]] = []
        few = max(1, self.orders // 1_000)
        for turn in range(12):
            # Half of the orders are new, half are changed.
            first = self.orders + (turn - 1) * few
            made.append(
                [
                    _Write("orders", upserts=self.rows("orders", first, 2 * few, turn)),
                    _Write("lineitem", upserts=self.rows("lineitem", first, 2 * few, turn)),
                ]
            )
            gone = turn * 3 * few
            other = [
                _Write(
                    "orders",
                    keys=self.spark.range(gone, gone + few, numPartitions=1).toDF("o_orderkey"),
                ),
                _Write("lineitem", predicate=f"l_orderkey BETWEEN {gone} AND {gone + few}"),
                _Write("customer", upserts=self.rows("customer", turn * few, few, turn)),
                _Write("part", predicate=f"p_brand = 'Brand#{turn}' AND p_size > 40"),
            ][turn % 4]
            made.append([other])
        return made


def run(short: bool) -> list[Figure]:
    """Measure one batch, then the peer on twins of the same tables; each warms up once."""
    orders = 5_000 if short else 150_000
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=300) as log,
    ):
        url, load = cluster.urls["A"], _Load(spark, orders)
        for table, keys in _TABLES.items():
            count = orders if keys[0][0] in "ol" else orders // 10
            rows = load.rows(table, 0, count)
            log.create_table(table, rows.schema, keys=keys)
            receipt = log.append(table, rows)
        cluster.wait_published("A", receipt.position or 0)
        apply(spark, url)
        lake = Path(cluster.get("A", "/v1/info")["lake_root"])
        refreshes, twins = load.refreshes(), Path(directory) / "twins"
        ours = peer = 0.0
        # The last refreshes come twice; the first time they warm up.
        for writes in (refreshes[-4:], refreshes):
            shutil.rmtree(twins, ignore_errors=True)
            for table in _TABLES:
                shutil.copytree(lake / table, twins / table, copy_function=os.link)
            for one in writes:
                position = _through_the_log(log, one)
            cluster.wait_published("A", position)
            ours = apply(spark, url)
            peer = _timed(partial(_plainly, spark, twins, writes))
        for table in _TABLES:
            left = spark.read.format("delta").load(str(twins / table))
            if log.table(table).exceptAll(left).count() or log.table(table).count() != left.count():
                raise RuntimeError(f"table {table!r} is not what plain Spark made of it")
    return [beside("24 refreshes of four tables, in one batch", ours, "s", PEER, peer, 0.35)]


def _through_the_log(log: TxLog, writes: list[_Write]) -> int:
    with log.transaction() as transaction:
        for write in writes:
            if write.upserts is not None:
                transaction.upsert(write.table, write.upserts)
            elif write.keys is not None:
                transaction.delete_keys(write.table, write.keys)
            else:
                transaction.delete_where(write.table, write.predicate)
    position = transaction.receipt.position
    assert position is not None
    return position


def _plainly(spark: SparkSession, twins: Path, refreshes: list[list[_Write]]) -> None:
    for write in (write for writes in refreshes for write in writes):
        table = DeltaTable.forPath(spark, str(twins / write.table))
        if write.predicate:
            table.delete(write.predicate)
            continue
        rows = write.keys if write.upserts is None else write.upserts
        assert rows is not None
        condition = " AND ".join(f"t.{key} = s.{key}" for key in _TABLES[write.table])
        merge = table.alias("t").merge(rows.alias("s"), condition)
        if write.upserts is None:
            merge.whenMatchedDelete().execute()
        else:
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _timed(act: Callable[[], None]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
