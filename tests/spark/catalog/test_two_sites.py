"""Spark at two sites: the same statements on one commit table, each through its own node."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.catalog.conftest import catalogs_at
from tests.support.command_line import invoke
from tests.support.delta_writer import path_of
from tests.support.node_processes import NodeProcess, call, free_ports, wait_until

from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.worker.tables.commit_upkeep import CommitTableKeeper
from sparktxlog.worker.tables.places_of_tables import tables_below
from sparktxlog.worker.tables.table_upkeep import Upkeep

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """Two nodes that are each other's peer."""
    directory = tmp_path_factory.mktemp("sites")
    ports = dict(zip("AB", free_ports(2), strict=True))
    found = {
        name: NodeProcess(directory, name, port, {n: p for n, p in ports.items() if n != name})
        for name, port in ports.items()
    }
    try:
        for node in found.values():
            node.start()
        for node in found.values():
            node.wait_ready()
        yield found
    finally:
        for node in found.values():
            node.stop()


@pytest.fixture(scope="module")
def sites(
    spark: SparkSession, nodes: dict[str, NodeProcess], connector: Path
) -> Iterator[SparkSession]:
    """The session, with the catalogs `a` and `b`: one at each node."""
    places = {name.lower(): (node.url, "any") for name, node in nodes.items()}
    with catalogs_at(spark, connector, places):
        yield spark


def _directory(node: NodeProcess, name: str = "t") -> Path:
    """Return where a node has a table."""
    with urllib.request.urlopen(node.url + path_of(name), timeout=30) as answer:
        location: str = json.load(answer)["metadata"]["location"]
    return Path(location.removeprefix("file:"))


def _both_have(nodes: dict[str, NodeProcess], name: str = "t") -> None:
    """Wait until both nodes have the same versions: the other one has a commit later."""

    def same() -> bool:
        found = [call(node.url + path_of(name)) for node in nodes.values()]
        return len({one["latest-table-version"] for one in found}) == 1

    wait_until(same, what=f"both have all of {name}")


def _history(directory: Path) -> dict[str, bytes]:
    """Return all versions of a table, and the files that they need; a writer may leave others."""
    versions = sorted((directory / "_delta_log").glob("[0-9]" * 20 + ".json"))
    needed = [one.path for path in versions for one in read_commit_file(path.read_bytes()).files]
    paths = {str(path.relative_to(directory)) for path in versions} | set(needed)
    return {path: (directory / path).read_bytes() for path in paths}


def test_the_same_statements_at_both_sites_make_one_history(
    sites: SparkSession, nodes: dict[str, NodeProcess]
) -> None:
    sites.sql("CREATE TABLE a.default.t (id BIGINT, v STRING) USING delta")
    _both_have(nodes)
    for number, site in enumerate("abab"):
        sites.sql(f"INSERT INTO {site}.default.t VALUES ({number}, 'new at {site}')")
        sites.sql(
            f"MERGE INTO {site}.default.t AS t USING (SELECT {number} AS id) AS s ON t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET v = 'merged at {site}' WHEN NOT MATCHED THEN INSERT "
            "(id) VALUES (s.id)"
        )
    sites.sql("DELETE FROM b.default.t WHERE id = 0")
    _both_have(nodes)
    _compact(sites, nodes["A"], "default.t")
    _both_have(nodes)
    found = {
        site: sorted(tuple(row) for row in sites.sql(f"SELECT * FROM {site}.default.t").collect())
        for site in "ab"
    }
    expected = [(1, "merged at b"), (2, "merged at a"), (3, "merged at b")]
    assert found == {"a": expected, "b": expected}
    histories = [
        [row.operation for row in sites.sql(f"DESCRIBE HISTORY {site}.default.t").collect()]
        for site in "ab"
    ]
    assert histories[0] == histories[1]
    assert histories[0] == ["OPTIMIZE", "DELETE", *["MERGE", "WRITE"] * 4, "CREATE TABLE"]
    one, two = (_directory(nodes[name]) for name in "AB")
    assert one != two
    history = _history(one)
    assert history == _history(two)
    assert {f"_delta_log/{version:020}.json" for version in range(11)} <= history.keys()


def _compact(session: SparkSession, node: NodeProcess, name: str) -> None:
    """Let a site compact a table, as `sparktxlog maintain` does."""
    with closing(CatalogLink(node.url, token="any")) as link:
        root = _directory(node).parent
        wanted = Upkeep(tables=[name], many_files=2)
        keeper = CommitTableKeeper(lambda: session, link, tables_below(str(root)), wanted)
        (done,) = keeper.maintain(link.tables())
    assert (done.optimized, done.failed) == (True, "")


def _stream(session: SparkSession, site: str, checkpoint: Path) -> None:
    """Write what is new in `source` into `sink`, through the catalog of a site, and stop."""
    query = (
        session.readStream.table(f"{site}.default.source")
        .writeStream.format("delta")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .toTable(f"{site}.default.sink")
    )
    assert query.awaitTermination(120)


@pytest.mark.thorough
def test_a_stream_that_stops_at_one_site_goes_on_at_the_other(
    sites: SparkSession,
    nodes: dict[str, NodeProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Source and sink are commit tables; a batch that B runs again was written at A already."""
    for name in ("source", "sink"):
        sites.sql(f"CREATE TABLE a.default.{name} (id BIGINT) USING delta")
    sites.sql("INSERT INTO a.default.source VALUES (1), (2)")
    checkpoint = tmp_path / "a"
    _stream(sites, "a", checkpoint)
    _both_have(nodes, "source")
    sites.sql("INSERT INTO b.default.source VALUES (3)")
    _both_have(nodes, "source")
    _stream(sites, "a", checkpoint)
    # As if A was lost between the commit of the sink and the end of the batch.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    arguments = ["--url", nodes["A"].url, "--sink", "default.sink"]
    shutil.copytree(checkpoint, tmp_path / "old")
    for name in ("1", ".1.crc"):
        (tmp_path / "old" / "offsets" / name).unlink()
    command = ["checkpoint", "copy"]
    for source, code in (("old", 2), ("a", 0)):
        paths = (f"{tmp_path}/{source}", f"{tmp_path}/b")
        assert invoke(monkeypatch, *command, *paths, *arguments) == code
    said = capsys.readouterr()
    assert "ends at batch 0, and the sink has batch 1" in said.err
    assert "goes on after batch 0; batch 1 was begun, and is run again" in said.out
    sites.sql("INSERT INTO a.default.source VALUES (4)")
    for name in ("source", "sink"):
        _both_have(nodes, name)
    _stream(sites, "b", tmp_path / "b")
    sites.sql("INSERT INTO b.default.source VALUES (5)")
    _stream(sites, "b", tmp_path / "b")
    _both_have(nodes, "sink")
    for site in "ab":
        rows = [row[0] for row in sites.sql(f"SELECT id FROM {site}.default.sink").collect()]
        assert sorted(rows) == [1, 2, 3, 4, 5]
    offsets = [json.loads(line) for line in (tmp_path / "b/offsets/3").read_text().splitlines()[2:]]
    assert (
        offsets[0]["reservoirId"]
        == json.loads((checkpoint / "offsets/0").read_text().splitlines()[2])["reservoirId"]
    )
    assert _history(_directory(nodes["A"], "sink")) == _history(_directory(nodes["B"], "sink"))
