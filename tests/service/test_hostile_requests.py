"""Requests that would take a node's time, memory or places: each is refused, and the node goes on.

One node stands behind the real server; what is sent to it goes through plain sockets.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message
from tests.service.local_nodes import SECRET, config_of, serving, until
from tests.service.test_access import greeting_of_b
from tests.service.test_peer_routes import Stranger
from tests.support.node_processes import run_payload

from sparktxlog.codec import wire
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections import bodies, listener, places
from sparktxlog.transport.signing import DIGEST, Signer

HEAD = listener.HEAD_BYTES
GET = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST = b"POST /v1/transactions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


class Line:
    """A connection to the node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, Any]]:
        await self.send(data)
        status, _, body = await self.answer()
        return status, json.loads(body) if body.startswith(b"{") else {}

    async def ended(self) -> bytes:
        """Return what comes before the node closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 20)
        except ConnectionError:
            return b""


Connect = Callable[[], Awaitable[Line]]


@asynccontextmanager
async def node(directory: Path, **settings: Any) -> AsyncIterator[tuple[Node, Connect]]:
    """Run node A, whose peer B does not run; give it and what opens a connection to it."""
    place = socket.create_server(("127.0.0.1", 0))
    port = place.getsockname()[1]
    lines: list[Line] = []

    async def connect() -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", port))
        lines.append(line)
        return line

    config = config_of(directory, "A", {"A": port, "B": 1}, **settings)
    async with serving(config, place) as running:
        running.membership.joining._knows_log = True  # as after B accepted it: it reads requests
        try:
            yield running, connect
        finally:
            for line in lines:
                line.writer.close()


def test_heads_have_a_limit_however_they_are_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            exact = GET + b"x: " + b"y" * (HEAD - len(GET) - 7) + b"\r\n\r\n"
            assert len(exact) == HEAD
            assert (await (await connect()).ask(exact))[0] == 200
            for head in (
                GET + b"x: " + b"y" * HEAD,
                GET + b"x: y\r\n" * (HEAD // 6),
                GET + b"x" * HEAD,
                b"GET /" + b"x" * HEAD,
                b"GET /livez?" + b"x" * HEAD,
            ):
                for sent in (head, head + b" " * HEAD):
                    status, problem = await (await connect()).ask(sent)
                    assert (status, problem["title"]) == (431, "head-too-long")
            slow = await connect()
            await slow.send(GET + b"x: ")
            for _ in range(HEAD // 1000 + 1):
                await slow.send(b"y" * 1000)
            assert b"431" in await slow.ended()

    asyncio.run(main())


def test_what_stands_between_the_bytes_of_a_body_has_a_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path, client_token="a token of the clients") as (_, connect):
            chunked = POST + b"transfer-encoding: chunked\r\n\r\n"
            for begin, rest in (
                (b"5\r\n12345\r\n0\r\n", b"x: " + b"y" * 3 * HEAD),  # trailers
                (b"5\r\n12345\r\n0\r\n", b"x: y\r\n" * HEAD),
                (b"5;x=", b"y" * 3 * HEAD),  # an extension of a chunk
            ):
                line = await connect()
                await line.send(chunked + begin)
                await line.send(rest)
                await line.ended()  # it is closed at all
            # Trailers are no headers: what they say comes too late to be believed.
            line = await connect()
            sent = chunked + b"0\r\nauthorization: Bearer a token of the clients\r\n\r\n"
            assert (await line.ask(sent))[0] == 401

    asyncio.run(main())


def test_many_requests_ahead_of_their_answers_end_a_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            few = await connect()
            await few.send((GET + b"\r\n") * 10)
            for _ in range(10):
                assert (await few.answer())[0] == 200
            many = await connect()
            await many.send(
                b"GET /v1/published?at_least=9&timeout=9 HTTP/1.1\r\n\r\n" + (GET + b"\r\n") * 1000
            )
            assert await many.ended() == b""

    asyncio.run(main())


def test_who_sends_nothing_more_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.1)
    monkeypatch.setattr(listener, "SILENCE_S", 0.1)

    async def main() -> None:
        async with node(tmp_path) as (running, connect):
            silent, half, later, body = [await connect() for _ in range(4)]
            await half.send(GET)
            assert (await later.ask(GET + b"\r\n"))[0] == 200
            await later.send(b"GET /li")
            await body.send(POST + b"content-length: 100\r\n\r\n{")
            assert b"slow-request" in await silent.ended()
            assert b"slow-request" in await half.ended()
            assert b"slow-request" in await later.ended()
            assert await body.ended() == b""
            waiting = await connect()  # the node takes its time, not the client
            target = b"GET /v1/published?at_least=9&timeout=1.5 HTTP/1.1\r\n\r\n"
            assert (await waiting.ask(target))[0] == 200
            assert not running.failed.done()

    asyncio.run(main())


def test_clients_cannot_take_the_places_of_peers(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path, connections_limit=16) as (a, connect):
            held = [await connect() for _ in range(10)]  # two thirds
            for line in held:
                await line.send(b"GET /v1/published?at_least=9&timeout=60 HTTP/1.1\r\n\r\n")
            refused = await connect()
            status, problem = await refused.ask(b"GET /v1/tables HTTP/1.1\r\n\r\n")
            assert (status, problem["title"]) == (429, "share-used-up")
            assert "connections-limit" in problem["hint"]
            assert (await (await connect()).ask(GET + b"\r\n"))[0] == 200, "its health is shown"
            async with Stranger(a, "B") as peer:
                hello = greeting_of_b(tmp_path, a.config.listen[1])
                assert (await peer.greet(hello))[0] == 200
            # Who claims to be a peer and is none keeps no place.
            liars = [await connect() for _ in range(places.PEER_PLACES)]
            for line in liars:
                await line.send(
                    b"POST /peer/v1/posts HTTP/1.1\r\nx-txlog-node: X\r\ncontent-length: 9\r\n\r\n"
                )
                assert b"forbidden-peer" in await line.ended()
            # A place that is free again, or held by nobody's request, is given away.
            held.pop().writer.close()
            kept = await connect()
            asked = b"GET /v1/tables HTTP/1.1\r\n\r\n"
            while (await kept.ask(asked))[0] != 200:
                kept = await connect()
            assert (await (await connect()).ask(asked))[0] == 200
            assert await kept.ended() == b""

    asyncio.run(main())


def test_connections_that_say_nothing_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 24)

    async def main() -> None:
        async with node(tmp_path, connections_limit=16) as (_, connect):
            silent = [await connect() for _ in range(40)]
            assert (await (await connect()).ask(GET + b"\r\n"))[0] == 200
            for line in silent[:16]:
                assert await line.ended() == b""
            assert (await silent[-1].ask(GET + b"\r\n"))[0] == 200

    asyncio.run(main())


def test_nobody_takes_a_place_of_peers_by_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers hold bodies of unknown and known paths of peers open; the peer goes on."""
    monkeypatch.setattr(places, "PEER_PLACES", 4)

    async def main() -> None:
        async with node(tmp_path) as (a, connect), Stranger(a, "B") as peer:
            hello = greeting_of_b(tmp_path, a.config.listen[1])
            assert (await peer.greet(hello))[0] == 200
            liars = [await connect() for _ in range(128)]
            for number, line in enumerate(liars):
                path = (b"nothing", b"v1/posts", b"v1/hello")[number % 3]
                head = b"POST /peer/%s HTTP/1.1\r\ncontent-length: 99\r\n\r\n{" % path
                await line.send(head)
            for line in liars[:3]:
                assert (await line.answer())[0] in (401, 403, 404)
            # On the connection that it had, and on new ones.
            for _ in range(6):
                assert (await peer.greet(hello))[0] == 200
            assert (await (await connect()).ask(b"GET /v1/tables HTTP/1.1\r\n\r\n"))[0] == 200

    asyncio.run(main())


def test_a_body_that_nobody_reads_is_thrown_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "DRAIN_S", 0.1)

    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            line = await connect()
            await line.send(b"POST /v1/nothing HTTP/1.1\r\ncontent-length: 9\r\n\r\n{")
            assert (await line.answer())[0] == 404
            assert await line.ended() == b""
            # The rest of a body that comes in time leaves the connection as it was.
            line = await connect()
            sent = b"POST /v1/nothing HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
            assert [(await line.ask(sent))[0] for _ in range(3)] == [404, 404, 404]

    asyncio.run(main())


def test_a_body_that_trickles_ends_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "SILENCE_S", 0.5)

    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            slow = await connect()
            await slow.send(POST + b"content-length: 1000\r\n\r\n")

            async def trickle() -> None:
                while True:
                    await slow.send(b" ")
                    await asyncio.sleep(0.05)  # never silent

            sending = asyncio.create_task(trickle())
            assert await slow.ended() == b""
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(main())


def test_bodies_have_one_budget(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path, body_limit=65_536) as (a, connect):
            a.base.budgets.memory.most = 98_304
            lines = [await connect() for _ in range(3)]
            for line in lines[:2]:
                await line.send(POST + b"content-length: 45000\r\n\r\n" + b" " * 30_000)
            await asyncio.sleep(0.1)  # two halves of bodies are in the node's memory
            status, problem = await lines[2].ask(
                POST + b"content-length: 20000\r\n\r\n" + b" " * 20_000
            )
            assert (status, problem["title"]) == (429, "share-used-up")
            assert "'anybody' has 60,000 of" in problem["detail"]
            lines[0].writer.close()
            for _ in range(200):
                status, _ = await lines[2].ask(
                    POST + b"content-length: 20000\r\n\r\n" + b" " * 20_000
                )
                if status != 429:
                    break
                await asyncio.sleep(0.01)
            assert status == 400
            status, problem = await lines[1].ask(b" " * 15_000)
            assert (status, problem["title"]) == (400, "invalid-request")
            status, _ = await (await connect()).ask(
                POST + b"content-length: 65537\r\n\r\n" + b" " * 65_537
            )
            assert status == 413

    asyncio.run(main())


def test_all_that_was_taken_of_the_budget_comes_back() -> None:
    budget = Budget("bytes for bodies", 1500, "")
    reader = bodies.Bodies(1000, budget)

    def sent(*parts: bytes) -> Request:
        left = list(parts)

        async def receive() -> Message:
            part = left.pop(0) if left else b""
            if part == b"gone":
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        return Request({"type": "http", "headers": []}, receive)

    async def main() -> None:
        for parts in ((b"x" * 1000,), (b"x" * 900, b"x" * 900), (b"x" * 500, b"gone"), ()):
            try:
                assert await reader.read(sent(*parts)) == b"".join(parts)
            except (ClientDisconnect, bodies.OversizeError):
                assert len(parts) == 2
            assert budget.used == 0

    asyncio.run(main())


def test_a_body_that_no_peer_signed_is_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as (a, connect), Stranger(a, "B") as peer:
            assert (await peer.greet(greeting_of_b(tmp_path, a.config.listen[1])))[0] == 200
            path, body = "/peer/v1/posts", wire.encode(wire.Envelope())
            liar = Signer("not the secret of it", "B", peer.signer.boot)
            older = peer.headers(path, body)
            del older[DIGEST]
            for headers in (
                {"x-txlog-node": "X"},
                {"x-txlog-node": "B"},
                liar.headers("POST", path, body, peer.to),
                older,
                Signer(SECRET, "B", "x").headers("POST", path, body, peer.to),
            ):
                line = await connect()
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                # 60 MiB are announced, and nothing of them comes before the answer.
                await line.send(
                    f"POST {path} HTTP/1.1\r\n{lines}content-length: 62914560\r\n\r\n".encode()
                )
                status, _, _ = await asyncio.wait_for(line.answer(), 20)
                assert status in (401, 403, 409)
            status, problem = await peer.send(path, b"another body", peer.headers(path, body))
            assert (status, problem["title"]) == (401, "unauthorized")
            assert "differs from the one that it signed" in problem["detail"]
            assert (await peer.send(path, body))[0] == 204

    asyncio.run(main())


def test_a_page_changes_nothing(tmp_path: Path) -> None:
    """What a page in a browser may send to a node that asks for no token."""
    table = {"kind": "create_table", "table": "t", "columns": [{"name": "id", "type": "bigint"}]}
    body = json.dumps({"level": "accepted", "operations": [table]}).encode()

    async def main() -> None:
        async with node(tmp_path) as (a, connect):
            own = f"127.0.0.1:{a.config.listen[1]}"

            async def submit(host: str = own, **headers: str) -> tuple[int, Any]:
                lines = [f"host: {host}", f"content-length: {len(body)}"]
                lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
                head = "\r\n".join(["POST /v1/transactions HTTP/1.1", *lines])
                status, problem = await (await connect()).ask(f"{head}\r\n\r\n".encode() + body)
                return status, problem.get("title")

            json_type = "application/json"
            for simple in ("text/plain", "text/plain;charset=UTF-8", "multipart/form-data; x=y"):
                assert await submit(content_type=simple) == (415, "unsupported-type")
            assert await submit() == (415, "unsupported-type")
            for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
                found = await submit(content_type=json_type, origin=origin)
                assert found == (403, "foreign-page")
            found = await submit("evil.example", content_type=json_type)
            assert found == (403, "foreign-page")
            assert a.base.master.status().incoming_runs == 0
            found = await submit(content_type=json_type, origin=f"http://{own}")
            assert found[1] in (None, "not-a-member"), found  # it is let in; its peer B is away

    asyncio.run(main())


def test_a_refused_request_leaves_one_line_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with node(tmp_path) as (a, connect), Stranger(a, "B") as peer:
            assert (await peer.greet(greeting_of_b(tmp_path, a.config.listen[1])))[0] == 200
            # What the node says without a request is said: B is not there.
            await until(lambda: a.base.links["B"].reason)

            def lines() -> int:
                """Return the lines of the log or of the audit, whichever are more."""
                a.audit.close()  # it says a second later what it counted
                said = capfd.readouterr().out.splitlines()
                audited = sum("] audit " in line for line in said)
                return max(len(caplog.records) + len(said) - audited, audited)

            for digits in (19, 4_301, 60_000):
                for path in ("/peer/v1/queue/" + "9" * digits, f"/peer/v1/runs/A/1/{'9' * digits}"):
                    caplog.clear()
                    lines()
                    assert (await peer.send(path, method="GET"))[0] == 404
                    assert lines() <= 1
            head = b"host: 127.0.0.1\r\nx-txlog-node: B\r\n"
            for sent in (
                b"no HTTP at all\r\n\r\n",
                b"GET /livez HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
                b"POST /peer/v1/hello HTTP/1.1\r\n" + head + b"content-length: 9\r\n\r\n1",
                POST + b"content-length: 9\r\n\r\n1",
                b"GET /%ff%00 HTTP/1.1\r\n\r\n",
                b"CONNECT a:1 HTTP/1.1\r\n\r\n",
            ):
                caplog.clear()
                lines()
                line = await connect()
                await line.send(sent)
                line.writer.write_eof()
                await line.reader.read(1000)
                line.writer.close()
                await (await connect()).ask(GET + b"\r\n")
                assert lines() <= 1, sent

    asyncio.run(main())


def test_what_the_fuzzer_found(tmp_path: Path) -> None:
    """Each was a 500: text that is no UTF-8 in a run's manifest, JSON nested too deep."""
    payload = run_payload(3, 1)
    at = payload.index(b"digest") + 20
    run = payload[:at] + b"\xb0" + payload[at + 1 :]
    deep = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    kinds = {"/v1/runs": "application/vnd.sparktxlog.run"}

    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            for line, body in (
                ("POST /v1/runs", run),
                ("POST /v1/transactions", deep),
                ("PATCH /v1/settings", deep),
                ("POST /v1/worker/reports", deep),
                ("POST /v1/peers", deep),
                ("POST /v1/worker/transfers", deep),
            ):
                kind = kinds.get(line.split()[1], "application/json")
                head = f"{line} HTTP/1.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
                status, problem = await (await connect()).ask(f"{head}\r\n\r\n".encode() + body)
                assert status in (400, 422), (line, problem)

    asyncio.run(main())


@pytest.mark.parametrize("unit", ["{},", "[],", "0,"])
def test_json_that_would_fill_the_memory_is_not_decoded(tmp_path: Path, unit: str) -> None:
    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            rows = unit * (1_200_000 if unit == "0," else 300_000)
            text = '{"operations":[{"kind":"append","table":"t","rows":[' + rows + "1]}]}"
            line = await connect()
            status, problem = await line.ask(
                POST + f"content-length: {len(text)}\r\n\r\n{text}".encode()
            )
            assert (status, problem["title"]) == (413, "oversize")

    asyncio.run(main())


def test_a_limit_of_files_that_is_too_low_takes_places_from_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(256, 900)]
    monkeypatch.setattr(listener.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(listener.resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert listener.client_places(1024) == 900 - 848
    assert limits[-1] == (900, 900)
    limits[:] = [(1024, 1 << 20)]
    assert listener.client_places(1024) == 1024
    assert limits[-1] == (65_536, 1 << 20)
    limits[:] = [(64, 64)]
    assert listener.client_places(1024) == 16
