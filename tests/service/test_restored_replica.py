"""What a real node makes of a restored replica: IN_SYNC at the image's position, then replay."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.local_nodes import until
from tests.service.test_travelling_commits import began_with_a_summary
from tests.support.command_line import invoke
from tests.support.image_lake import Lake
from tests.support.node_processes import TABLE, NodeProcess, append, free_ports, wait_until

from sparktxlog.errors import NotFoundError
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.replica.reports import report_of
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state


def at_end(lake: Path, node: NodeProcess) -> ReplicaState:
    """Save and return the state of a replica that applied all that is published."""
    status = node.status()
    with closing(ReplicaDirectory(lake)) as directory:
        state = replace(
            directory.load(),
            log_id=status["log_id"],
            position=status["chain_position"],
            chain_hash=status["chain_hash"],
        )
        directory.save(state)
    return state


@pytest.mark.e2e
def test_the_node_knows_the_image_and_has_the_rest_replayed(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    node.start()
    try:
        node.wait_ready()
        with closing(HttpLogSource(node.url)) as source:
            node.commit(TABLE)
            node.commit(append(1))
            wait_until(lambda: node.status()["published"] == 2)
            lake = Lake(tmp_path / "lake")
            lake.append((1, "x"))
            first = at_end(lake.path, node)
            assert source.report(report_of(first, "A")).plan == "up-to-date"
            store = DiskImages(tmp_path / "backups")
            image = back_up_replica(lake.path, store, name="one", site="A").image

            node.commit(append(2))
            wait_until(lambda: node.status()["published"] == 3)
            lake.append((2, "x"))
            assert source.report(report_of(at_end(lake.path, node), "A")).verdict == "IN_SYNC"
            shutil.rmtree(lake.path)

            restore_replica(store, image, lake.path)
            state = read_state(lake.path)
            assert state is not None and state.worker_id != first.worker_id
            answer = source.report(report_of(state, "A"))
            assert (answer.verdict, answer.plan) == ("IN_SYNC", "replay")
            (rest,) = source.segments(state.position, wait_s=0.0).segments
            assert (rest.first, rest.from_hash) == (3, state.chain_hash)
    finally:
        node.stop()


def test_commit_tables_of_an_image_are_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B lacks versions that no peer gives it; an image of A has them."""

    async def refuse(giver: TableGiver, uuid: str, after: int, until: int) -> TableVersions:
        raise NotFoundError("not here")

    monkeypatch.setattr(TableGiver, "versions", refuse)
    store = str(tmp_path / "images")

    async def run(*arguments: str) -> str:
        code = await asyncio.to_thread(invoke, monkeypatch, *arguments)
        shown = capsys.readouterr()
        assert code == 0, shown
        return shown.out + shown.err

    async def main() -> None:
        async with began_with_a_summary(tmp_path) as found:
            a, b = found.a.caller.node, found.b.caller.node
            Lake(a.config.lake_dir).append((1, "x"))
            url = ("--url", a.config.master_url)
            await run("backup", store, *url, "--name", "one")
            image = DiskImages(store).image("one")
            (kept,) = image.commit_tables.values()
            assert (kept.name, kept.version, image.site) == ("default.t", 3, "A")
            await until(lambda: all(n.base.master.phase is Phase.NORMAL for n in (a, b)), 30)
            await found.a.write(4)
            await found.c.placed(4)
            restore = ("restore", store, "--no-verify", "--lake")
            said = await run(*restore, str(tmp_path / "lake"))
            assert "1 commit tables of the image are not restored" in " ".join(said.split())
            directory = str(b.config.commit_table_dir)
            await run(*restore, str(tmp_path / "other"), "--commit-tables", directory)
            assert await found.b.caller.version() == 4
            assert found.a.files() == found.b.files()

    asyncio.run(main())
