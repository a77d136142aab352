"""Serializable transactions from Spark: read, compute, write, and again if another was faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import ConflictError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

STOCK = "id bigint, n bigint"
#: Rows beyond the inline limit, so that executors stage them.
MANY = 20_000


@pytest.fixture(scope="module")
def other(node: RunningNode) -> Iterator[Client]:
    """Another client, whose writes the inline worker of the log hears of only when it is asked."""
    with Client(node.url) as client:
        yield client


def _rows(log: TxLog) -> list[tuple[object, ...]]:
    return [tuple(row) for row in log.table("stock").orderBy("id").collect()]


@pytest.mark.thorough
def test_who_loses_reads_again_and_loses_no_update(
    spark: SparkSession, log: TxLog, other: Client
) -> None:
    log.create_table("stock", STOCK, keys=["id"])
    log.append("stock", spark.createDataFrame([(1, 10)], STOCK))
    lost: list[int] = []
    found: list[int] = []

    def sell() -> int:
        with log.transaction(isolation="serializable") as t:
            left: int = t.read("stock").where("id = 1").collect()[0]["n"] - 1
            found.append(left)
            if len(found) - len(lost) == 1 and len(lost) < 2:
                lost.append(other.upsert("stock", [{"id": 1, "n": 5 - len(lost)}]).position or 0)
            many = spark.range(2, MANY).select("id", F.lit(left).alias("n"))
            t.upsert("stock", spark.createDataFrame([(1, left)], STOCK).union(many))
        assert t.receipt.outcome == "committed"
        return left

    # Alone it is told, and nothing has happened; its staged rows harm nobody.
    with pytest.raises(ConflictError) as caught:
        sell()
    fields = caught.value.fields
    assert (fields["table"], fields["winner"], fields["origin"]) == ("stock", lost[0], "A")
    assert caught.value.definite and caught.value.retryable
    log.apply()
    assert (found, _rows(log)) == ([9], [(1, 5)])
    # Repeated, it loses once more, sees what it lost to, and wins.
    assert log.retry(sell)() == 3
    assert found == [9, 4, 3]
    assert (_rows(log)[0], len(_rows(log))) == ((1, 3), MANY - 1)
    (state,) = log.tables().where("table = 'stock'").collect()
    assert (state["version"], state["last_write"]) == (4, log.site.last_position)


def test_reads_show_one_position_and_expected_versions_hold(
    spark: SparkSession, log: TxLog, other: Client
) -> None:
    for name in ("seen", "written"):
        log.create_table(name, STOCK)
    with log.transaction(isolation="serializable") as t:
        assert t.read("seen").count() == 0
        other.append("written", [{"id": 1, "n": 1}])
        log.apply()
        # The position of the first read; nobody wrote to what was read.
        assert t.read("seen").count() == 0
        t.append("written", spark.createDataFrame([(2, 2)], STOCK))
    assert log.table("written").count() == 2
    t = log.transaction()
    t.expect_version("written", 1)
    t.append("written", spark.createDataFrame([(3, 3)], STOCK))
    with pytest.raises(ConflictError, match="written"):
        t.commit()
    with log.transaction() as t:
        t.expect_version("written", 2)
        t.append("written", spark.createDataFrame([(3, 3)], STOCK))
    assert log.table("written").count() == 3
