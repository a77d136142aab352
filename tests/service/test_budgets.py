"""One token takes all that it can get of a node: every other token goes on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_hostile_requests import Line
from tests.service.test_metrics import samples
from tests.support.delta_writer import API, path_of
from tests.support.storage_samples import staged_of

from sparktxlog.files.last_use import LastUse
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.node import Node
from sparktxlog.service.dashboard import dashboard_routes
from sparktxlog.service.handlers.submit_routes import _Turns
from sparktxlog.storage.payloads.payload_expiry import PayloadExpiry

TOKENS = {name: f"a token of the {name}" for name in ("greedy", "honest")}
BODY = 65_536


class Token:
    """Sends requests with a token, each on a connection of its own if it is held."""

    def __init__(self, node: Node, session: aiohttp.ClientSession, name: str) -> None:
        self._node, self._session, self._name = node, session, name
        self._lines: list[Line] = []

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        async with self._session.request(
            method,
            self._node.config.master_url + path,
            data=None if body is None else data,
            headers={"authorization": f"Bearer {TOKENS[self._name]}", "content-type": kind},
        ) as answer:
            text = await answer.read()
            if answer.status in (429, 503):
                assert answer.headers["retry-after"] == "1"
            return answer.status, json.loads(text) if text.startswith(b"{") else text

    async def hold(self, head: str, body: bytes = b"", size: int = 0) -> Line:
        """Send a request, or a part of it, and keep the connection."""
        port = int(self._node.config.master_url.rpartition(":")[2])
        line = Line(*await asyncio.open_connection("127.0.0.1", port))
        self._lines.append(line)
        about = f"authorization: Bearer {TOKENS[self._name]}\r\nhost: 127.0.0.1\r\n"
        if size:
            about += f"content-type: application/octet-stream\r\ncontent-length: {size}\r\n"
        await line.send(f"{head} HTTP/1.1\r\n{about}\r\n".encode() + body)
        return line

    async def release(self) -> None:
        """Close all connections that are held."""
        for line in self._lines:
            line.writer.close()
        self._lines.clear()


@asynccontextmanager
async def two_tokens(
    directory: Path, missing: str = "", **settings: Any
) -> AsyncIterator[tuple[Node, Token, Token]]:
    """Run a node that two grants use; its peers `missing` do not run."""
    lines = []
    for name, token in TOKENS.items():
        file = directory / name
        file.write_text(token)
        file.chmod(0o600)
        lines.append(f'[{name}]\ntoken-file = "{file}"\nwrite = ["default.*", "s.*"]\n')
    grants = directory / "grants.toml"
    grants.write_text("".join(lines))
    place = socket.create_server(("127.0.0.1", 0))
    settings |= {"client_token": "a token of the clients", "grants_file": str(grants)}
    ports = {"A": place.getsockname()[1]} | dict.fromkeys(missing, 1)
    config = config_of(directory, "A", ports, **settings)
    async with (
        serving(config, place) as node,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        node.membership.joining._knows_log = True  # as after a peer accepted it
        yield node, Token(node, session, "greedy"), Token(node, session, "honest")


async def answers(lines: list[Line]) -> Counter[int]:
    """Return the statuses of the requests that were answered, once no further one comes."""
    reads = [asyncio.create_task(line.reader.readuntil(b"\r\n\r\n")) for line in lines]
    waiting, answered = set(reads), set(reads)
    while waiting and answered:
        # The node is in the same loop: where that stands still, this wait does, too.
        answered, waiting = await asyncio.wait(
            waiting, timeout=2, return_when=asyncio.FIRST_COMPLETED
        )
    for read in waiting:
        read.cancel()
    found: Counter[int] = Counter()
    for read in reads:
        try:
            found[int((await read).split()[1])] += 1
        except (asyncio.CancelledError, asyncio.IncompleteReadError):
            found[0] += 1
    return found


async def repeated(ask: Callable[[], Awaitable[tuple[int, Any]]], most: int) -> Any:
    """Ask until it is refused; return the refusal."""
    for _ in range(most):
        status, answer = await ask()
        if status != 200:
            return answer
    raise AssertionError(f"{most} were taken, and none was refused")


async def bodies(greedy: Token, honest: Token) -> None:
    path = "POST /v1/runs"
    lines = [await greedy.hold(path, bytes(BODY * 3 // 4), BODY) for _ in range(3)]
    assert (await answers(lines))[429] == 2
    status, answer = await honest("POST", "/v1/open-transactions", {"session": "x" * 20_000})
    assert (status, answer["title"]) == (400, "invalid-request"), "it was read"


async def open_transactions(greedy: Token, honest: Token) -> None:
    async def open_one() -> tuple[int, Any]:
        # On a slow machine the first ones would end before the last ones come.
        return await greedy("POST", "/v1/open-transactions", {"lease": 600})

    refusal = await repeated(open_one, 1_500)
    assert (refusal["title"], refusal["fields"]["client"]) == ("share-used-up", "client greedy")
    assert "has 1,000 of this node's 1,500 open transactions" in refusal["detail"]
    assert (await honest("POST", "/v1/open-transactions", {}))[0] == 200


async def uploads(greedy: Token, honest: Token) -> None:
    def part() -> str:
        file = staged_of(f"{uuid4()}/0-t/a.parquet", b"PAR1")
        return f"/v1/staged/{file.path}?table=t&size=9&rows=1&digest={file.digest}"

    for _ in range(8):
        await greedy.hold(f"PUT {part()}", b"PA", 9)
    # Of another transaction, and not all of the file.
    assert await honest("PUT", part(), b"PAR") == (200, {"received": 3})


async def event_streams(greedy: Token, honest: Token) -> None:
    path = "GET /dashboard/events"
    taken = await answers([await greedy.hold(path) for _ in range(24)])
    assert taken == {200: 21, 429: 3}
    assert await answers([await honest.hold(path)]) == {200: 1}


async def staging_tables(greedy: Token, honest: Token) -> None:
    place = path_of(schema="s").replace("/tables", "/staging-tables")
    await greedy("POST", f"{API}/schemas", {"name": "s", "catalog_name": "tx"})

    async def stage() -> tuple[int, Any]:
        return await greedy("POST", place, {"name": f"t{uuid4().hex}"})

    refusal = await repeated(stage, 12)
    assert refusal["error"]["code"] == 429
    assert "8 of this node's 12 staged tables" in refusal["message"]
    assert (await honest("POST", place, {"name": "t"}))[0] == 200


async def long_polls(greedy: Token, honest: Token) -> None:
    path = "GET /v1/published?at_least=9&timeout=60"
    found = await answers([await greedy.hold(path) for _ in range(48)])
    assert found == {0: 32, 429: 16}
    assert (await honest("GET", "/v1/tables"))[0] == 200


@pytest.mark.parametrize(
    "attack",
    [bodies, open_transactions, uploads, event_streams, staging_tables, long_polls],
    ids=lambda attack: attack.__name__,
)
def test_a_greedy_token_takes_its_share_and_nothing_else(
    tmp_path: Path, attack: Callable[[Token, Token], Awaitable[None]]
) -> None:
    async def main() -> None:
        limits = {"body_limit": BODY, "connections_limit": 48}
        async with two_tokens(tmp_path, **limits) as (node, greedy, honest):
            node.base.budgets.staged_tables.most = 12
            node.base.budgets.memory.most = BODY * 3 // 2
            await attack(greedy, honest)
            await greedy.release()
            await honest.release()
            # All but what outlives its request comes back.
            budgets = node.base.budgets
            passing = (budgets.memory, budgets.upload_parts, budgets.event_streams)
            await until(lambda: not any(one.used for one in passing))
            await until(lambda: budgets.connections.used <= 2)

    asyncio.run(main())


def test_what_is_added_to_a_transaction_counts_once(tmp_path: Path) -> None:
    """So one addition may be as long as any body; it counts until the transaction ends."""

    async def main() -> None:
        async with two_tokens(tmp_path, body_limit=BODY) as (node, token, _):
            memory = node.base.budgets.memory
            memory.most = BODY * 3 // 2
            _, opened = await token("POST", "/v1/open-transactions", {})
            path = f"/v1/open-transactions/{opened['transaction_id']}"
            columns = [
                {"name": f"c{number}", "type": "bigint", "comment": "x" * 600}
                for number in range(70)
            ]
            create = {"kind": "create_table", "table": "t", "columns": columns}
            body = json.dumps({"operations": [create]})
            assert BODY * 2 // 3 < len(body) < BODY
            status, shown = await token("POST", f"{path}/operations", json.loads(body))
            assert (status, shown.get("size_bytes")) == (200, len(body)), shown
            assert memory.used == len(body)
            status, refusal = await token("POST", f"{path}/operations", json.loads(body))
            assert (status, refusal["title"]) == (429, "share-used-up")
            other = {"operations": [{"kind": "append", "table": "nowhere", "rows": []}]}
            assert (await token("POST", f"{path}/operations", other))[0] == 404
            assert memory.used == len(body)
            assert (await token("DELETE", path))[0] == 204
            assert memory.used == 0

    asyncio.run(main())


def test_large_bodies_of_a_token_wait_for_few_of_another_one(tmp_path: Path) -> None:
    """Nor for a large addition to a transaction whose commit is under way."""
    large = b'{"operations": 7' + b" " * (300 << 10) + b"}"

    async def main() -> None:
        async with two_tokens(tmp_path, missing="B") as (node, greedy, honest):
            status, opened = await greedy("POST", "/v1/open-transactions", {})
            assert status == 200
            path = f"/v1/open-transactions/{opened['transaction_id']}"
            columns = [{"name": "id", "type": "bigint"}]
            table = {"kind": "create_table", "table": "t", "columns": columns}
            assert (await greedy("POST", f"{path}/operations", {"operations": [table]}))[0] == 200
            await greedy.hold(f"POST {path}/commit?timeout=60")
            await until(lambda: node.status()["incoming_runs"] == 1)
            for _ in range(3):
                await greedy.hold(f"POST {path}/operations", large, len(large))
            await until(lambda: node.base.budgets.memory.used >= 3 * len(large))
            async with asyncio.timeout(20):
                status, answer = await honest("POST", "/v1/transactions", large)
            assert (status, answer["title"]) == (400, "invalid-request")

    asyncio.run(main())


def test_turns_of_large_bodies_go_round() -> None:
    async def main() -> None:
        turns, order, gate = _Turns(1), list[str](), asyncio.Event()

        async def decode(name: str) -> None:
            asks.set(name)
            async with turns.turn():
                await gate.wait()
                order.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name in ("greedy",) * 5 + ("honest",) * 2:
                tasks.create_task(decode(name))
            await asyncio.sleep(0)
            gate.set()
        assert order == ["greedy", "honest", "greedy", "honest", "greedy", "greedy", "greedy"]

    asyncio.run(main())


def test_what_a_token_uploads_and_no_transaction_names_has_a_quota_and_expires(
    tmp_path: Path,
) -> None:
    """A finished file without a transaction, and the beginning of another one."""
    content = os.urandom(800)

    async def main() -> None:
        async with two_tokens(tmp_path) as (node, greedy, honest):
            budgets = node.base.budgets
            budgets.upload_bytes.most = 3_000

            async def upload(token: Token, of: str, size: int, sent: int) -> tuple[int, Any]:
                made = staged_of(f"{of}/0-t/{size}.bin", content[:size], rows=0)
                path = f"/v1/staged/{made.path}?table=t&size={size}&rows=0&digest={made.digest}"
                return await token("PUT", path, content[:sent])

            first, second = str(uuid4()), str(uuid4())
            assert (await upload(greedy, first, 800, 800))[1] == {"received": 800}
            assert (await upload(greedy, first, 800, 800))[1] == {"received": 800}, "it is there"
            assert (await upload(greedy, second, 700, 70))[1] == {"received": 70}
            assert (await upload(greedy, second, 700, 70))[1] == {"received": 70}
            (used,) = (
                value
                for labels, value in samples(node)["budget_used"].items()
                if ("budget", budgets.upload_bytes.what) in labels
            )
            assert used == 1_500
            status, answer = await upload(greedy, second, 600, 6)
            assert (status, answer["title"]) == (429, "share-used-up")
            assert (await upload(honest, str(uuid4()), 600, 600))[0] == 200
            # Nobody goes on with them after this.
            budgets.uploads._expiry_s = 0.05
            for of in (first, second):
                assert (await upload(greedy, of, 10, 0))[0] == 200
            await until(lambda: budgets.upload_bytes.used == 600)
            budgets.uploads._expiry_s = 3_600.0
            assert (await upload(greedy, second, 600, 6))[0] == 200
            given_up = budgets.take_given_up()
            assert given_up == {first, second}
            sweep = PayloadExpiry(node.payloads).remove_unnamed
            assert sweep(node.base.journal, 0, 3_600.0, given_up=given_up) == 0, (
                "a submit may be under way for so long"
            )
            node.payloads.last_use = LastUse()
            assert sweep(node.base.journal, 0, 3_600.0, given_up=given_up) == 1
            assert not (node.payloads.root / first).exists()
            assert len(list((node.payloads.root / ".incoming").iterdir())) == 4
            assert sweep(node.base.journal, 0, 3_600.0, unfinished_s=-60.0) == 4

    asyncio.run(main())


def test_all_streams_have_one_digest_a_second_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    monkeypatch.setattr(dashboard_routes, "_LOOK_S", 0.2)

    async def main() -> None:
        nonlocal made
        async with two_tokens(tmp_path) as (node, greedy, _):
            status = node.status

            def counted(*args: Any, **more: Any) -> Any:
                nonlocal made
                made += 1
                return status(*args, **more)

            node.status = counted  # type: ignore[method-assign]
            loop = asyncio.get_running_loop()
            began = loop.time()
            lines = [await greedy.hold("GET /dashboard/events") for _ in range(8)]
            for line in lines:
                for _ in range(6):  # the beginning, and events or signs of life
                    await line.reader.readuntil(b"\n\n")
            lasted = loop.time() - began
            assert made <= lasted / 0.2 + 2

    asyncio.run(main())
