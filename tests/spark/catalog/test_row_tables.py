"""Row tables of the log in Spark's catalog: they are read there, and written through the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.errors import (
    CommittedNotAppliedError,
    DivergedError,
    InvalidNameError,
    NameTakenError,
    UnknownTableError,
)
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

COLUMNS = "id bigint not null, v string"
BEGIN = [(1, "a"), (2, "b")]
#: What the error of a write says: the one of Delta's commit, and the one of the node.
NO_COMMIT = r"ClassNotFoundException.*write it with log\.append"
PERMISSION = r"PermissionDeniedException.*log\.drop_table|log\.drop_table.*PermissionDenied"


@pytest.fixture(scope="module")
def log(spark: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    """Return a connected log that applies what it commits, with the table `orders`."""
    with connect(spark, node.url, TOKEN, apply="inline") as connected:
        with connected.transaction() as t:
            said = {"comment": "of the shop", "properties": {"team": "sales"}}
            t.create_table("orders", f"{COLUMNS} comment 'what it is'", keys=["id"], **said)
            t.append("orders", spark.createDataFrame(BEGIN, COLUMNS))
        yield connected


@pytest.fixture
def lake(node: RunningNode) -> Path:
    """Return the directory of the replica's tables."""
    return node.directory / "data" / "lake"


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_row_tables_are_read_beside_commit_tables(
    tx: SparkSession, log: TxLog, tmp_path: Path
) -> None:
    tx.sql("CREATE TABLE tx.default.prices (id BIGINT, price BIGINT) USING delta")
    # A name without a schema is of either kind.
    first = tx.createDataFrame([(2, 20), (3, 30)], "id bigint, price bigint")
    with log.transaction() as t:
        t.append("prices", first)
    shown = rows(tx, "SHOW TABLES IN tx.default")
    assert shown == [("default", "orders", False), ("default", "prices", False)]
    assert rows(tx, "SELECT * FROM tx.default.orders") == BEGIN
    joined = "SELECT o.v, p.price FROM tx.default.orders o JOIN tx.default.prices p ON o.id = p.id"
    assert rows(tx, joined) == [("b", 20)]
    described = {row[0]: row[1] for row in tx.sql("DESCRIBE EXTENDED tx.default.orders").collect()}
    assert described["Type"] == "EXTERNAL"
    assert 'sparktxlog.keys=["id"]' in described["Table Properties"]
    assert "team=sales" in described["Table Properties"]
    assert described["Comment"] == "of the shop"
    columns = {row[0]: row[2] for row in tx.sql("DESCRIBE tx.default.orders").collect()}
    assert columns == {"id": None, "v": "what it is"}
    table = log.describe("default.Orders")
    assert (table.name, table.kind, table.comment) == ("orders", "row-table", "of the shop")
    assert [column.comment for column in table.columns] == ["", "what it is"]
    assert (table.keys, table.properties, table.schema_version) == (("id",), {"team": "sales"}, 1)
    assert table.location is not None and Path(table.location, "_delta_log").is_dir()
    prices = log.describe("prices")
    assert (prices.name, prices.kind) == ("default.prices", "commit-table")
    assert [(c.name, c.type) for c in prices.columns] == [("id", "bigint"), ("price", "bigint")]
    assert Path(prices.location or "", "_delta_log").is_dir() and prices.version == 1
    listed = log.tables().select("table", "kind", "comment").collect()
    assert [tuple(row) for row in listed] == [
        ("orders", "row-table", "of the shop"),
        ("default.prices", "commit-table", ""),
    ]
    with pytest.raises(UnknownTableError, match="no table 'order'"):
        log.describe("order")
    with pytest.raises(UnknownTableError, match="no table 'order'"), log.transaction() as t:
        t.append("order", first)
    log.append("orders", tx.createDataFrame([(3, "c")], COLUMNS))
    assert rows(tx, joined) == [("b", 20), ("c", 30)]
    versions = [row.version for row in tx.sql("DESCRIBE HISTORY tx.default.orders").collect()]
    before = f"SELECT count(*) FROM tx.default.orders VERSION AS OF {max(versions) - 1}"
    assert rows(tx, before) == [(2,)]
    tx.sql("CREATE TABLE tx.default.copied (id BIGINT, v STRING) USING delta")
    query = (
        tx.readStream.table("tx.default.orders")
        .writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .toTable("tx.default.copied")
    )
    assert query.awaitTermination(120)
    assert rows(tx, "SELECT * FROM tx.default.copied") == [*BEGIN, (3, "c")]


def test_writes_of_a_row_table_end_before_their_commit(
    tx: SparkSession, log: TxLog, lake: Path
) -> None:
    """The same session still applies what the log has: it does not ask the catalog."""
    log_directory = lake / "orders" / "_delta_log"
    before = sorted(path.name for path in log_directory.glob("*.json"))
    frame = tx.createDataFrame([(9, "z")], COLUMNS)
    attempts: list[tuple[str, Callable[[DataFrame], Any], str]] = [
        ("INSERT", lambda _: tx.sql("INSERT INTO tx.default.orders VALUES (9, 'z')"), NO_COMMIT),
        ("UPDATE", lambda _: tx.sql("UPDATE tx.default.orders SET v = 'z'"), NO_COMMIT),
        ("DELETE", lambda _: tx.sql("DELETE FROM tx.default.orders"), NO_COMMIT),
        (
            "ALTER",
            lambda _: tx.sql("ALTER TABLE tx.default.orders ADD COLUMN x INT"),
            NO_COMMIT,
        ),
        ("writeTo", lambda f: f.writeTo("tx.default.orders").append(), NO_COMMIT),
        (
            "saveAsTable",
            lambda f: f.write.mode("append").saveAsTable("tx.default.orders"),
            NO_COMMIT,
        ),
        ("DROP", lambda _: tx.sql("DROP TABLE tx.default.orders"), PERMISSION),
    ]
    for name, attempt, error in attempts:
        with pytest.raises(Py4JJavaError, match=error):
            attempt(frame)
        assert sorted(path.name for path in log_directory.glob("*.json")) == before, name
    log.append("orders", tx.createDataFrame([(4, "d")], COLUMNS))
    assert (4, "d") in rows(tx, "SELECT * FROM tx.default.orders")
    assert not [row for row in rows(tx, "SELECT * FROM tx.default.orders") if row[1] == "z"]


@pytest.mark.thorough
def test_row_tables_in_schemas(
    tx: SparkSession, log: TxLog, node: RunningNode, lake: Path, tmp_path: Path
) -> None:
    """`bronze.events` means the same everywhere, beside a commit table with a schema."""
    begin = tx.createDataFrame(BEGIN, COLUMNS)
    tx.sql("CREATE SCHEMA tx.silver")
    tx.sql("CREATE TABLE tx.silver.sums (n BIGINT) USING delta")
    with log.transaction() as t:
        t.create_table("bronze.events", COLUMNS, keys=["id"])
        t.append("Bronze.Events", begin)
        t.append("silver.sums", tx.createDataFrame([(2,)], "n bigint"))
        t.upsert("default.orders", tx.createDataFrame([(9, "z")], COLUMNS))
    assert (lake / "bronze.events" / "_delta_log").is_dir()
    assert rows(tx, "SELECT * FROM tx.bronze.events") == BEGIN
    assert rows(tx, "SHOW TABLES IN tx.bronze") == [("bronze", "events", False)]
    assert ("bronze",) in rows(tx, "SHOW SCHEMAS IN tx")
    assert rows(tx, "SELECT * FROM tx.silver.sums") == [(2,)]
    with log.transaction(isolation="serializable") as t:
        assert t.read("bronze.EVENTS").count() == 2 and t.read("silver.sums").count() == 1
        t.expect_version("BRONZE.events", 1)
        t.merge("bronze.events", begin, "target.id = source.id").whenMatchedUpdate(
            set={"v": "'later'"}
        ).whenNotMatchedInsertAll().execute()
    assert rows_of(log.table("BRONZE.events")) == [(1, "later"), (2, "later")]
    assert log.snapshot(t.receipt.position - 1).table("bronze.events").count() == 2
    begin.selectExpr("id + 20 id", "v").write.format("txlog").option("table", "Bronze.events").mode(
        "append"
    ).save()
    receipt = log.commit_many(
        begin.selectExpr("id + 10 id", "v"), table="bronze.Events", transaction="id"
    )
    assert receipt.transactions == 2 and not receipt.rejections
    assert log.table("bronze.events").count() == 6  # so all of it is published
    changes = tx.read.format("txlog").option("table", "BRONZE.events")
    changes = changes.option("startingPosition", "earliest").option("skipChangeCommits", "true")
    assert {row["id"] for row in changes.load().collect()} >= {1, 2, 11, 12, 21, 22}
    log.rename_table("bronze.events", "silver.events")
    assert sorted(path.name for path in lake.iterdir() if path.name[0] != "_") == [
        "orders",
        "silver.events",
    ]
    assert log.table("silver.events").count() == 6
    with pytest.raises(NameTakenError, match="commit table"):
        log.create_table("silver.sums", "n bigint")
    with pytest.raises(UnknownTableError, match=r"'bronze\.events'"):
        log.append("bronze.events", begin)
    with pytest.raises(InvalidNameError, match="it has 3 parts"):
        log.append("tx.silver.events", begin)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_a_write_by_path_is_found_by_the_worker(tx: SparkSession, log: TxLog, lake: Path) -> None:
    """It does not ask the catalog, so only the worker can find it, and that stops the table."""
    with log.transaction() as t:
        t.create_table("bypassed", COLUMNS)
        t.append("bypassed", tx.createDataFrame(BEGIN, COLUMNS))
    path = lake / "bypassed"
    tx.createDataFrame([(9, "z")], COLUMNS).write.format("delta").mode("append").save(str(path))
    with pytest.raises(CommittedNotAppliedError, match=r"'bypassed': version \d+ was written by"):
        log.append("bypassed", tx.createDataFrame([(3, "c")], COLUMNS))
    # Only this table stands still.
    log.upsert("orders", tx.createDataFrame([(50, "on")], COLUMNS))
    assert log.table("orders").where("id = 50").count() == 1
    with pytest.raises(DivergedError, match=r"'bypassed' of this site.*\(WRITE\)") as caught:
        log.table("bypassed")
    assert "sparktxlog repair bypassed" in caught.value.hint


def test_a_catalog_is_that_of_the_replica_that_it_names(
    tx: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    """The main one's has what was written since; a session chooses by the catalog's name."""
    log.create_table("chosen", COLUMNS)
    log.append("chosen", [{"id": 1, "v": "a"}])
    with (
        closing(HttpLogSource(node.url, TOKEN)) as source,
        closing(ReplicaDirectory(tmp_path / "reports")) as directory,
    ):
        Applier(tx, source, directory, name="reports", replays_anyway=True).run_once()
    log.append("chosen", [{"id": 2, "v": "b"}])
    names = ("tx@reports", "tx@main", "tx@nobody")
    for name in names:
        for key in ("", ".uri", ".token"):
            value = tx.conf.get(f"spark.sql.catalog.tx{key}")
            assert value is not None
            tx.conf.set(f"spark.sql.catalog.{name}{key}", value)
    try:
        for name, ids in (("tx", [1, 2]), ("tx@main", [1, 2]), ("tx@reports", [1])):
            found = rows(tx, f"SELECT id FROM `{name}`.default.chosen")
            assert [row[0] for row in found] == ids, name
            about = tx.sql(f"DESCRIBE EXTENDED `{name}`.default.chosen").collect()
            said = {row[0]: row[1] for row in about}["Table Properties"]
            shown = said.partition("sparktxlog.replica=")[2].partition(",")[0].rstrip("]")
            assert shown.partition("/")[2] == ("reports" if name == "tx@reports" else "")
        with pytest.raises(Exception, match="no replica 'nobody'"):
            tx.sql("SELECT * FROM `tx@nobody`.default.chosen").collect()
    finally:
        for name in names:
            for key in ("", ".uri", ".token"):
                tx.conf.unset(f"spark.sql.catalog.{name}{key}")
