"""`GET /v1/epochs/history`: what each node took up, at once, and in `log/epochs` soon after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import HttpProblem, NodeProcess, call, free_ports, wait_until

from sparktxlog.runtime.node import Node
from sparktxlog.storage.log_tables.log_schemas import EPOCHS


def rows_of(data: Path) -> list[dict[str, Any]]:
    """Return the rows of `log/epochs`, newest first; none while there is no table."""
    directory = data / "log" / "epochs"
    if not (directory / "_delta_log" / f"{1:020d}.json").exists():
        return []
    rows = pa.table(DeltaTable(directory).to_pyarrow_table()).to_pylist()
    return sorted(rows, key=lambda row: int(row["epoch"]), reverse=True)


def test_every_node_tells_and_writes_the_epochs_that_it_took_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:

            async def ask(node: Node, query: str = "") -> Any:
                url = f"{node.config.master_url}/v1/epochs/history{query}"
                async with session.get(url) as response:
                    return response.status, await response.json(content_type=None)

            a, b = nodes["A"], nodes["B"]
            for node in (a, b):
                status, (first,) = await ask(node)
                assert (status, first["epoch"], first["members"]) == (200, 1, ["A", "B"])
                assert (first["joined"], first["left"], first["changed"]) == (None, None, None)
                assert first["begins_after"] == {"position": 0, "chain_hash": "0" * 64}
            where = f"{a.config.master_url}/v1/peers/B"
            async with session.patch(where, json={"weight": 2}) as response:
                assert response.status == 200
            await until(lambda: b.base.master.view.epoch == 2)
            await until(lambda: len(b.membership.epochs.history.latest(9)) == 2)
            for name, node in nodes.items():
                _, found = await ask(node)
                assert [epoch["epoch"] for epoch in found] == [2, 1]
                newest = found[0]
                assert set(newest) == set(EPOCHS.names)
                assert (newest["joined"], newest["left"], newest["changed"]) == ([], [], ["B"])
                assert [seat["weight"] for seat in newest["roster"]] == [1, 2]
                assert (newest["quorum"], newest["phase"]) == (2, "NORMAL")
                assert (await ask(node, "?limit=1"))[1] == [newest]
                await until(lambda name=name: len(rows_of(tmp_path / name)) == 2)
                for row, told in zip(rows_of(tmp_path / name), found, strict=True):
                    at = row.pop("taken_up_at")
                    assert round(at.timestamp() * 1e6) == told.pop("taken_up_at")
                    assert row == told
            for query in ("?limit=0", "?limit=1001", "?limit=x", "?limit=-1", "?limit="):
                status, problem = await ask(a, query)
                assert (status, problem["title"], problem["definite"]) == (
                    400,
                    "invalid-request",
                    True,
                )
                assert problem["fields"]["field"] == "limit"

    asyncio.run(main())


def test_a_killed_node_takes_its_epoch_up_once(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    try:
        node.start()
        node.wait_ready()
        (first,) = call(f"{node.url}/v1/epochs/history")
        for _ in range(2):
            node.kill()
            node.start()
            node.wait_ready()
            assert call(f"{node.url}/v1/epochs/history") == [first]
        wait_until(lambda: rows_of(tmp_path / "A"), timeout=20)
        node.kill()
        node.start()
        node.wait_ready()
        call(f"{node.url}/v1/maintenance", {})
        assert [row["epoch"] for row in rows_of(tmp_path / "A")] == [1]
        with pytest.raises(HttpProblem):
            call(f"{node.url}/v1/epochs/history?limit=1e3")
    finally:
        node.stop()


def test_a_witness_tells_its_epochs_and_one_that_nobody_knows_has_none(tmp_path: Path) -> None:
    ports = dict(zip("AW", free_ports(2), strict=True))
    a = NodeProcess(tmp_path, "A", ports["A"], {"W": ports["W"]}, witnesses="W")
    w = NodeProcess(tmp_path, "W", ports["W"], {"A": ports["A"]}, witnesses="W")
    try:
        w.start()
        w.wait_ready()
        # Its first view is what the configuration says: it may yet be told to join another log.
        assert call(f"{w.url}/v1/epochs/history") == []
        a.start()
        (epoch,) = wait_until(lambda: call(f"{w.url}/v1/epochs/history"))
        assert (epoch["phase"], epoch["members"]) == ("WITNESS", ["A"])
    finally:
        a.stop()
        w.stop()
