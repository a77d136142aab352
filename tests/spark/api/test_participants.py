"""Prepared transactions from Spark: staged and inline rows take effect at the decision (P35)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import RolledBackError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

STOCK = "id bigint, n bigint"
#: Rows beyond the inline limit, so that executors stage them.
MANY = 20_000


def test_a_prepared_frame_takes_effect_where_it_is_decided(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    until = datetime.now(UTC) + timedelta(minutes=30)
    log.create_table("stock", STOCK, keys=["id"])
    log.append("stock", spark.createDataFrame([(1, 10), (2, 20)], STOCK))
    with log.transaction(participants=["here", "there"], valid_until=until) as t:
        many = spark.range(100, MANY).select("id", F.lit(1).alias("n"))
        t.upsert("stock", spark.createDataFrame([(1, 11)], STOCK).union(many))
        t.delete_where("stock", "id = 2")
    assert t.receipt.outcome == "prepared"
    # Others write meanwhile; what is decided later is applied to what they left.
    log.upsert("stock", spark.createDataFrame([(1, 12), (3, 30)], STOCK))
    assert log.table("stock").count() == 3
    log.mark(t.id, "here", yes=True)
    with Client(node.url) as other:
        other.mark(t.id, "there", yes=True)
    done = log.decision(t.id)
    assert (done.outcome, done.prepared_at) == ("committed", t.receipt.position)
    rows = log.table("stock")
    assert [tuple(r) for r in rows.where("id < 100").orderBy("id").collect()] == [(1, 11), (3, 30)]
    assert rows.count() == MANY - 100 + 2
    (row,) = log.queue().where(f"position = {done.prepared_at}").collect()
    assert row["outcome"] == "prepared"
    (row,) = log.queue().where(f"position = {done.position}").collect()
    kinds = [operation["kind"] for operation in row["operations"]]
    assert (row["outcome"], kinds) == ("committed", ["upsert", "delete_where"])
    (state,) = log.tables().where("table = 'stock'").collect()
    assert state["last_write"] == done.position


def test_what_is_rolled_back_changes_nothing(spark: SparkSession, log: TxLog) -> None:
    until = datetime.now(UTC) + timedelta(minutes=30)
    log.create_table("left", STOCK)
    with log.transaction(participants=["here"], valid_until=until) as t:
        t.append("left", spark.range(0, MANY).select("id", F.lit(1).alias("n")))
    log.mark(t.id, "here", yes=False)
    with pytest.raises(RolledBackError):
        log.decision(t.id)
    assert log.table("left").count() == 0
