"""Relays that let the bytes of all nodes arrive late, as a long line does; `tc netem` needs root.

Each node announces its relay as its address.  What a peer sends there arrives a delay later, and
so does the answer.  A connection is usable a round trip after it was opened, as over TCP.  Nothing
waits for anything before it: the line has no rate.

The process prints the ports as JSON, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

_PIECE_BYTES = 1 << 16


class DelayedLinks:
    """Relays to nodes, in a process of their own.

    Args:
        ports: Node → port on which it listens itself.
        delay_s: Of one way.
    """

    def __init__(self, ports: Mapping[str, int], delay_s: float) -> None:
        self._command = [
            *(sys.executable, "-m", "benchmarks.delayed_links"),
            *(repr(delay_s), json.dumps(dict(ports))),
        ]
        #: Node → address of its relay.
        self.urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        ports = json.loads(self._process.stdout.readline())
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


class _Relay:
    """The way to one port."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port = port
        self._delay_s = delay_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        usable_at = time.monotonic() + 2 * self._delay_s
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(
            self._carry(reader, back, usable_at), self._carry(there, writer, usable_at)
        )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, usable_at: float
    ) -> None:
        """Carry what comes, each piece a delay later; the end as well."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(_arrive(under_way, writer))
        piece = b"first"
        while piece:
            try:
                piece = await reader.read(_PIECE_BYTES)
            except OSError:
                piece = b""
            leaves = max(time.monotonic(), usable_at)
            under_way.put_nowait((leaves + self._delay_s, piece))
        await arriving


async def _arrive(
    under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
) -> None:
    while True:
        at, piece = await under_way.get()
        if (left := at - time.monotonic()) > 0:
            await asyncio.sleep(left)
        if not piece:
            writer.transport.abort()
            return
        writer.write(piece)


async def _relay(delay_s: float, targets: Mapping[str, int]) -> None:
    ports = {}
    for name, port in targets.items():
        server = await asyncio.start_server(_Relay(port, delay_s).serve, "127.0.0.1", 0)
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # connections under way need no end


if __name__ == "__main__":
    asyncio.run(_relay(float(sys.argv[1]), json.loads(sys.argv[2])))
