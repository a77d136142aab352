"""A link that lets so many bytes a second through, or none: a relay with small buffers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_PIECE_BYTES = 4096


class SlowLink:
    """Way to one port of loopback; each connection and direction has its rate.

    Args:
        port: Where it leads.
        rate: Bytes a second.
    """

    def __init__(self, port: int, rate: float) -> None:
        self._port = port
        self.rate = rate
        #: Cleared: nothing passes, and nobody is told.
        self.passes = asyncio.Event()
        self.passes.set()
        self.url = ""
        #: Bytes that came out at either end.
        self.carried = 0
        self._open: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Break all connections; new ones are taken."""
        for task in self._open:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        other_writer = None
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, other_writer))
                group.create_task(self._pump(other_reader, writer))
        except* OSError:
            pass
        finally:
            self._open.discard(task)
            for end in (writer, other_writer):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            await asyncio.sleep(len(piece) / self.rate)
            await self.passes.wait()
            writer.write(piece)
            self.carried += len(piece)
            await writer.drain()
        raise ConnectionResetError("one side has closed")


@asynccontextmanager
async def slow_link(port: int, rate: float) -> AsyncIterator[SlowLink]:
    """Give a slow way to a port of loopback."""
    link = SlowLink(port, rate)
    place = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.start_server(link._serve, sock=place, limit=_PIECE_BYTES)
    link.url = f"http://127.0.0.1:{place.getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        link.cut()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*link._open, return_exceptions=True)
