"""Commands that ask all nodes, against real ones: `drill`, and `--all` when one is gone."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_replica_routes import create, give_replica
from tests.support.command_line import invoke
from tests.support.image_lake import Lake


def test_a_running_cluster_is_asked_and_nothing_is_harmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.append((1, "x"))
    images, reports = tmp_path / "images", tmp_path / "reports"

    async def main() -> None:
        async with cluster(tmp_path, "ABC") as nodes:
            await create(nodes["A"])
            for node in nodes.values():
                await give_replica(node, 10)
            a = nodes["A"].config.master_url
            lake.record(log_id=nodes["A"].status()["log_id"])
            await until(lambda: len(nodes["A"].status()["replicas"]) == 3)
            await asyncio.to_thread(drill, a)

    def drill(url: str) -> None:
        assert invoke(monkeypatch, "backup", str(images), "--lake", str(tmp_path / "lake")) == 0
        capsys.readouterr()
        asked = ("drill", "--live", "--url", url, "--no-spark", "--backup", str(images))
        code = invoke(monkeypatch, *asked, "--report", str(reports), "--json")
        # Nodes of this process log to the same place.
        (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("{"))
        found = json.loads(line)
        assert (code, found["passed"]) == (0, True), found
        names = [one["name"] for one in found["rehearsals"]]
        assert names == ["loss of A", "loss of B", "loss of C", "restore"]
        assert {page.suffix for page in reports.iterdir()} == {".md", ".html"}

    asyncio.run(main())


def test_all_are_asked_and_the_one_that_is_gone_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        doors = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: door.getsockname()[1] for name, door in doors.items()}
        at_a, at_b = (config_of(tmp_path, name, ports) for name in "AB")
        async with serving(at_a, doors["A"]) as a:
            async with serving(at_b, doors["B"]) as b:
                await until(lambda: a.base.links["B"].up and b.base.links["A"].up)
                await asyncio.to_thread(set_at_both, at_a.master_url)
                for node in (a, b):
                    assert node.settings()["FullReplicationTimeFactor"]["value"] == 3
            await asyncio.to_thread(without_b, at_a.master_url)

    def told(*arguments: str, code: int) -> str:
        capsys.readouterr()
        assert invoke(monkeypatch, *arguments) == code
        return capsys.readouterr().out

    def set_at_both(url: str) -> None:
        change = ("settings", "set", "FullReplicationTimeFactor", "3", "--all", "--url", url)
        rows = [line.split("\t") for line in told(*change, code=0).splitlines()]
        assert [row[0] for row in rows[-2:]] == ["A", "B"]

    def without_b(url: str) -> None:
        a, b = json.loads(told("status", "--all", "--json", "--url", url, code=5))
        assert (a["node"], a["ok"], a["answer"]["node_id"]) == ("A", True, "A")
        assert (b["node"], b["ok"], b["error"]["title"]) == ("B", False, "unreachable")
        row = told("status", "--all", "--url", url, code=5).splitlines()[-1].split("\t")
        assert row[0] == "B" and "[unreachable]" in row[-1] and b["url"] in row[-1]
        # A drill fails, and says why.
        text = told("drill", "--no-spark", "--url", url, code=3)
        assert "FAILED: loss of A: node B does not answer" in text

    asyncio.run(main())
