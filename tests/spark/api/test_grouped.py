"""Many transactions out of DataFrames, against a real node."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparktxlog.api.connect import TxLog
from sparktxlog.errors import InvalidRowsError, SchemaMismatchError
from sparktxlog.worker.apply.signatures import signature_of

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def test_batches_over_two_tables_are_ordered_by_their_column(
    spark: SparkSession, log: TxLog
) -> None:
    log.create_table("flights", "id bigint, tail string")
    log.create_table("aircraft", "tail string, seen bigint", keys=["tail"])
    flights = spark.range(30_000).select(
        "id",
        F.expr("concat('N', id % 100)").alias("tail"),
        F.expr("30000 - id div 3").alias("tx"),
    )
    positions = flights.dropDuplicates(["tx", "tail"]).select(
        "tail", F.col("tx").alias("seen"), "tx"
    )
    gone = spark.createDataFrame([("N7", 30_001)], "tail string, tx bigint")
    with log.batch() as b:
        b.append("flights", flights, transaction="tx")
        b.upsert("aircraft", positions, transaction="tx")
        b.delete_keys("aircraft", gone, transaction="tx")
    receipt = b.receipt
    assert (receipt.transactions, receipt.rejections) == (10_001, ())
    assert len(receipt.runs) >= 2
    mapping = spark.createDataFrame(receipt.mapping)
    queue = log.queue().select("transaction_id", F.col("position").alias("at"), "outcome")
    joined = mapping.join(queue, "transaction_id").where("position = at and outcome = 'committed'")
    assert joined.count() == 10_001
    order = receipt.mapping["position"].to_pylist()
    assert order == list(range(order[0], order[0] + 10_001))
    assert log.table("flights").count() == 30_000
    last = flights.groupBy("tail").agg(F.max("tx").alias("seen")).where("tail <> 'N7'")
    found = log.table("aircraft")
    assert found.count() == 99
    assert found.exceptAll(last).count() == 0
    for name in ("flights", "aircraft"):
        own = signature_of(log.table(name), log.site.definition(name)).to_text()
        assert log.snapshot().signatures[name] == own


def test_a_batch_with_ids_may_be_repeated(spark: SparkSession, log: TxLog) -> None:
    log.create_table("events", "id bigint, tx string")
    events = spark.range(500).select(
        "id",
        F.expr("concat('t', id div 5)").alias("tx"),
        F.expr("md5(cast(id div 5 as string))").alias("uid"),
    )
    first = log.commit_many(events, table="events", transaction="tx", transaction_ids="uid")
    again = log.commit_many(events, table="events", transaction="tx", transaction_ids="uid")
    assert first.mapping == again.mapping
    # tx is a column of the table as well, so it is kept.
    assert log.table("events").groupBy("tx").count().where("count = 5").count() == 100


def test_bad_batches_are_refused_whole(spark: SparkSession, log: TxLog) -> None:
    log.create_table("pairs", "id bigint", keys=["id"])
    position = log.position()
    frame = spark.range(10).withColumn("tx", F.expr("id div 2"))
    with pytest.raises(SchemaMismatchError, match="'who'"):
        log.commit_many(frame, table="pairs", transaction="who")
    with pytest.raises(InvalidRowsError, match="no transaction"):
        log.commit_many(
            frame.withColumn("tx", F.expr("nullif(tx, 3)")), table="pairs", transaction="tx"
        )
    with pytest.raises(InvalidRowsError, match="repeats the key"):
        log.commit_many(
            frame.withColumn("id", F.lit(1)), table="pairs", kind="upsert", transaction="tx"
        )
    assert log.commit_many(frame.where("id < 0"), table="pairs", transaction="tx").runs == ()
    assert log.position() == position
