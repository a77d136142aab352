"""Disks of three sites replaced one after the other, as docs/monitoring.md says: nothing is lost.

Each node begins again with an empty disk.  It is NORMAL and ready long before it has what the
others count on it to have; until then everybody says that nothing else may be lost.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_catalog_api import Caller
from tests.service.test_replica_routes import create
from tests.service.test_start_after_a_summary import free_ports
from tests.service.test_travelling_commits import site_of
from tests.support.command_line import invoke
from tests.support.delta_writer import StagedTable
from tests.support.replica_lakes import report_of

from sparktxlog import Client
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.runtime.node import Node

NAMES = "ABC"
LAST = 3
#: Runs a command; returns its code, and its JSON.
Run = Callable[..., tuple[int, Any]]


class Place:
    """One site: a node that is started again if it asks for it, on a disk that may be replaced."""

    def __init__(self, directory: Path, name: str, ports: dict[str, int]) -> None:
        self.config = config_of(directory, name, ports)
        self.name = name
        self._port = ports[name]
        self._ends = asyncio.Event()
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        assert self._node is not None
        return self._node

    @property
    def url(self) -> str:
        return self.config.master_url

    async def start(self) -> None:
        self._ends.clear()
        self._up.clear()
        self._task = asyncio.create_task(self._run())
        await self._up.wait()

    async def _run(self) -> None:
        while not self._ends.is_set():
            async with serving(self.config, socket.create_server(("127.0.0.1", self._port))) as it:
                self._node = it
                self._up.set()
                ends = asyncio.create_task(self._ends.wait())
                await asyncio.wait([ends, it.failed], return_when=asyncio.FIRST_COMPLETED)
                ends.cancel()

    async def stop(self) -> None:
        self._ends.set()
        assert self._task is not None
        await self._task

    async def replace_disk(self) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self.config.data_dir)
        await self.start()

    def takes_part(self) -> bool:
        """Whether it is a member again, and `/readyz` says 200."""
        node = self.node
        return node.base.master.phase is Phase.NORMAL and all(one.good for one in node.ready())

    def is_whole(self) -> bool:
        return all(one.good for one in self.node.ready(data=True))

    def report(self) -> None:
        """Report what a worker would that has copied a replica, or applied all."""
        report = report_of(self.node.status(), 1, f"worker of {self.name}")
        assert self.node.accept_report(report)["verdict"] == "IN_SYNC"

    def survivors(self) -> str:
        """Return the sites whose loss would be survived, as this one knows."""
        return "".join(one["site"] for one in self.node.survivals() if one["survives"])


@asynccontextmanager
async def three_sites(directory: Path) -> AsyncIterator[dict[str, Place]]:
    ports = free_ports(NAMES)
    places = {name: Place(directory, name, ports) for name in NAMES}
    async with AsyncExitStack() as stack:
        for place in places.values():
            await place.start()
            stack.push_async_callback(place.stop)
        await until(lambda: all(one.takes_part() for one in places.values()))
        yield places


@pytest.fixture
def giving(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Versions of commit tables are given while it is set."""
    given, versions = asyncio.Event(), TableGiver.versions

    async def wait(giver: TableGiver, uuid: str, after: int, until: int) -> TableVersions:
        await given.wait()
        return await versions(giver, uuid, after, until)

    monkeypatch.setattr(TableGiver, "versions", wait)
    given.set()
    return given


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


def append(url: str, numbers: range) -> None:
    with Client(url) as client:
        for number in numbers:
            client.append("t", [{"id": number, "v": "x"}])


async def settled(places: dict[str, Place]) -> int:
    """Return the position at which all are."""
    parts = [place.node.base for place in places.values()]
    end = max(part.ordered.value for part in parts)
    await until(lambda: all(part.published.value == end for part in parts))
    return end


async def begin(places: dict[str, Place], session: aiohttp.ClientSession) -> StagedTable:
    """Write rows and versions, and have them at all sites."""
    await create(places["A"].node)
    await asyncio.to_thread(append, places["A"].url, range(5))
    table = await Caller(places["A"].node, session).create("c")
    sites = [site_of(place.node, session, table) for place in places.values()]
    for version in range(1, LAST + 1):
        body = sites[0].table.update(sites[0].table.stage(version, sites[0].table.add()))
        assert (await sites[0].caller.commit(body, "c"))[0] == 200
    for site in sites:
        await site.placed(LAST)
    await settled(places)
    for place in places.values():
        place.report()
    for place in places.values():
        await until(lambda place=place: place.survivors() == NAMES)
    return table


async def not_yet(place: Place, places: dict[str, Place], run: Run) -> None:
    """Check that everybody says that the replaced site is no copy of the data yet."""
    status, text = await get(f"{place.url}/readyz")
    assert (status, text) == (200, "ok\n")
    status, text = await get(f"{place.url}/readyz?verbose")
    assert status == 200 and "[-] data: the rows up to position" in text
    assert "its worker has to copy one; 1 commit tables are not whole" in text
    status, text = await get(f"{place.url}/readyz?data")
    assert status == 503 and "[-] data: " in text
    assert "site-not-whole" in {one["code"] for one in place.node.status()["warnings"]}
    others = [other for other in places.values() if other is not place]
    for other in others:  # each is one of the two that have all
        await until(lambda other=other: other.survivors() == NAMES)
        # What a site lacks comes with its next post.
        await until(lambda other=other: list(other.node.status()["others_lack"]) == [place.name])
        assert "not whole" in other.node.status()["others_lack"][place.name][-1]
    for one in places.values():  # and what alerts read says it at each of them
        whose = place.name if one is not place else ""
        labels = {"code": "site-not-whole", "site": whose, "state": "lagging"}
        registry = one.node.base.metrics.registry
        assert registry.get_sample_value("sparktxlog_finding", labels) == 1
    await others[0].stop()
    # Nothing is lost with the one that is away; all is lost with the last that answers.
    await until(lambda: others[1].survivors() == others[0].name)
    (said,) = (one for one in others[1].node.survivals() if one["site"] == others[1].name)
    assert said["tables_only_there"] == ["default.c"] and said["rows_held_by"] == []
    assert "no other site that answers has all rows" in said["sentence"]
    code, found = await asyncio.to_thread(run, "survival", "--url", others[1].url)
    assert (code, [one["site"] for one in found if one["survives"]]) == (3, [others[0].name])
    code, found = await asyncio.to_thread(run, "drill", "--no-spark", "--url", others[1].url)
    assert code == 3 and not found["passed"]
    await others[0].start()
    await until(others[0].takes_part)


def test_three_disks_replaced_one_after_the_other_lose_nothing(
    tmp_path: Path,
    giving: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = invoke(monkeypatch, *arguments, "--json")
        lines = capsys.readouterr().out.splitlines()  # among what the nodes log
        (answer,) = (line for line in lines if line[:2] in ('{"', "[{"))
        return code, json.loads(answer)

    async def main() -> None:
        async with three_sites(tmp_path) as places, aiohttp.ClientSession() as session:
            table = await begin(places, session)
            for number, name in enumerate(("B", "C", "A"), start=1):
                place = places[name]
                giving.clear()
                await place.replace_disk()
                await until(place.takes_part)
                await until(
                    lambda place=place: "not whole" in "".join(place.node.status()["lacks"])
                )
                await not_yet(place, places, run)
                # What docs/monitoring.md says to wait for: the worker's copy, and the files.
                await settled(places)
                place.report()
                giving.set()
                await until(place.is_whole)
                assert (await get(f"{place.url}/readyz?data"))[0] == 200
                for other in places.values():
                    await until(lambda other=other: other.survivors() == NAMES)
                code, found = await asyncio.to_thread(
                    run, "drill", "--no-spark", "--url", place.url
                )
                assert (code, found["passed"]) == (0, True), found
                assert (await asyncio.to_thread(run, "survival", "--url", place.url))[0] == 0
                await asyncio.to_thread(append, place.url, range(10 * number, 10 * number + 3))
                await settled(places)
                for other in places.values():
                    other.report()
            end = await settled(places)
            assert {place.node.base.kept_after.value > 0 for place in places.values()} == {True}
            assert [place.node.replicas.applied(Appliers()) for place in places.values()] == [
                end
            ] * 3
            sites = [site_of(place.node, session, table) for place in places.values()]
            assert [await site.caller.version("c") for site in sites] == [LAST] * 3
            assert sites[0].files() == sites[1].files() == sites[2].files()

    asyncio.run(main())
