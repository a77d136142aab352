"""`log.transaction` over commit tables and a row table: all or none; who lost tries again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, catalogs

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    RowTableError,
    SchemaMismatchError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.storage.commit_tables.table_places import TRANSACTION_TWINS

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def tx(spark: SparkSession, node: RunningNode, connector: Path) -> Iterator[SparkSession]:
    """The session, with the catalog `tx`, two commit tables, and a row table."""
    with catalogs(spark, node, connector, tx=TOKEN):
        spark.sql("CREATE SCHEMA tx.shop")
        spark.sql("CREATE TABLE tx.shop.orders (id BIGINT, paid BOOLEAN) USING delta")
        spark.sql(
            "CREATE TABLE tx.shop.stock (id BIGINT, n BIGINT) USING delta "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        spark.sql("INSERT INTO tx.shop.stock VALUES (1, 10), (2, 20)")
        yield spark


@pytest.fixture(scope="module")
def log(tx: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    with sparktxlog.connect(tx, node.url, token=TOKEN, apply="inline") as found:
        found.create_table("audit", "id bigint, what string")
        yield found


def rows(session: SparkSession, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(f"SELECT * FROM tx.{table}").collect())


def test_two_commit_tables_and_a_row_table_change_together(
    tx: SparkSession, log: TxLog, node: RunningNode
) -> None:
    order = tx.createDataFrame([(7, False)], "id bigint, paid boolean")
    sold = tx.createDataFrame([(1, 3), (9, 1)], "id bigint, n bigint")
    with log.transaction() as t:
        t.append("shop.orders", order)
        t.merge("shop.stock", sold, "target.id = source.id").whenMatchedUpdate(
            set={"n": "target.n - source.n"}
        ).whenNotMatchedInsertAll().execute()
        t.append("audit", tx.createDataFrame([(7, "sold")], "id bigint, what string"))
        # It reads what it wrote; others see nothing of it.
        assert min(tuple(row) for row in t.read("shop.stock").collect()) == (1, 7)
        assert rows(tx, "shop.stock")[0] == (1, 10)
    assert t.receipt.outcome == "committed"
    assert rows(tx, "shop.orders") == [(7, False)]
    assert rows(tx, "shop.stock") == [(1, 7), (2, 20), (9, 1)]
    assert [tuple(row) for row in log.table("audit").collect()] == [(7, "sold")]
    # Any statement of Delta, and writers that know nothing of transactions go on.
    with log.transaction() as t:
        tx.sql(f"UPDATE {t.in_sql('shop.orders')} SET paid = true WHERE id = 7")
        t.delete_where("shop.stock", "n < 5")
    tx.sql("INSERT INTO tx.shop.stock VALUES (3, 30)")
    assert rows(tx, "shop.orders") == [(7, True)]
    assert rows(tx, "shop.stock") == [(1, 7), (2, 20), (3, 30)]
    versions = tx.sql("DESCRIBE HISTORY tx.shop.stock").collect()
    assert [row.operation for row in versions][:3] == ["WRITE", "DELETE", "MERGE"]
    with log.transaction() as t:
        t.overwrite("shop.stock", tx.createDataFrame([(4, 40)], "id bigint, n bigint"))
        t.delete_where("shop.orders", "false")
    assert (rows(tx, "shop.stock"), rows(tx, "shop.orders")) == ([(4, 40)], [(7, True)])
    assert not list(Path(node.directory).rglob(f"{TRANSACTION_TWINS}/*"))


def test_several_statements_for_a_table_are_one_version_of_it(tx: SparkSession, log: TxLog) -> None:
    tx.sql("INSERT OVERWRITE tx.shop.stock VALUES (4, 40)")
    newest = tx.sql("DESCRIBE HISTORY tx.shop.stock").first()["version"]
    with log.transaction() as t:
        more = tx.createDataFrame([(n, n) for n in range(5, 10)], "id bigint, n bigint")
        t.append("shop.stock", more.coalesce(1))
        t.delete_where("shop.stock", "id IN (5, 4)")
        tx.sql(f"UPDATE {t.in_sql('shop.stock')} SET n = -n WHERE id > 7")
        tx.sql(f"ALTER TABLE {t.in_sql('shop.stock')} ADD COLUMN note STRING")
        tx.sql(f"UPDATE {t.in_sql('shop.stock')} SET note = 'x' WHERE id IN (6, 8)")
    after = [(6, 6, "x"), (7, 7, None), (8, -8, "x"), (9, -9, None)]
    assert rows(tx, "shop.stock") == after
    history = tx.sql("DESCRIBE HISTORY tx.shop.stock").collect()
    assert [row.version for row in history][:2] == [newest + 1, newest]
    tx.sql("DELETE FROM tx.shop.stock WHERE id = 9")
    assert rows(tx, "shop.stock") == after[:3]


@pytest.mark.thorough
def test_a_lost_race_takes_nothing_and_is_repeated(tx: SparkSession, log: TxLog) -> None:
    tx.sql("CREATE OR REPLACE TABLE tx.shop.stock (id BIGINT, n BIGINT) USING delta")
    tx.sql("INSERT INTO tx.shop.stock VALUES (1, 10)")
    before, attempts = rows(tx, "shop.orders"), list[str]()

    def sell(t: Any, amount: int) -> None:
        left = t.read("shop.stock").first()["n"] - amount
        if len(attempts) == 1:  # somebody else is faster
            tx.sql("UPDATE tx.shop.stock SET n = n - 1")
        t.append("shop.orders", tx.createDataFrame([(left, False)], "id bigint, paid boolean"))
        t.overwrite("shop.stock", tx.createDataFrame([(1, left)], "id bigint, n bigint"))
        t.append("audit", tx.createDataFrame([(left, "left")], "id bigint, what string"))

    attempts.append("alone")
    with pytest.raises(VersionConflictError) as lost, log.transaction() as t:
        sell(t, 2)
    fields = lost.value.fields
    assert lost.value.definite
    assert (fields["table"], rows(tx, "shop.stock")) == ("shop.stock", [(1, 9)])
    assert fields["version"] == tx.sql("DESCRIBE HISTORY tx.shop.stock").first()["version"]
    assert rows(tx, "shop.orders") == before
    with pytest.raises(VersionConflictError):
        t.commit()
    attempts.clear()

    @log.retry(attempts=3)
    def sold() -> None:
        attempts.append("again")
        with log.transaction() as t:
            sell(t, 2)

    sold()
    assert len(attempts) == 2
    assert rows(tx, "shop.stock") == [(1, 6)]
    assert rows(tx, "shop.orders") == sorted([*before, (6, False)])
    audit = [tuple(row) for row in log.table("audit").where("what = 'left'").collect()]
    assert audit == [(6, "left")]


def test_what_was_only_read_is_checked_if_that_is_asked_for(tx: SparkSession, log: TxLog) -> None:
    before = tx.sql("DESCRIBE HISTORY tx.shop.orders").first()["version"]
    rows_of_audit = log.table("audit").count()
    note = tx.createDataFrame([(0, "read")], "id bigint, what string")
    for isolation, is_told in ((None, False), ("serializable", True)):
        t = log.transaction(isolation=isolation)
        seen = t.read("shop.orders").count()
        tx.sql("INSERT INTO tx.shop.orders VALUES (70, true)")
        t.append("audit", note)
        if is_told:
            with pytest.raises(VersionConflictError) as lost:
                t.commit()
            assert lost.value.fields["table"] == "shop.orders"
        else:
            t.commit()
            rows_of_audit += 1
        assert log.table("audit").count() == rows_of_audit
    with log.transaction(isolation="serializable") as t:
        assert t.read("shop.orders").count() == seen + 1
        t.append("audit", note)
    assert len(rows(tx, "shop.orders")) == seen + 1
    assert tx.sql("DESCRIBE HISTORY tx.shop.orders").first()["version"] == before + 3


def test_a_table_is_replaced_or_that_is_refused(tx: SparkSession, log: TxLog) -> None:
    """By path Delta's CREATE OR REPLACE TABLE reports success, and replaces nothing."""
    tx.sql("CREATE TABLE tx.shop.replaced (id BIGINT COMMENT 'who', n BIGINT) USING delta")
    tx.sql("INSERT INTO tx.shop.replaced VALUES (1, 10)")
    for columns in ("id BIGINT COMMENT 'who', n BIGINT", "id STRING"):
        with (
            pytest.raises(InvalidRequestError, match="replaces nothing") as refused,
            log.transaction() as t,
        ):
            tx.sql(f"CREATE OR REPLACE TABLE {t.in_sql('shop.replaced')} ({columns}) USING delta")
        assert "t.overwrite" in refused.value.hint
    for statement in (
        "REPLACE TABLE %s (id STRING) USING delta",
        "CREATE OR REPLACE TABLE %s USING delta AS SELECT 7 AS seven",
    ):
        with (
            pytest.raises(InvalidRequestError, match="properties that a commit table needs"),
            log.transaction() as t,
        ):
            tx.sql(statement % t.in_sql("shop.replaced"))
    assert rows(tx, "shop.replaced") == [(1, 10)]
    with log.transaction() as t:
        name = t.in_sql("shop.replaced")
        tx.sql(f"ALTER TABLE {name} ADD COLUMN note STRING")
        tx.sql(f"INSERT INTO {name} VALUES (2, 20, 'x')")
        assert t.read("shop.replaced").schema["id"].metadata == {"comment": "who"}
    assert rows(tx, "shop.replaced") == [(1, 10, None), (2, 20, "x")]
    schema = tx.table("tx.shop.replaced").schema
    assert [field.metadata for field in schema] == [{"comment": "who"}, {}, {}]


def test_what_cannot_be_is_refused(tx: SparkSession, log: TxLog, node: RunningNode) -> None:
    order = tx.createDataFrame([(7, False)], "id bigint, paid boolean")
    before = rows(tx, "shop.orders")
    with pytest.raises(InvalidRequestError, match="has no keys"), log.transaction() as t:
        t.append("shop.orders", order)
        t.upsert("shop.orders", order)
    with pytest.raises(UnknownTableError), log.transaction() as t:
        t.append("shop.orders", order)
        t.append("shop.nothing", order)
    with pytest.raises(RowTableError), log.transaction() as t:
        t.append("shop.orders", order)
        t.in_sql("default.audit")
    with pytest.raises(InvalidRequestError, match="at level 'accepted'"):
        log.append("shop.orders", order, level="accepted")
    # Delta says that it cannot write there, and PySpark hides why.
    with (
        pytest.raises(Py4JJavaError, match="CANNOT_CREATE_LOG_PATH") as failed,
        log.transaction() as t,
    ):
        twin = Path(t.in_sql("shop.orders").split("`")[1])
        shutil.rmtree(twin)
        twin.touch()
        t.append("shop.orders", order)
    twin.unlink()
    assert "Caused by ParentNotDirectoryException: Parent path is not" in failed.value.__notes__[0]
    assert rows(tx, "shop.orders") == before
    assert not list(Path(node.directory).rglob(f"{TRANSACTION_TWINS}/*"))


def test_rows_without_a_frame_are_stored_as_spark_stores_them(tx: SparkSession, log: TxLog) -> None:
    tx.sql(
        "CREATE TABLE tx.shop.facts (id INT NOT NULL, price DECIMAL(10,2), at TIMESTAMP, "
        "plain TIMESTAMP_NTZ, times ARRAY<TIMESTAMP>) USING delta"
    )
    zone = tx.conf.get("spark.sql.session.timeZone")
    # The clock skips the first, has the second twice.
    odd = (datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30), datetime(2024, 7, 1))
    try:
        tx.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        for number, time in enumerate(odd):
            row = {"id": number, "price": 2, "at": time, "plain": time, "times": [time]}
            log.append("shop.facts", [row])
            log.append("shop.facts", pa.Table.from_pylist([row]))
            tx.sql(
                f"INSERT INTO tx.shop.facts VALUES ({number}, 2, TIMESTAMP_LTZ'{time}', "
                f"TIMESTAMP_NTZ'{time}', array(TIMESTAMP_LTZ'{time}'))"
            )
        found = tx.sql(
            "SELECT id, price, unix_micros(at), CAST(plain AS STRING), unix_micros(times[0]) "
            "FROM tx.shop.facts"
        )
        stored = [tuple(row) for row in found.collect()]
    finally:
        tx.conf.set("spark.sql.session.timeZone", zone)
    assert len(stored) == 9 and len({*stored}) == 3
    gap = 1_711_848_600_000_000  # 01:30 in UTC
    assert (0, Decimal("2.00"), gap, "2024-03-31 02:30:00", gap) in stored

    for refused, rows_ in (
        (SchemaMismatchError, [{"id": 2**31}]),
        (SchemaMismatchError, [{"id": 1, "colour": "red"}]),
        (SchemaMismatchError, pa.table({"id": pa.array([1], pa.int32()), "at": ["now"]})),
        (SchemaMismatchError, pa.table({"id": [1], "z": pa.array([1], pa.uint64())})),
        (InvalidRowsError, [{"id": None}]),
    ):
        with pytest.raises(refused) as caught:
            log.append("shop.facts", rows_)
        assert caught.value.definite and caught.value.hint, rows_
    with pytest.raises(SchemaMismatchError, match="no column 'prize'") as caught:
        log.append("shop.facts", [{"id": 1, "prize": 2}])
    assert caught.value.hint == "Did you mean 'price'?"
    with pytest.raises(InvalidRequestError, match="predicate"):
        log.delete_where("shop.facts", "nowhere = 1")
    log.append("shop.facts", [])
    log.append("shop.facts", pa.table({}))
    assert len(rows(tx, "shop.facts")) == 9
    log.overwrite("shop.facts", [])
    assert rows(tx, "shop.facts") == []

    endless = tx.readStream.format("rate").load()
    for table in ("shop.facts", "audit"):
        with pytest.raises(InvalidRequestError, match="write_stream"):
            log.append(table, endless)

    tx.sql(
        "CREATE TABLE tx.shop.events (name VARCHAR(3)) USING delta "
        "TBLPROPERTIES ('delta.appendOnly' = 'true')"
    )
    with pytest.raises(InvalidRowsError, match="length limitation"):
        log.append("shop.events", [{"name": "long"}])
    log.append("shop.events", [{"name": "one"}])
    for change in (
        lambda: log.overwrite("shop.events", [{"name": "two"}]),
        lambda: log.overwrite("shop.events", []),
        lambda: log.delete_where("shop.events", "true"),
    ):
        with pytest.raises(InvalidRequestError, match="append-only"):
            change()
    assert rows(tx, "shop.events") == [("one",)]
