"""Writers of commit tables that cost little: they share the processors with the nodes.

A writer has one kept connection, sends bytes that are ready, and reads of an answer what it needs.
What can be staged before the clock runs is staged then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.delta_writer import BEGIN, DELTA, StagedTable, path_of

#: Bytes of a file.
FILE_BYTES = 4_000
#: Seconds between two looks whether a version is placed at another site.
_LOOK_S = 0.001


class Wire:
    """One connection to a node; one request at a time."""

    def __init__(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host, self._reader, self._writer = host, reader, writer

    @classmethod
    async def to(cls, url: str) -> Self:
        """Open a connection."""
        parts = urlsplit(url)
        return cls(parts.netloc, *await asyncio.open_connection(parts.hostname, parts.port))

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}"
        head += "\r\nContent-Type: application/json"
        return f"{head}\r\n\r\n".encode() + body

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body of its answer."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        at = head.find(b"content-length:")
        size = 0 if at < 0 else int(head[at + 15 : head.index(b"\r\n", at)])
        return int(head[9:12]), await self._reader.readexactly(size)

    async def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON of an answer, which has to be a good one; wait until a node is ready."""
        request = self.request(method, path, b"" if body is None else json.dumps(body).encode())
        status, answer = await self.send(request)
        while status == 503:  # a peer has not accepted it yet
            await asyncio.sleep(_LOOK_S)
            status, answer = await self.send(request)
        if status != 200:
            raise RuntimeError(f"{status}: {answer.decode()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@dataclass(slots=True)
class _Attempt:
    """A request that commits a version."""

    version: int
    request: bytes


class CommitWriter:
    """Commits to one table at one node.  **After calling** `at` or `of_new_table`: `close`."""

    def __init__(self, wire: Wire, table: StagedTable) -> None:
        self._wire, self._table = wire, table
        self._name = f"t{table.table_id[:8]}"
        self._load = wire.request("GET", path_of(self._name))
        self._ready: deque[_Attempt] = deque()
        self.version = 0
        self.commits = self.lost = 0
        self.latencies: list[float] = []

    @classmethod
    async def of_new_table(cls, url: str) -> Self:
        """Create a table."""
        wire = await Wire.to(url)
        path = f"{DELTA}/catalogs/tx/schemas/default/staging-tables"
        writer = cls(wire, StagedTable.of(await wire.ask("POST", path, {"name": "staged"})))
        writer._table.write_first()
        await wire.ask("POST", path_of(), writer._table.creation(writer._name))
        return writer

    async def at(self, url: str) -> CommitWriter:
        """Return a writer of the same table at another site, or this one, once it is there."""
        wire = await Wire.to(url)
        while True:
            status, answer = await wire.send(self._load)
            if status == 200:
                break
            await asyncio.sleep(_LOOK_S)
        location = json.loads(answer)["metadata"]["location"]
        directory = Path(location.removeprefix("file:"))
        return CommitWriter(wire, replace(self._table, directory=directory, location=location))

    def close(self) -> None:
        """Close its connection."""
        self._wire.close()

    def begin(self) -> None:
        """Count from now on."""
        self.commits = self.lost = 0
        self.latencies = []

    def prepare(self, number: int) -> None:
        """Stage a commit for each of the next versions, before somebody measures.

        Those of versions that others take meanwhile are left out.
        """
        first = self.version + 1
        self._ready.extend(self._attempt(v, self._add()) for v in range(first, first + number))

    def _add(self) -> dict[str, Any]:
        return self._table.add(bytes(FILE_BYTES))

    def _attempt(self, version: int, add: dict[str, Any]) -> _Attempt:
        body = self._table.update(self._table.stage(version, add, timestamp=BEGIN + version))
        request = self._wire.request("POST", path_of(self._name), json.dumps(body).encode())
        return _Attempt(version, request)

    async def commit(self) -> None:
        """Commit once, however often that takes."""
        begin, add = time.perf_counter(), None
        while True:
            while self._ready and self._ready[0].version <= self.version:
                self._ready.popleft()
            if self._ready:
                attempt = self._ready.popleft()
            else:
                add = add or self._add()
                attempt = self._attempt(self.version + 1, add)
            status, answer = await self._wire.send(attempt.request)
            if status == 200:
                self.version = attempt.version
                break
            if status != 409:
                raise RuntimeError(f"{status}: {answer.decode()}")
            self.lost += 1
            self.version = await self.newest()
        self.commits += 1
        self.latencies.append(time.perf_counter() - begin)

    async def commit_times(self, number: int) -> None:
        """Commit so many times."""
        for _ in range(number):
            await self.commit()

    async def commit_until(self, end: float) -> None:
        """Commit until a time of `perf_counter`."""
        while time.perf_counter() < end:
            await self.commit()

    async def newest(self) -> int:
        """Return the newest version that the node shows."""
        status, answer = await self._wire.send(self._load)
        if status != 200:
            raise RuntimeError(f"{status}: {answer.decode()}")
        return int(json.loads(answer)["latest-table-version"])

    async def visible(self, version: int) -> None:
        """Wait until the node shows a version; who asks too early waits at the directory."""
        published = self._table.published(version)
        while not published.exists():
            await asyncio.sleep(_LOOK_S)
        while await self.newest() < version:
            await asyncio.sleep(_LOOK_S)
