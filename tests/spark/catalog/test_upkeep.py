"""Upkeep of commit tables: plain twins, on which Delta does what it refuses to do to the tables."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, reader_tables_node
from tests.support.command_line import run_job
from tests.support.delta_writer import path_of
from tests.support.node_processes import wait_until

from sparktxlog.api.jobs import upkeep
from sparktxlog.codec.delta_catalog.catalog_requests import update_of
from sparktxlog.delta.checkpoints import newest_of_twin
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.tokens import TOKEN_VARIABLE
from sparktxlog.model.restore_point import RestorePoint
from sparktxlog.storage.commit_tables.directory_tables import (
    DirectoryTable,
    DirectoryTables,
    DirectoryTwin,
)
from sparktxlog.storage.commit_tables.table_places import TRANSACTION_TWINS
from sparktxlog.storage.commit_tables.twin import (
    make_plain_twin,
    stage_twin_commit,
)
from sparktxlog.worker.apply.deltalog import forget_log

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that keeps reader tables, too."""
    with reader_tables_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def asked(node: RunningNode, name: str, body: bytes | None = None) -> Any:
    """Return what the node says of a table, or of a commit to it."""
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    request = urllib.request.Request(node.url + path_of(name), body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def place_of(found: dict[str, Any]) -> Path:
    return Path(found["metadata"]["location"].removeprefix("file:"))


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_a_reader_without_a_catalog_sees_the_same_rows(tx: SparkSession, node: RunningNode) -> None:
    tx.sql("CREATE TABLE tx.default.p (id BIGINT, v STRING) USING delta")
    tx.sql("INSERT INTO tx.default.p VALUES (1, 'a'), (2, 'b')")
    path = node.directory / "plain" / "default" / "p"
    wait_until(lambda: newest_commit(path) == 1, what="version 1 of the reader table")
    before = DeltaTable(str(path)).to_pandas()
    assert sorted(before.itertuples(index=False, name=None)) == [(1, "a"), (2, "b")]
    tx.sql("DELETE FROM tx.default.p WHERE id = 2")  # by a deletion vector
    wait_until(lambda: newest_commit(path) == 2, what="version 2 of the reader table")
    found = QueryBuilder().register("p", DeltaTable(str(path))).execute("SELECT id, v FROM p")
    assert pa.table(found.read_all()).to_pylist() == [{"id": 1, "v": "a"}]
    assert rows(tx, f"SELECT * FROM delta.`{path}`") == [(1, "a")]
    # A checkpoint that delta-rs makes, as the node does now and then, has the deletion vectors.
    DeltaTable(str(path)).create_checkpoint()
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    forget_log(tx, path)
    assert rows(tx, f"SELECT * FROM delta.`{path}`") == [(1, "a")]


def test_a_commit_on_a_twin_becomes_one_of_the_table(
    tx: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    tx.sql("CREATE TABLE tx.default.w (id BIGINT, v STRING) USING delta")
    tx.sql("INSERT INTO tx.default.w VALUES (1, 'a'), (2, 'b')")
    tx.sql("DELETE FROM tx.default.w WHERE id = 2")
    found = asked(node, "w")
    version, table, twin = found["latest-table-version"], place_of(found), tmp_path / "twin"
    make_plain_twin(table, version, twin)
    tx.sql(f"INSERT INTO delta.`{twin}` VALUES (3, 'on the twin')")
    assert rows(tx, "SELECT id FROM tx.default.w") == [(1,)]
    staged = stage_twin_commit(table, twin, version + 1)
    request = update_of(found["metadata"]["table-uuid"], staged.proposed)
    answer = asked(node, "w", msgspec.json.encode(request))
    assert answer["latest-table-version"] == version + 1
    tx.sql("INSERT INTO tx.default.w VALUES (4, 'after')")
    expected = [(1, "a"), (3, "on the twin"), (4, "after")]
    assert rows(tx, "SELECT * FROM tx.default.w") == expected
    versions = tx.sql("DESCRIBE HISTORY tx.default.w").collect()
    assert [row.version for row in versions] == [*range(version + 2, -1, -1)]


Maintain = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def maintain(
    node: RunningNode,
    jobs_share_spark: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Maintain:
    """The job `maintain`: options → what it says of each commit table."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)

    def run(*options: str, code: int = 0) -> dict[str, dict[str, Any]]:
        given = ["--url", node.url, "--json", "--min-files", "5", *options]
        assert run_job(monkeypatch, "maintain", *given) == code
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        return {one["table"]: one for one in result["commit_tables"]}

    return run


@pytest.mark.thorough
def test_tables_are_compacted_while_others_write(
    tx: SparkSession, maintain: Maintain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, clause in (("f", ""), ("l", "CLUSTER BY (id)")):
        tx.sql(f"CREATE TABLE tx.default.{name} (id BIGINT) USING delta {clause}")
        tx.range(0, 8, 1, 8).writeTo(f"tx.default.{name}").append()
    both = ("--tables", "default.f", "--tables", "default.l")
    found = maintain(*both, "--dry-run")["default.f"]
    assert (found["files"], found["small_files"], found["optimized"]) == (8, 8, False)
    assert "OPTIMIZE would run" in found["skipped"]

    # Of `f` another commit comes while OPTIMIZE runs: Delta goes on after it.  Of `l` one comes
    # when OPTIMIZE is done: it is made again.
    made, committed = DirectoryTable.twin, CatalogLink.commit

    def make(table: DirectoryTable, *args: Any) -> DirectoryTwin:
        twin = made(table, *args)
        if not rows(tx, "SELECT id FROM tx.default.f WHERE id = 100"):
            tx.sql("INSERT INTO tx.default.f VALUES (100)")
        return twin

    def commit(link: CatalogLink, name: str, *args: Any, **more: Any) -> Any:
        if name == "default.l" and not rows(tx, "SELECT id FROM tx.default.l WHERE id = 100"):
            tx.sql("INSERT INTO tx.default.l VALUES (100)")
        return committed(link, name, *args, **more)

    monkeypatch.setattr(DirectoryTable, "twin", make)
    monkeypatch.setattr(CatalogLink, "commit", commit)
    found = maintain(*both)
    for name, attempts in (("f", 1), ("l", 2)):
        done = found[f"default.{name}"]
        assert (done["failed"], done["skipped"]) == ("", "")
        assert (done["optimized"], done["attempts"], done["version"]) == (True, attempts, 3)
        history = tx.sql(f"DESCRIBE HISTORY tx.default.{name}").collect()
        assert [row.operation for row in history][:3] == ["OPTIMIZE", "WRITE", "WRITE"]
        expected = [(number,) for number in (*range(8), 100)]
        assert rows(tx, f"SELECT id FROM tx.default.{name}") == expected
        tx.sql(f"INSERT INTO tx.default.{name} VALUES (101)")
        assert tx.table(f"tx.default.{name}").count() == 10
    assert found["default.f"]["files"] <= 2
    again = maintain(*both)
    assert [one["attempts"] for one in again.values()] == [0, 0]


@pytest.mark.thorough
def test_a_checkpoint_and_a_vacuum_change_no_row(
    tx: SparkSession, node: RunningNode, maintain: Maintain, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx.sql("CREATE TABLE tx.default.v (id BIGINT) USING delta")
    tx.range(0, 6, 1, 6).writeTo("tx.default.v").append()
    tx.sql("ALTER TABLE tx.default.v SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    tx.sql("DELETE FROM tx.default.v WHERE id = 3")
    table = place_of(asked(node, "v"))
    log = table / "_delta_log"
    for path in [*log.glob("*.checkpoint.*"), log / "_last_checkpoint"]:
        path.unlink(missing_ok=True)  # as at a site where nobody writes
    maintained = maintain("--tables", "default.v")["default.v"]
    assert (maintained["failed"], maintained["checkpoint"], maintained["files"]) == ("", 4, 1)
    assert (maintained["vacuumed_files"], maintained["staged_commits"]) == (0, 0)
    made = newest_of_twin(table, 9)
    assert made is not None and made.version == 4
    assert "catalogManaged" in made.read_top().decode()

    plain = node.directory / "plain" / "default" / "v"
    wait_until(lambda: newest_commit(plain) == 4, what="version 4 of the reader table")
    killed = table.parent / TRANSACTION_TWINS / "of a job that was killed"
    killed.mkdir(parents=True)
    # A month later: old files go, and a log that begins with the checkpoint says all.
    month = time.time_ns() // 1_000_000 + 30 * 86_400_000
    monkeypatch.setattr(DirectoryTables, "now_ms", lambda _: month)
    point = RestorePoint(name="p", made_at=time.time_ns() // 1_000 - 40 * 86_400 * 10**6)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "known_points", lambda _: [point])
        assert maintain("--tables", "default.v", "--dry-run")["default.v"]["vacuumed_files"] == 0
    maintained = maintain("--tables", "default.v")["default.v"]
    assert maintained["failed"] == ""
    assert maintained["vacuumed_files"] >= 6
    assert maintained["staged_commits"] >= 4
    assert not killed.exists()
    assert len([*table.glob("*.parquet")]) == len([*plain.glob("*.parquet")]) == 1
    for version in range(4):
        (log / f"{version:020}.json").unlink()
    forget_log(tx, table)
    expected = [(number,) for number in (0, 1, 2, 4, 5)]
    assert rows(tx, "SELECT id FROM tx.default.v") == expected
    tx.sql("INSERT INTO tx.default.v VALUES (7)")
    assert rows(tx, "SELECT id FROM tx.default.v") == [*expected, (7,)]
    assert maintain("--tables", "default.v", "--min-files", "2")["default.v"]["optimized"]
    assert rows(tx, "SELECT id FROM tx.default.v") == [*expected, (7,)]
