"""A table changes between what a session knows of it and its commit: `retry` begins again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import SchemaMismatchError, StaleSchemaError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

FIRST = "id bigint, v string"


@pytest.fixture(scope="module")
def other(node: RunningNode) -> Iterator[Client]:
    """Another client, whose changes the inline worker of the log hears of only when it is asked."""
    with Client(node.url) as client:
        yield client


def _of_its_columns(log: TxLog, table: str, rows: DataFrame) -> DataFrame:
    """Return rows with the columns that this site's replica shows."""
    columns = [f.name for f in log.table(table).schema if f.name != "id"]
    return rows.select("id", *(F.lit("x").alias(name) for name in columns))


@pytest.mark.parametrize("count", [3, 20_000], ids=["inline", "staged"])
def test_rows_for_the_table_as_it_was(
    spark: SparkSession, log: TxLog, other: Client, count: int
) -> None:
    table = f"rows_{count}"
    log.create_table(table, FIRST)
    log.append(table, spark.createDataFrame([(0, "x")], FIRST))
    changed = other.alter_table(table, add={"note": "string"})
    lost: list[StaleSchemaError] = []

    @log.retry(attempts=3)
    def commit() -> None:
        try:
            log.append(table, _of_its_columns(log, table, spark.range(1, count)))
        except StaleSchemaError as error:
            lost.append(error)
            raise

    commit()
    (told,) = lost
    assert (told.fields["table"], told.fields["winner"]) == (table, changed.position)
    assert (told.fields["schema_version"], told.fields["made_for"]) == (2, 1)
    assert log.table(table).where("note = 'x'").count() == count - 1
    # The same columns are no stale ones any more, but wrong ones.
    with pytest.raises(SchemaMismatchError, match="note"):
        log.append(table, spark.createDataFrame([(0, "x")], FIRST))
    # Who creates the table as it became appends to that, staged rows too.
    with log.transaction() as t:
        t.create_table(table, f"{FIRST}, note string")
        t.append(table, spark.range(1, count).selectExpr("id", "'y' as v", "'y' as note"))
    assert log.table(table).where("note = 'y'").count() == count - 1


def _is_late_once(log: TxLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log's worker do nothing when it is asked next."""
    worker = log.site.worker
    assert worker is not None
    apply = worker.apply

    def late(*_: Any) -> None:
        monkeypatch.setattr(worker, "apply", apply)

    monkeypatch.setattr(worker, "apply", late)


@pytest.mark.thorough
def test_batches_merges_and_reads_of_the_table_as_it_was(
    spark: SparkSession, log: TxLog, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_table("many", FIRST, keys=["id"])
    log.append("many", spark.createDataFrame([(0, "x")], FIRST))
    calls: list[str] = []

    @log.retry(attempts=3)
    def batch() -> None:
        calls.append("batch")
        rows = _of_its_columns(log, "many", spark.range(10, 13))
        with log.batch() as b:
            b.append("many", rows.withColumn("tx", F.col("id")), transaction="tx")
        assert not b.receipt.rejections

    other.alter_table("many", add={"a": "string"})
    batch()
    assert calls == ["batch"] * 2 and log.table("many").where("a = 'x'").count() == 3

    @log.retry(attempts=3)
    def merge() -> None:
        calls.append("merge")
        with log.transaction() as t:
            source = spark.createDataFrame([(0,)], "id bigint")
            clauses = t.merge("many", source, "target.id = source.id")
            clauses.whenMatchedUpdate(set={"a": "'merged'"}).execute()

    @log.retry(attempts=3)
    def read() -> None:
        calls.append("read")
        with log.transaction(isolation="serializable") as t:
            t.upsert("many", t.read("many").where("id = 0"))

    for name, again in (("b", merge), ("c", read)):
        other.alter_table("many", add={name: "string"})
        log.site.definition("many", newest=True)  # the session knows, its site has not applied it
        _is_late_once(log, monkeypatch)
        calls.clear()
        again()
        assert len(calls) == 2
    assert log.table("many").where("id = 0 and a = 'merged' and c is null").count() == 1
