"""Links between sites that can be cut: a TCP relay in front of each node, all in one process.

A node announces its relay as `master-url` and listens elsewhere.  Peers keep connections and send
one node's requests on each, so the head of the first request names the sender (`x-txlog-node`).

The process reads lines of JSON on stdin (`{"do": "cut", "node": "C"}`) and answers each with the
bytes that each node received.  It ends with its stdin unless it was asked to stay.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

_SENDER = re.compile(rb"\r\nx-txlog-node:[ \t]*([A-Za-z0-9_-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_MAX_HEAD_BYTES = 65_536
_CHUNK_BYTES = 1 << 16

#: (from, to).
Way = tuple[str, str]


@dataclass(slots=True, eq=False)
class RelayedLink:
    """An open connection to a node's relay."""

    task: asyncio.Task[None]
    owner: str
    #: Empty = unknown yet.
    sender: str = ""

    @property
    def ways(self) -> set[Way]:
        """Both directions."""
        return {(self.sender, self.owner), (self.owner, self.sender)}


class RelayNetwork:
    """The relays of all nodes.

    Args:
        target_ports: Node → port on which it listens itself.
    """

    def __init__(self, target_ports: dict[str, int]) -> None:
        self._target_ports = target_ports
        #: Node → port of its relay.
        self.ports: dict[str, int] = {}
        #: Bytes that came to each node from the others, answers included.
        self.received_bytes: Counter[str] = Counter()
        self.links: set[RelayedLink] = set()
        self._refused: set[Way] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen for every node on a free port of loopback."""
        for name in self._target_ports:
            server = await asyncio.start_server(
                partial(self._serve, name), "127.0.0.1", 0, limit=_MAX_HEAD_BYTES
            )
            self.ports[name] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    def cut(self, node: str) -> None:
        """Break every link from and to `node` and refuse new ones; other cuts stay."""
        self.refuse({*self._refused, *((node, other) for other in (*self._target_ports, ""))})

    def refuse(self, ways: Iterable[Way]) -> None:
        """Break connections that use one of these ways in any direction, and refuse new ones."""
        self._refused = set(ways)
        for link in self.links:
            if link.ways & self._refused:
                link.task.cancel()

    def heal(self) -> None:
        """Let all nodes reach each other again."""
        self.refuse(())

    def close(self) -> None:
        """Stop listening and break all links."""
        for server in self._servers:
            server.close()
        for link in self.links:
            link.task.cancel()

    async def _serve(
        self, owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = RelayedLink(task, owner)
        self.links.add(link)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = _SENDER.search(head)
            link.sender = found[1].decode() if found else ""
            if not link.ways & self._refused:
                await self._carry(link, head, reader, writer)
        except* (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # links of this module are meant to break; the task ends here
        finally:
            self.links.discard(link)
            writer.transport.abort()

    async def _carry(
        self,
        link: RelayedLink,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        there, back = (link.sender, link.owner), (link.owner, link.sender)
        up_reader, up_writer = await asyncio.open_connection(
            "127.0.0.1", self._target_ports[link.owner]
        )
        try:
            await self.send(there, head, up_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(there, reader, up_writer))
                group.create_task(self._pump(back, up_reader, writer))
        finally:
            up_writer.transport.abort()

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            await self.send(way, chunk, writer)
        raise ConnectionResetError("one side has closed")

    async def send(self, way: Way, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on, and count them."""
        self.received_bytes[way[1]] += len(chunk)
        writer.write(chunk)
        await writer.drain()


async def _obey(target_ports: dict[str, int]) -> None:
    network = RelayNetwork(target_ports)
    await network.start()
    _answer(network.ports)
    loop = asyncio.get_running_loop()
    staying = False
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        match command["do"]:
            case "cut":
                network.cut(command["node"])
            case "heal":
                network.heal()
            case "stay":
                staying = True
        _answer(network.received_bytes)
    if staying:
        await asyncio.Event().wait()
    network.close()


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_obey(json.loads(sys.argv[1])))
