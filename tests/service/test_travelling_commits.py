"""Commits of commit tables at several sites: their files travel, and each site places them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import socket
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_catalog_api import Caller, catalog, told
from tests.service.test_lost_journal import JOURNAL_NAME
from tests.service.test_start_after_a_summary import free_ports
from tests.support.delta_writer import BEGIN, StagedTable, info_of, lines_of, path_of

from sparktxlog.codec.submits.commit_requests import committing
from sparktxlog.errors import NotFoundError
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node
from sparktxlog.storage.interfaces import AppendQueue, Write

LOST = (409, "CommitVersionConflictException")


def forget_files_of_versions(node: Node) -> None:
    """Remove what a site wrote down of its files, as after a copy of the directory by hand.

    By a connection of its own: the node's writer may be in the middle of a transaction.
    """
    db = sqlite3.connect(node.base.config.data_dir / JOURNAL_NAME, timeout=60)
    with closing(db), db:
        db.execute("BEGIN IMMEDIATE")
        for table in ("ordered_commits", "version_files"):
            db.execute(f"DELETE FROM {table}")


@dataclass
class Site:
    """A node, and a table as writers of its site see it."""

    caller: Caller
    table: StagedTable

    @property
    def directory(self) -> Path:
        return self.table.directory

    async def write(self, version: int, *actions: dict[str, Any]) -> dict[str, Any]:
        """Commit a version that adds a file; return its body."""
        body = self.table.update(self.table.stage(version, self.table.add(), *actions))
        status, answer = await self.caller.commit(body)
        assert status == 200, answer
        return body

    async def placed(self, version: int) -> None:
        """Wait until the newest version is placed, without asking the node for it."""
        async with asyncio.timeout(60):
            while not self.table.published(version).exists():
                await asyncio.sleep(0.01)

    def files(self) -> dict[str, str]:
        """Return all files of the table with their digests, without what is only staged."""
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in found
            if "_staged_commits" not in path.parts
        }


@dataclass
class Joined:
    """Three sites, of which B began with a summary."""

    a: Site
    b: Site
    c: Site
    #: What B had of the table before.
    before: Path


def site_of(node: Node, session: aiohttp.ClientSession, table: StagedTable) -> Site:
    """Return a site, with a table that was staged at another one."""
    directory = node.config.commit_table_dir / table.table_id
    there = StagedTable(
        table_id=table.table_id,
        directory=directory,
        location=f"file:{directory}",
        metadata=table.metadata,
        protocol=table.protocol,
    )
    return Site(caller=Caller(node, session), table=there)


@asynccontextmanager
async def sites(directory: Path, names: str = "AB", **settings: Any) -> AsyncIterator[list[Site]]:
    """Run nodes with one table, which the first one created."""
    async with cluster(directory, names, **settings) as nodes, aiohttp.ClientSession() as session:
        await until(lambda: all(node.membership.joining.proven for node in nodes.values()))
        first, *_ = nodes.values()
        table = await Caller(first, session).create()
        yield [site_of(node, session, table) for node in nodes.values()]


def test_three_sites_write_one_table_and_have_equal_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path, "ABC") as (a, b, c):
            for version, site in enumerate((a, b, b, a, b), start=1):
                assert await site.caller.version() == version - 1
                await site.write(version)
            for site in (a, b, c):
                await site.placed(5)
                # Spark stages only where there is a directory for it.
                assert (site.directory / "_delta_log" / "_staged_commits").is_dir()
                assert await site.caller.version() == 5
            assert a.files() == b.files() == c.files()
            # Six versions, and a file of each.
            assert len(a.files()) == 12

    asyncio.run(main())


def test_sites_at_full_speed_take_turns_and_spend_few_rounds_on_what_loses(
    tmp_path: Path,
) -> None:
    """Each site has the same part, and most of what loses never becomes a run of the log."""
    commits = 45

    async def write(site: Site, told: list[int], won: dict[int, int]) -> None:
        version = 0
        while len(told) < commits:
            body = site.table.update(site.table.stage(version + 1, site.table.add()))
            status, _ = await site.caller.commit(body)
            assert status in (200, 409)
            version = await site.caller.version() if status == 409 else version + 1
            if status == 200:
                told.append(version)
                won[id(site)] += 1

    async def main() -> None:
        async with sites(tmp_path, "ABC") as found:
            for site in found:
                assert await site.caller.version() == 0
            told, won = list[int](), dict.fromkeys(map(id, found), 0)
            before = found[0].caller.node.base.ordered.value
            await asyncio.gather(*(write(site, told, won) for site in found))
            made = found[0].caller.node.base.ordered.value - before
            assert sorted(told) == list(range(1, len(told) + 1))
            assert min(won.values()) >= 0.2 * len(told)
            # Without turns it is 2.6 for each version.
            assert made <= 1.7 * len(told)

    asyncio.run(main())


def test_a_file_whose_rows_are_only_marked_as_deleted_does_not_travel_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            add = a.table.add(b"many rows")
            commit = a.table.stage(1, add)
            assert (await a.caller.commit(a.table.update(commit)))[0] == 200
            await b.placed(1)
            vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1}
            marked = {"add": add["add"] | {"deletionVector": vector}}
            removed = {"remove": {"path": add["add"]["path"]}}
            commit = b.table.stage(2, marked, removed)
            assert (await b.caller.commit(b.table.update(commit)))[0] == 200
            await a.placed(2)
            assert a.files() == b.files()
            (ordered,) = b.caller.node.base.journal.read_ordered_commits(b.table.table_id, 1)
            assert [file.path.split("/")[-1] for file in ordered.files] == [f"{2:020}.json"]

    asyncio.run(main())


def test_commits_of_several_tables_are_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own position, files and answer; one of them takes no effect."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b), aiohttp.ClientSession() as session:
            node = a.caller.node
            tables = {"t": a.table} | {name: await a.caller.create(name) for name in ("u", "v")}
            cycle, assemble = node.core.cycle, node.core.cycle._assemble
            gather = partial(monkeypatch.setattr, cycle, "_assemble")
            gather(lambda: assemble() if len(cycle._singles) == 3 else None)
            bodies = {
                # The timestamp of the first is that of version 0.
                name: table.update(table.stage(1, table.add(name.encode()), timestamp=BEGIN + at))
                for at, (name, table) in enumerate(tables.items())
            }
            found = await asyncio.gather(*(a.caller.commit(bodies[name], name) for name in tables))
            gather(assemble)
            assert [status for status, _ in found] == [409, 200, 200], found
            journal, runs = node.base.journal, set[int]()
            for name, table in tables.items():
                there = site_of(b.caller.node, session, table)
                known = node.commit_table(table.table_id)
                assert known is not None
                if name == "t":
                    assert known.version == 0
                    assert not there.table.published(1).exists()
                    continue
                stored = journal.read_entry_at(known.position)
                assert stored is not None and stored.entry.header.n == 3
                runs.add(stored.entry.position)
                await there.placed(1)
                assert there.files() == Site(caller=a.caller, table=table).files()
                (commit,) = journal.read_commits_at(known.position)
                assert (commit.uuid, len(commit.files)) == (table.table_id, 2)
            assert len(runs) == 1

    asyncio.run(main())


def test_who_loses_reads_the_files_of_who_won(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await b.placed(0)  # its writer stages there
            both = (a, b)
            bodies = [site.table.update(site.table.stage(1, site.table.add())) for site in both]
            found = await asyncio.gather(
                *(site.caller.commit(body) for site, body in zip(both, bodies, strict=True))
            )
            assert sorted(status for status, _ in found) == [200, 409]
            lost = [status for status, _ in found].index(409)
            assert told(found[lost]) == LOST
            # At this moment, not later: the loser reads the version, and all that it adds.
            loser, winner = both[lost], both[1 - lost]
            raw = loser.table.published(1).read_bytes()
            assert raw == winner.table.published(1).read_bytes()
            added = [json.loads(line).get("add") for line in raw.splitlines()]
            for add in filter(None, added):
                assert (loser.directory / add["path"]).read_bytes() == b"rows"
            await loser.write(2)
            await winner.placed(2)
            names = {path for path in winner.files() if path.endswith(".json")}
            assert names == {f"_delta_log/{version:020}.json" for version in range(3)}

    asyncio.run(main())


def test_nobody_is_told_before_the_version_is_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sites(tmp_path) as both:
            go_on = threading.Event()
            for site in both:
                await site.placed(0)
                placer = site.caller.node.catalog.placer

                def place(*given: Any, placer: CommitPlacer = placer) -> Any:
                    assert go_on.wait(60)
                    return CommitPlacer._place(placer, *given)

                monkeypatch.setattr(placer, "_place", place)
            asked = [
                asyncio.create_task(site.caller.commit(site.table.update(site.table.stage(1))))
                for site in both
            ]
            # The winner is ordered.  The loser is too, or its site knows before it sends it.
            await until(lambda: all(site.caller.node.base.ordered.value >= 2 for site in both))
            done, _ = await asyncio.wait(asked, timeout=0.5)
            assert not done
            go_on.set()
            assert sorted(status for status, _ in await asyncio.gather(*asked)) == [200, 409]

    asyncio.run(main())


def test_who_asks_waits_until_what_is_ordered_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await b.placed(0)
            base, go_on = b.caller.node.base, threading.Event()
            write = base.journal.write

            def late(writes: Sequence[Write]) -> None:
                if any(isinstance(one, AppendQueue) for one in writes):
                    assert go_on.wait(60)
                write(writes)

            monkeypatch.setattr(base.journal, "write", late)
            try:
                writing = asyncio.create_task(a.write(1))
                tables = base.master.commit_tables
                await until(lambda: tables[a.table.table_id].version == 1)
                asked = asyncio.create_task(b.caller.version())
                # The placer itself waits for the position, and so does who asks.
                awaited = base.ordered._waiting
                await until(lambda: asked.done() or [one[0] for one in awaited].count(2) >= 2)
            finally:
                go_on.set()
            assert await asked == 1
            await writing
            assert a.files() == b.files()

    asyncio.run(main())


def test_a_power_loss_leaves_parts_of_placed_files(tmp_path: Path) -> None:
    """What is placed is not synced at once: the journal has it until it is, and fills the gaps."""
    ports, before = free_ports("AB"), dict[str, str]()

    async def main() -> None:
        async with pair(tmp_path, ports) as (a, b), aiohttp.ClientSession() as session:
            table = await Caller(a, session).create()
            one, two = (site_of(node, session, table) for node in (a, b))
            journal = b.base.journal
            await two.placed(0)
            before.update(two.files())
            await until(lambda: journal.read_placed(table.table_id) is not None)
            assert journal.read_carried(table.table_id, 0) == ()
            # The version stays unsynced: the journal never hears that it is placed.
            for task in asyncio.all_tasks():
                if "CommitPlacer.settle" in repr(task):
                    task.cancel()
            await asyncio.sleep(0)
            await one.write(1)
            await two.placed(1)
            assert len(journal.read_carried(table.table_id, 1)) == 2
            assert not list((tmp_path / "B" / "payloads").glob(f"*/{table.table_id}"))
        known = two.files()
        for cut, name in zip((0, 2), sorted(known.keys() - before.keys()), strict=True):
            content = (two.directory / name).read_bytes()
            (two.directory / name).write_bytes(content[:cut] + bytes(cut))
        assert two.files() != known
        async with pair(tmp_path, ports) as (a, b), aiohttp.ClientSession() as session:
            assert await Caller(b, session).version() == 1
            assert two.files() == one.files()
            assert not (two.directory.parent / ".attic").exists()

    asyncio.run(main())


def test_a_changed_file_changes_no_version(tmp_path: Path) -> None:
    """What was answered is what is placed, whatever happens in the directory afterwards."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            commit = a.table.stage(1, a.table.add())
            raw = a.table.staged(commit["file-name"]).read_bytes()
            assert (await a.caller.commit(a.table.update(commit)))[0] == 200
            a.table.staged(commit["file-name"]).write_bytes(b"x")
            await b.placed(1)
            assert b.table.published(1).read_bytes() == raw

    asyncio.run(main())


@asynccontextmanager
async def pair(
    directory: Path, ports: dict[str, int], *, proven: bool = True, **settings: Any
) -> AsyncIterator[list[Node]]:
    """Run nodes at ports that a restart finds again."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name, port in ports.items():
            listener = socket.create_server(("127.0.0.1", port))
            config = config_of(directory, name, ports, **settings)
            nodes.append(await stack.enter_async_context(serving(config, listener)))
        await until(lambda: not proven or all(n.membership.joining.proven for n in nodes))
        yield nodes


@pytest.mark.parametrize("carried", [False, True], ids=["staged", "carried"])
@pytest.mark.parametrize("step", ["nothing is placed", "files are placed", "all is placed"])
def test_a_node_that_ends_while_it_places_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, carried: bool
) -> None:
    """A version is ordered at B, whose node ends before its journal says that it is placed."""
    ports, settings = free_ports("AB"), {} if carried else {"inline_limit": 0}

    async def main() -> None:
        nodes = pair(tmp_path, ports, **settings)
        async with nodes as (a, b), aiohttp.ClientSession() as session:
            table = await Caller(a, session).create()
            one, two = (site_of(node, session, table) for node in (a, b))
            await two.placed(0)
            placer, ended = b.catalog.placer, asyncio.Event()

            async def whole(commit: Any) -> None:
                ended.set()
                raise OSError("ended")

            def place(*given: Any) -> Any:
                if step == "all is placed":
                    CommitPlacer._place(placer, *given)
                b.base.loop.call_soon_threadsafe(ended.set)
                raise OSError("ended")

            def publish(uuid: str, version: int, content: bytes) -> None:
                place(None, None)

            if step == "nothing is placed" and not carried:
                monkeypatch.setattr(placer, "_whole", whole)
            elif step != "files are placed":
                monkeypatch.setattr(placer, "_place", place)
            else:
                monkeypatch.setattr(placer._places, "publish", publish)
            monkeypatch.setattr("sparktxlog.runtime.commit_tables.commit_placer._RETRY_S", 3_600)
            await one.write(1)
            await asyncio.wait_for(ended.wait(), 60)
            assert two.table.published(1).exists() == (step == "all is placed")
        monkeypatch.undo()
        nodes = pair(tmp_path, ports, **settings)
        async with nodes as (a, b), aiohttp.ClientSession() as session:
            one, two = (site_of(node, session, table) for node in (a, b))
            await two.placed(1)
            await two.write(2)
            await one.placed(2)
            assert one.files() == two.files()

    asyncio.run(main())


def test_a_lost_file_is_fetched_from_another_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sites(tmp_path, inline_limit=0) as (a, b):
            await b.placed(0)
            placer = b.caller.node.catalog.placer
            damaged = False

            async def whole(commit: Any) -> None:
                nonlocal damaged
                for file in () if damaged else commit.files:
                    path = Path(b.caller.node.payloads.path(file.path))
                    path.unlink()
                damaged = True
                await CommitPlacer._whole(placer, commit)

            monkeypatch.setattr(placer, "_whole", whole)
            await a.write(1)
            await b.placed(1)
            assert damaged
            assert a.files() == b.files()

    asyncio.run(main())


def test_a_drop_while_a_commit_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with sites(tmp_path, inline_limit=0) as (a, b):
            await b.placed(0)
            placer, go_on = b.caller.node.catalog.placer, asyncio.Event()

            async def whole(commit: Any) -> None:
                await go_on.wait()
                await CommitPlacer._whole(placer, commit)

            monkeypatch.setattr(placer, "_whole", whole)
            body = await a.write(1)
            waiting = asyncio.create_task(b.caller.version())
            assert (await a.caller.ask("DELETE", path_of("t")))[0] == 204
            await b.caller.node.reach(3, 60)
            go_on.set()
            # Who asked before the drop is told what it asked for, later ones that it is gone.
            assert await waiting == 1
            gone = (404, "NoSuchTableException")
            assert told(await b.caller.ask("GET", path_of("t"))) == gone
            assert told(await b.caller.commit(body)) == gone
            await b.placed(1)
            assert a.files() == b.files()
            # Its name is free, for another table.
            assert (await b.caller.create()).table_id != a.table.table_id

    asyncio.run(main())


def test_foreign_bytes_stop_only_their_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            other = await b.caller.create("other")
            await b.placed(0)
            path = b.table.published(1)
            path.write_bytes(b"else")
            commit = a.table.stage(1, a.table.add())
            assert (await a.caller.commit(a.table.update(commit)))[0] == 200
            status, answer = await b.caller.ask("GET", path_of("t"))
            assert status == 500
            assert str(path) in answer["error"]["message"]
            warning, _ = b.caller.node.status()["warnings"]
            assert str(path) in warning["text"]
            body = other.update(other.stage(1, other.add()))
            assert (await b.caller.commit(body, "other"))[0] == 200
            status, listed = await b.caller.ask(
                "GET", "/api/2.1/unity-catalog/tables?catalog_name=tx&schema_name=default"
            )
            assert [one["name"] for one in listed["tables"]] == ["other", "t"]
            path.unlink()
            assert await b.caller.version() == 1
            assert b.caller.node.status()["warnings"] == []
            assert a.files() == b.files()

    asyncio.run(main())


def test_another_file_in_the_place_of_one_is_set_aside(tmp_path: Path) -> None:
    """A writer's own file that lost bytes with the power, or one that was damaged since."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await b.placed(0)
            add = a.table.add()
            path = b.directory / add["add"]["path"]
            path.write_bytes(b"else")
            commit = a.table.stage(1, add)
            assert (await a.caller.commit(a.table.update(commit)))[0] == 200
            assert await b.caller.version() == 1
            assert a.files() == b.files()
            attic = b.directory.parent / ".attic"
            aside = attic / f"files-{b.directory.name}" / "content"
            assert (aside / add["add"]["path"]).read_bytes() == b"else"

    asyncio.run(main())


@asynccontextmanager
async def began_with_a_summary(
    directory: Path, prepare: Callable[[Path, Path], None] = lambda before, now: None
) -> AsyncIterator[Joined]:
    """Run three nodes with a table of four versions; B lost its disk, and begins anew.

    Args:
        prepare: Takes what B had of the table before, and the place of the new one.
    """
    ports = free_ports("ABC")
    async with pair(directory, ports) as (a, b, _), aiohttp.ClientSession() as session:
        table = await Caller(a, session).create()
        one, two = (site_of(node, session, table) for node in (a, b))
        for version in (1, 2, 3):
            await one.write(version)
        await two.placed(3)
        await until(lambda: min(node.base.published.value for node in (a, b)) == 4)
    (directory / "B" / JOURNAL_NAME).unlink()
    before = two.directory.rename(directory / "before")
    for _ in ("joins", "has the summary"):
        async with pair(directory, ports, proven=False) as (_, b, _):
            assert isinstance(await asyncio.wait_for(b.failed, 60), StartAgainError)
    prepare(before, two.directory)
    async with pair(directory, ports) as nodes, aiohttp.ClientSession() as session:
        a, b, c = (site_of(node, session, table) for node in nodes)
        yield Joined(a=a, b=b, c=c, before=before)


def test_a_site_that_begins_with_a_summary_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no peer gives it anything, a copy of the directory from another site is all it needs."""

    async def refuse(giver: TableGiver, uuid: str, after: int, until: int) -> TableVersions:
        raise NotFoundError("not here")

    monkeypatch.setattr(TableGiver, "versions", refuse)

    async def main() -> None:
        async with began_with_a_summary(tmp_path) as found:
            one, two, table = found.a, found.b, found.a.table
            a, b = one.caller.node, two.caller.node
            status, answer = await two.caller.ask("GET", path_of("t"))
            assert status == 500
            said = answer["error"]["message"]
            assert "'default.t' lacks versions at this site: 0 to 3" in said
            assert f"copy the table's directory {table.table_id}" in said
            # A link may come up after the first attempt; then it is asked again.
            await until(lambda: "not here" in b.status()["warnings"][0]["text"])
            warning, unwhole = b.status()["warnings"]
            assert warning["code"] == "commit-table-not-placed"
            assert "No site that answers has them: A: " in warning["text"]
            assert unwhole["code"] == "site-not-whole"
            assert "1 commit tables are not whole" in unwhole["text"]
            assert warning["text"].startswith(said)
            (line,) = b.status()["commit_tables"]["tables"]
            assert line["name"] == "default.t" and line["version"] is None
            assert (line["ordered"], line["lag"], line["plan"]) == (3, 4, "copy")
            assert line["state"] == "not-placed" and line["reason"] == warning["text"]
            assert "A: " in warning["text"] and "not here" in warning["text"]
            await until(lambda: all(n.base.master.phase is Phase.NORMAL for n in (a, b)), 30)
            # Other tables work, and so does this one at the other site.
            other = await two.caller.create("other")
            await one.write(4)
            shutil.copytree(found.before, two.directory)
            (two.directory / "_delta_log" / f"{3:020}.json").unlink()
            status, answer = await two.caller.ask("GET", path_of("t"))
            assert "site: 3;" in answer["error"]["message"]
            shutil.copytree(one.directory, two.directory, dirs_exist_ok=True)
            (two.directory / "_delta_log" / f"{4:020}.json").unlink()
            assert await two.caller.version() == 4
            assert b.status()["warnings"] == []
            await two.write(5)
            await one.placed(5)
            assert one.files() == two.files()
            assert other.published(0).exists()

    asyncio.run(main())


@pytest.mark.parametrize("problem", ["bytes", "timestamp", "file"])
def test_a_copy_is_compared_with_what_the_log_knows(tmp_path: Path, problem: str) -> None:
    """Version 1 is known without files: as after a summary."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            table = await caller.create()
            identity = uuid.uuid4().bytes
            operation = committing(identity, table.table_id, 1, BEGIN + 1)
            await caller.node.submit(operation, level=Level.ORDERED, timeout=60)
            lacks = await caller.ask("GET", path_of("t"))
            assert "site: 1; version 1 is missing" in lacks[1]["error"]["message"]
            add = table.add()
            at = BEGIN + 2 if problem == "timestamp" else BEGIN + 1
            path = table.directory / add["add"]["path"]
            raw = lines_of(info_of(at), add)
            if problem == "bytes":
                raw = raw[:-9]
            if problem == "file":
                path.unlink()
            table.published(1).write_bytes(raw)
            status, answer = await caller.ask("GET", path_of("t"))
            assert status == 500
            expected = {
                "bytes": "version 1 cannot be read",
                "timestamp": "another commit than the log has",
                "file": "which is not at this site",
            }
            assert expected[problem] in answer["error"]["message"]
            path.write_bytes(b"rows")
            table.published(1).write_bytes(lines_of(info_of(BEGIN + 1), add))
            assert await caller.version() == 1

    asyncio.run(main())


def test_a_version_without_files_after_one_with_files_is_missing(tmp_path: Path) -> None:
    """A node was away too long: it has files of version 1, and of 2 what a summary says."""

    async def main() -> None:
        async with catalog(tmp_path, inline_limit=0) as caller:
            table = await caller.create()
            body = table.update(table.stage(1, table.add()))
            assert (await caller.commit(body))[0] == 200
            operation = committing(uuid.uuid4().bytes, table.table_id, 2, BEGIN + 2)
            await caller.node.submit(operation, level=Level.ORDERED, timeout=60)
            table.directory.rename(tmp_path / "gone")
            caller.node.catalog.placer._states.clear()
            async with asyncio.timeout(20):
                _, answer = await caller.ask("GET", path_of("t"))
            assert "site: 2; version 2 is missing" in answer["error"]["message"]
            assert table.published(1).exists()
            table.published(2).write_bytes(lines_of(info_of(BEGIN + 2), table.add()))
            assert await caller.version() == 2

    asyncio.run(main())
