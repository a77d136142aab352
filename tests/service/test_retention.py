"""The limits of the log reach the node's publisher: age, as configured and as set at run time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_catalog_api import catalog
from tests.service.test_replica_routes import create, give_replica

from sparktxlog.runtime.log import published_log

_HOUR_US = 3_600 * 1_000_000


@pytest.mark.parametrize(("set_h", "hours"), [(None, 168), (24, 24)])
def test_what_is_older_than_its_limit_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_h: int | None, hours: int
) -> None:
    """168 hours by default."""
    wall_us = published_log.wall_us

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            node = nodes["A"]
            await create(nodes["A"])
            await until(lambda: nodes["A"].base.published.value == 1)
            await give_replica(nodes["A"], 10)
            if set_h is not None:
                await node.change_settings({"tx-log-max-depth": set_h})
            for later, kept_after, limits in (
                (hours - 1, 0, []),
                (hours + 1, 1, ["tx-log-max-depth"]),
            ):
                monkeypatch.setattr(
                    published_log, "wall_us", lambda h=later: wall_us() + h * _HOUR_US
                )
                done = await node.maintain()
                assert (done.pruned_to, list(done.limits)) == (kept_after, limits)
            assert node.status()["kept_after"] == 1

    asyncio.run(main())


@pytest.mark.parametrize("carried", [True, False], ids=["carried", "staged"])
def test_files_of_a_commit_stay_until_it_is_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    """The log expires after a week, whether or not a version could be placed."""
    wall_us = published_log.wall_us
    settings, removed = ({}, 0) if carried else ({"inline_limit": 0}, 2)

    async def main() -> None:
        async with catalog(tmp_path, **settings) as caller:
            node = caller.node
            await create(node)
            table = await caller.create("c")
            commit = table.stage(1, table.add())
            raw = table.staged(commit["file-name"]).read_bytes()
            table.published(1).write_bytes(b"foreign")
            assert (await caller.commit(table.update(commit), "c"))[0] == 500
            await until(lambda: node.base.published.value == 3, 10)
            await give_replica(node, 10)
            monkeypatch.setattr(published_log, "wall_us", lambda: wall_us() + 200 * _HOUR_US)
            first, second = (commit.files for commit in node.base.journal.read_kept_commits())
            done = await node.maintain()
            # What is placed went, each a commit file and a data file.
            assert (done.pruned_to, done.files) == (3, removed)
            assert (len(first), len(second)) == (2, 2)
            assert not Path(node.payloads.path(first[0].path)).exists()
            if carried:
                assert len(node.base.journal.read_carried(table.table_id, 1)) == 2
            else:
                for file in second:
                    node.payloads.verify(file)
            table.published(1).unlink()
            assert await caller.version("c") == 1
            assert table.published(1).read_bytes() == raw
            # What is placed is noted in the journal a moment later.
            await until(lambda: not node.base.journal.read_unplaced(0), 10)
            assert (await node.maintain()).files == removed
            assert node.base.journal.read_kept_commits() == []
        async with catalog(tmp_path, **settings) as caller:
            assert await caller.version("c") == 1
            assert (await caller.commit(table.update(table.stage(2, table.add())), "c"))[0] == 200

    asyncio.run(main())
