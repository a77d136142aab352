"""Synchronous transactions between real nodes: with one gone they wait, ordinary ones do not."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.support.node_processes import call

from sparktxlog import Client
from sparktxlog.errors import InvalidRequestError, SessionRolledBackError, SynchroTimeoutError
from sparktxlog.runtime.node import Node

_IDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(9)]
_SETTINGS: dict[str, Any] = {
    "eviction": "auto",
    "suspect_timeout": 1,
    "start_timeout": 3,
    "synchro_quorum": "N",
    "synchro_timeout": 60,
}


class _Three:
    """Three nodes that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self._listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABC"}
        self._ports = {name: one.getsockname()[1] for name, one in self._listeners.items()}
        self._directory = directory
        self._stacks: dict[str, AsyncExitStack] = {}
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, **settings: Any) -> None:
        config = config_of(self._directory, name, self._ports, **_SETTINGS | settings)
        self._stacks[name] = AsyncExitStack()
        node = serving(config, self._listeners[name].dup())
        self.nodes[name] = await self._stacks[name].enter_async_context(node)

    async def members(self, names: str) -> None:
        nodes = [self.nodes[name] for name in names]
        await until(lambda: all(set(n.base.master.view.members) == set(names) for n in nodes))

    async def stop(self, name: str) -> None:
        await self._stacks.pop(name).aclose()

    async def close(self) -> None:
        for name in list(self._stacks):
            await self.stop(name)


def test_with_a_node_gone_synchronous_ones_wait_and_ordinary_ones_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            three = _Three(tmp_path)
            stack.push_async_callback(three.close)
            for name in "ABC":
                await three.start(name)
            a = three.nodes["A"]
            await until(lambda: all(n.base.master.heard(o) for n, o in _pairs(three.nodes)))
            url = a.config.master_url
            await asyncio.to_thread(_begin, url)
            await three.stop("C")
            # It gets its stamp before anybody misses C; then the epoch ends, and keeps it.
            late = await asyncio.to_thread(_append, url, "s", _IDS[0])
            assert (late.outcome, late.late, late.holders) == ("committed", True, 2)
            await three.members("AB")
            waits = asyncio.create_task(asyncio.to_thread(_append, url, "s", _IDS[1], session="x"))
            await until(lambda: a.status()["synchronous"]["waiting"] == 1)
            await asyncio.to_thread(_meanwhile, url)
            rests, alone = await _follow(a, url)
            await a.change_settings({"synchro-timeout": 0.2})
            with pytest.raises(SynchroTimeoutError, match="needs 3 holders, the log has 2 members"):
                await waits
            with pytest.raises(SessionRolledBackError, match="it needs 3 holders") as rolled_back:
                await rests
            assert rolled_back.value.definite and not rolled_back.value.retryable
            assert rolled_back.value.fields["rests_on"] == _IDS[1]
            assert (await alone).outcome == "committed"
            assert await asyncio.to_thread(_rejected, url, _IDS[1]) == ["synchro-timeout"]
            assert await asyncio.to_thread(_rejected, url, _IDS[4]) == ["session-rolled-back"]
            await a.change_settings({"synchro-timeout": None})
            a = await _withdrawn_after_a_restart(three)
            waits = asyncio.create_task(asyncio.to_thread(_append, url, "s", _IDS[2]))
            asks = asyncio.create_task(asyncio.to_thread(_append, url, "p", _IDS[3], is_sync=True))
            await until(lambda: a.status()["synchronous"]["waiting"] == 2)
            await three.start("C")
            for done in await asyncio.gather(waits, asks):
                assert (done.outcome, done.late, done.holders) == ("committed", False, None)
            await until(lambda: three.nodes["C"].base.ordered.value == a.base.ordered.value)
            assert a.status()["synchronous"]["waiting"] == 0

    asyncio.run(main())


def _pairs(nodes: dict[str, Node]) -> list[tuple[Node, str]]:
    return [(node, other) for name, node in nodes.items() for other in nodes if other != name]


def _begin(url: str) -> None:
    """Commit to a synchronous table and to an ordinary one, with all nodes there."""
    with Client(url) as client:
        client.create_table("s", {"id": "bigint"}, is_sync=True)
        client.create_table("p", {"id": "bigint"})
        client.create_table("s", {"id": "bigint"}, is_sync=True)
        assert (client.table("s").is_sync, client.table("p").is_sync) == (True, False)
        receipt = client.append("s", [{"id": 1}])
        assert (receipt.late, receipt.holders) == (False, None)


def _append(url: str, table: str, transaction_id: str, **options: Any) -> Any:
    with Client(url, timeout=90) as client:
        return client.append(table, [{"id": 2}], transaction_id=transaction_id, **options)


def _meanwhile(url: str) -> None:
    """Commit an ordinary transaction, and look at what waits, and at what was late."""
    with Client(url) as client:
        client.append("p", [{"id": 2}])
        for told in (client.receipt(_IDS[0]), _append(url, "s", _IDS[0])):
            assert (told.outcome, told.late, told.holders) == ("committed", True, 2)
    status = call(f"{url}/v1/status")
    found = status["synchronous"]
    assert (found["waiting"], found["unconfirmed"]) == (1, 0)
    assert found["size_bytes"] > 0 and found["oldest_us"] > 0
    assert (found["waiting_runs"], found["needs"], found["missing"]) == (1, 3, ["C"])
    assert (status["synchro_quorum"], status["synchro_rule"]) == (3, "N")
    assert [(one["peer"], one["why"]) for one in status["waiting_for"]] == [("C", "copy")]


def _rejected(url: str, transaction_id: str) -> list[str]:
    """Return the codes of a transaction that never had a position."""
    found = call(f"{url}/v1/transactions/{transaction_id}")
    assert (found["level"], found["outcome"]) == (None, "rejected")
    return [one["code"] for one in found["rejections"]]


async def _follow(a: Node, url: str) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
    """Commit after what waits in its session: what may rest on it, and what does not."""
    tasks = []
    for number, options in ((4, {}), (5, {"rollback": "transaction"})):
        append = asyncio.to_thread(_append, url, "p", _IDS[number], session="x", **options)
        tasks.append(asyncio.create_task(append))
        await until(lambda: a.base.master.status().unstamped_runs == 1 + len(tasks))
    return tasks[0], tasks[1]


async def _withdrawn_after_a_restart(three: _Three) -> Node:
    """Restart the node that took them before it withdraws them: what rests on which is durable."""
    url = three.nodes["A"].config.master_url
    for table, number, options in (
        ("s", 6, {}),
        ("p", 7, {}),
        ("p", 8, {"rollback": "transaction"}),
    ):
        told = await asyncio.to_thread(
            _append, url, table, _IDS[number], session="y", level="accepted", **options
        )
        assert told.level == "accepted"
    await three.stop("A")
    await three.start("A", synchro_timeout=0.2)
    await three.members("AB")
    a = three.nodes["A"]
    await until(lambda: a.base.master.status().unstamped_runs == 0)
    await a.change_settings({"synchro-timeout": 60})
    assert await asyncio.to_thread(_rejected, url, _IDS[6]) == ["synchro-timeout"]
    assert await asyncio.to_thread(_rejected, url, _IDS[7]) == ["session-rolled-back"]
    receipt = await asyncio.to_thread(_append, url, "p", _IDS[8], session="y")
    assert receipt.outcome == "committed"
    return a


def test_the_quorum_and_the_tables_change_at_run_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            await asyncio.to_thread(_change, nodes["A"].config.master_url)

    asyncio.run(main())


def _change(url: str) -> None:
    assert call(f"{url}/v1/status")["synchro_rule"] == "N/2+1"
    view = call(f"{url}/v1/quorum?timeout=60", {"synchro_rule": "N-1"})
    assert (view["synchro_quorum"], view["synchro_rule"], view["epoch"]) == (1, "N-1", 2)
    (warning,) = call(f"{url}/v1/status")["warnings"]
    assert warning["code"] == "not-in-force"
    assert warning["text"].startswith("synchro-quorum is N/2+1 in the configuration, N-1 is in for")
    for wrong, place in (("N/", 3), ("import os", 1), ("N/(N-2)", 3)):
        with pytest.raises(Exception) as refused:
            call(f"{url}/v1/quorum?timeout=60", {"synchro_rule": wrong})
        assert f"character {place}" in str(refused.value.document)  # type: ignore[attr-defined]
    with Client(url) as client:
        client.create_table("t", {"id": "bigint"})
        with client.transaction() as t:
            t.append("t", [{"id": 1}])
        client.alter_table("t", is_sync=True)
        assert (client.table("t").is_sync, client.table("t").schema_version) == (True, 2)
        assert client.append("t", [{"id": 2}]).outcome == "committed"
        client.alter_table("t", is_sync=False)
        assert not client.table("t").is_sync
        with pytest.raises(InvalidRequestError):
            client.alter_table("t")
