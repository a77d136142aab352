"""The public API as mypy sees it, with `make lint`; nothing here runs.

A wrong call carries a `type: ignore`: mypy complains of one that is no longer needed, so what the
types refuse stays refused.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import sparktxlog
from sparktxlog import Column, Receipt, TxLog
from sparktxlog.api.writing.rows_to_transactions import GroupedReceipt
from sparktxlog.model.tables.table_kind import TableDescription


def use_client(client: sparktxlog.Client, rows: pa.Table, until: datetime) -> None:
    """Every way to write from Python."""
    client.create_table("t", {"id": "bigint not null"}, keys=["id"], deletion_vectors=True)
    client.create_table("t", [Column(name="id", type="bigint")], partition_by=["id"])
    assert_type(client.append("t", [{"id": 1}], level="accepted", timeout=3), Receipt)
    assert_type(client.upsert("t", rows, transaction_id=str(uuid.uuid4())), Receipt)
    assert_type(client.delete_keys("t", rows, session="s", valid_until=until), Receipt)
    assert_type(client.overwrite("t", []), Receipt)
    assert_type(client.delete_where("t", "id < 3", level=None), Receipt)
    with client.transaction(session="s", level="applied(2)") as t:
        t.create_table("u", {"id": "bigint"})
        t.append("u", rows)
        t.delete_where("u", "id < 3")
    assert_type(t.receipt, Receipt)
    assert_type(t.commit().position, int | None)
    with client.transaction(participants=["p"], valid_until=until) as t:
        t.append("u", rows)
    assert_type(client.mark(t.id, "p", yes=True), Receipt)
    assert_type(client.decision(t.id, timeout=3).prepared_at, int | None)
    client.mark(t.id, "p")  # type: ignore[call-arg]
    client.append("t", rows, levle="accepted")  # type: ignore[call-arg]
    client.append("t", rows, timeout="3")  # type: ignore[arg-type]
    client.delete_where("t", 3)  # type: ignore[arg-type]
    t.append("u", rows, level="ordered")  # type: ignore[call-arg]
    client.transaction(timeout_s=3)  # type: ignore[call-arg]
    client.append("t", [], on_duplicate="ignore")  # type: ignore[arg-type]


def use_log(spark: SparkSession, frame: DataFrame) -> None:
    """Every way to write from Spark."""
    log = sparktxlog.connect(spark, ["http://a:7070", "http://b:7070"], apply="inline")
    log.create_table("t", "id bigint not null", ["id"])
    log.create_table("t", frame, partition_by=["id"], level="applied")
    assert_type(log.append("t", frame, timeout=3.5), Receipt)
    assert_type(log.upsert("t", frame, transaction_id=uuid.uuid4()), Receipt)
    with log.transaction(level="ordered") as t:
        t.overwrite("t", frame)
    assert_type(t.receipt, Receipt)
    with log.batch(timeout=5) as b:
        b.append("t", frame, transaction="tx")
        b.delete_keys("t", frame, transaction="tx", transaction_ids="id")
    assert_type(b.receipt, GroupedReceipt)
    assert_type(log.table("t", at_least=b.receipt), DataFrame)
    assert_type(log.snapshot(at_least=t.receipt).table("t"), DataFrame)
    log.queue(at_least="mine")  # type: ignore[arg-type]
    log.append("t", frame, level=3)  # type: ignore[arg-type]
    t.append("t", frame, timeout=3)  # type: ignore[call-arg]
    b.append("t", frame)  # type: ignore[call-arg]
    b.upsert("t", frame, transaction="tx", level="ordered")  # type: ignore[call-arg]


class PolarsFrame:
    """Has Arrow's C stream, as DataFrames of polars declare it."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def use_each_form(log: TxLog, client: sparktxlog.Client, frame: DataFrame, table: pa.Table) -> None:
    """Both clients take columns and rows in each form."""
    for each in (log, client):
        each.create_table("t", "id bigint not null, name string", keys=["id"])
        each.create_table("t", {"id": "bigint not null"}, deletion_vectors=False)
        each.create_table("t", [Column(name="id", type="bigint")], is_sync=True)
        assert_type(each.describe("t"), TableDescription)
        each.create_table("t", "id int", cluster_by=["id"], comment="c", properties={"a": "b"})
        each.alter_table("t", comment="c", comments={"id": "c"}, properties={"a": None})
        each.create_table("t", "id int", properties={"a": None})  # type: ignore[dict-item]
        each.create_table("t", StructType([StructField("id", LongType())]))
        each.create_table("t", table.schema)
        each.create_table("t", frame)
        each.append("t", [{"id": 1}], on_duplicate="error", timeout=3)
        each.upsert("t", frame, transaction_id=uuid.uuid4())
        each.overwrite("t", table, level="applied")
        each.delete_keys("t", PolarsFrame())
        with each.transaction(timeout=3) as t:
            t.append("t", [{"id": 1}], on_duplicate="error")
            t.append("t", PolarsFrame())
        each.append("t", 7)  # type: ignore[arg-type]
        each.append("t", [7])  # type: ignore[list-item]
        each.append("t", "id")  # type: ignore[arg-type]


def use_readers(spark: SparkSession, log: TxLog) -> None:
    """SQL names of tables."""
    assert_type(sparktxlog.register(spark, log), tuple[str, ...])
    sparktxlog.register(spark, "http://a:7070", "token", schema="tables", ca_file="ca.crt")
    sparktxlog.register(log, spark)  # type: ignore[arg-type]


def use_retry(log: TxLog, client: sparktxlog.Client, frame: DataFrame) -> None:
    """A function that is repeated keeps its type."""

    @log.retry
    def read(table: str, *, least: int = 0) -> DataFrame:
        with log.transaction(isolation="serializable") as t:
            t.expect_version(table, least)
            t.append(table, frame)
            t.merge(table, frame, "target.id = source.id").whenMatchedDelete(
                "source.n = 0"
            ).execute()
            t.if_absent(table, 7)
            t.merge(table, frame, 7)  # type: ignore[arg-type]
            return t.read(table)

    @client.retry(attempts=3, timeout=1.5)
    def count(table: str) -> int:
        state = client.table(table)
        with client.transaction(isolation="serializable") as t:
            t.read_at(state.position, table)
        return state.version or 0

    assert_type(read("t", least=3), DataFrame)
    assert_type(count("t"), int)
    read(3)  # type: ignore[arg-type]
    read("t", most=3)  # type: ignore[call-arg]
    count()  # type: ignore[call-arg]
    log.retry(attempts="3")  # type: ignore[call-overload]
    log.transaction(isolation="snapshot")  # type: ignore[arg-type]
    client.transaction(isolation="snapshot")  # type: ignore[arg-type]
    client.append("t", frame, isolation="serializable")  # type: ignore[call-arg]
