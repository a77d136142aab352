"""`format("txlog")` against a real node."""

from __future__ import annotations

import uuid
from urllib.request import Request, urlopen

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode

from sparktxlog.api.connect import TxLog
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.errors import (
    IdTakenError,
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.copying import CatchUpKind, Transfer

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def _save(frame: DataFrame, table: str, **options: str) -> None:
    writer = frame.write.format("txlog").option("table", table)
    try:
        writer.options(**options).mode("append").save()
    except PySparkException as error:
        raise errors_from_spark(error) from error


def _refused(kind: type[TxLogError], frame: DataFrame, table: str, **options: str) -> str:
    with pytest.raises(kind) as caught:
        _save(frame, table, **options)
    return str(caught.value)


def test_an_append_is_one_transaction_with_partitions(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    log.create_table(
        "clicks",
        "id bigint, day date, kind string, at timestamp",
        partition_by=["day", "kind", "at"],
    )
    frame = spark.range(5000).select(
        F.expr("case id % 3 when 0 then 'a b' when 1 then '' else 'x/y' end").alias("kind"),
        "id",
        F.expr("date_add(date'2024-02-28', cast(id % 3 as int))").alias("DAY"),
        F.expr("timestamp'2024-03-31 01:30:00.25' + make_interval(0, 0, 0, 0, id % 2)").alias("at"),
    )
    position = log.position()
    given = str(uuid.uuid4())
    _save(frame.repartition(3), "clicks", transaction_id=given)
    assert log.position() == position + 1
    files = _files(node)
    _save(frame, "clicks", transaction_id=given)  # the same transaction again
    assert (log.position(), _files(node)) == (position + 1, files)
    others = frame.withColumn("id", F.col("id") + 1)
    text = _refused(IdTakenError, others, "clicks", transaction_id=given)
    assert "belongs to other content" in text
    _save(others, "clicks", transaction_id=given, first_wins="true")
    assert (log.position(), _files(node)) == (position + 1, files)
    log.apply()
    found = log.table("clicks", at_least=position + 1)
    assert found.count() == 5000
    wanted = frame.select(
        "id", F.col("DAY").alias("day"), F.expr("nullif(kind, '')").alias("kind"), "at"
    )
    assert found.exceptAll(wanted).count() == 0


def test_views_are_read_and_pinned(spark: SparkSession, log: TxLog) -> None:
    log.create_table("pinned", "id bigint")
    log.append("pinned", spark.range(5))
    log.queue()
    queue = spark.read.format("txlog").load("queue")
    before = queue.count()
    assert before == log.position()
    last = queue.orderBy(F.desc("position")).first()
    assert last is not None and last["operations"][0]["table"] == "pinned"
    log.append("pinned", spark.range(5))
    log.queue()
    assert queue.count() == before
    assert spark.read.format("txlog").load("queue").count() == before + 1
    names = {row["table"] for row in spark.read.format("txlog").load("signatures").collect()}
    assert "pinned" in names
    assert spark.read.format("txlog").load("masters").first()["node_id"] == "A"
    assert spark.read.format("txlog").load("workers").where("tables > 0").count() == 1


def test_transfers_show_expected_and_measured_times(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    transfer = Transfer(
        transfer_id="c1",
        worker_id="w",
        node_id="A",
        kind=CatchUpKind.COPY,
        donors=("B",),
        from_position=0,
        to_position=9,
        started_at=1,
        finished_at=2,
        estimated_s=None,
        actual_s=2.5,
    )
    body = msgspec.json.encode(transfer)
    headers = {"content-type": "application/json"}
    with urlopen(Request(f"{node.url}/v1/worker/transfers", data=body, headers=headers)) as answer:
        assert answer.status == 204
    for frame in (log.transfers(), spark.read.format("txlog").load("transfers")):
        (row,) = frame.collect()
        assert (row["kind"], row["donors"], row["to_position"]) == ("copy", ["B"], 9)
        assert (row["estimated_s"], row["actual_s"]) == (None, 2.5)


def test_epochs_are_read_as_they_are_told(spark: SparkSession, log: TxLog) -> None:
    for frame in (log.epochs(), spark.read.format("txlog").load("epochs")):
        (row,) = frame.where("phase = 'NORMAL'").collect()
        assert (row["epoch"], row["members"], row["joined"]) == (1, ["A"], None)
        assert [(seat["id"], seat["witness"]) for seat in row["roster"]] == [("A", False)]
        assert row["begins_after"]["position"] == 0
        (age,) = frame.select(F.expr("current_timestamp() - taken_up_at")).first()  # type: ignore[misc]
        assert 0 <= age.total_seconds() < 3_600


def test_refusals_keep_their_codes_and_leave_no_files(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    log.create_table("strict", "id bigint not null, v string")
    good = spark.range(10).withColumn("v", F.lit("x"))
    files = _files(node)
    assert "'w'" in _refused(SchemaMismatchError, good.withColumnRenamed("v", "w"), "strict")
    assert "'id'" in _refused(
        InvalidRowsError, good.withColumn("id", F.expr("nullif(id, 3)")), "strict"
    )
    position, directories = log.position(), _directories(node)
    _save(good.where("id < 0"), "strict")  # no rows: nothing is submitted
    assert log.position() == position
    identity = str(uuid.uuid4())
    for _ in range(2):  # recorded once, so that a repeat is recognised
        _save(good.where("id < 0"), "strict", transaction_id=identity)
    found = log.find(identity)
    assert found is not None and found.position == log.position() == position + 1
    assert _directories(node) == directories
    with pytest.raises(UnknownTableError, match="nowhere") as unknown:
        _save(good, "nowhere")
    assert unknown.value.fields == {"table": "nowhere"}
    _refused(InvalidRequestError, good, "strict", level="soon")
    with pytest.raises(PySparkException) as caught:
        good.write.format("txlog").option("table", "strict").mode("overwrite").save()
    assert isinstance(errors_from_spark(caught.value), InvalidRequestError)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("txlog").load("square")
    assert "square" in str(errors_from_spark(caught.value))
    assert _files(node) == files
    _save(good, "strict", level="applied", timeout="3")  # ordered, and late
    log.apply()
    log.site.worker.apply(log.position(), 30)  # type: ignore[union-attr]
    assert log.table("strict").count() == 10  # the log had it: its files were kept


def _directories(node: RunningNode) -> set[str]:
    return {path.name for path in (node.directory / "data" / "payloads").iterdir()}


def _files(node: RunningNode) -> set[str]:
    root = node.directory / "data" / "payloads"
    return {
        str(path) for path in root.rglob("*.parquet") if path.relative_to(root).parts[0] != "inline"
    }
