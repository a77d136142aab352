"""Nodes after a reverse proxy: `https://host/site-b` is one node of several at one host."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.service.local_nodes import config_of, serving, until
from tests.support.faulty_way import Fault, FaultyWay, faulty_way

from sparktxlog import Client


def _no_fault(_: str) -> Fault:
    return Fault.NONE


def test_clients_commands_and_peers_reach_a_node_below_a_path(tmp_path: Path) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            ways = dict[str, FaultyWay]()
            for name, prefix in (("A", "/Site-A"), ("B", "/sites/b.2")):
                way = faulty_way(f"http://127.0.0.1:{ports[name]}", _no_fault, prefix)
                ways[name] = stack.enter_context(way)
            nodes = {}
            for name, other in ("AB", "BA"):
                more: dict[str, Any] = {
                    "master-url": ways[name].url,
                    "peer.1.url": ways[other].url,
                    "listen": f"127.0.0.1:{ports[name]}",
                }
                config = config_of(tmp_path, name, ports, **more)
                nodes[name] = await stack.enter_async_context(serving(config, listeners[name]))
            await until(lambda: all(one.good for n in nodes.values() for one in n.ready()))
            url = ways["A"].url + "/"
            await asyncio.to_thread(_use, url, nodes["B"].config.master_url)
            shown = await asyncio.to_thread(_status, url)
            assert [(one["id"], one["url"]) for one in shown["peers"]] == [("B", ways["B"].url)]
            links = nodes["A"].base.links.values()
            assert [(link.up, link.url) for link in links] == [(True, ways["B"].url)]

    asyncio.run(main())


def _use(first: str, second: str) -> None:
    """Commit at one node, rows that travel as files, too, and look at the other one."""
    rows = pa.table({"id": pa.array(range(100_000), pa.int64())})
    with Client([first, second]) as client, Client(second) as other:
        client.create_table("t", {"id": "bigint"})
        with client.open_transaction() as tx:
            tx.append("t", rows)  # a peer fetches its file
        other.after(tx.receipt)
        assert other.table("t").version == 1
        with client.background() as later:
            pending = later.append("t", [{"id": 1}])
        assert pending.result().outcome == "committed"
        payloads = Path(other.info()["payload_root"])
        mine = Path(client.info()["payload_root"])
        found = [path.relative_to(mine) for path in mine.rglob(f"{tx.id}/**/*.parquet")]
        assert found
        for path in found:
            there = hashlib.sha256((payloads / path).read_bytes()).hexdigest()
            assert there == hashlib.sha256((mine / path).read_bytes()).hexdigest()


def _status(url: str) -> Any:
    command = [sys.executable, "-m", "sparktxlog.cli", "status", "--json", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return json.loads(done.stdout)
