"""A node keeps plain Delta tables beside its commit tables, for readers without a catalog."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.service.local_nodes import until
from tests.service.test_catalog_api import Caller, catalog
from tests.support.delta_writer import StagedTable, path_of

from sparktxlog.delta.log_files import newest_commit


async def commit(caller: Caller, table: StagedTable, version: int) -> None:
    staged = table.stage(version, table.add(b"x" * version))
    assert (await caller.commit(table.update(staged)))[0] == 200


async def warnings(caller: Caller) -> list[str]:
    status, answer = await caller.ask("GET", "/v1/status")
    assert status == 200
    return [one["text"] for one in answer["warnings"] if one["code"] == "reader-table-behind"]


def test_a_reader_table_follows_each_version_and_goes_with_its_table(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    path = root / "default" / "t"

    async def main() -> None:
        async with catalog(tmp_path, reader_table_dir=str(root)) as caller:
            table = await caller.create()
            await until(lambda: newest_commit(path) == 0)
            for version in (1, 2):
                await commit(caller, table, version)
            await until(lambda: newest_commit(path) == 2)
        # What a start finds is checked; what is missing is added.
        shutil.rmtree(path)
        async with catalog(tmp_path, reader_table_dir=str(root)) as caller:
            await until(lambda: newest_commit(path) == 2)
            renamed = {"new-name": "u"}
            assert (await caller.ask("POST", f"{path_of('t')}/rename", renamed))[0] == 204
            await until(lambda: newest_commit(path.with_name("u")) == 2 and not path.exists())
            assert (await caller.ask("DELETE", path_of("u")))[0] == 204
            await until(lambda: not path.with_name("u").exists())

    asyncio.run(main())


def test_a_reader_table_that_cannot_be_written_stops_no_commit(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    path = root / "default" / "t"
    path.mkdir(parents=True)

    async def main() -> None:
        async with catalog(tmp_path, reader_table_dir=str(root)) as caller:
            table = await caller.create()
            await commit(caller, table, 1)
            while not (said := await warnings(caller)):
                await asyncio.sleep(0.05)  # the status tells of no event
            assert "no reader table of this node" in said[0]
            path.rmdir()
            await commit(caller, table, 2)
            await until(lambda: newest_commit(path) == 2)
            assert await warnings(caller) == []

    asyncio.run(main())
