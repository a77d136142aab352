"""What the log costs a Spark job, in CPU beside plain Spark: staging, and the recount.

CPU is that of this process and all below it, the JVM, its Python workers and the node: other load
changes it less than seconds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cluster import Cluster
from benchmarks.peers.processes import tree_cpu_seconds
from benchmarks.replay import apply
from benchmarks.results import Figure, beside, informing
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import connect
from sparktxlog.api.connect import TxLog
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.replica.state import read_state
from sparktxlog.worker.verify.verify import count_rows

PEER = "plain Delta append by Spark"


def run(short: bool) -> list[Figure]:
    """Measure each kind of rows in turn with its peer."""
    part, turns = (20, 1) if short else (1, 3)
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
        connect(spark, cluster.urls["A"], timeout=600) as log,
    ):
        costs = _Costs(spark, log, cluster, Path(directory), turns)
        rows = 1_000_000 // part
        figures = costs.staged("ten", COLUMNS, frame(spark, rows), 1.1, rows=rows)
        figures += costs.recounted("ten", rows)
        for name, (made, count, goal) in _WIDE.items():
            data = made(spark, count // part).cache()
            data.count()
            columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in data.schema)
            figures += costs.staged(name, columns, data, goal, rows=count // part)
            data.unpersist()
        count = 2_000 // part
        data = spark.range(20 * count).selectExpr("id", f"cast(id % {count} as int) p").cache()
        data.count()
        figures += costs.staged(
            "partitions", "id bigint, p int", data, 1.5, rows=20 * count, partition_by=["p"]
        )
    return figures


def _columns(spark: SparkSession, count: int) -> DataFrame:
    """Return rows of 500 columns."""
    makers = ("id + {0}", "id * 0.5 + {0}", "concat('text ', id % 97 + {0})", "cast(id % 9 as int)")
    made = [f"{makers[at % 4].format(at)} c{at}" for at in range(500)]
    return spark.range(count, numPartitions=2).selectExpr(*made)


def _nested(spark: SparkSession, count: int) -> DataFrame:
    """Return rows of 100 columns: structs, arrays and maps in turn."""
    makers = (
        "named_struct('a', id + {0}, 'b', concat('b', id % 97), 'c', named_struct('d', id * 0.5))",
        "array(named_struct('x', id % 5, 'y', 'why'), named_struct('x', id, 'y', NULL))",
        "map('one', id + {0}, 'two', id % 7)",
        "id + {0}",
    )
    made = [f"{makers[at % 4].format(at)} c{at}" for at in range(100)]
    return spark.range(count, numPartitions=2).selectExpr(*made)


#: Kind of rows → what makes them, how many there are, and the goal.
_WIDE: dict[str, tuple[Callable[[SparkSession, int], DataFrame], int, float]] = {
    "columns": (_columns, 40_000, 1.5),
    "nested": (_nested, 40_000, 1.5),
}
_SAID = {
    "ten": "rows of ten columns",
    "columns": "rows of 500 columns",
    "nested": "rows of 100 columns, of them 75 structs, arrays and maps",
    "partitions": "rows in 2,000 partitions",
}


class _Costs:
    def __init__(
        self, spark: SparkSession, log: TxLog, cluster: Cluster, directory: Path, turns: int
    ) -> None:
        self._spark, self._log, self._cluster = spark, log, cluster
        self._directory, self._turns = directory, turns

    def staged(
        self,
        name: str,
        columns: str,
        data: DataFrame,
        goal: float,
        *,
        rows: int,
        partition_by: list[str] | None = None,
    ) -> list[Figure]:
        """Append the same rows to the log and to a Delta table, in turn."""
        self._log.create_table(name, columns, partition_by=partition_by or [])
        writer = data.write.format("delta").mode("append").partitionBy(*(partition_by or []))
        node: list[float] = []

        def ours() -> None:
            before = self._cluster.cpu_seconds("A")
            self._log.append(name, data, level="accepted")
            node.append(self._cluster.cpu_seconds("A") - before)

        plain, here = self._in_turn(partial(writer.save, str(self._directory / name)), ours)
        what = f"append of {rows:,} {_SAID[name]}: CPU"
        part = statistics.median(node[1:])
        return [
            beside(what, here, "s", PEER, plain, goal),
            beside(f"{what} of Spark's processes", here - part, "s", PEER, plain, goal),
        ]

    def recounted(self, name: str, rows: int) -> list[Figure]:
        """Recount an applied table, and read its columns, in turn."""
        self._cluster.wait_published("A", self._cluster.get("A", "/v1/info")["position"])
        apply(self._spark, self._cluster.urls["A"])
        lake = Path(self._cluster.get("A", "/v1/info")["lake_root"])
        state = read_state(lake)
        assert state is not None
        table, url, worker = state.tables[name], str(lake / name), applier_session(self._spark)
        read = self._spark.read.format("delta").load(url)
        largest = [F.max(column) for column in read.columns]

        def recount() -> None:
            if count_rows(worker, url, table) != table.signature:
                raise RuntimeError(f"table {name} has other rows than the log")

        scan, ours = self._in_turn(lambda: read.agg(*largest).collect(), recount)
        thrown, _ = self._in_turn(
            lambda: read.write.format("noop").mode("overwrite").save(), lambda: None
        )
        what = f"recount of {table.signature.rows:,} {_SAID[name]}: CPU"
        return [
            beside(what, ours, "s", "the greatest value of each column", scan, 1.6),
            informing("recount: CPU of a scan whose rows are thrown away", thrown, "s"),
        ]

    def _in_turn(self, *acts: Callable[[], object]) -> tuple[float, float]:
        """Return the median CPU of two acts; the first turn warms up."""
        spent: tuple[list[float], list[float]] = ([], [])
        for turn in range(self._turns + 1):
            for act, found in zip(acts, spent, strict=True):
                before = tree_cpu_seconds()
                act()
                if turn:
                    found.append(tree_cpu_seconds() - before)
        return statistics.median(spent[0]), statistics.median(spent[1])
