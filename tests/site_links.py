"""Links between node processes that can be cut in each direction, without any privilege.

Each node announces a relay as its `master-url` and listens elsewhere; peers name themselves in the
head of the first request of a connection, so the relay knows both ends.  A cut way either breaks
connections, as a router that refuses does, or loses what is sent without a word, as a dead cable.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.node_processes import Cluster

_SENDER = re.compile(rb"\r\nx-txlog-node:[ \t]*([A-Za-z0-9_-]{1,64})[ \t]*\r\n", re.IGNORECASE)
_CHUNK_BYTES = 1 << 16

#: (from, to).
Way = tuple[str, str]


def ways_between(some: str, others: str) -> set[Way]:
    """Return both directions of all links between two groups of nodes."""
    return {way for a in some for b in others for way in ((a, b), (b, a))}


@dataclass(slots=True, eq=False)
class _Connection:
    task: asyncio.Task[None]
    owner: str
    sender: str = ""
    #: Something of it was lost: it cannot be continued.
    torn: bool = False

    def uses(self, ways: set[Way]) -> bool:
        return bool({(self.sender, self.owner), (self.owner, self.sender)} & ways)


class SiteLinks:
    """The relays of all nodes, on an event loop in a thread of their own."""

    def __init__(self, target_ports: dict[str, int]) -> None:
        self._targets = target_ports
        self._lost: set[Way] = set()
        self._refused: set[Way] = set()
        self._open: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        #: Public port of each node.
        self.ports: dict[str, int] = self._on_loop(self._listen())

    def lose(self, ways: Iterable[Way]) -> None:
        """Lose whatever is sent these ways from now on; nobody is told."""
        self._on_loop(self._change(lost=set(ways)))

    def refuse(self, ways: Iterable[Way]) -> None:
        """Break connections that use one of these ways, and refuse new ones."""
        self._on_loop(self._change(refused=set(ways)))

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        self._on_loop(self._change())

    def close(self) -> None:
        """Stop listening and break all links."""
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> dict[str, int]:
        ports = {}
        for name in self._targets:
            server = await asyncio.start_server(partial(self._serve, name), "127.0.0.1", 0)
            self._servers.append(server)
            ports[name] = server.sockets[0].getsockname()[1]
        return ports

    async def _change(self, lost: set[Way] | None = None, refused: set[Way] | None = None) -> None:
        self._lost, self._refused = lost or set(), refused or set()
        for link in self._open:
            if link.uses(self._refused) or (link.torn and not link.uses(self._lost)):
                link.task.cancel()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [link.task for link in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Connection(task, owner)
        self._open.add(link)
        try:
            await self._carry(link, reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # a broken link is what this module is for
        finally:
            self._open.discard(link)
            writer.transport.abort()

    async def _carry(
        self, link: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _SENDER.search(head)
        link.sender = found[1].decode() if found else ""
        there, back = (link.sender, link.owner), (link.owner, link.sender)
        if {there, back} & self._refused:
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._targets[link.owner])
        try:
            if there in self._lost:
                link.torn = True
            else:
                up_writer.write(head)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, there, reader, up_writer))
                group.create_task(self._pump(link, back, up_reader, writer))
        except* (OSError, EOFError):
            pass  # the other side sees the same: its connection is aborted too
        finally:
            up_writer.transport.abort()

    async def _pump(
        self,
        link: _Connection,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        torn = link.torn
        while chunk := await reader.read(_CHUNK_BYTES):
            if torn or way in self._lost:
                torn = link.torn = True
                continue
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError("one side has closed")


class LinkedCluster(Cluster):
    """Node processes that reach each other through `links` only; clients reach them directly."""

    links: SiteLinks

    def start(self) -> None:
        """Start the relays, all nodes, and wait until all links are up."""
        self.links = SiteLinks(self.ports)
        for name, node in self.nodes.items():
            others = {other: port for other, port in self.links.ports.items() if other != name}
            node.write_config(self.links.ports[name], others)
            listen = f'listen = "127.0.0.1:{self.ports[name]}"\n'
            node.config.write_text(listen + node.config.read_text())
        super().start()

    def stop(self) -> None:
        """Stop all nodes and the relays."""
        if hasattr(self, "links"):
            self.links.heal()
        super().stop()
        if hasattr(self, "links"):
            self.links.close()
