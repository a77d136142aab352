"""How a node that speaks TLS takes connections, before it is known how each of them speaks."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop
from tests.support.certificates import Authority

from sparktxlog.service.connections.tls_or_http import Entrance


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Tells(asyncio.Protocol):
    """Answers what it gets, and whether that came by TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        secured = self.transport.get_extra_info("ssl_object") is not None
        self.transport.write((b"tls " if secured else b"plain ") + data)


def with_entrance(
    authority: Authority, work: Callable[[int], Awaitable[None]], patience_s: float = 5.0
) -> None:
    """Run a test beside an entrance with two places, and give it the port."""

    async def main() -> None:
        pair, context = authority.issue("A"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            entrance = Entrance(listener, Tells, lambda: context, patience_s=patience_s, places=2)
            entrance.start()
            try:
                await work(listener.getsockname()[1])
            finally:
                await entrance.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def asks(port: int, ca_file: Path | None = None) -> bytes:
    context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"hello")
    answer = await reader.read(100)
    writer.close()
    return answer


def test_the_first_byte_tells(authority: Authority) -> None:
    async def work(port: int) -> None:
        assert await asks(port) == b"plain hello"
        assert await asks(port, authority.ca_file) == b"tls hello"

    with_entrance(authority, work)


def test_silent_connections_are_closed(authority: Authority) -> None:
    async def work(port: int) -> None:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        half, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")  # and nothing more of the handshake
        for reader in (silent, half):
            async with asyncio.timeout(3):
                assert await reader.read(1) == b""

    with_entrance(authority, work, patience_s=0.1)


def test_the_oldest_of_too_many_gives_way(authority: Authority) -> None:
    async def work(port: int) -> None:
        first, _ = await asyncio.open_connection("127.0.0.1", port)
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        async with asyncio.timeout(3):
            assert await first.read(1) == b""
        assert await asks(port, authority.ca_file) == b"tls hello"
        for _, writer in others:
            writer.close()

    with_entrance(authority, work, patience_s=60.0)
