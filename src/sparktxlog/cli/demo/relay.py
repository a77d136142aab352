"""Links between sites that can be cut: a TCP relay in front of each node.

A node announces its relay as `master-url` and listens elsewhere.  Peers keep connections and send
one node's requests on each, so the first request's head says who is talking (`x-txlog-node`).  A
cut pair is refused in both directions and its open connections are broken, as by a dead cable.

All relays are one process, which takes lines of JSON on stdin (`{"do": "cut", "node": "C"}`),
answers each with a line, and ends with its stdin unless it was told to stay.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

_SENDER = re.compile(rb"\r\nx-txlog-node:[ \t]*([A-Za-z0-9_-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_MAX_HEAD_BYTES = 65_536
_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class _Relay:
    """One node's front door."""

    owner: str
    target_port: int
    port: int = 0
    #: Open connections and whose they are; empty = not known yet.
    open: dict[asyncio.Task[None], str] = field(default_factory=dict)


class RelayNetwork:
    """The relays of all nodes."""

    def __init__(self, target_ports: dict[str, int]) -> None:
        self.relays = {
            name: _Relay(owner=name, target_port=port) for name, port in target_ports.items()
        }
        #: Bytes that came to each node from the others, answers included.
        self.received_bytes: defaultdict[str, int] = defaultdict(int)
        self._cut: set[str] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen for every node on a free port of loopback."""
        for relay in self.relays.values():
            await self._listen(relay)

    def cut(self, node: str) -> None:
        """Break every link from and to `node` and refuse new ones."""
        self._cut.add(node)
        for relay in self.relays.values():
            for task, sender in relay.open.items():
                if node in (relay.owner, sender):
                    task.cancel()

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        self._cut.clear()

    def close(self) -> None:
        """Stop listening and break all links."""
        for server in self._servers:
            server.close()
        for relay in self.relays.values():
            for task in relay.open:
                task.cancel()

    async def _listen(self, relay: _Relay) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            relay.open[task] = ""
            try:
                await self._carry(relay, task, reader, writer)
            except (OSError, EOFError, asyncio.LimitOverrunError):
                pass  # a broken link is what this module is for
            finally:
                relay.open.pop(task, None)
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        relay.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)

    async def _carry(
        self,
        relay: _Relay,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _SENDER.search(head)
        sender = found[1].decode() if found else ""
        relay.open[task] = sender
        if self._cut & {relay.owner, sender}:
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", relay.target_port)
        up_writer.write(head)
        self.received_bytes[relay.owner] += len(head)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, relay.owner))
                group.create_task(self._pump(up_reader, writer, sender))
        except* OSError:
            pass  # the other side sees the same: its connection is aborted too
        finally:
            up_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receiver: str
    ) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            self.received_bytes[receiver] += len(chunk)
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
