"""Row tables of the log in Spark's catalog: they are read there, and written through the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN

import sparktxlog
from sparktxlog.api.connect import TxLog, connect
from sparktxlog.errors import (
    CommittedNotAppliedError,
    DivergedError,
    InvalidNameError,
    NameTakenError,
    RowTableError,
    UnknownTableError,
)
from sparktxlog.model.tables.table import ONLY_READ
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory
from sparktxlog.worker.verify.verify import verify_replica

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

COLUMNS = "id bigint not null, v string"
BEGIN = [(1, "a"), (2, "b")]
#: Statement, as the page names it → what becomes of it, and its text.
STATEMENTS = {
    "SELECT": ("reads", "SELECT * FROM {t}"),
    "DESCRIBE": ("reads", "DESCRIBE EXTENDED {t}"),
    "DESCRIBE DETAIL": ("reads", "DESCRIBE DETAIL {t}"),
    "DESCRIBE HISTORY": ("reads", "DESCRIBE HISTORY {t}"),
    "SHOW TBLPROPERTIES": ("reads", "SHOW TBLPROPERTIES {t}"),
    "SHOW COLUMNS": ("reads", "SHOW COLUMNS IN {t}"),
    "REFRESH TABLE": ("reads", "REFRESH TABLE {t}"),
    "VACUUM … DRY RUN": ("reads", "VACUUM {t} DRY RUN"),
    "INSERT": ("refused", "INSERT INTO {t} VALUES (9, 'z')"),
    "INSERT OVERWRITE": ("refused", "INSERT OVERWRITE {t} VALUES (9, 'z')"),
    "UPDATE": ("refused", "UPDATE {t} SET v = 'z' WHERE id = 1"),
    "DELETE": ("refused", "DELETE FROM {t} WHERE id = 1"),
    "MERGE": (
        "refused",
        "MERGE INTO {t} t USING (SELECT 1L id, 'z' v) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ),
    "TRUNCATE TABLE": ("refused", "TRUNCATE TABLE {t}"),
    "ALTER TABLE … ADD COLUMN": ("refused", "ALTER TABLE {t} ADD COLUMN x INT"),
    "SET TBLPROPERTIES": ("refused", "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')"),
    "CLUSTER BY": ("refused", "ALTER TABLE {t} CLUSTER BY (id)"),
    "ADD CONSTRAINT": ("refused", "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id >= 0)"),
    "COMMENT ON TABLE": ("refused", "COMMENT ON TABLE {t} IS 'z'"),
    "RESTORE": ("refused", "RESTORE TABLE {t} TO VERSION AS OF 1"),
    "OPTIMIZE": ("refused", "OPTIMIZE {t}"),
    "OPTIMIZE … ZORDER BY": ("refused", "OPTIMIZE {t} ZORDER BY (id)"),
    "REORG TABLE … APPLY (PURGE)": ("refused", "REORG TABLE {t} APPLY (PURGE)"),
    "VACUUM": ("refused", "VACUUM {t}"),
    "GENERATE": ("refused", "GENERATE symlink_format_manifest FOR TABLE {t}"),
    "DROP TABLE": ("forbidden", "DROP TABLE {t}"),
    "ALTER TABLE … RENAME TO": ("fails", "ALTER TABLE {t} RENAME TO {t}_2"),
    "SET LOCATION": ("fails", "ALTER TABLE {t} SET LOCATION '/elsewhere'"),
    "CREATE OR REPLACE TABLE": ("fails", "CREATE OR REPLACE TABLE {t} (id BIGINT) USING delta"),
    "CREATE TABLE": ("fails", "CREATE TABLE {t} (id BIGINT) USING delta"),
    "ANALYZE TABLE": ("fails", "ANALYZE TABLE {t} COMPUTE STATISTICS"),
    "REPAIR TABLE": ("fails", "REPAIR TABLE {t}"),
    "SHOW CREATE TABLE": ("fails", "SHOW CREATE TABLE {t}"),
    "CREATE VIEW tx.…": ("fails", "CREATE VIEW {t}_view AS SELECT * FROM {t}"),
}
#: The same of calls of Python.
CALLS: dict[str, Callable[[DataFrame, str], Any]] = {
    "df.writeTo": lambda frame, table: frame.writeTo(table).append(),
    "saveAsTable": lambda frame, table: frame.write.mode("append").saveAsTable(table),
}


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


@pytest.mark.thorough
def test_no_statement_changes_a_row_table(
    tx: SparkSession, log: TxLog, node: RunningNode, lake: Path
) -> None:
    """What the page says of each; none makes a file, and the worker of this session goes on."""
    page = _statements_of_page()
    assert {name: page.get(name) for name in STATEMENTS} == {
        name: kind for name, (kind, _) in STATEMENTS.items()
    }
    assert page.keys() == STATEMENTS.keys() | CALLS.keys()
    log.create_table("many", COLUMNS, keys=["id"])
    for number in range(6):  # more than one small file, so OPTIMIZE has something to do
        log.append("many", tx.createDataFrame([(number, "a")], COLUMNS))
    before, table = _files(lake), "tx.default.many"
    for name, (kind, statement) in STATEMENTS.items():
        text = statement.format(t=table)
        if kind == "reads":
            tx.sql(text).collect()
        else:
            _refuse(lambda text=text: tx.sql(text), kind, name)
        assert _files(lake) == before, name
    frame = tx.createDataFrame([(9, "z")], COLUMNS)
    for name, call in CALLS.items():
        _refuse(lambda call=call: call(frame, table), page[name], name)
        assert _files(lake) == before, name
    # VACUUM without its entry in the log asks for no file; it keeps what versions need.
    with _setting(tx, "spark.databricks.delta.vacuum.logging.enabled", "false"):
        tx.sql(f"VACUUM {table}")
    assert _files(lake) == before
    log.append("many", tx.createDataFrame([(6, "a")], COLUMNS))
    assert rows(tx, f"SELECT * FROM {table}") == [(number, "a") for number in range(7)]
    with closing(HttpLogSource(node.url, TOKEN)) as source:
        found = verify_replica(tx, source, lake, ["many"])
    assert found.sound and found.verdict == "IN_SYNC"
    log.drop_table("many")


def test_what_hadoop_itself_says_of_a_write(tx: SparkSession, log: TxLog, lake: Path) -> None:
    """The tests' own class of local files is left out, and PySpark shows one line."""
    log.create_table("plain", COLUMNS)
    log.append("plain", tx.createDataFrame(BEGIN, COLUMNS))
    with _setting(tx, "fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem"):
        with pytest.raises(IllegalArgumentException, match=ONLY_READ):
            tx.sql("TRUNCATE TABLE tx.default.plain")
        _refuse(lambda: tx.sql("INSERT INTO tx.default.plain VALUES (9, 'z')"), "refused", "INSERT")
        # Files of other tables can be written: no file system of the row table is kept.
        copied = lake.parent / "copied"
        tx.table("tx.default.plain").write.format("delta").save(str(copied))
        assert tx.read.format("delta").load(str(copied)).count() == 2
    log.drop_table("plain")


def _refuse(attempt: Callable[[], Any], kind: str, name: str) -> None:
    """Let an attempt fail, by what the node says of the table if it is of that kind."""
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        attempt()
    if kind == "refused":
        typed = sparktxlog.errors_from_spark(caught.value)
        assert isinstance(typed, RowTableError) and typed.definite, (name, caught.value)
        assert "log.append" in typed.hint and "sparktxlog maintain" in typed.hint


def _files(lake: Path) -> dict[str, int]:
    """Return all files of the tables, and when each was written."""
    return {
        str(path): path.stat().st_mtime_ns for path in sorted(lake.rglob("*")) if path.is_file()
    }


def _statements_of_page() -> dict[str, str]:
    """Return what docs/catalog.md says of each statement: the word with which its cell begins."""
    section = (ROOT / "docs" / "catalog.md").read_text().partition("### Statements on a row table")
    found = {}
    for line in section[2].partition("\n##")[0].splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells[1].split()[0].strip(",:;")
    return found


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.unset(key)


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
