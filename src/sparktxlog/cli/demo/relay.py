"""Links between sites that can be cut: a TCP relay in front of each node.

A node announces its relay as `master-url` and listens elsewhere.  Peers keep connections and send
one node's requests on each, so the first request's head says who is talking (`x-txlog-node`).  A
cut way either refuses, as a router does: its open connections break, in both directions.  Or it
loses what is sent without a word, as a dead cable; the other direction may go on.

All relays are one process, which takes lines of JSON on stdin (`{"do": "cut", "node": "C"}`),
answers each with a line, and ends with its stdin unless it was told to stay.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_SENDER = re.compile(rb"\r\nx-txlog-node:[ \t]*([A-Za-z0-9_-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_MAX_HEAD_BYTES = 65_536
_CHUNK_BYTES = 1 << 16

#: (from, to).
Way = tuple[str, str]


@dataclass(slots=True, eq=False)
class _Link:
    """An open connection to a node's relay."""

    task: asyncio.Task[None]
    owner: str
    #: Empty = not known yet.
    sender: str = ""
    #: Something of it was lost: it cannot be continued.
    torn: bool = False

    @property
    def ways(self) -> set[Way]:
        return {(self.sender, self.owner), (self.owner, self.sender)}


@dataclass(slots=True)
class _Relay:
    """One node's front door."""

    owner: str
    target_port: int
    port: int = 0
    open: set[_Link] = field(default_factory=set)


class RelayNetwork:
    """The relays of all nodes."""

    def __init__(self, target_ports: dict[str, int]) -> None:
        self.relays = {
            name: _Relay(owner=name, target_port=port) for name, port in target_ports.items()
        }
        #: Bytes that came to each node from the others, answers included.
        self.received_bytes: defaultdict[str, int] = defaultdict(int)
        self._refused: set[Way] = set()
        self._lost: set[Way] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen for every node on a free port of loopback."""
        for relay in self.relays.values():
            await self._listen(relay)

    def cut(self, node: str) -> None:
        """Break every link from and to `node` and refuse new ones, besides what is cut already."""
        self.refuse({*self._refused, *((node, other) for other in (*self.relays, ""))})

    def refuse(self, ways: Iterable[Way]) -> None:
        """Break connections that use one of these ways in any direction, and refuse new ones."""
        self._change(refused=set(ways))

    def lose(self, ways: Iterable[Way]) -> None:
        """Lose whatever is sent these ways from now on; nobody is told."""
        self._change(lost=set(ways))

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        self._change()

    def _change(self, *, refused: set[Way] | None = None, lost: set[Way] | None = None) -> None:
        self._refused, self._lost = refused or set(), lost or set()
        for link in self._links():
            if link.ways & self._refused or (link.torn and not link.ways & self._lost):
                link.task.cancel()

    def _links(self) -> list[_Link]:
        return [link for relay in self.relays.values() for link in relay.open]

    def close(self) -> None:
        """Stop listening and break all links."""
        for server in self._servers:
            server.close()
        for link in self._links():
            link.task.cancel()

    async def _listen(self, relay: _Relay) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            link = _Link(task, relay.owner)
            relay.open.add(link)
            try:
                await self._carry(relay, link, reader, writer)
            except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
                pass  # a broken link is what this module is for; the task ends here anyhow
            finally:
                relay.open.discard(link)
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        relay.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)

    async def _carry(
        self,
        relay: _Relay,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _SENDER.search(head)
        link.sender = found[1].decode() if found else ""
        there, back = (link.sender, link.owner), (link.owner, link.sender)
        if link.ways & self._refused:
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", relay.target_port)
        try:
            if there in self._lost:
                link.torn = True
            else:
                up_writer.write(head)
                self.received_bytes[relay.owner] += len(head)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, there, reader, up_writer))
                group.create_task(self._pump(link, back, up_reader, writer))
        except* (OSError, EOFError):
            pass  # the other side sees the same: its connection is aborted too
        finally:
            up_writer.transport.abort()

    async def _pump(
        self, link: _Link, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        torn = link.torn  # of this direction; the other one may go on
        while chunk := await reader.read(_CHUNK_BYTES):
            if torn or way in self._lost:
                torn = link.torn = True
                continue
            self.received_bytes[way[1]] += len(chunk)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError("one side has closed")


async def _serve(target_ports: dict[str, int]) -> None:
    network = RelayNetwork(target_ports)
    await network.start()
    _answer({name: relay.port for name, relay in network.relays.items()})
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
        _answer(dict(network.received_bytes))
    if staying:
        await asyncio.Event().wait()
    network.close()


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> None:
    """Run relays for `NODE=PORT` arguments until stdin ends."""
    pairs = (argument.partition("=") for argument in argv)
    asyncio.run(_serve({name: int(port) for name, _, port in pairs}))


if __name__ == "__main__":
    main(sys.argv[1:])
