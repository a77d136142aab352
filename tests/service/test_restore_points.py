"""Restore points at two real sites: one position, one name, whoever makes them at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_replica_routes import create
from tests.support.command_line import invoke

from sparktxlog.api.reading.restore_points import (
    create_point,
    delete_point,
    known_points,
    named_point,
)
from sparktxlog.errors import NameTakenError, NotFoundError, TxLogError
from sparktxlog.http.link import Http
from sparktxlog.model.restore_point import RestorePoint


def make(url: str, name: str) -> RestorePoint | TxLogError:
    try:
        return create_point(Http(url), name)
    except TxLogError as error:
        return error


def test_both_sites_have_one_position_for_a_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            await create(nodes["A"])
            a, b = (node.config.master_url for node in nodes.values())
            # Both sites make a point of one name, and one of another, at once.
            told = await asyncio.gather(
                *(asyncio.to_thread(make, url, name) for name in "xy" for url in (a, b))
            )
            for pair in (told[:2], told[2:]):
                (made,) = (one for one in pair if isinstance(one, RestorePoint))
                assert any(isinstance(one, NameTakenError) for one in pair)
                assert all(node.queue(made.position - 1, 1) for node in nodes.values())
            end = nodes["A"].info()["position"]
            await until(lambda: nodes["B"].info()["position"] >= end)
            await asyncio.to_thread(check, a, b)
            # The point is the end of a run, and a segment ends there at each site.
            for node in nodes.values():
                await until(lambda node=node: node.info()["published"] == node.info()["position"])
                segments = (await node.segments(0, 0.0, 100))[1]
                ends = {segment.last for segment in segments}
                assert {one.position for one in told if isinstance(one, RestorePoint)} <= ends

    def check(a: str, b: str) -> None:
        at_a, at_b = Http(a), Http(b)
        points = known_points(at_a.get)
        assert {point.name for point in points} == {"x", "y"}
        delete_point(at_b, "x")
        assert named_point(at_b.get, "y") in points
        with pytest.raises(NotFoundError, match="'x'"):
            named_point(at_b.get, "x")

    asyncio.run(main())


def test_the_commands_make_list_and_delete_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(url: str) -> None:
        def told(command: str, *arguments: str, code: int = 0) -> str:
            given = ("restore-point", command, *arguments, "--url", url)
            assert invoke(monkeypatch, *given) == code
            return capsys.readouterr().out

        def found(command: str, *arguments: str) -> Any:
            # Lines of the node's log may stand before it.
            return json.loads(told(command, *arguments, "--json").splitlines()[-1])

        assert found("list") == []
        made = found("create", "x", "--note", "before the move")
        assert (made["name"], made["note"]) == ("x", "before the move")
        assert "Restore point y is position" in told("create", "y")
        told("create", "x", code=1)
        assert [point["name"] for point in found("list")] == ["x", "y"]
        shown = told("list")
        assert "before the move" in shown and str(made["position"]) in shown
        assert found("delete", "x") == {"deleted": "x"}
        told("delete", "x", code=1)
        assert "Restore point y is deleted." in told("delete", "y")
        assert found("list") == []

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            await asyncio.to_thread(work, nodes["A"].config.master_url)

    asyncio.run(main())
