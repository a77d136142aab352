"""Upserts through the log into a large table, beside a plain MERGE of the same rows into a twin.

`python -m benchmarks.upserts --rows 10000000 --upserts 1000,100000,1000000 --vectors` measures
other sizes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cluster import Cluster
from benchmarks.peers.processes import tree_cpu_seconds
from benchmarks.replay import apply
from benchmarks.results import Figure, beside, markdown
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import connect
from sparktxlog.api.connect import TxLog

PEER = "plain MERGE of the same rows, Spark"
#: Rows that are made at once.
_PART = 1_000_000
#: Most of the peer's seconds, and of its CPU.
_GOAL, _WITH_VECTORS = 0.6, 1.2
#: Rows in the table → rows of the upserts: the ratio stays where both grow.
_SIZES = {2_000_000: (20_000,), 10_000_000: (100_000,)}


def run(short: bool) -> list[Figure]:
    """Measure two sizes of tables, and the smaller one with deletion vectors."""
    if short:
        return measured(100_000, (1_000,), vectors=False, turns=1)
    figures = [
        one for rows, sizes in _SIZES.items() for one in measured(rows, sizes, vectors=False)
    ]
    rows, sizes = min(_SIZES.items())
    return [*figures, *measured(rows, sizes, vectors=True)]


def measured(total: int, sizes: Iterable[int], *, vectors: bool, turns: int = 3) -> list[Figure]:
    """Measure each size in turn with the peer, so that other load meets both.

    In a table with deletion vectors, of both sides, few rows are written: those that are new.
    """
    goal = _WITH_VECTORS if vectors else _GOAL
    figures: list[Figure] = []
    with _pair(total, vectors) as pair:
        for count in sizes:
            pair.measured(count, total, 0)  # warms up
            both = [pair.measured(count, total, number) for number in range(1, turns + 1)]
            what = f"upsert {count:,} rows into {total:,}"
            what += " with deletion vectors" if vectors else ""
            for name, unit, at in ((what, "s", 0), (f"{what}: CPU", "s", 1)):
                ours, peer = (
                    statistics.median(one[at] for one in side) for side in zip(*both, strict=True)
                )
                figures.append(beside(name, ours, unit, PEER, peer, goal))
    return figures


@contextmanager
def _pair(total: int, vectors: bool) -> Iterator[_Pair]:
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=300) as log,
    ):
        log.create_table("large", COLUMNS, keys=["id"], deletion_vectors=vectors)
        pair = _Pair(spark, log, cluster, "large", Path(directory))
        pair.fill(total)
        yield pair


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

    def measured(
        self, count: int, total: int, number: int
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return seconds and CPU of the log and of the peer, which take turns to be the first."""
        spark, directory = self._spark, self._directory
        rows = _rows(spark, count, total, number, directory / "rows")
        # Under a name of its own: Spark remembers the versions of a table by its path.
        twin = _twin(self._table, directory / f"twin-{self._name}-{count}-{number}")
        receipt = self._log.upsert(self._name, rows)
        self._cluster.wait_published("A", receipt.position or 0)
        acts: list[Callable[[], object]] = [
            lambda: apply(spark, self._cluster.urls["A"]),
            lambda: _merge(spark, twin, rows),
        ]
        spent = {place: _spent(acts[place]) for place in ((1, 0) if number % 2 else (0, 1))}
        left = spark.read.format("delta").load(str(twin)).count()
        if self._log.table(self._name).count() != left:
            raise RuntimeError(f"{count:,} upserts left other rows than the MERGE")
        shutil.rmtree(twin)
        return spent[0], spent[1]


def _spent(act: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of an act, and the CPU of this process, its JVM and all others below."""
    begin, cpu = time.perf_counter(), tree_cpu_seconds()
    act()
    return time.perf_counter() - begin, tree_cpu_seconds() - cpu


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


def _merge(spark: SparkSession, table: Path, rows: DataFrame) -> None:
    (
        DeltaTable.forPath(spark, str(table))
        .alias("t")
        .merge(rows.alias("s"), "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    )


def main() -> None:
    """Measure the sizes of the command line; print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upserts", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows in the table")
    parser.add_argument("--upserts", default="20000", help="rows of each upsert: 1000,100000")
    parser.add_argument("--vectors", action="store_true", help="with deletion vectors")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    sizes = [int(text) for text in given.upserts.split(",")]
    print(markdown(measured(given.rows, sizes, vectors=given.vectors, turns=given.turns)))


if __name__ == "__main__":
    main()
