"""The demo's relays: they carry, count, cut in both directions, and heal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from examples.demo.relay import RelayNetwork

pytestmark = pytest.mark.e2e


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(b"> " + line)
        await writer.drain()
    writer.close()


class Link:
    """A kept connection of one node to another's relay."""

    def __init__(self, network: RelayNetwork, sender: str, receiver: str) -> None:
        self.port = network.ports[receiver]
        self.sender = sender
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def call(self) -> bytes:
        """Send a request; return the first line of what comes back, empty if the link broke."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        try:
            self.writer.write(f"GET / HTTP/1.1\r\nX-TxLog-Node: {self.sender}\r\n\r\n".encode())
            await self.writer.drain()
            lines = [await asyncio.wait_for(self.reader.readline(), 5) for _ in range(3)]
        except (ConnectionError, OSError):
            lines = [b""]
        if not lines[0]:
            self.close()
        return lines[0]

    def close(self) -> None:
        """Drop the connection."""
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None


def run(story: Callable[[RelayNetwork], Awaitable[None]]) -> None:
    """Run a story with three echo nodes behind relays."""

    async def play() -> None:
        servers = [await asyncio.start_server(_echo, "127.0.0.1", 0) for _ in range(3)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        network = RelayNetwork(dict(zip("ABC", ports, strict=True)))
        await network.start()
        try:
            await story(network)
        finally:
            network.close()
            for server in servers:
                server.close()
            await asyncio.sleep(0.05)

    asyncio.run(play())


GOOD = b"> GET / HTTP/1.1\r\n"


def test_a_cut_site_is_cut_in_both_directions_and_healed() -> None:
    async def story(network: RelayNetwork) -> None:
        to_cut, from_cut, other = (Link(network, *pair) for pair in ("AC", "CA", "AB"))
        assert [await link.call() for link in (to_cut, from_cut, other)] == [GOOD] * 3
        network.cut("C")
        assert [await to_cut.call(), await from_cut.call()] == [b"", b""]
        # New connections are refused as well, and the others go on over their old ones.
        assert [await to_cut.call(), await from_cut.call(), await other.call()] == [b"", b"", GOOD]
        network.heal()
        assert [await to_cut.call(), await from_cut.call()] == [GOOD, GOOD]
        for link in (to_cut, from_cut, other):
            link.close()

    run(story)


def test_bytes_are_counted_at_their_receiver() -> None:
    async def story(network: RelayNetwork) -> None:
        link = Link(network, "A", "B")
        assert await link.call() == GOOD
        request = len(b"GET / HTTP/1.1\r\nX-TxLog-Node: A\r\n\r\n")
        assert network.received_bytes["B"] == request
        assert network.received_bytes["A"] == request + 3 * len(b"> ")
        assert network.received_bytes["C"] == 0
        link.close()

    run(story)
