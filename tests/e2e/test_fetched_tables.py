"""Commit tables of a site that was killed while it fetched them, and of one that gave way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_quarantine import force, gave_way
from tests.support.delta_writer import DELTA, StagedTable, path_of
from tests.support.epoch_views import QUICK, shows
from tests.support.node_processes import Cluster, NodeProcess, call, wait_until
from tests.support.site_links import LinkedCluster

from sparktxlog.storage.journal.journal import JOURNAL_NAME

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

STAGING = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"


def create(node: NodeProcess) -> StagedTable:
    """Create the table at a node."""
    table = StagedTable.of(call(node.url + STAGING, {"name": "t"}))
    table.write_first(table.add())
    call(node.url + path_of(), table.creation())
    return table


def at(node: NodeProcess, table: StagedTable) -> StagedTable:
    """Return the table as writers of another node's site see it."""
    directory = node.directory / node.name / "commit_tables" / table.table_id
    return replace(table, directory=directory, location=f"file:{directory}")


def write(node: NodeProcess, table: StagedTable, version: int, content: bytes = b"rows") -> str:
    """Commit a version that adds a file; return the file's name."""
    here = at(node, table)
    add = here.add(content)
    call(node.url + path_of("t"), here.update(here.stage(version, add)))
    return str(add["add"]["path"])


def line_of(node: NodeProcess) -> dict[str, Any]:
    """Return what the node says of the table."""
    (line,) = call(f"{node.url}/v1/commit-tables")
    found: dict[str, Any] = line
    return found


def in_sync(node: NodeProcess, version: int) -> bool:
    """Return whether a node has all versions up to one."""
    line = line_of(node)
    return (line["version"], line["state"]) == (version, "in-sync")


def files_of(node: NodeProcess, table: StagedTable) -> dict[str, str]:
    """Return the files of the table with their digests, without what is only staged."""
    directory = at(node, table).directory
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and "_staged_commits" not in path.parts
    }


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LinkedCluster]:
    """Three masters."""
    cluster = LinkedCluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_a_node_that_is_killed_while_it_fetches_goes_on(three: LinkedCluster) -> None:
    a, b, c = three.nodes.values()
    table = create(a)
    last = 40
    for version in range(1, last + 1):
        write(a, table, version, bytes([version]) * (1 << 20))
    wait_until(lambda: in_sync(b, last) and in_sync(c, last), what="all have all versions")
    three.settle()
    b.stop()
    directory = at(b, table).directory
    directory.rename(b.directory / "before")
    (b.directory / b.name / JOURNAL_NAME).unlink()
    # However fast it fetches: the most that it gets before it is killed are some of the files.
    with three.links.held("B", last // 2 << 20):
        b.start()
        wait_until(lambda: any(directory.glob("*.parquet")), what="B fetches")
        b.kill()
    half = {path.name: path.stat().st_ino for path in directory.glob("*.parquet")}
    assert 0 < len(half) < last + 1
    assert not list((directory / "_delta_log").glob("*.json")), "they come last"
    b.start()
    b.wait_ready()
    wait_until(lambda: in_sync(b, last), what="B has all versions")
    found = {path.name: path.stat().st_ino for path in directory.glob("*.parquet")}
    assert {name: found[name] for name in half} == half, "what came is not fetched again"
    assert files_of(a, table) == files_of(b, table)
    assert [w for w in b.status()["warnings"] if w["code"].startswith("commit-table")] == []
    assert call(b.url + path_of("t"))["latest-table-version"] == last
    wait_until(lambda: shows(b, "ABC") or "B" in b.status()["members"], what="B is back")


def test_a_node_that_gave_way_keeps_what_both_sides_have(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "AB", settings=QUICK)
    a, b = cluster.nodes.values()
    try:
        cluster.start()
        table = create(a)
        common = [write(node, table, version) for version, node in enumerate((a, b, a), start=1)]
        wait_until(lambda: in_sync(a, 3) and in_sync(b, 3), what="both have all versions")
        cluster.settle()
        b.stop()
        force(a)
        kept = write(a, table, 4)
        a.stop()
        b.start()
        b.wait_ready()
        force(b)
        lost = [write(b, table, version) for version in (4, 5)]
        assert call(b.url + path_of("t"))["latest-table-version"] == 5
        b.stop()
        a.start()
        a.wait_ready()
        told = gave_way(b, a)
        b.start()
        wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B joins")
        wait_until(lambda: in_sync(b, 4), what="B has the table again")
        assert files_of(a, table) == files_of(b, table)
        directory = at(b, table).directory
        entry = f"fork-{table.table_id}-{told['quarantine_id']}"
        aside = directory.parent / ".attic" / entry / "content"
        for name in common:
            assert (directory / name).samefile(aside / name), "it is not fetched"
        assert (directory / kept).exists()
        assert [(directory / name).exists() for name in lost] == [False, False]
        write(b, table, 5)
        wait_until(lambda: in_sync(a, 5) and in_sync(b, 5), what="both go on")
        assert files_of(a, table) == files_of(b, table)
    finally:
        cluster.stop()
