"""Spark's own writes to a commit table, at one of three sites.

Beside the same write with a catalog that answers at once, and, for how long it takes until another
site sees the rows, beside a plain append and a running Structured Streaming copy.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.support.java_programs import make_plugin

from benchmarks.cluster import Cluster, free_port
from benchmarks.results import Figure, beside, informing
from benchmarks.sparks import COLUMNS, frame, session

ROWS = 100
#: Turns that are not counted: Spark compiles meanwhile.
_FIRST = 3


def run(short: bool) -> list[Figure]:
    """Measure the ways in turn, so that other load meets all of them."""
    turns = 3 if short else 25
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "ABC") as cluster,
        _stand_in(Path(directory) / "stand-in") as stand_in,
    ):
        urls = {"a": cluster.urls["A"], "b": cluster.urls["B"], "standin": stand_in}
        _add_catalogs(spark, Path(directory), urls)
        data = frame(spark, ROWS)
        for name in ("a", "standin"):
            spark.sql(f"CREATE TABLE {name}.default.t ({COLUMNS}) USING delta")
        ours, peer = _in_turn(
            turns,
            lambda: _seconds(lambda: data.writeTo("a.default.t").append()),
            lambda: _seconds(lambda: data.writeTo("standin.default.t").append()),
        )
        cluster.wait_position(cluster.get("A", "/v1/info")["position"])
        with _copying(Path(directory), data) as (source, target):
            seen, copied = _in_turn(
                turns,
                lambda: _until_b_sees(spark, data),
                lambda: _until_copied(spark, data, source, target),
            )
    return [
        beside(
            f"append of {ROWS} rows by Spark at one of three sites, p50",
            ours,
            "s",
            "the same with a catalog that answers at once",
            peer,
            1.1,
        ),
        informing("append by Spark: what the log adds", 1e3 * (ours - peer), "ms"),
        beside(
            f"append of {ROWS} rows by Spark at A to a new query at B, p50",
            seen,
            "s",
            "Delta append + running Structured Streaming query, to a new query",
            copied,
            1.0,
        ),
    ]


def _in_turn(
    turns: int, one: Callable[[], float], other: Callable[[], float]
) -> tuple[float, float]:
    """Return the median times of two acts that take turns; each returns its own, in seconds."""
    times = [(one(), other()) for _ in range(turns + _FIRST)][_FIRST:]
    ours, peers = zip(*times, strict=True)
    return statistics.median(ours), statistics.median(peers)


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _add_catalogs(spark: SparkSession, directory: Path, urls: dict[str, str]) -> None:
    """Let the session have a catalog of each node, and of the stand-in."""
    jar = directory / "plugin.jar"
    make_plugin(jar)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    for name, url in urls.items():
        catalog = f"spark.sql.catalog.{name}"
        spark.conf.set(catalog, "io.unitycatalog.spark.UCSingleCatalog")
        spark.conf.set(f"{catalog}.uri", url)
        spark.conf.set(f"{catalog}.token", "any")


@contextmanager
def _stand_in(root: Path) -> Iterator[str]:
    """Run the catalog that answers at once; yield its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.stand_in", str(port), str(root)])
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/config", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None:
                    raise
                time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _copying(directory: Path, data: DataFrame) -> Iterator[tuple[str, str]]:
    """Run a query that copies a plain Delta table; yield source and target."""
    source, target = (str(directory / name) for name in ("source", "target"))
    data.write.format("delta").save(source)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stream_peer", source, target],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # the query runs and has copied the first rows
        yield source, target
    finally:
        process.terminate()
        process.wait()


def _until_b_sees(spark: SparkSession, data: DataFrame) -> float:
    """Append at A; return how long it took until a new query at B saw the rows."""
    before = _rows(spark.table("b.default.t"))
    begin = time.perf_counter()
    data.writeTo("a.default.t").append()
    while _rows(spark.table("b.default.t")) == before:
        pass
    return time.perf_counter() - begin


def _until_copied(spark: SparkSession, data: DataFrame, source: str, target: str) -> float:
    """Append to the source; return how long it took until a new query of the target saw it."""
    version = DeltaTable(target).version()
    begin = time.perf_counter()
    data.write.format("delta").mode("append").save(source)
    # Who asks again and again takes the processor from the copying query.
    while DeltaTable(target).version() == version:
        time.sleep(0.002)
    _rows(spark.read.format("delta").load(target))
    return time.perf_counter() - begin


def _rows(table: DataFrame) -> int:
    """Return how many rows a query sees."""
    return table.count()
