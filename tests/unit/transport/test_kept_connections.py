"""Connections to peers: kept, given up after silence, and told apart when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sparktxlog.transport import kept_connections
from sparktxlog.transport.kept_connections import KeptConnections, Patience, Received

#: What a server does with one connection after the other.
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nX-Txlog-Boot: 7\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Bench:
    """A server that does as it is told, and counts its connections."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = KeptConnections()
        self.opened = 0
        self.url = ""

    async def ask(self, body: bytes = b"", patience: Patience | None = None) -> Received:
        return await self.connections.request(
            "POST",
            self.url,
            "/x?y=1",
            headers={"x-txlog-node": "A"},
            body=body,
            patience=patience or Patience(),
            tls={},
        )

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    def run(self, act: Callable[[], Awaitable[Any]]) -> None:
        async def main() -> None:
            server = await asyncio.start_server(self._take, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                await asyncio.wait_for(act(), 20)
            finally:
                await self.connections.close()
                server.close()

        asyncio.run(main())


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
    return head, await reader.readexactly(size)


def answering(*answers: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await request_of(reader)
            except asyncio.IncompleteReadError:
                return
            for answer in answers:
                writer.write(answer)
                await asyncio.sleep(0.01)  # each is a packet

    return serve


def test_one_connection_serves_one_request_after_the_other_and_several_at_once() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await request_of(reader))
            writer.write(OK)

    bench = Bench(serve)

    async def act() -> None:
        for _ in range(3):
            assert await bench.ask(b"body") == Received(
                200, {"x-txlog-boot": "7", "content-length": "2"}, b"ok"
            )
        assert bench.opened == 1
        head, body = seen[0]
        assert head.startswith(b"POST /x?y=1 HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"\r\nx-txlog-node: A\r\n" in head
        assert body == b"body"
        await asyncio.gather(bench.ask(), bench.ask())
        assert bench.opened == 2

    bench.run(act)


@pytest.mark.parametrize(
    ("answers", "body"),
    [
        ([b"HTTP/1.1 102 Processing\r\n\r\n", OK], b"ok"),
        ([OK[:20], OK[20:-1], OK[-1:]], b"ok"),
        ([CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"], b"abcde"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
def test_an_answer_may_come_in_parts(answers: list[bytes], body: bytes) -> None:
    bench = Bench(answering(*answers))

    async def act() -> None:
        for _ in range(2):
            assert (await bench.ask()).body == body
        assert bench.opened == 1

    bench.run(act)


def test_a_connection_is_not_used_again_if_the_peer_closes_it_or_it_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing = OK.replace(b"content", b"connection: close\r\ncontent")
    bench = Bench(answering(closing))

    async def act() -> None:
        assert (await bench.ask()).body == b"ok"
        assert (await bench.ask()).body == b"ok"
        assert bench.opened == 2

    bench.run(act)
    bench = Bench(answering(OK))

    async def old() -> None:
        await bench.ask()
        monkeypatch.setattr(kept_connections, "_KEPT_S", 0.0)
        await bench.ask()
        assert bench.opened == 2

    bench.run(old)


def test_only_silence_ends_a_request() -> None:
    patience = Patience(silence_s=0.3)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for part in (b"HTTP/1.1 102 Processing\r\n\r\n", OK[:20], OK[20:50], OK[50:]):
            await asyncio.sleep(0.15)
            writer.write(part)
        await asyncio.sleep(5)

    bench = Bench(slow)

    async def act() -> None:
        assert (await bench.ask(patience=patience)).body == b"ok"
        with pytest.raises(TimeoutError):
            await bench.ask(patience=patience)  # this connection says nothing more
        with pytest.raises(TimeoutError):
            await bench.ask(patience=Patience(total_s=0.3))

    bench.run(act)


def test_failures_are_told_apart() -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await asyncio.sleep(5)

    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK[:-1])

    for serve, error, match in (
        (garbage, OSError, "no HTTP answer"),
        (breaks, ConnectionResetError, "closed before"),
    ):
        bench = Bench(serve)

        async def fails(
            bench: Bench = bench, error: type[OSError] = error, match: str = match
        ) -> None:
            with pytest.raises(error, match=match):
                await bench.ask()

        bench.run(fails)

    bench = Bench(answering(OK))

    async def refused() -> None:
        bench.url = "http://127.0.0.1:1"
        with pytest.raises(ConnectionRefusedError):
            await bench.ask()

    bench.run(refused)


def test_who_gives_up_leaves_no_connection_with_half_an_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK[:-1])
        await asyncio.sleep(5)

    bench = Bench(serve)

    async def act() -> None:
        asked = asyncio.create_task(bench.ask())
        await asyncio.sleep(0.1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        with pytest.raises(TimeoutError):
            await bench.ask(patience=Patience(total_s=0.2))
        assert bench.opened == 2

    bench.run(act)
