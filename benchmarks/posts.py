"""Small commits on one node: single POSTs to `accepted` by 64 keep-alive connections, and those of
one caller in Python that waits for none, to `ordered`."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client

CLIENTS = 64


class _Connection(asyncio.Protocol):
    """Sends a request, waits for the answer, sends the next: the load of one client."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        request = self.load.next_request()
        if request is None:
            self.transport.close()
            return
        self.begin = time.perf_counter()
        self.transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 202")):
            self.load.failures += 1
        self.load.latencies.append(time.perf_counter() - self.begin)
        self.buffer = body[length:]
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.ended()


class Load:
    """What the clients do: `total` one-row transactions, each with `more` beside its operation."""

    def __init__(self, port: int, total: int, **more: Any) -> None:
        self.port, self.total, self.sent, self.failures = port, total, 0, 0
        self.more = {"level": "accepted", **more}
        self.latencies: list[float] = []
        self.open = CLIENTS
        self.done = asyncio.Event()

    def next_request(self) -> bytes | None:
        if self.sent >= self.total:
            return None
        self.sent += 1
        body = json.dumps(
            {
                **self.more,
                "operations": [
                    {
                        "kind": "append",
                        "table": "events",
                        "rows": [{"id": self.sent, "name": f"event {self.sent}", "value": 0.5}],
                    }
                ],
            }
        ).encode()
        head = (
            "POST /v1/transactions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def ended(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.done.set()

    async def run(self) -> float:
        """Return the seconds that it took."""
        loop = asyncio.get_running_loop()
        begin = time.perf_counter()
        for _ in range(CLIENTS):
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.port)
        await self.done.wait()
        return time.perf_counter() - begin


def alternate(port: int, total: int, **more: Any) -> tuple[float, float]:
    """Return the rates of plain transactions and of those with `more`, to `ordered`, in turn."""
    spent = {True: 0.0, False: 0.0}
    asyncio.run(Load(port, 1_000, level="ordered").run())
    for plain in (True, False, False, True) * 2:
        load = Load(port, total, level="ordered", **({} if plain else more))
        spent[plain] += asyncio.run(load.run())
        if load.failures:
            raise RuntimeError(f"{load.failures} of {total} posts failed")
    return 4 * total / spent[True], 4 * total / spent[False]


def run(short: bool) -> list[Figure]:
    """Measure on one node without peers."""
    total = 4_000 if short else 40_000
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        Client(cluster.urls["A"]).create_table(
            "events", {"id": "bigint", "name": "string", "value": "double"}
        )
        port = int(cluster.urls["A"].rsplit(":", 1)[1])
        asyncio.run(Load(port, 1_000).run())
        load = Load(port, total)
        seconds = asyncio.run(load.run())
        called, ordered = _in_background(cluster.urls["A"], 5 * total)
    latencies = sorted(load.latencies)
    if load.failures:
        raise RuntimeError(f"{load.failures} of {total} posts failed")
    return [
        at_least("single POSTs to accepted, 64 clients", total / seconds, "tx/s", 2_000),
        informing("single POSTs: p50", 1e3 * latencies[len(latencies) // 2], "ms"),
        informing("single POSTs: p99", 1e3 * latencies[int(len(latencies) * 0.99)], "ms"),
        at_least("commits in the background, one caller, to ordered", ordered, "tx/s", 20_000),
        informing("commits in the background: calls", called, "calls/s"),
    ]


def _in_background(url: str, total: int) -> tuple[float, float]:
    """Return how many commits a second one caller called, and how many were ordered."""
    with Client(url) as client, client.background() as later:
        later.append("events", [{"id": 0, "name": "", "value": 0.5}]).result()
        begin = time.perf_counter()
        for number in range(total):
            last = later.append("events", [{"id": number, "name": "event", "value": 0.5}])
        called = time.perf_counter() - begin
        last.result()
        spent = time.perf_counter() - begin
    return total / called, total / spent
