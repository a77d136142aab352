"""Delta tables of Spark become commit tables with all that they are, and plain ones again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN
from tests.support.command_line import invoke

import sparktxlog
from sparktxlog.errors import InvalidRequestError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

#: Row ids, deletion vectors, two names of a column, clustering.
MODERN = (
    "CREATE TABLE {t} (id BIGINT, v STRING) USING delta CLUSTER BY (id) TBLPROPERTIES "
    "('delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true', "
    "'delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '2')"
)
CHANGES = (
    "INSERT INTO {t} SELECT id, concat('v', id) FROM range(6)",
    "ALTER TABLE {t} RENAME COLUMN v TO w",
    "DELETE FROM {t} WHERE id = 2",
)
OLD = (
    "CREATE TABLE {t} (id BIGINT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES "
    "('delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '2', "
    "'delta.enableDeletionVectors' = 'false')"
)


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def operations(session: SparkSession, table: str) -> list[str]:
    return [row.operation for row in session.sql(f"DESCRIBE HISTORY {table}").collect()]


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_share_spark")
def test_a_table_comes_and_goes(
    tx: SparkSession,
    node: RunningNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, back = f"delta.`{tmp_path}/plain`", f"delta.`{tmp_path}/back`"
    for statement in (MODERN, *CHANGES):
        tx.sql(statement.format(t=plain))
    ids = "SELECT _metadata.row_id, id, w FROM {t}"
    expected = rows(tx, ids.format(t=plain))
    assert len(expected) == 5
    monkeypatch.setenv("SPARKTXLOG_CLIENT_TOKEN", TOKEN)
    adoption = ["table", "adopt", "default.brought", f"{tmp_path}/plain", "--as", "commit-table"]
    assert invoke(monkeypatch, *adoption, "--url", node.url, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "commit table default.brought would begin with version 3 of" in said
    assert "New features: catalogManaged, " in said
    assert rows(tx, "SHOW TABLES IN tx.default") == []
    assert invoke(monkeypatch, *adoption, "--url", node.url) == 0
    assert "The old table is as it was" in capsys.readouterr().out
    assert rows(tx, ids.format(t="tx.default.brought")) == expected
    assert rows(tx, ids.format(t=plain)) == expected
    tx.sql("INSERT INTO tx.default.brought VALUES (9, 'new')")
    tx.sql("UPDATE tx.default.brought SET w = 'changed' WHERE id = 0")
    history = ["UPDATE", "WRITE", "ADOPT"]
    assert operations(tx, "tx.default.brought") == history
    detail = tx.sql("DESCRIBE DETAIL tx.default.brought").collect()[0]
    assert list(detail.clusteringColumns) == ["id"]
    changed = rows(tx, ids.format(t="tx.default.brought"))
    assert [row[1:] for row in changed if row[1] in (0, 1, 9)] == [
        (0, "changed"),
        (1, "v1"),
        (9, "new"),
    ]
    command = ["table", "release", "default.brought", f"{tmp_path}/back", "--drop"]
    assert invoke(monkeypatch, *command, "--url", node.url) == 0
    said = capsys.readouterr().out
    assert "is a plain Delta table at version 2, and the log has it no more" in said
    used = ("clustering", "columnMapping", "deletionVectors", "domainMetadata", "rowTracking")
    assert all(feature in said for feature in used)
    assert "inCommitTimestamp" not in said and "v2Checkpoint" not in said
    assert rows(tx, ids.format(t=back)) == changed
    assert operations(tx, back) == history
    tx.sql(f"INSERT INTO {back} VALUES (10, 'plain')")
    tx.sql(f"OPTIMIZE {back}")
    assert rows(tx, f"SELECT id FROM {back}")[-1] == (10,)
    assert rows(tx, f"SELECT count(*) FROM {back} VERSION AS OF 0") == [(5,)]


def test_an_old_table_is_moved(tx: SparkSession, node: RunningNode, tmp_path: Path) -> None:
    plain = f"delta.`{tmp_path}/old`"
    tx.sql(OLD.format(t=plain))
    tx.sql(f"INSERT INTO {plain} VALUES (1, 'a b/%=é'), (2, NULL), (3, 'x:y')")
    tx.sql(f"ALTER TABLE {plain} ADD CONSTRAINT small CHECK (id < 100)")
    tx.sql(f"CREATE TABLE delta.`{tmp_path}/clone` SHALLOW CLONE {plain}")
    with sparktxlog.connect(tx, node.url, token=TOKEN) as log:
        with pytest.raises(InvalidRequestError, match="is no path below the table"):
            log.adopt_table("default.clone", f"{tmp_path}/clone", kind="commit-table")
        done = log.adopt_table("default.old", f"{tmp_path}/old", kind="commit-table", files="move")
        assert done.left.startswith("the old log is")
        tx.sql("INSERT INTO tx.default.old VALUES (4, NULL)")
        with pytest.raises(Py4JJavaError, match="CHECK constraint small"):
            tx.sql("INSERT INTO tx.default.old VALUES (100, 'too large')")
        tx.sql("DELETE FROM tx.default.old WHERE p IS NULL AND id = 2")
        found = [(1, "a b/%=é"), (3, "x:y"), (4, None)]
        assert rows(tx, "SELECT * FROM tx.default.old") == found
        assert list(tmp_path.glob("old/**/*.parquet")) == []
        released = log.release_table("default.old", f"{tmp_path}/released")
        assert (released.version, released.dropped) == (2, False)
        assert rows(tx, f"SELECT * FROM delta.`{tmp_path}/released`") == found
        with pytest.raises(InvalidRequestError, match="it has no _delta_log"):
            log.adopt_table("default.none", f"{tmp_path}/old", kind="commit-table")


@pytest.mark.thorough
def test_delta_table_for_name_means_the_old_table_in_three_calls(
    tx: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    """As docs/commit-tables.md says of Delta 4.4.0; if this fails, the page is to be corrected."""
    old, name = tmp_path / "named", "brought.named"
    tx.sql("CREATE SCHEMA spark_catalog.brought")
    tx.sql(f"CREATE TABLE spark_catalog.{name} (id BIGINT) USING delta LOCATION '{old}'")
    tx.sql(f"INSERT INTO spark_catalog.{name} VALUES (1)")
    with sparktxlog.connect(tx, node.url, token=TOKEN) as log:
        # Nobody made a schema `brought` at the node: its first table does.
        done = log.adopt_table(name, str(old), kind="commit-table")
        assert f"knows it as {name}, DeltaTable.forName of the new one means the old" in done.left
    tx.sql(f"INSERT INTO tx.{name} VALUES (2)")
    stray = old / "stray.parquet"
    stray.touch()
    os.utime(stray, (0, 0))
    table = DeltaTable.forName(tx, f"tx.{name}")
    assert table.detail().first()["location"] == f"file:{old}"
    table.generate("symlink_format_manifest")
    assert (old / "_symlink_format_manifest").is_dir()
    table.vacuum()
    assert not stray.exists()
    # What reads and writes by the name is right.
    table.delete("id = 1")
    assert [row.id for row in table.toDF().collect()] == [2]
    assert [row.operation for row in table.history().collect()] == ["DELETE", "WRITE", "ADOPT"]
    assert rows(tx, f"SELECT * FROM spark_catalog.{name}") == [(1,)]
    with pytest.raises(UnsupportedOperationException, match="OPTIMIZE is blocked"):
        table.optimize().executeCompaction()
    tx.sql("DROP SCHEMA spark_catalog.brought CASCADE")
    for call in (table.detail, table.vacuum, lambda: table.generate("symlink_format_manifest")):
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            call()
    found = tx.sql(f"DESCRIBE DETAIL tx.{name}").first()["location"]
    assert Path(found.removeprefix("file:")).parent.name == "commit_tables"
