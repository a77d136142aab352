"""`sparktxlog why` at three real nodes: what waits and for whom, what is applied where, who won."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.support.command_line import invoke
from tests.support.node_processes import TABLE, append, free_ports, run_payload
from tests.support.replica_lakes import report_of

from sparktxlog.runtime.node import Node


class Asker:
    """Runs `why` in a thread of its own, since the nodes are in this one."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
    ) -> None:
        self._monkeypatch, self._capsys, self._url = monkeypatch, capsys, url

    async def ask(self, what: Any) -> tuple[int, list[str]]:
        code = await asyncio.to_thread(self._run, str(what))
        return code, self._printed()

    async def document(self, what: Any) -> Any:
        await asyncio.to_thread(self._run, str(what), "--json")
        return json.loads("".join(self._printed()))

    def _printed(self) -> list[str]:
        """Return what the command printed; the nodes print their logs between."""
        lines = self._capsys.readouterr().out.splitlines()
        return [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d ", line)]

    def _run(self, *arguments: str) -> int:
        return invoke(self._monkeypatch, "why", *arguments, "--url", self._url)


async def _post(
    session: aiohttp.ClientSession, node: Node, path: str, level: str = "ordered", **request: Any
) -> Any:
    url = f"{node.config.master_url}/v1/{path}"
    async with session.post(url, params={"timeout": 60, "level": level}, **request) as answer:
        return await answer.json()


async def _apply(nodes: Sequence[Node], end: int) -> None:
    """Let a replica of each site report the end of the queue, and wait until all nodes know."""
    await until(lambda: all(node.status()["published"] == end for node in nodes))
    for node in nodes:
        node.accept_report(report_of(node.status(), end, worker_id=node.config.node_id))

    def known(node: Node) -> bool:
        lines = node.status()["replicas"]
        return [line["position"] for line in lines] == [end] * len(nodes)

    await until(lambda: all(map(known, nodes)))


def test_the_way_of_transactions_at_three_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        ports = dict(zip("ABC", free_ports(3), strict=True))

        async def start(stack: AsyncExitStack, name: str) -> Node:
            listener = socket.create_server(("127.0.0.1", ports[name]))
            config = config_of(tmp_path, name, ports)
            return await stack.enter_async_context(serving(config, listener))

        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            a, b = [await start(stack, name) for name in "AB"]
            async with AsyncExitStack() as short:
                c = await start(short, "C")
                await until(
                    lambda: all(link.up for node in (a, b, c) for link in node.base.links.values())
                )
            why = Asker(monkeypatch, capsys, a.config.master_url)
            created = await _post(session, a, "transactions", "accepted", json=TABLE)
            id_ = created["transaction_id"]
            await until(lambda: a.status()["waiting_for"])
            code, told = await why.ask(id_)
            assert (code, told[0]) == (3, "Node A accepted it.")
            assert any(line.startswith("It waits for C: ") for line in told), told
            assert (await why.ask(1))[0] == 1
            assert (await why.ask(uuid4()))[0] == 1

            nodes = (a, b, await start(stack, "C"))
            await until(lambda: all(node.status()["published"] == 1 for node in nodes))
            code, told = await why.ask(id_)
            assert code == 3 and "No worker has applied anything at site C" in told[-1]
            await _apply(nodes, 1)
            code, told = await why.ask(1)
            assert code == 0
            assert told[-3:] == [f"Site {name} has applied it." for name in "ABC"]
            # The page of the dashboard says the same.
            url = f"{a.config.master_url}/dashboard/transactions/{id_}.json"
            async with session.get(url) as answer:
                assert (await answer.json())["sentences"] == told

            await _ask_who_won(session, nodes, why)
            await _ask_inside_a_run(session, nodes, why)

    asyncio.run(main())


async def _ask_who_won(session: aiohttp.ClientSession, nodes: Sequence[Node], why: Asker) -> None:
    """Two transactions that read the same: the one that lost names the other's position."""
    read = {"conditions": {"read_position": 1, "reads": ["t"]}}
    ids = [str(uuid4()) for _ in range(2)]
    answers = await asyncio.gather(
        *(
            _post(session, node, "transactions", json=append(1, id_) | read)
            for node, id_ in zip(nodes, ids, strict=False)
        )
    )
    positions = [answer.get("position") for answer in answers]
    assert sorted(map(bool, positions)) == [False, True], answers
    lost = ids[positions.index(None)]
    (winner,) = filter(None, positions)
    code, told = await why.ask(lost)
    assert code == 0 and "It was rejected at every site, and changed nothing." in told
    place = f"It lost to the write of table t at position {winner}, which node "
    assert told[-1].startswith(place)
    found = await why.document(lost)
    assert (found["outcome"], found["sentences"]) == ("rejected", told)


async def _ask_inside_a_run(
    session: aiohttp.ClientSession, nodes: Sequence[Node], why: Asker
) -> None:
    """Of a run only the first id is listed: the others are told by their positions."""
    headers = {"content-type": "application/vnd.sparktxlog.run"}
    answer = await _post(session, nodes[1], "runs", data=run_payload(500, 1), headers=headers)
    first = answer["position"]
    await _apply(nodes, first + 499)
    code, told = await why.ask(f"{first + 321:,}")
    assert (code, told[-1]) == (0, "Site C has applied it.")
    assert " is transaction 322 of 500 in a run of node B, ordered at " in told[0]
    found = await why.document(first + 499)
    assert (found["position"], found["run"]["position"]) == (first + 499, first)
    assert (await why.document(first))["position"] == first
    assert (await why.document(first + 500))["run"] is None
