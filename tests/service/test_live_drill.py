"""`sparktxlog drill --live` against three real nodes: report, row of the drill, restored image."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_replica_routes import create, give_replica
from tests.support.command_line import invoke
from tests.support.image_lake import Lake

from sparktxlog import Client


def test_a_running_cluster_is_asked_and_nothing_is_harmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Lake(tmp_path / "lake").append((1, "x"))
    images, reports = tmp_path / "images", tmp_path / "reports"

    async def main() -> None:
        async with cluster(tmp_path, "ABC") as nodes:
            await create(nodes["A"])
            for node in nodes.values():
                await give_replica(node, 10)
            a = nodes["A"].config.master_url
            await until(lambda: len(nodes["A"].status()["replicas"]) == 3)
            await asyncio.to_thread(drill, a)

    def drill(url: str) -> None:
        assert invoke(monkeypatch, "backup", str(images), "--lake", str(tmp_path / "lake")) == 0
        capsys.readouterr()
        asked = ("drill", "--live", "--url", url, "--no-spark", "--backup", str(images))
        code = invoke(monkeypatch, *asked, "--report", str(reports), "--json")
        found = json.loads(capsys.readouterr().out)
        assert (code, found["passed"]) == (0, True), found
        names = [one["name"] for one in found["rehearsals"]]
        assert names == ["loss of A", "loss of B", "loss of C", "restore"]
        assert {page.suffix for page in reports.iterdir()} == {".md", ".html"}
        with Client(url) as client:
            (row,) = client.view("drills").to_pylist()
        assert row["passed"] and row["rehearsals"] == names and row["sites"] == ["A", "B", "C"]

    asyncio.run(main())
