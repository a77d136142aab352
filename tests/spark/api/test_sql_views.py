"""Tables of the log by SQL, and by `format("txlog")`, against a real node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.node_processes import wait_until

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.api.reading.restore_points import create_point, delete_point
from sparktxlog.api.reading.sql_views import register
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.delta.live_files import live_files
from sparktxlog.errors import (
    ExpiredError,
    InvalidRequestError,
    NameTakenError,
    NotFoundError,
    UnknownTableError,
)
from sparktxlog.http.link import Http

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that measures soon how far its replica is behind."""
    running = start_node(tmp_path_factory.mktemp("node"), "lag-interval = 1")
    yield running
    running.stop()


def _rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def _loaded(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("txlog").load(table)


def test_views_and_loads_follow_the_table(spark: SparkSession, log: TxLog) -> None:
    states = {f"txlog.{name}" for name in VIEWS}
    kept = {f"txlog.{name}" for name in KEPT}
    assert set(register(spark, log)) - kept == states  # nothing was applied yet
    assert spark.table("txlog.lag").columns == log.lag().columns
    for name, known in VIEWS.items():
        columns = set(spark.table(f"txlog.{name}").columns)
        assert columns - {"as_of"} == set(known.schema.names), name
    with pytest.raises(PySparkException) as caught:
        _loaded(spark, "orders")
    assert isinstance(errors_from_spark(caught.value), UnknownTableError)

    odd = F.expr("element_at(array('a b', 'x/y=%20', null, 'é'), cast(id % 4 + 1 as int))")
    rows = spark.range(20).select("id", F.expr("cast(id as int)").alias("n"), odd.alias("kind"))
    log.create_table("orders", rows, keys=["id"], partition_by=["kind"], deletion_vectors=True)
    log.append("orders", rows.repartition(1))
    log.apply()
    names = register(spark, log)
    assert {"txlog.orders", "txlog.queue", "txlog.epochs"} <= set(names)
    assert spark.sql("SELECT count(*) AS n FROM txlog.orders WHERE kind = 'a b'").first()["n"] == 5  # type: ignore[index]
    assert spark.sql("SELECT * FROM txlog.queue").count() == log.position()
    member = spark.sql("SELECT node_id, position, as_of FROM txlog.masters WHERE is_asked").first()
    assert member is not None and member.node_id == log.site.home.get("/v1/info")["node_id"]
    worker = spark.table("txlog.workers").first()
    assert worker is not None and worker.verdict == "IN_SYNC"
    table = spark.sql("SELECT kind, keys FROM txlog.tables WHERE table = 'orders'").first()
    assert table is not None and tuple(table) == ("row-table", ["id"])
    assert spark.table("txlog.settings").count() > 5
    columns = [tuple(row)[:2] for row in spark.sql("DESCRIBE txlog.orders").collect()]
    assert columns == [("id", "bigint"), ("n", "int"), ("kind", "string")]

    log.delete_keys("orders", spark.range(3).select("id"))  # a deletion vector
    log.alter_table("orders", add={"note": "string"}, rename={"n": "number"})
    last = spark.range(1).select(
        F.lit(99).cast("bigint").alias("id"),
        F.lit(1).alias("number"),
        F.lit("k").alias("kind"),
        F.lit("new").alias("note"),
    )
    log.append("orders", last)
    log.apply()
    wanted = _rows(log.table("orders"))
    assert len(wanted) == 18
    assert _rows(spark.sql("SELECT * FROM txlog.orders")) == wanted
    loaded = _loaded(spark, "orders")
    assert loaded.dtypes == log.table("orders").dtypes
    assert _rows(loaded) == wanted
    assert loaded.where("id = 99").first()["note"] == "new"  # type: ignore[index]

    assert spark.table("txlog.epochs").where("epoch = 1").count() == 1
    # Without another `register` the views of the state follow, two seconds later.
    wait_until(
        lambda: (
            spark.sql(
                "SELECT 1 FROM txlog.tables WHERE table = 'orders' AND schema_version = 2"
            ).count()
            == 1
        )
    )
    log.create_table("Bronze.orders", "id bigint")
    log.append("bronze.orders", spark.range(3))
    log.apply()
    assert {"txlog.orders", "txlog_bronze.orders"} <= set(register(spark, log))
    assert spark.sql("SELECT * FROM txlog_bronze.orders").count() == 3
    assert _loaded(spark, "bronze.orders").count() == 3


def test_a_session_may_know_only_the_url(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    log.create_table("plain", "id bigint")
    log.append("plain", spark.range(3))
    log.apply()
    other = spark.newSession()
    assert "txlog.plain" in register(other, node.url)
    assert other.sql("SELECT id FROM txlog.plain").count() == 3
    frame = _loaded(other, "plain")
    assert frame.count() == 3
    log.append("plain", spark.range(3))
    log.apply()
    assert frame.count() == 3  # pinned when it was read first
    assert _loaded(other, "plain").count() == other.table("txlog.plain").count() == 6

    log.drop_table("plain")
    log.apply()
    with pytest.raises(PySparkException):
        other.table("txlog.plain").count()
    assert "txlog.plain" not in register(other, node.url)
    other.sql("CREATE SCHEMA mine")
    with pytest.raises(InvalidRequestError, match="schema 'mine'"):
        register(other, node.url, schema="mine")


def test_what_is_not_supported_names_the_way_out(spark: SparkSession, log: TxLog) -> None:
    log.create_table("only", "id bigint")
    log.append("only", spark.range(2))
    log.apply()
    register(spark, log)
    frame = spark.range(2)
    source = frame.write.format("txlog")
    refused: list[tuple[str, Callable[[], object]]] = [
        ("log.append", lambda: source.saveAsTable("elsewhere")),
        ("log.append", lambda: frame.writeTo("elsewhere").using("txlog").create()),
        ("log.append", lambda: spark.sql("INSERT INTO txlog.only VALUES (7)")),
        ("log.append", lambda: spark.sql("DELETE FROM txlog.only")),
        ("log.append", lambda: spark.sql("UPDATE txlog.only SET id = 1")),
        (
            "log.append",
            lambda: spark.sql(
                "MERGE INTO txlog.only t USING (SELECT 1 id) s ON t.id = s.id "
                "WHEN MATCHED THEN DELETE"
            ),
        ),
        ("log.append", lambda: frame.write.mode("append").saveAsTable("txlog.only")),
        ("log.append", lambda: frame.writeTo("txlog.only").append()),
        ("log.overwrite", lambda: frame.write.format("txlog").save("only")),
        ("log.overwrite", lambda: source.mode("ignore").save("only")),
        ("log.overwrite", lambda: source.mode("overwrite").save("only")),
        ("only read", lambda: source.mode("append").save("masters")),
        (".save(name)", lambda: source.mode("append").save()),
        (".load(name)", lambda: spark.read.format("txlog").load()),
    ]
    for way_out, call in refused:
        with pytest.raises((PySparkException, Py4JError)) as caught:
            call()
        typed = errors_from_spark(caught.value)
        assert isinstance(typed, InvalidRequestError), str(caught.value)
        assert way_out in str(typed)
    assert not spark.catalog.tableExists("elsewhere")
    source.mode("append").save("only")  # what it does support
    log.apply()
    assert spark.table("txlog.only").count() == 4


def test_tables_are_read_as_of_a_restore_point_until_its_files_are_gone(
    spark: SparkSession, node: RunningNode, log: TxLog
) -> None:
    log.create_table("pages", "id bigint, text string", keys=["id"])
    log.append("pages", spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, text string"))
    there = Http(node.url)
    point = create_point(there, "before", "the test says so")
    with pytest.raises(NameTakenError, match="before"):
        create_point(there, "before")
    # One batch of the worker, and one for the point.
    log.upsert("pages", spark.createDataFrame([(1, "z")], "id bigint, text string"))
    log.apply()
    assert _rows(log.table("pages", at="before")) == [(1, "a"), (2, "b")]
    assert _rows(log.table("pages")) == [(1, "z"), (2, "b")]
    assert log.snapshot(at="before").position == point.position
    (shown,) = log.restore_points().collect()
    assert (shown.name, shown.position, shown.note) == (
        "before",
        point.position,
        "the test says so",
    )
    with pytest.raises(NotFoundError, match="Points: before"):
        log.table("pages", at="after")
    directory = Path(log.site.home.get("/v1/info")["lake_root"]) / "pages"
    version = log.snapshot(at="before").versions["pages"]
    for file in live_files(directory, version).sizes:
        (directory / file).unlink()
    with pytest.raises(ExpiredError, match="VACUUM removed files") as caught:
        log.table("pages", at="before")
    assert "sparktxlog restore DIR" in caught.value.hint
    delete_point(there, "before")
    with pytest.raises(NotFoundError):
        delete_point(there, "before")
    assert log.restore_points().count() == 0


@pytest.mark.thorough
@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="read of the log with Spark 4.2")
def test_histories_are_streams(spark: SparkSession, log: TxLog, tmp_path: Path) -> None:
    log.create_table("streamed", "id bigint")
    log.append("streamed", spark.range(3))
    log.apply()
    # The first look at a replica leaves a row; one that is behind another one.
    wait_until(lambda: log.lag().count())

    def stream(name: str) -> int:
        """Write what there is of a history since the last call; return the rows of all calls."""
        source = spark.readStream.format("txlog").load(name)
        assert source.columns == _loaded(spark, name).columns
        query = source.writeStream.format("parquet").option("path", str(tmp_path / name))
        query.option("checkpointLocation", str(tmp_path / f"{name}-at")).trigger(
            availableNow=True
        ).start().awaitTermination()
        return spark.read.schema(source.schema).parquet(str(tmp_path / name)).count()

    # The node looks each second, and may leave a row between the two counts.
    wait_until(lambda: stream("lag") == log.lag().count() > 0, what="the stream has all rows")
    before = log.lag().count()
    with Client(log.url) as client:  # it is not applied at once
        client.append("streamed", [{"id": 7}])
    wait_until(lambda: log.lag().count() > before)
    log.apply()
    wait_until(lambda: stream("lag") == log.lag().count() > before, what="it has all later ones")
    with pytest.raises(PySparkException) as caught:
        stream("masters")
    assert ".load('lag')" in str(errors_from_spark(caught.value))
