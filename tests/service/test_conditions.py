"""Two clients read at the same position: one of them commits, at every site alike (P27)."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_catalog_api import catalog
from tests.service.test_start_after_a_summary import free_ports

from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node
from sparktxlog.storage.interfaces import AppendQueue, Write
from sparktxlog.storage.journal.journal import JOURNAL_NAME

_CREATE = {"kind": "create_table", "table": "t", "columns": [{"name": "id", "type": "bigint"}]}
_WRITE = {"kind": "append", "table": "t", "rows": [{"id": 1}]}


class _Caller:
    """Asks nodes over HTTP."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def commit(
        self, node: Node, conditions: Any = None, operation: Any = _WRITE, **more: Any
    ) -> tuple[int, dict[str, Any]]:
        body = {"operations": [operation], **more}
        if conditions is not None:
            body["conditions"] = conditions
        url = f"{node.config.master_url}/v1/transactions?timeout=60"
        async with self._session.post(url, json=body) as response:
            return response.status, await response.json()

    async def get(self, node: Node, path: str) -> dict[str, Any]:
        async with self._session.get(f"{node.config.master_url}{path}") as response:
            found: dict[str, Any] = await response.json()
            return found


def _read(position: int) -> dict[str, Any]:
    return {"read_position": position, "reads": ["t"]}


async def _reached(nodes: dict[str, Node], position: int) -> None:
    await until(lambda: all(n.info()["position"] >= position for n in nodes.values()))


def test_what_is_told_of_a_table_holds_at_the_position_that_is_told_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the table at that position and expects that version must not lose an update."""
    rows = ("/v1/tables/t", "/v1/tables", "/v1/descriptions/t", "/v1/descriptions")
    commits = ("/v1/descriptions/c", "/v1/descriptions")

    async def main() -> None:
        async with catalog(tmp_path) as door, aiohttp.ClientSession() as session:
            node, caller, table = door.node, _Caller(session), await door.create("c")
            base, write = node.base, node.base.journal.write
            assert (await caller.commit(node, operation=_CREATE))[0] == 200
            update = table.update(table.stage(1, table.add()))
            for paths, versions, act in (
                (rows, {"t": 1, "default.c": 0}, lambda: caller.commit(node)),
                (commits, {"t": 1, "default.c": 1}, lambda: door.commit(update, "c")),
            ):
                go_on = threading.Event()

                def late(writes: Sequence[Write], go_on: threading.Event = go_on) -> None:
                    if any(isinstance(one, AppendQueue) for one in writes):
                        assert go_on.wait(60)
                    write(writes)

                monkeypatch.setattr(base.journal, "write", late)
                try:
                    before = base.ordered.value
                    acting = asyncio.create_task(act())
                    await until(lambda before=before: base.master.base.position > before)
                    asked = [asyncio.create_task(caller.get(node, path)) for path in paths]
                    waits, n = base.ordered._waiting, len(asked)
                    await until(
                        lambda asked=asked, waits=waits, n=n: (
                            sum(one.done() for one in asked) + len(waits) >= n
                        )
                    )
                finally:
                    go_on.set()
                assert (await acting)[0] == 200
                for told in await asyncio.gather(*asked):
                    for one in told if isinstance(told, list) else [told]:
                        assert one["position"] == before + 1, one
                        assert one["version"] == versions[one["name"]], one
                        assert (one.get("last_write") or 0) <= one["position"], one

    asyncio.run(main())


def test_who_is_first_in_the_order_wins_and_the_other_is_told_by_whom(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:
            caller, (a, b) = _Caller(session), nodes.values()
            assert (await caller.commit(a, operation=_CREATE))[0] == 200
            await _reached(nodes, 1)
            ids = {node: str(uuid.uuid4()) for node in (a, b)}
            answers = dict(
                zip(
                    (a, b),
                    await asyncio.gather(
                        *(caller.commit(n, _read(1), transaction_id=ids[n]) for n in (a, b))
                    ),
                    strict=True,
                )
            )
            assert sorted(status for status, _ in answers.values()) == [200, 409], answers
            won = next(node for node, (status, _) in answers.items() if status == 200)
            lost = b if won is a else a
            problem = answers[lost][1]
            position = problem["fields"]["position"]
            winner = answers[won][1]["position"]
            assert (problem["title"], problem["definite"], problem["retryable"]) == (
                "conflict",
                True,
                True,
            )
            assert problem["fields"] == {
                "transaction_id": ids[lost],
                "position": position,
                "table": "t",
                "winner": winner,
                "origin": won.config.node_id,
            }
            # A repeat of either is answered as it was, at whatever node.
            await _reached(nodes, 3)
            for node in (a, b):
                status, again = await caller.commit(node, _read(1), transaction_id=ids[won])
                assert (status, again["position"]) == (200, winner)
                status, again = await caller.commit(node, _read(1), transaction_id=ids[lost])
                assert (status, again["fields"]) == (409, problem["fields"])
                found = await caller.get(node, f"/v1/transactions/{ids[lost]}")
                (told,) = found["rejections"]
                assert (told["table"], told["winner"], told["origin"]) == (
                    "t",
                    winner,
                    won.config.node_id,
                )
                table = await caller.get(node, "/v1/tables/t")
                assert (table["version"], table["last_write"]) == (1, winner)
            # Read again, as a new transaction: from the position, or from the version.
            assert (await caller.commit(lost, _read(3)))[0] == 200
            await _reached(nodes, 4)
            assert (await caller.commit(won, {"versions": {"t": 2}}))[0] == 200
            assert (await caller.commit(won, {"versions": {"t": 2}}))[0] == 409

    asyncio.run(main())


def test_versions_and_writes_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes, aiohttp.ClientSession() as session:
            caller, a = _Caller(session), nodes["A"]
            await caller.commit(a, operation=_CREATE)
            await caller.commit(a)
            await caller.commit(a, {"versions": {"t": 1}})
        async with cluster(tmp_path, "A") as nodes, aiohttp.ClientSession() as session:
            caller, a = _Caller(session), nodes["A"]
            table = await caller.get(a, "/v1/tables/t")
            assert (table["version"], table["last_write"], table["position"]) == (2, 3, 3)
            status, problem = await caller.commit(a, _read(2))
            assert (status, problem["fields"]["winner"]) == (409, 3)
            assert (await caller.commit(a, _read(4)))[0] == 200

    asyncio.run(main())


def test_a_node_that_begins_from_a_summary_judges_as_the_others_do(tmp_path: Path) -> None:
    """B lost its journal: what was written to the tables comes with the summary (P21)."""
    ports = free_ports("ABC")

    @asynccontextmanager
    async def three() -> AsyncIterator[dict[str, Node]]:
        async with AsyncExitStack() as stack:
            nodes = {}
            for name in "ABC":
                listener = socket.create_server(("127.0.0.1", ports[name]))
                config = config_of(tmp_path, name, ports, suspect_timeout=2)
                nodes[name] = await stack.enter_async_context(serving(config, listener))
            yield nodes

    async def main() -> None:
        async with three() as nodes, aiohttp.ClientSession() as session:
            caller = _Caller(session)
            await until(lambda: all(n.membership.joining.proven for n in nodes.values()))
            assert (await caller.commit(nodes["A"], operation=_CREATE))[0] == 200
            for _ in range(3):
                assert (await caller.commit(nodes["A"]))[0] == 200
            await until(lambda: all(n.base.published.value == 4 for n in nodes.values()))
        (tmp_path / "B" / JOURNAL_NAME).unlink()
        for _ in range(2):  # it is told to join, then it takes over the summary
            async with three() as nodes:
                assert isinstance(await asyncio.wait_for(nodes["B"].failed, 60), StartAgainError)
        async with three() as nodes, aiohttp.ClientSession() as session:
            caller, b = _Caller(session), nodes["B"]
            await until(lambda: b.base.master.phase is Phase.NORMAL)
            assert b.base.journal.read_queue(4, 9, payloads=False) == []
            table = await caller.get(b, "/v1/tables/t")
            assert (table["version"], table["last_write"]) == (3, 4)
            status, problem = await caller.commit(b, _read(2))
            assert (status, problem["fields"]["winner"]) == (409, 4)
            assert (await caller.commit(b, {"versions": {"t": 3}}))[0] == 200
            await _reached(nodes, 6)
            for node in nodes.values():
                table = await caller.get(node, "/v1/tables/t")
                assert (table["version"], table["last_write"]) == (4, 6)

    asyncio.run(main())


def test_what_cannot_be_judged_is_refused_and_nothing_happens(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            cluster(tmp_path, "A", condition_window=1_000) as nodes,
            aiohttp.ClientSession() as session,
        ):
            caller, a = _Caller(session), nodes["A"]
            await caller.commit(a, operation=_CREATE)
            for conditions, status, code in (
                ({}, 400, "invalid-request"),
                ({"read_position": -1, "reads": ["t"]}, 400, "invalid-request"),
                ({"read_position": 0, "reads": ["u"]}, 404, "unknown-table"),
                ({"read_position": 2, "reads": ["t"]}, 503, "position-not-reached"),
            ):
                answer = await caller.commit(a, conditions)
                assert (answer[0], answer[1]["title"]) == (status, code)
                assert answer[1]["definite"] and answer[1]["hint"]
            assert (await caller.get(a, "/v1/info"))["position"] == 1
            rows = {"kind": "append", "table": "t", "rows": []}
            assert (await caller.commit(a, {"versions": {"t": 5}}, rows))[0] == 409
            for _ in range(2):
                await asyncio.gather(*(caller.commit(a) for _ in range(500)))
            status, problem = await caller.commit(a, _read(1))
            assert (status, problem["title"]) == (409, "conflict")
            assert problem["fields"]["table"] is None and "condition-window" in problem["detail"]

    asyncio.run(main())
