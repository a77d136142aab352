"""Rows whose files executors upload, because they do not see the node's payload store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.certificates import Authority

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.errors import (
    ConfigError,
    InvalidRowsError,
    PayloadStoreError,
    SchemaMismatchError,
    TransportError,
    UnauthorizedError,
)

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

TOKEN = "a token of the clients"
COLUMNS = (
    "id bigint not null, at timestamp, plain timestamp_ntz, amount decimal(38,10), data binary, "
    "nested struct<list:array<int>,by:map<string,date>>, city string, day date"
)
MANY = 2_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that takes nearly nothing inline and asks for a token."""
    directory = tmp_path_factory.mktemp("node")
    running = start_node(directory, f'client-token = "{TOKEN}"', "inline-limit = 1000")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def log(spark: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    """Return a log whose executors write into the store, and which applies."""
    with connect(spark, node.url, TOKEN, apply="inline") as connected:
        assert connected.site.store.uploads is None
        yield connected


@pytest.fixture(scope="module")
def remote(log: TxLog) -> Iterator[TxLog]:
    """Return a log whose executors upload."""
    with connect(log.site.spark, log.url, TOKEN, staging="http") as connected:
        assert connected.site.store.uploads is not None
        yield connected


def rows(spark: SparkSession, ids: range, city: str = "") -> DataFrame:
    """Return rows with NULLs, odd characters and times before 1582."""
    number, cities = F.col("id"), F.array(F.lit("a/b=c"), F.lit("München"), F.lit(None))
    return spark.range(ids.start, ids.stop, numPartitions=2).select(
        "id",
        F.when(number % 7 > 0, F.timestamp_seconds(number * 86_400 - 20_000_000_000)).alias("at"),
        F.timestamp_seconds(number).cast("timestamp_ntz").alias("plain"),
        (number / 7).cast("decimal(38,10)").alias("amount"),
        F.when(number % 5 > 0, F.encode(number.cast("string"), "UTF-8")).alias("data"),
        F.struct(
            F.when(number % 3 > 0, F.array(number.cast("int"), F.lit(None))).alias("list"),
            F.create_map(F.lit("ä"), F.lit("0001-01-01").cast("date")).alias("by"),
        ).alias("nested"),
        (F.lit(city) if city else F.element_at(cities, 1 + number.cast("int") % 3)).alias("city"),
        F.when(number % 2 > 0, F.lit("2024-02-29").cast("date")).alias("day"),
    )


def uploaded(node: RunningNode) -> set[Path]:
    """Return the files in the store that a task in Python wrote: Spark's own writer is another."""
    root = node.directory / "data" / "payloads"
    return {
        path
        for path in root.rglob("*.parquet")
        if path.relative_to(root).parts[0] != "inline"
        and "parquet-cpp-arrow" in pq.read_metadata(path).created_by
    }


def test_uploaded_rows_are_those_that_executors_write_themselves(
    spark: SparkSession, node: RunningNode, log: TxLog, remote: TxLog
) -> None:
    for name in ("here", "there"):
        log.create_table(name, COLUMNS, keys=["id"], partition_by=["city", "day"])
    acts = {
        "append": rows(spark, range(MANY)),
        "upsert": rows(spark, range(MANY // 2, MANY + 500), "x" * 40),
        "delete_keys": spark.range(100, 700).coalesce(1),
    }
    for kind, frame in acts.items():
        known = uploaded(node)
        own = getattr(log, kind)("here", frame, level="acquired")
        assert uploaded(node) == known
        sent = getattr(remote, kind)("there", frame, level="ordered")
        assert uploaded(node) > known, kind
        assert own.rows == sent.rows == frame.count()
    none = remote.append("there", rows(spark, range(MANY)).where("amount < 0"))
    assert (none.rows, none.n) == (0, 0)
    log.apply()
    signed = log.snapshot(at_least=sent).signatures
    assert signed["here"] == signed["there"]
    tables = [log.table(name).toArrow().sort_by("id") for name in ("here", "there")]
    assert tables[0].num_rows == MANY + 500 - 600
    assert tables[0] == tables[1]


def test_rows_are_staged_and_uploaded_through_tls(spark: SparkSession, tmp_path: Path) -> None:
    """With an authority of its own, which driver and executors know by `ca_file` only."""
    authority = Authority(tmp_path)
    settings = (f'client-token = "{TOKEN}"', "inline-limit = 1000")
    node = start_node(tmp_path, *settings, authority=authority)
    try:
        with pytest.raises(TransportError, match="certificate"):
            connect(spark, node.url, TOKEN)
        known = {"token": TOKEN, "ca_file": authority.ca_file}
        with connect(spark, node.url, **known, apply="inline") as log:
            log.create_table("t", COLUMNS)
            log.append("t", rows(spark, range(MANY)))
            with connect(spark, node.url, **known, staging="http") as remote:
                remote.append("t", rows(spark, range(MANY, 2 * MANY)))
            assert len(uploaded(node)) == 2
            found = log.table("t", at_least=log.position())
            expected = rows(spark, range(2 * MANY)).toArrow().to_pylist()
            assert found.toArrow().sort_by("id").to_pylist() == expected
    finally:
        node.stop()


def test_columns_that_were_renamed_are_uploaded_under_the_names_of_files(
    spark: SparkSession, log: TxLog, remote: TxLog
) -> None:
    log.create_table("named", "id bigint, p string, n bigint", ["id"], partition_by=["p"])
    log.alter_table("named", rename={"p": "q", "n": "m"})
    frame = spark.range(MANY).selectExpr("id", "cast(id % 2 as string) q", "-id m")
    remote.upsert("named", frame)
    found = log.table("named", at_least=remote.site.last_position)
    assert found.where("q = '1' and m = -id").count() == MANY // 2


def test_rows_that_do_not_fit_commit_nothing(
    spark: SparkSession, log: TxLog, remote: TxLog
) -> None:
    log.create_table("strict", "id bigint not null, n bigint, p string", ["id", "n"], ["p"])
    good = spark.range(MANY).selectExpr("id", "id n", "'x' p")
    end = log.position()
    again = good.where("id = 7").withColumn("p", F.lit("y"))
    with pytest.raises(InvalidRowsError, match=r"more than one row has the key id='?7'?, n='?7"):
        remote.upsert("strict", good.union(again))
    with pytest.raises(InvalidRowsError, match="1 rows have NULL in the key column 'n'"):
        remote.append("strict", good.withColumn("n", F.when(F.col("id") != 5, F.col("n"))))
    with pytest.raises(InvalidRowsError, match="what Spark writes for NULL"):
        remote.append("strict", good.withColumn("p", F.lit("__HIVE_DEFAULT_PARTITION__")))
    with pytest.raises(SchemaMismatchError):
        remote.append("strict", good.drop("n"))
    assert log.position() == end


def test_a_refused_upload_is_a_typed_error_without_the_token(
    spark: SparkSession, log: TxLog, remote: TxLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_table("refused", "id bigint")
    target = remote.site.store.uploads
    assert target is not None
    wrong = "a token that is wrong"
    with connect(spark, log.url, TOKEN, staging="http") as other:
        other.site.store = replace(remote.site.store, uploads=replace(target, token=wrong))
        with pytest.raises(UnauthorizedError) as caught:
            other.append("refused", spark.range(MANY))
    for told in (str(caught.value), repr(other.site.store), caplog.text):
        assert wrong not in told and TOKEN not in told


@pytest.mark.parametrize("way", ["batch", pytest.param("stream", marks=pytest.mark.thorough)])
def test_the_data_source_uploads(
    spark: SparkSession, node: RunningNode, log: TxLog, tmp_path: Path, way: str
) -> None:
    log.create_table(way, "id bigint, p string", partition_by=["p"])
    options = {"url": log.url, "token": TOKEN, "staging": "http", "table": way}
    known = uploaded(node)
    frame = spark.range(MANY).selectExpr("id", "cast(id % 2 as string) p")
    try:
        if way == "batch":
            frame.write.format("txlog").options(**options).mode("append").save()
        else:
            frame.write.parquet(str(tmp_path / "in"))
            source = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
            query = (
                source.writeStream.format("txlog")
                .options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    except Exception as error:
        raise errors_from_spark(error) from error
    assert len(uploaded(node) - known) >= 2
    log.apply()
    found = log.table(way, at_least=None)
    assert found.where("p = cast(id % 2 as string)").count() == MANY


def test_what_cannot_be_done_over_http_says_so(
    spark: SparkSession, log: TxLog, remote: TxLog, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="'ftp'"):
        connect(spark, log.url, TOKEN, staging="ftp")  # type: ignore[arg-type]
    nobody = UploadTarget(url="http://127.0.0.1:9", token=TOKEN, ca_file=None)
    with pytest.raises(PayloadStoreError, match="no node answers at") as caught:
        nobody.check(spark)
    assert caught.value.definite and TOKEN not in str(caught.value)
    spark.range(5).write.format("delta").save(str(tmp_path / "old"))
    with pytest.raises(PayloadStoreError, match="staging='shared'"):
        remote.adopt_table("adopted", str(tmp_path / "old"))
