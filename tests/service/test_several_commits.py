"""Transactions over several commit tables and row tables: all or nothing, at every site (P36)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_catalog_api import Caller
from tests.service.test_start_after_a_summary import free_ports
from tests.service.test_travelling_commits import Site, pair, site_of
from tests.support.delta_writer import StagedTable

from sparktxlog.errors import CommitStateUnknownError
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.node import Node

COLUMNS = [{"name": "id", "type": "bigint"}]
ROW = {"kind": "append", "table": "rows", "rows": [{"id": 1}]}


def as_proposed(table: StagedTable, commit: dict[str, Any]) -> dict[str, Any]:
    """Return what a request says of a staged commit."""
    return {
        "table_id": table.table_id,
        "proposed_version": commit["version"],
        "timestamp": commit["timestamp"],
        "file_name": commit["file-name"],
        "file_size": commit["file-size"],
    }


@dataclass
class Sites:
    """One site, and its places of the commit tables by name."""

    caller: Caller
    tables: dict[str, Site]

    @property
    def node(self) -> Node:
        return self.caller.node

    def stage(self, **versions: int) -> list[dict[str, Any]]:
        """Stage a commit with a file for each of some tables; return what a request says."""
        found = []
        for name, version in versions.items():
            table = self.tables[name].table
            found.append(as_proposed(table, table.stage(version, table.add(name.encode()))))
        return found

    async def commit(
        self,
        commits: Sequence[dict[str, Any]],
        *operations: dict[str, Any],
        one: str | None = None,
        **more: Any,
    ) -> tuple[int, dict[str, Any]]:
        """Submit a transaction; return status and receipt, or code and fields of the error."""
        body = {"operations": operations, "commits": commits, **more}
        body["transaction_id"] = one or str(uuid.uuid4())
        status, answer = await self.caller.ask("POST", "/v1/transactions", body)
        if status != 200:
            answer = {"code": answer["title"], "definite": answer["definite"]} | answer["fields"]
        return status, answer

    async def versions(self) -> dict[str, int]:
        """Return what the catalog shows."""
        return {name: await self.caller.version(name) for name in self.tables}

    def published(self, version: int) -> list[str]:
        """Return the tables whose directory has a version."""
        return [name for name, at in self.tables.items() if at.table.published(version).exists()]


def at(node: Node, session: aiohttp.ClientSession, tables: dict[str, StagedTable]) -> Sites:
    there = {name: site_of(node, session, table) for name, table in tables.items()}
    return Sites(caller=Caller(node, session), tables=there)


@asynccontextmanager
async def sites(directory: Path, names: str = "AB") -> AsyncIterator[list[Sites]]:
    """Run nodes with the commit tables `t`, `u` and `v`, and the row table `rows`."""
    async with cluster(directory, names) as nodes, aiohttp.ClientSession() as session:
        first, *others = nodes.values()
        await until(lambda: all(n.membership.joining.proven for n in nodes.values() if others))
        caller = Caller(first, session)
        tables = {name: await caller.create(name) for name in "tuv"}
        create = {"kind": "create_table", "table": "rows", "columns": COLUMNS}
        assert (await caller.ask("POST", "/v1/transactions", {"operations": [create]}))[0] == 200
        found = [at(node, session, tables) for node in nodes.values()]
        for site in found:
            assert await site.versions() == dict.fromkeys("tuv", 0)
        yield found


def test_both_tables_and_the_rows_change_at_one_position(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            one = str(uuid.uuid4())
            commits = a.stage(t=1, u=1)
            status, receipt = await a.commit(commits, ROW, one=one)
            assert (status, receipt["outcome"], receipt["rows"]) == (200, "committed", 1)
            assert a.published(1) == ["t", "u"]
            position = receipt["position"]
            for site in (a, b):
                await site.node.reach(position, 60)
                assert await site.versions() == {"t": 1, "u": 1, "v": 0}
                found = site.node.commit_tables()
                assert [table.position == position for table in found] == [True, True, False]
                await until(lambda site=site: site.node.base.published.value >= position)
                _, segments = await site.node.segments(position - 1, 1.0, 10)
                kinds = [(one.table, one.kind) for one in segments[0].effects if one.inline]
                assert kinds == [("rows", "append")]
            for name in "tu":
                assert a.tables[name].files() == b.tables[name].files()
            again = await a.commit(commits, ROW, one=one)
            assert (again[0], again[1]["position"], again[1]["outcome"]) == (
                200,
                position,
                "committed",
            )
            # Its id is known, whatever the request says, and at the other site too.
            assert (await b.commit(b.stage(v=1), one=one))[1]["position"] == position
            assert await a.versions() == {"t": 1, "u": 1, "v": 0}
            assert (await b.commit(b.stage(t=2, v=1)))[0] == 200
            assert await a.versions() == {"t": 2, "u": 1, "v": 1}

    asyncio.run(main())


@pytest.mark.parametrize("padding", [9, 40_000], ids=["carried", "staged"])
def test_a_run_carries_what_is_small_together(tmp_path: Path, padding: int) -> None:
    """Two files of 40 kB are more than one transaction may carry."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            commits = []
            for name in "tu":
                table = a.tables[name].table
                (table.directory / name).write_bytes(bytes(padding))
                add = {"add": {"path": name, "size": padding, "partitionValues": {}}}
                commits.append(as_proposed(table, table.stage(1, add)))
            status, receipt = await a.commit(commits)
            assert status == 200, receipt
            found = a.node.base.journal.read_commits_at(receipt["position"])
            assert [one.is_carried for one in found] == [padding == 9] * 2
            await b.node.reach(receipt["position"], 60)
            assert await b.versions() == {"t": 1, "u": 1, "v": 0}
            for name in "tu":
                assert a.tables[name].files() == b.tables[name].files()

    asyncio.run(main())


def test_one_table_that_lost_takes_the_others_and_the_rows_with_it(tmp_path: Path) -> None:
    """Two sites ask at the same time, and share one table: one loses all, and is told why."""

    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            mine, theirs = a.stage(t=1, u=1), b.stage(u=1, v=1)
            found = await asyncio.gather(a.commit(mine, ROW), b.commit(theirs, ROW))
            assert sorted(status for status, _ in found) == [200, 409]
            lost = [status for status, _ in found].index(409)
            loser, other = (a, b)[lost], "tv"[lost]
            told = found[lost][1]
            fields = (told["code"], told["definite"], told["table"], told["version"])
            assert fields == ("version-conflict", True, "default.u", 1)
            assert told["winner"] == found[1 - lost][1]["position"]
            # At this moment the winner can be read here, and nothing of the loser.
            assert loser.published(1) == sorted({*"tuv"} - {other})
            for site in (a, b):
                await site.node.reach(told["position"], 60)
                versions = await site.versions()
                assert versions == {"t": 1, "u": 1, "v": 1} | {other: 0}
                writes = site.node.writes("rows")
                assert writes is not None and writes.version == 1
            # It was seen before it was ordered: the same answer, without a position of its own.
            status, told = await loser.commit(loser.stage(**{other: 1, "u": 1}), ROW)
            assert (status, told["table"], told["version"]) == (409, "default.u", 1)
            assert told.get("position") is None
            # A condition on a row table that does not hold keeps the commits away, too.
            unread = {"versions": {"rows": 0}}
            status, told = await loser.commit(loser.stage(**{other: 1}), ROW, conditions=unread)
            assert (status, told["code"], told["table"]) == (409, "conflict", "rows")
            assert (await loser.versions())[other] == 0
            assert (await loser.commit(loser.stage(**{other: 1, "u": 2}), ROW))[0] == 200

    asyncio.run(main())


def test_what_cannot_be_is_refused_and_nothing_is_half_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path, "A") as (a,):
            (t, u) = a.stage(t=1, u=1)
            later = a.node.base.ordered.value
            missing = u | {"file_name": f"{1:020}.{uuid.uuid4()}.json"}
            for commits, more, status, code in (
                ([t, t], {}, 400, "invalid-request"),
                ([t], {"level": "accepted"}, 400, "invalid-request"),
                ([t], {"participants": ["p"]}, 400, "invalid-request"),
                ([t, u | {"table_id": str(uuid.uuid4())}], {}, 404, "unknown-table"),
                ([t, u | {"file_size": 1}], {}, 400, "staged-commit"),
                ([t, u | {"timestamp": 1}], {}, 400, "staged-commit"),
                ([t, missing], {}, 400, "staged-commit"),
                ([t, u | {"file_name": t["file_name"]}], {}, 400, "staged-commit"),
                ([t, u | {"file_name": "x.json"}], {}, 400, "invalid-request"),
                ([t, u | {"proposed_version": 2}], {}, 400, "invalid-request"),
            ):
                found, told = await a.commit(commits, ROW, **more)
                assert (found, told["code"], told["definite"]) == (status, code, True), told
            (early,) = a.stage(u=3)
            assert (await a.commit([t, early]))[1]["code"] == "version-conflict"
            assert a.node.base.ordered.value == later
            assert (await a.commit([t, u]))[0] == 200

    asyncio.run(main())


def test_an_unknown_outcome_is_told_as_such_and_a_repeat_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            submits, one = a.node._submits, str(uuid.uuid4())
            submit = submits.submit

            async def silent(*args: Any, **more: Any) -> Any:
                await submit(*args, **more)
                raise CommitStateUnknownError("not in time")

            monkeypatch.setattr(submits, "submit", silent)
            commits = a.stage(t=1, u=1)
            status, told = await a.commit(commits, one=one)
            assert (status, told["code"], told["definite"]) == (504, "unknown-outcome", False)
            monkeypatch.undo()
            status, receipt = await a.commit(commits, one=one)
            assert (status, receipt["outcome"]) == (200, "committed")
            # At once, and the same transaction: both are told the same.
            two = str(uuid.uuid4())
            again = a.stage(t=2, v=1)
            found = await asyncio.gather(a.commit(again, one=two), a.commit(again, one=two))
            assert [status for status, _ in found] == [200, 200]
            assert found[0][1]["position"] == found[1][1]["position"]
            await b.node.reach(found[0][1]["position"], 60)
            assert await b.versions() == {"t": 2, "u": 1, "v": 1}

    asyncio.run(main())


def test_tables_of_one_transaction_are_shown_together_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At B one of two tables is placed when its node ends; neither is shown before both are."""
    ports = free_ports("AB")

    async def main() -> None:
        apart = pair(tmp_path, ports, inline_limit=0)  # so that placing can be stopped
        async with apart as (a, b), aiohttp.ClientSession() as session:
            tables = {name: await Caller(a, session).create(name) for name in "tu"}
            one, two = at(a, session, tables), at(b, session, tables)
            assert await two.versions() == {"t": 0, "u": 0}
            placer, go_on = b.catalog.placer, asyncio.Event()

            async def whole(commit: Any) -> None:
                if commit.uuid == tables["u"].table_id:
                    await go_on.wait()
                await CommitPlacer._whole(placer, commit)

            monkeypatch.setattr(placer, "_whole", whole)
            assert (await one.commit(one.stage(t=1, u=1)))[0] == 200
            await until(lambda: two.published(1) == ["t"])
            await until(lambda: placer.versions[tables["t"].table_id] == 1)
            asked = [asyncio.create_task(two.caller.version(name)) for name in "tu"]
            done, _ = await asyncio.wait(asked, timeout=0.5)
            assert not done
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        monkeypatch.undo()
        waits, start = asyncio.Event(), CommitPlacer._whole

        async def held(placer: CommitPlacer, commit: Any) -> None:
            await waits.wait()
            await start(placer, commit)

        monkeypatch.setattr(CommitPlacer, "_whole", held)
        async with pair(tmp_path, ports) as (_, b), aiohttp.ClientSession() as session:
            two = at(b, session, tables)
            asked = [asyncio.create_task(two.caller.version(name)) for name in "tu"]
            done, _ = await asyncio.wait(asked, timeout=0.5)
            assert not done
            assert two.published(1) == ["t"]
            waits.set()
            assert await asyncio.gather(*asked) == [1, 1]
            assert two.published(1) == ["t", "u"]

    asyncio.run(main())


def test_commits_to_other_tables_do_not_wait_and_no_order_of_tables_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path, "A") as (a,):
            won = dict.fromkeys("tuv", 0)
            ask = partial(asyncio.wait_for, timeout=60)
            for _ in range(3):
                wanted = [("t", "u"), ("u", "v"), ("v", "t")]
                staged = [a.stage(**{n: won[n] + 1 for n in names}) for names in wanted]
                found = await ask(asyncio.gather(*(a.commit(one) for one in staged)))
                names = [wanted[i] for i, (status, _) in enumerate(found) if status == 200]
                assert len(names) == 1
                won |= {name: won[name] + 1 for name in names[0]}
                assert await a.versions() == won

    asyncio.run(main())
