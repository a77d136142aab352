"""A transaction over several requests takes effect as a whole, or not at all."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import NodeProcess

from sparktxlog import Client
from sparktxlog.runtime.node import Node

_PATH = "/v1/open-transactions"
_CREATE = {
    "kind": "create_table",
    "table": "t",
    "keys": ["id"],
    "columns": [{"name": "id", "type": "bigint", "nullable": False}],
}


def _write(*ids: int) -> dict[str, Any]:
    return {"kind": "upsert", "table": "t", "rows": [{"id": number} for number in ids]}


class _Caller:
    """A client of one node."""

    def __init__(self, node: Node, session: aiohttp.ClientSession) -> None:
        self.node = node
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = f"{self.node.config.master_url}{path}"
        async with self._session.request(method, url, json=body) as response:
            empty = response.status == 204
            return response.status, None if empty else await response.json()

    async def opened(self, **more: Any) -> str:
        status, answer = await self.ask("POST", _PATH, more)
        assert status == 200, answer
        return f"{_PATH}/{answer['transaction_id']}"

    async def add(self, path: str, *operations: Any, **more: Any) -> tuple[int, Any]:
        return await self.ask("POST", f"{path}/operations", {"operations": operations, **more})

    async def queue(self) -> list[Any]:
        return list((await self.ask("GET", "/v1/queue"))[1])


@asynccontextmanager
async def _calling(directory: Path) -> AsyncIterator[_Caller]:
    async with cluster(directory, "A") as nodes, aiohttp.ClientSession() as session:
        yield _Caller(nodes["A"], session)


def test_what_is_added_takes_effect_with_the_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with _calling(tmp_path) as caller:
            transaction_id = str(uuid.uuid4())
            path = await caller.opened(transaction_id=transaction_id)
            # A table that it creates itself is known to what is added later.
            assert (await caller.add(path, _CREATE))[0] == 200
            status, shown = await caller.add(path, _write(1), _write(2, 3))
            assert (status, shown["operations"], shown["position"]) == (200, 3, 0)
            assert (await caller.ask("GET", path))[1] == shown
            assert [one["transaction_id"] for one in (await caller.ask("GET", _PATH))[1]] == [
                transaction_id
            ]
            assert await caller.queue() == []

            status, receipt = await caller.ask("POST", f"{path}/commit?timeout=60")
            assert (status, receipt["position"], receipt["rows"]) == (200, 1, 3)
            assert receipt["transaction_id"] == transaction_id
            # The answer may have been lost: the repeated commit has the same one.
            status, again = await caller.ask("POST", f"{path}/commit")
            assert (status, again["position"], again["outcome"]) == (200, 1, "committed")
            assert len(await caller.queue()) == 1

            status, problem = await caller.add(path, _write(4))
            assert (status, problem["title"]) == (404, "transaction-not-open")
            assert "its commit was answered" in problem["detail"]

    asyncio.run(main())


def test_what_is_wrong_is_refused_where_it_is_added_and_the_rest_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with _calling(tmp_path) as caller:
            path = await caller.opened()
            assert (await caller.add(path, _CREATE, _write(1)))[0] == 200
            status, problem = await caller.add(path, _write(2), {"kind": "append", "table": "u"})
            assert (status, problem["title"]) == (404, "unknown-table")
            status, problem = await caller.add(path, _write(2), first=5)
            assert (status, problem["fields"]["field"], problem["fields"]["operations"]) == (
                400,
                "first",
                2,
            )
            # A request whose answer was lost is sent again, and adds nothing twice.
            for _ in range(2):
                status, shown = await caller.add(path, _write(2), first=2)
                assert (status, shown["operations"]) == (200, 3)
            size_bytes = shown["size_bytes"]
            assert (await caller.add(path))[1]["size_bytes"] > size_bytes, "an empty one has bytes"
            status, receipt = await caller.ask("POST", f"{path}/commit?timeout=60")
            assert (status, receipt["rows"]) == (200, 2)

    asyncio.run(main())


def test_rolled_back_or_forgotten_it_has_no_effect(tmp_path: Path) -> None:
    async def main() -> None:
        async with _calling(tmp_path) as caller:
            opened = caller.node.open_transactions
            path = await caller.opened()
            await caller.add(path, _CREATE)
            for _ in range(2):
                assert (await caller.ask("DELETE", path))[0] == 204
            status, problem = await caller.ask("POST", f"{path}/commit")
            assert (status, problem["definite"]) == (404, True)
            assert "it was rolled back" in problem["detail"]

            path = await caller.opened(lease=1)
            await caller.add(path, _CREATE)
            await until(lambda: not len(opened))
            status, problem = await caller.ask("POST", f"{path}/commit")
            assert status == 404
            assert "its lease of 1 s ended" in problem["detail"]

            status, problem = await caller.ask("POST", f"{_PATH}/{uuid.uuid4()}/commit")
            assert (status, problem["title"]) == (404, "transaction-not-open")
            assert await caller.queue() == []

    asyncio.run(main())


def test_a_condition_is_judged_at_the_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with _calling(tmp_path) as caller:
            create = {"operations": [_CREATE]}
            assert (await caller.ask("POST", "/v1/transactions?timeout=60", create))[0] == 200
            paths = [
                await caller.opened(conditions={"read_position": 1, "reads": ["t"]})
                for _ in range(2)
            ]
            for path in paths:
                assert (await caller.add(path, _write(1)))[0] == 200
            first, second = [
                await caller.ask("POST", f"{path}/commit?timeout=60") for path in paths
            ]
            assert (first[0], second[0]) == (200, 409)
            assert second[1]["fields"]["winner"] == first[1]["position"]

    asyncio.run(main())


def test_the_commands_of_the_page_commit_a_transaction(node: NodeProcess, client: Client) -> None:
    page = (Path(__file__).parents[2] / "docs" / "conditions.md").read_text()
    block = re.search(r"```bash\n(open=.*?)```", page, re.DOTALL)
    assert block is not None
    # Other tests have the node, too, and a table of this name with other columns.
    name = f"t{uuid.uuid4().hex[:12]}"
    client.create_table(name, {"id": "bigint not null"}, keys=["id"])
    script = block[1].replace("http://127.0.0.1:7070", node.url).replace('"orders"', f'"{name}"')
    ran = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True, timeout=60
    )
    # What is added is answered with the transaction, the commit with its receipt.
    end, answers = 0, []
    while end < len(ran.stdout):
        answer, end = json.JSONDecoder().raw_decode(ran.stdout, end)
        answers.append(answer)
    assert [answer["transaction_id"] for answer in answers] == [answers[0]["transaction_id"]] * 2
    assert answers[-1]["outcome"] == "committed"
