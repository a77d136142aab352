"""A site that lacks versions of a commit table gets them from its peers, by itself."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.service.local_nodes import until
from tests.service.test_catalog_api import Caller, told
from tests.service.test_peer_routes import Stranger
from tests.service.test_start_after_a_summary import free_ports
from tests.service.test_travelling_commits import (
    LOST,
    Joined,
    Site,
    began_with_a_summary,
    forget_files_of_versions,
    pair,
    site_of,
    sites,
)
from tests.support.delta_writer import BEGIN, StagedTable

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.storage.interfaces import ResetJournal
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.transport.peer_link import PeerLink


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of tables that peers were asked for, by their paths below the table."""
    found: list[str] = []
    stream = PeerLink.stream

    def noted(link: PeerLink, file: StagedFile, offset: int, source: str = "") -> Iterator[bytes]:
        if source.startswith("versions/"):
            found.append(source.split("/", 3)[3])
        return stream(link, file, offset, source)

    monkeypatch.setattr(PeerLink, "stream", noted)
    return found


async def is_in_sync(site: Site) -> None:
    """Wait until a site has all of its one commit table."""
    overview = site.caller.node.catalog.overview

    def states() -> list[str]:
        return [one["state"] for one in overview.show(tables=True)["tables"]]

    await until(lambda: states() == ["in-sync"], 30)


async def goes_on(site: Site, other: Site, version: int) -> None:
    """Check that a site has all versions, without a warning, and writes the next one."""
    await is_in_sync(site)
    assert site.caller.node.status()["warnings"] == []
    assert await site.caller.version() == version - 1
    nodes = (site.caller.node, other.caller.node)
    await until(lambda: all(node.base.master.phase is Phase.NORMAL for node in nodes), 30)
    await site.write(version)
    await other.placed(version)
    assert site.files() == other.files()


def test_a_site_that_begins_with_a_summary_gets_all_versions(
    tmp_path: Path, fetched: list[str]
) -> None:
    async def main() -> None:
        async with began_with_a_summary(tmp_path) as found:
            await found.b.placed(3)
            await goes_on(found.b, found.a, 4)
            await found.c.placed(4)
            shown = found.b.caller.node.status(tables=True)["commit_tables"]
            assert (shown["total"], shown["states"]["in-sync"], shown["behind"]) == (1, 1, 0)
            (line,) = shown["tables"]
            assert (line["name"], line["version"], line["state"]) == ("default.t", 4, "in-sync")
            assert len(fetched) == len(set(fetched)) == 8, "four versions, and a file of each"
            assert not (found.b.directory.parent / ".fetched" / found.b.directory.name).exists()
            # What came is on record, as it is where it came from.
            records = [
                site.caller.node.base.journal.read_version_files(site.table.table_id, -1, 9)
                for site in (found.a, found.b)
            ]
            assert [one.digest for one in records[0]] == [one.digest for one in records[1]]
            await _repeats_are_told_by_the_versions(found)

    asyncio.run(main())


async def _repeats_are_told_by_the_versions(found: Joined) -> None:
    """Repeat the commit of version 2 where a summary brought its id, without its outcome."""
    (staged,) = (found.a.directory / "_delta_log/_staged_commits").glob(f"{2:020}.*.json")
    content = staged.read_bytes()
    commit = {
        "version": 2,
        "timestamp": BEGIN + 2,
        "file-name": staged.name,
        "file-size": len(content),
        "file-modification-timestamp": BEGIN + 2,
    }
    body, here = found.b.table.update(commit), found.b.table.staged(staged.name)
    assert told(await found.b.caller.commit(body)) == (500, "CommitStateUnknownException")
    here.write_bytes(content)
    assert (await found.b.caller.commit(body))[0] == 200
    here.write_bytes(content[::-1])
    assert told(await found.b.caller.commit(body)) == LOST


def test_a_site_gets_commit_files_that_delta_cleaned_up_at_all_others(
    tmp_path: Path, fetched: list[str]
) -> None:
    def prepare(before: Path, now: Path) -> None:
        for site in "AC":
            there = tmp_path / site / now.relative_to(tmp_path / "B")
            for version in (0, 1):
                (there / commit_file_name(version)).unlink()

    async def main() -> None:
        async with began_with_a_summary(tmp_path, prepare) as found:
            await found.b.placed(3)
            await is_in_sync(found.b)
            # C asks too, if it stopped before its journal said that it had placed version 0.
            assert commit_file_name(0) in fetched and len(set(fetched)) == 8
            assert await found.b.caller.version() == 3
            assert found.b.table.published(1).exists() and not found.a.table.published(1).exists()

    asyncio.run(main())


def test_only_what_is_missing_travels(tmp_path: Path, fetched: list[str]) -> None:
    """Half of a table is here, one file is damaged, and one version is of an abandoned history.

    Another file is damaged at the first peer, too: the second one gives it.
    """
    wanted: set[str] = set()

    def prepare(before: Path, now: Path) -> None:
        shutil.copytree(before, now)
        lost, damaged, *_ = sorted(path.name for path in now.glob("*.parquet"))
        (now / lost).unlink()
        (tmp_path / "A" / now.relative_to(tmp_path / "B") / lost).write_bytes(b"swor")
        (now / damaged).write_bytes(b"swor")
        for version, content in ((2, b"{}"), (3, None)):
            path = now / commit_file_name(version)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
        wanted.update((lost, damaged, commit_file_name(2), commit_file_name(3)))

    async def main() -> None:
        async with began_with_a_summary(tmp_path, prepare) as found:
            await goes_on(found.b, found.c, 4)
            assert set(fetched) == wanted
            attic = found.b.directory.parent / ".attic"
            aside = attic / f"files-{found.b.directory.name}" / "content"
            assert (aside / commit_file_name(2)).read_bytes() == b"{}"
            assert [path.read_bytes() for path in aside.glob("*.parquet")] == [b"swor"]

    asyncio.run(main())


def test_a_node_that_was_away_too_long_gets_only_later_versions(
    tmp_path: Path, fetched: list[str]
) -> None:
    """Its journal has versions 0 and 1 as placed, and a summary replaces its queue."""
    ports, at_b = free_ports("AB"), tmp_path / "B"

    async def write(table: StagedTable | None, *versions: int) -> StagedTable:
        async with pair(tmp_path, ports) as nodes, aiohttp.ClientSession() as session:
            table = table or await Caller(nodes[0], session).create()
            one, two = (site_of(node, session, table) for node in nodes)
            for version in versions:
                await one.write(version)
            assert await two.caller.version() == versions[-1]
            kept = nodes[1].base.journal.read_placed_versions
            await until(lambda: kept() == {table.table_id: versions[-1]})
            parts = [node.base for node in nodes]
            await until(lambda: all(p.published.value == p.ordered.value for p in parts))
        return table

    async def come_back(table: StagedTable) -> None:
        async with pair(tmp_path, ports) as nodes, aiohttp.ClientSession() as session:
            one, two = (site_of(node, session, table) for node in nodes)
            await goes_on(two, one, 4)
            assert len(fetched) == 4 and commit_file_name(1) not in fetched

    table = asyncio.run(write(None, 1))
    shutil.copytree(at_b, tmp_path / "before")
    asyncio.run(write(table, 2, 3))
    giver = Journal(tmp_path / "A")
    giver.load(1_000_000)
    summary = giver.read_summary()
    giver.close()
    # Only the queue is as of now: B was away meanwhile, and a peer gave it a summary.
    journal = Journal(at_b)
    journal.load(1_000_000)
    journal._db.execute("DELETE FROM ordered_commits WHERE version > 1")
    journal._db.execute("DELETE FROM placed_commits")
    kept = sqlite3.connect(tmp_path / "before" / JOURNAL_NAME)
    (row,) = kept.execute("SELECT uuid, version, state FROM placed_commits").fetchall()
    kept.close()
    assert row[1] == 1
    journal._db.execute("INSERT INTO placed_commits VALUES(?, ?, ?)", row)
    journal.write([ResetJournal(summary=summary, node_id=NodeId("B"))])
    journal.close()
    shutil.rmtree(at_b / "commit_tables")
    shutil.copytree(tmp_path / "before" / "commit_tables", at_b / "commit_tables")
    asyncio.run(come_back(table))


def test_peers_get_only_what_a_version_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await a.write(1)
            await b.placed(1)
            node, uuid = a.caller.node, a.table.table_id
            (link,) = b.caller.node.base.links.values()
            told = await link.table_versions(uuid, -1, 9)
            assert (told.placed, [one.version for one in told.versions]) == (1, [0, 1])
            assert await link.table_versions(uuid, 0, 9) == TableVersions(
                versions=told.versions[1:], placed=1
            )
            (file,) = told.versions[1].brought
            base = f"/peer/v1/commit-tables/{uuid}/versions"
            files = f"/peer/v1/files/versions/{uuid}"
            query = f"size={file.size_bytes}&rows=0&digest={file.digest}"
            (a.directory / "else.parquet").write_bytes(b"rows")
            Path(a.directory.parent / "secret").write_bytes(b"rows")
            async with Stranger(node, "B") as peer:
                await peer.greet(b.caller.node.membership.greeter.own)

                async def get(target: str) -> int:
                    return (await peer.send(target, method="GET"))[0]

                assert await get(f"{files}/1/{file.path}?{query}") == 200
                refused = (
                    f"{files}/0/{file.path}?{query}",  # of another version
                    f"{files}/2/{file.path}?{query}",  # not placed
                    f"{files}/-1/{file.path}?{query}",
                    f"{files}?{query}",
                    f"/peer/v1/files/elsewhere/{file.path}?{query}",
                    f"{files}/1/else.parquet?{query}",
                    f"{files}/1/..%2Fsecret?{query}",
                    f"{files}/1/_delta_log/_staged_commits/x.json?{query}",
                    f"{base}?after=1",
                    base.replace(uuid, "x"),
                )
                assert [await get(target) for target in refused] == [404] * len(refused)
                # A receiver has to say what it wants.
                assert await get(f"{files}/1/{file.path}?size=4&rows=0") == 400
                (a.directory / file.path).write_bytes(b"shorter or longer")
                assert await get(f"{files}/1/{file.path}?{query}") == 404
            async with Stranger(node, "X") as stranger:
                assert (await stranger.send(base, method="GET"))[0] == 403

    asyncio.run(main())


def test_a_version_without_a_record_is_counted_from_its_files(tmp_path: Path) -> None:
    """As after somebody copied the directory by hand."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await a.write(1)
            await b.placed(1)
            uuid, node = a.table.table_id, a.caller.node
            (link,) = b.caller.node.base.links.values()
            before = await link.table_versions(uuid, -1, 9)
            forget_files_of_versions(node)
            assert await link.table_versions(uuid, -1, 9) == before
            kept = node.base.journal.read_version_files(uuid, -1, 9)
            assert [one.digest for one in kept] == [one.digest for one in before.versions]

    asyncio.run(main())


def test_a_site_whose_tables_alone_were_lost_notices_it_at_its_start(tmp_path: Path) -> None:
    """`commit-table-dir` may be a disk of its own; the journal said that all was placed."""
    ports = free_ports("AB")

    async def begin() -> StagedTable:
        async with pair(tmp_path, ports) as nodes, aiohttp.ClientSession() as session:
            table = await Caller(nodes[0], session).create()
            one, two = (site_of(node, session, table) for node in nodes)
            await one.write(1)
            await two.placed(1)
            kept = nodes[1].base.journal.read_placed_versions
            await until(lambda: kept() == {table.table_id: 1})
        return table

    async def come_back(table: StagedTable) -> None:
        async with pair(tmp_path, ports) as nodes, aiohttp.ClientSession() as session:
            one, two = (site_of(node, session, table) for node in nodes)
            await two.placed(1)
            await until(lambda: nodes[1].status()["lacks"] == [], 30)
            assert one.files() == two.files()

    table = asyncio.run(begin())
    shutil.rmtree(tmp_path / "B" / "commit_tables")
    asyncio.run(come_back(table))
