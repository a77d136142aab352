"""Commit tables are renamed, in the order of all commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from tests.service.local_nodes import cluster, until
from tests.service.test_catalog_api import Caller, catalog, told
from tests.service.test_catalog_of_rows import make
from tests.service.test_travelling_commits import sites
from tests.support.delta_writer import path_of


async def rename(caller: Caller, old: str, new: str) -> tuple[int, object]:
    return await caller.ask("POST", f"{path_of(old)}/rename", {"new-name": new})


def test_a_renamed_table_is_the_same_at_every_site(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await a.write(1)
            assert await rename(b.caller, "T", "sold") == (204, None)
            assert told(await b.caller.ask("GET", path_of("t"))) == (404, "NoSuchTableException")
            await until(lambda: bool(a.caller.node.base.master.commit_tables.named("default.sold")))
            # Who staged a commit under the old name is told so, and nothing of it is there.
            staged = a.table.stage(2, a.table.add())
            body = a.table.update(staged)
            assert told(await a.caller.commit(body)) == (404, "NoSuchTableException")
            for site, version in ((a, 2), (b, 3)):
                body = body if site is a else b.table.update(b.table.stage(3, b.table.add()))
                status, loaded = await site.caller.commit(body, "sold")
                assert (status, loaded["latest-table-version"]) == (200, version)
                assert loaded["metadata"]["table-uuid"] == a.table.table_id
            await a.placed(3)
            assert a.files() == b.files()
            # Its old name is free, its new one is not.
            other = await a.caller.create()
            assert told(await rename(a.caller, "t", "SOLD")) == (409, "AlreadyExistsException")
            assert await rename(a.caller, "sold", "Sold") == (204, None), "only its case"
            assert await a.caller.version("sold") == 3
            assert other.table_id != a.table.table_id

    asyncio.run(main())


def test_a_name_that_cannot_be_is_refused_and_a_restart_knows_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with catalog(tmp_path) as caller:
            await caller.create()
            await make(caller.node)
            for name, refusal in (
                ("a.b", (400, "BadRequestException")),
                ("", (400, "BadRequestException")),
                ("orders", (409, "AlreadyExistsException")),
            ):
                assert told(await rename(caller, "t", name)) == refusal, name
            assert told(await rename(caller, "nope", "u")) == (404, "NoSuchTableException")
            assert told(await rename(caller, "orders", "u")) == (403, "PermissionDeniedException")
            assert await rename(caller, "t", "u") == (204, None)
        async with cluster(tmp_path, "A") as nodes, aiohttp.ClientSession() as session:
            again = Caller(nodes["A"], session)
            assert await again.version("u") == 0
            assert told(await again.ask("GET", path_of("t"))) == (404, "NoSuchTableException")

    asyncio.run(main())
