"""Spark's own statements on commit tables: a session whose catalog is a node of the log.

The catalog is the small one of `tests/java/`, or the connector that SPARKTXLOG_CONNECTOR names; all
that it does not do itself is Delta's code.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, catalogs
from tests.support.delta_writer import StagedTable, path_of

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def tx(spark: SparkSession, node: RunningNode, connector: Path) -> Iterator[SparkSession]:
    """The session, with the catalog `tx`, and `late`, whose token is not valid (any more)."""
    with catalogs(spark, node, connector, tx=TOKEN, late="expired"):
        spark.sql("CREATE SCHEMA tx.s")
        yield spark


def asked(node: RunningNode, name: str) -> Any:
    """Return what the node says of a table."""
    request = urllib.request.Request(
        node.url + path_of(name, "s"), headers={"authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_statements_of_sql(tx: SparkSession, node: RunningNode) -> None:
    tx.sql("CREATE TABLE tx.s.o (id BIGINT, v STRING) USING delta")
    assert rows(tx, "SHOW TABLES IN tx.s") == [("s", "o", False)]
    tx.sql("INSERT INTO tx.s.o VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    tx.sql("UPDATE tx.s.o SET v = 'B' WHERE id = 2")
    tx.sql("DELETE FROM tx.s.o WHERE id = 3")
    tx.sql("CREATE TABLE tx.s.n USING delta AS SELECT * FROM VALUES (1, 'x'), (9, 'n') AS n(id, v)")
    tx.sql(
        "MERGE INTO tx.s.o AS t USING tx.s.n AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(tx, "SELECT * FROM tx.s.o") == [(1, "x"), (2, "B"), (9, "n")]
    assert rows(tx, "SELECT * FROM tx.s.o VERSION AS OF 1") == [(1, "a"), (2, "b"), (3, "c")]
    operations = [row.operation for row in tx.sql("DESCRIBE HISTORY tx.s.o").collect()]
    assert operations == ["MERGE", "DELETE", "UPDATE", "WRITE", "CREATE TABLE"]
    shown = asked(node, "o")
    assert shown["latest-table-version"] == 4
    log = Path(shown["metadata"]["location"].removeprefix("file:")) / "_delta_log"
    for version in range(1, 5):
        (staged,) = (log / "_staged_commits").glob(f"{version:020}.*.json")
        assert (log / f"{version:020}.json").read_bytes() == staged.read_bytes()


def test_tables_change_and_are_replaced(tx: SparkSession, node: RunningNode) -> None:
    tx.sql("CREATE TABLE tx.s.c (id BIGINT, part STRING) USING delta PARTITIONED BY (part)")
    tx.sql("INSERT INTO tx.s.c VALUES (1, 'a b'), (2, 'c/d')")
    tx.sql("ALTER TABLE tx.s.c ADD COLUMN more ARRAY<STRUCT<x: INT>> COMMENT 'text'")
    tx.sql("ALTER TABLE tx.s.c SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    assert asked(node, "c")["metadata"]["last-commit-version"] == 3
    tx.sql("UPDATE tx.s.c SET more = array(named_struct('x', 7)) WHERE id = 1")
    changes = tx.sql("SELECT _change_type FROM table_changes('tx.s.c', 4)").collect()
    assert sorted(row[0] for row in changes) == ["update_postimage", "update_preimage"]
    tx.sql("INSERT OVERWRITE tx.s.c VALUES (5, 'e', NULL)")
    tx.sql("RESTORE TABLE tx.s.c TO VERSION AS OF 1")
    assert rows(tx, "SELECT id, part FROM tx.s.c") == [(1, "a b"), (2, "c/d")]
    before = asked(node, "c")["metadata"]["table-uuid"]
    tx.sql("CREATE OR REPLACE TABLE tx.s.c (k STRING) USING delta CLUSTER BY (k)")
    tx.sql("INSERT INTO tx.s.c VALUES ('z')")
    after = asked(node, "c")["metadata"]
    assert after["table-uuid"] == before
    assert [field["name"] for field in after["columns"]["fields"]] == ["k"]
    assert rows(tx, "SELECT * FROM tx.s.c") == [("z",)]
    tx.sql("CREATE SCHEMA tx.u")
    tx.sql("DROP SCHEMA tx.u")
    assert rows(tx, "SHOW SCHEMAS IN tx") == [("default",), ("s",)]
    tx.sql("DROP TABLE tx.s.c")
    with pytest.raises(urllib.error.HTTPError):
        asked(node, "c")


def test_frames_and_streams(tx: SparkSession, node: RunningNode, tmp_path: Path) -> None:
    frame = tx.range(5).select("id", (F.col("id") * 2).alias("twice"))
    frame.writeTo("tx.s.f").using("delta").create()
    frame.writeTo("tx.s.f").append()
    frame.write.mode("append").saveAsTable("tx.s.f")
    tx.sql("CREATE TABLE tx.s.g (id BIGINT, twice BIGINT) USING delta")

    def stream() -> None:
        query = (
            tx.readStream.table("tx.s.f")
            .writeStream.format("delta")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .toTable("tx.s.g")
        )
        assert query.awaitTermination(120)

    stream()
    assert tx.table("tx.s.g").count() == 15
    tx.sql("INSERT INTO tx.s.f VALUES (7, 14)")
    stream()
    assert tx.table("tx.s.g").count() == 16


def foreign_append(node: RunningNode, name: str, id_: int) -> tuple[str, bytes]:
    """Stage a commit that appends a row, as another writer of the table would.

    Returns address and body of the request that commits it.
    """
    shown = asked(node, name)
    metadata, version = shown["metadata"], shown["latest-table-version"] + 1
    directory = Path(metadata["location"].removeprefix("file:"))
    path = directory / "foreign.parquet"
    pq.write_table(pa.table({"id": pa.array([id_], pa.int64())}), path)
    tracked = {"baseRowId": 1000, "defaultRowCommitVersion": version}
    added = {
        "path": path.name,
        "size": path.stat().st_size,
        "partitionValues": {},
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 1}),
        **tracked,
    }
    mark = json.dumps({"rowIdHighWaterMark": 1000})
    domain = {"domain": "delta.rowTracking", "configuration": mark, "removed": False}
    table = StagedTable(metadata["table-uuid"], directory, metadata["location"])
    commit = table.stage(
        version,
        {"add": added},
        {"domainMetadata": domain},
        timestamp=metadata["updated-time"] + 1,
    )
    return node.url + path_of(name, "s"), json.dumps(table.update(commit)).encode()


def test_a_commit_that_loses_is_made_again(tx: SparkSession, node: RunningNode) -> None:
    """The other one is committed while Spark writes; Spark does the rest, without user code."""
    tx.sql("CREATE TABLE tx.s.k (id BIGINT) USING delta")
    tx.sql("INSERT INTO tx.s.k VALUES (1)")
    url, body = foreign_append(node, "k", 2)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}

    def commit_the_other(value: int) -> int:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return value

    tx.udf.register("commit_the_other", commit_the_other, "bigint")
    tx.sql("INSERT INTO tx.s.k SELECT commit_the_other(id) FROM VALUES (3L) AS v(id)")
    assert rows(tx, "SELECT * FROM tx.s.k") == [(1,), (2,), (3,)]
    assert asked(node, "k")["latest-table-version"] == 3
    versions = tx.sql("DESCRIBE HISTORY tx.s.k").collect()
    assert [row.version for row in versions] == [3, 2, 1, 0]


def test_a_writer_with_an_expired_token_changes_nothing(
    tx: SparkSession, node: RunningNode
) -> None:
    tx.sql("CREATE TABLE tx.s.e (id BIGINT) USING delta")
    with pytest.raises(Py4JJavaError, match="NotAuthorizedException"):
        tx.sql("INSERT INTO late.s.e VALUES (1)")
    assert asked(node, "e")["latest-table-version"] == 0
