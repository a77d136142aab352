"""sparktxlog, measured as its peers are."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from benchmarks.cluster import Cluster
from benchmarks.epochs import wait_members
from benchmarks.ordering import TABLE, create_table, rows_of
from benchmarks.peers.peer import Peer, at_once
from benchmarks.posts import Load
from sparktxlog import Client

#: Rows that are made once; more transactions have the same ones under other ids.
_ROWS = 200_000
_EVENTS = "events"


class Ours(Peer):
    """Nodes of a cluster; clients send to all of them, single transactions to the first.

    Args:
        cluster: It runs; who gives it ends it.
    """

    name = "sparktxlog"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        wait_members(cluster, "".join(cluster.names), "".join(cluster.names))
        self._clients = [Client(url, timeout=120) for url in cluster.urls.values()]
        create_table(self._clients[0])
        self._clients[0].create_table(
            _EVENTS, {"id": "bigint", "name": "string", "value": "double"}
        )
        self._all_have(self._position())
        self._rows: pa.Table | None = None

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self.cluster.processes.values()]

    def _position(self) -> int:
        return max(int(self.cluster.get(n, "/v1/info")["position"]) for n in self.cluster.names)

    def _all_have(self, position: int) -> None:
        self.cluster.wait_position(position)

    def prepared(self) -> pa.Table:
        """Return the rows that are sent; made before somebody measures."""
        if self._rows is None:
            self._rows = rows_of(_ROWS)
        return self._rows

    def batches(self, total: int, batch: int) -> None:
        rows = self.prepared()
        each = total // len(self._clients)

        def send(client: Client, failed: list[Exception]) -> None:
            left = each
            while left > 0 and not failed:
                share = rows.slice(0, min(left, rows.num_rows))
                client.submit_many(TABLE, share, run_transactions=batch)
                left -= share.num_rows

        at_once(send, self._clients, Exception)

    def singles(self, total: int) -> None:
        load = Load(self._port(), total, level="ordered")
        asyncio.run(load.run())
        if load.failures:
            raise RuntimeError(f"{load.failures} of {total} posts failed")

    def _port(self, node: str = "") -> int:
        return int(self.cluster.urls[node or self.cluster.names[0]].rsplit(":", 1)[1])

    def lone(self, total: int, pause_s: float, node: str = "") -> list[float]:
        url = self.cluster.urls[node or self.cluster.names[0]]
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        rows = [{"id": 1, "name": "x" * 150, "value": 0.5}]
        operation = {"kind": "append", "table": _EVENTS, "rows": rows}
        body = json.dumps({"level": "ordered", "operations": [operation]}).encode()
        spent = []
        for _ in range(total):
            begin = time.perf_counter()
            connection.request(
                "POST", "/v1/transactions", body, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {said.decode()}")
            spent.append(time.perf_counter() - begin)
            time.sleep(pause_s)
        connection.close()
        return spent

    def settle(self) -> None:
        position = self._position()
        self._all_have(position)
        for name in self.cluster.names:
            self.cluster.wait_published(name, position)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def directory_of(root: Path, name: str) -> Path:
    """Return a new directory below a root."""
    made = root / name
    made.mkdir(parents=True)
    return made
