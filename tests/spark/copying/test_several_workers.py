"""Two workers of one node, each with its lake and name, and a third with a set of tables.

Both are listed and compared, one is repaired from the other, reads choose one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.command_line import invoke
from tests.support.node_processes import TABLE, NodeProcess, append, free_ports, wait_until

import sparktxlog
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.verify.comparing import compare_sites
from sparktxlog.worker.verify.verify import verify_replica

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BRONZE = {
    "operations": [
        {"kind": "create_table", "table": "bronze.b", "columns": [{"name": "id", "type": "bigint"}]}
    ]
}


class Site:
    """A node whose workers this process plays."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.node = NodeProcess(directory, "A", free_ports(1)[0], {})
        self.other, self.part = directory / "reports", directory / "bronze"
        self.number = 0

    def commit(self, table: str = "t") -> None:
        """Have a row appended, and published."""
        self.number += 1
        body = append(self.number)
        if table != "t":
            body["operations"][0] |= {"table": table, "rows": [{"id": self.number}]}
        position = self.node.commit(body)["position"]
        wait_until(lambda: self.node.status()["published"] >= position)

    def work(self, lake: Path, **options: Any) -> ApplyOutcome:
        """Run a worker until it holds what is published; it may copy if it is told to."""
        options.setdefault("copies", CopyOptions())
        with (
            closing(HttpLogSource(self.node.url)) as source,
            closing(ReplicaDirectory(lake)) as directory,
        ):
            applier = Applier(self.spark, source, directory, **options)
            if options["copies"].forced:
                return applier.catch_up(30.0)
            return applier.run_once()

    def line(self, name: str) -> dict[str, Any]:
        found = self.node.status()["replicas"]
        return next(one for one in found if one["name"] == name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("workers"), spark)
    made.node.start()
    try:
        made.node.wait_ready()
        made.node.commit(TABLE)
        made.node.commit(BRONZE)
        made.commit()
        made.commit("bronze.b")
        made.work(made.node.lake)
        made.work(made.other, name="reports")
        made.work(made.part, name="bronze", tables=["bronze.*"])
        yield made
    finally:
        made.node.stop()


def test_workers_of_one_node_are_listed_and_compared(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = site.node.status()["replicas"]
    assert [(one["name"], one["verdict"], one["table_count"]) for one in lines] == [
        ("main", "IN_SYNC", 2),
        ("bronze", "IN_SYNC", 1),
        ("reports", "IN_SYNC", 2),
    ]
    assert len({one["position"] for one in lines}) == 1, "a set does not hold the position back"
    assert invoke(monkeypatch, "workers", "--url", site.node.url) == 0
    assert "reports" in capsys.readouterr().out
    with closing(HttpLogSource(site.node.url)) as source:
        found = compare_sites(source)
    assert found.equal and [(one.left, one.right) for one in found.pairs] == [
        ("A", "A/bronze"),
        ("A", "A/reports"),
        ("A/bronze", "A/reports"),
    ]
    state = read_state(site.part)
    assert state is not None and (state.name, state.only) == ("bronze", ("bronze.*",))
    assert list(state.tables) == ["bronze.b"] and not (site.part / "t").exists()


def test_reads_choose_a_replica(site: Site, spark: SparkSession) -> None:
    site.commit()
    site.work(site.other)
    log = sparktxlog.connect(spark, site.node.url)
    assert log.snapshot(at_least=None).replica == "reports", "it has the newest row"
    newest = log.table("t", at_least=None).count()
    assert log.table("t", at_least=None, replica="main").count() == newest - 1
    assert log.snapshot(at_least=None, replica="bronze").versions.keys() == {"bronze.b"}
    with pytest.raises(NotFoundError, match="no replica 'x'"):
        log.table("t", at_least=None, replica="x")
    reader = spark.read.format("txlog").option("url", site.node.url)
    assert reader.load("t").count() == newest
    assert reader.option("replica", "main").load("t").count() == newest - 1
    # A view reads one of them, and says which.
    for chosen, right in ((None, "A/reports"), ("main", "A"), ("bronze", "A/bronze")):
        names = sparktxlog.register(spark, log, schema="chosen", replica=chosen)
        view = "chosen_bronze.b" if chosen == "bronze" else "chosen.t"
        said = spark.sql(f"SHOW TBLPROPERTIES {view}").collect()
        assert ("sparktxlog.replica", right) in [tuple(row) for row in said]
        assert ("chosen.t" in names) == (chosen != "bronze")
        if chosen != "bronze":
            assert spark.table("chosen.t").count() == newest - (chosen == "main")
    with pytest.raises(NotFoundError, match="no replica 'x'"):
        sparktxlog.register(spark, log, schema="chosen", replica="x")
    # What this process does not see is left for what it sees.
    hidden = site.other.with_name("hidden")
    site.other.rename(hidden)
    try:
        assert log.snapshot(at_least=None).replica == "main"
    finally:
        hidden.rename(site.other)
    site.work(site.node.lake)


def test_one_is_repaired_from_the_other(site: Site, spark: SparkSession) -> None:
    """A recount finds a lost file; the worker copies the table from the other lake, by links."""
    site.work(site.part)
    files = sorted((site.other / "t").glob("*.parquet"))
    files[0].unlink()
    with closing(HttpLogSource(site.node.url)) as source:
        assert verify_replica(spark, source, site.other).verdict == "DIVERGED"
    assert site.line("reports")["verdict"] == "DIVERGED"
    assert [site.line(name)["verdict"] for name in ("main", "bronze")] == ["IN_SYNC"] * 2
    outcome = site.work(site.other)
    (copied,) = outcome.copies
    assert copied.donor == "A" and outcome.verdict == "IN_SYNC"
    state = read_state(site.other)
    assert state is not None and state.copied_from.startswith("A@")
    log = sparktxlog.connect(spark, site.node.url)
    both = [log.table("t", at_least=None, replica=name).collect() for name in ("main", "reports")]
    assert sorted(both[0]) == sorted(both[1])


def test_a_replica_with_a_set_is_copied_with_its_tables_only(site: Site) -> None:
    fresh = site.part.with_name("bronze2")
    options = CopyOptions(forced=True, donor="A/reports")
    outcome = site.work(fresh, name="bronze2", tables=["bronze.*"], copies=options)
    (copied,) = outcome.copies
    assert (copied.donor, list(copied.tables)) == ("A/reports", ["bronze.b"])
    assert not (fresh / "t").exists()
    linked = [one for one in (fresh / "bronze.b").glob("*.parquet") if one.stat().st_nlink > 1]
    assert linked and all((site.other / "bronze.b" / one.name).samefile(one) for one in linked)


def test_wrong_names_lakes_and_sets_are_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=r"holds bronze\.\*, and --tables says"):
        site.work(site.part, tables=["t"])
    with pytest.raises(InvalidRequestError, match="has the name 'bronze'"):
        site.work(site.part, name="other")
    with pytest.raises(InvalidRequestError, match="the worker of that name has the lake"):
        site.work(tmp_path / "second", name="reports")
    codes = {one["code"] for one in site.node.status()["warnings"]}
    assert "pattern-matches-nothing" not in codes and "tables-not-held" not in codes
    assert invoke(monkeypatch, "workers", "forget", "bronze2", "--url", site.node.url) == 0
    assert "bronze2" not in [one["name"] for one in site.node.status()["replicas"]]
    assert invoke(monkeypatch, "workers", "forget", "bronze2", "--url", site.node.url) == 1


def test_upkeep_names_a_replica(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    jobs_share_spark: None,
) -> None:
    """Maintain, verify and repair look at its lake alone; a wrong name is refused before Spark."""
    site.commit()
    for lake in (site.node.lake, site.other):
        site.work(lake)

    def run(command: str, *options: str) -> tuple[int, dict[str, Any]]:
        code = invoke(monkeypatch, command, *options, "--url", site.node.url, "--json")
        return code, json.loads(capsys.readouterr().out)

    for name in ("A/reports", "reports", "main", "A"):
        code, found = run("verify", "--replica", name, "--table", "t")
        assert (code, found["sound"]) == (0, True), found
        assert found["replica"] == ("A/reports" if "reports" in name else "A")
    lost = min((site.other / "t").glob("*.parquet"))
    held = lost.read_bytes()
    lost.unlink()
    assert run("verify", "--replica", "main")[0] == 0
    code, found = run("repair", "t", "--replica", "reports", "--dry-run")
    assert code == 4 and found["repair"]["found"]["table"] == "t", found
    assert run("repair", "t", "--replica", "main", "--dry-run")[0] == 0
    lost.write_bytes(held)
    options = ("--tables", "t", "--min-files", "2", "--no-vacuum")
    code, found = run("maintain", "--replica", "reports", *options)
    assert code == 0 and found["tables"][0]["optimized"], found
    assert run("maintain", "--replica", "reports", *options)[1]["tables"][0]["files"] == 1
    code, found = run("maintain", "--dry-run", *options)
    assert code == 0 and found["tables"][0]["files_before"] > 1, "the main one's are as they were"
    for command in (("maintain",), ("verify",), ("repair", "t"), ("replicate",)):
        code, found = run(*command, "--replica", "nobody")
        assert (code, found["error"]["title"]) == (1, "not-found")
        assert "It has main, bronze, reports." in found["error"]["hint"]
        code, found = run(*command, "--replica", "B/x")
        assert (code, found["error"]["title"]) == (1, "invalid-name")
        both = ("--replica", "reports", "--lake", str(site.other), "--url", site.node.url)
        assert invoke(monkeypatch, *command, *both) == 2
        assert "exclude each other" in capsys.readouterr().err
    hidden = site.other.with_name("hidden")
    site.other.rename(hidden)
    try:
        code, found = run("maintain", "--replica", "reports")
        assert (code, found["error"]["title"]) == (1, "invalid-request")
        assert "not on this machine" in found["error"]["detail"]
    finally:
        hidden.rename(site.other)
