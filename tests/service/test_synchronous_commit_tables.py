"""Commit tables with `sparktxlog.synchronous`: each commit waits for the members it needs."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from tests.service.local_nodes import until
from tests.service.test_catalog_api import Caller
from tests.service.test_synchronous import _pairs, _Three
from tests.support.delta_writer import StagedTable, path_of

from sparktxlog import Client

_PROPERTY = "sparktxlog.synchronous"


async def _make(caller: Caller, name: str, value: str | None) -> tuple[int, Any, StagedTable]:
    """Create a table, with a value of the property."""
    table = await caller.stage(name)
    if value is not None:
        table.metadata["configuration"] = table.metadata["configuration"] | {_PROPERTY: value}
    table.write_first(table.add())
    return *(await caller.ask("POST", path_of(), table.creation(name))), table


def _changed(table: StagedTable, version: int, value: str) -> dict[str, Any]:
    """Return the update that sets the property by a commit."""
    properties = table.metadata["configuration"] | {_PROPERTY: value}
    metadata = table.metadata | {"configuration": properties}
    commit = table.stage(version, {"metaData": metadata})
    return table.update(commit, {"action": "set-properties", "updates": {_PROPERTY: value}})


def test_each_commit_of_a_synchronous_table_waits_for_its_holders(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            three = _Three(tmp_path)
            stack.push_async_callback(three.close)
            for name in "ABC":
                await three.start(name)
            a = three.nodes["A"]
            await until(lambda: all(n.base.master.heard(o) for n, o in _pairs(three.nodes)))
            await until(lambda: all(one.good for n in three.nodes.values() for one in n.ready()))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            caller = Caller(a, session)

            before = a.base.ordered.value
            status, answer, _ = await _make(caller, "wrong", "yes")
            assert (status, answer["details"][0]["metadata"]["value"]) == (400, "yes")
            assert a.base.ordered.value == before, "it was refused before the order"
            status, answer, plain = await _make(caller, "plain", None)
            assert status == 200, answer
            status, answer, table = await _make(caller, "s", "true")
            assert status == 200, answer
            described = await asyncio.to_thread(_described, a.config.master_url)
            assert described == {"default.plain": False, "default.s": True}
            commit = table.update(table.stage(1, table.add()))
            assert (await caller.commit(commit, "s"))[0] == 200

            await three.stop("C")
            await three.members("AB")
            commit = table.update(table.stage(2, table.add()))
            waits = asyncio.create_task(caller.commit(commit, "s"))
            while not a.status()["synchronous"]["waiting"]:
                assert not waits.done(), waits.result()
                await asyncio.sleep(0.02)
            ordinary = plain.update(plain.stage(1, plain.add()))
            assert (await caller.commit(ordinary, "plain"))[0] == 200
            await a.change_settings({"synchro-timeout": 0.2})
            status, answer = await waits
            assert (status, answer["details"][0]["reason"]) == (504, "synchro-timeout")
            assert await caller.version("s") == 1
            # To make it synchronous is a commit that waits, too; and so is to end that.
            for name, one, value in (("plain", plain, "true"), ("s", table, "false")):
                status, answer = await caller.commit(_changed(one, 2, value), name)
                assert (status, answer["details"][0]["reason"]) == (504, "synchro-timeout")

            await a.change_settings({"synchro-timeout": None})
            waits = asyncio.create_task(caller.commit(commit, "s"))  # the same file again
            while not a.status()["synchronous"]["waiting"]:
                await asyncio.sleep(0.02)
            await three.start("C")
            status, answer = await waits
            assert (status, answer["latest-table-version"]) == (200, 2), json.dumps(answer)
            await three.members("ABC")
            for wrong in ("no", "TRUE", ""):
                status, answer = await caller.commit(_changed(table, 3, wrong), "s")
                assert (status, answer["details"][0]["reason"]) == (400, "staged-commit")
                assert wrong in answer["message"] and "'true' or 'false'" in answer["message"]
            assert (await caller.commit(_changed(table, 3, "false"), "s"))[0] == 200
            assert (await asyncio.to_thread(_described, a.config.master_url))["default.s"] is False

    asyncio.run(main())


def _described(url: str) -> dict[str, bool]:
    with Client(url) as client:
        return {name: client.describe(name).is_sync for name in ("default.plain", "default.s")}
