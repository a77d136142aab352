"""The audit of a real cluster: acts of operators, members, drops; over a restart."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
from tests.service.local_nodes import cluster, serving, until
from tests.service.test_replica_routes import create

from sparktxlog.config import NodeConfig
from sparktxlog.runtime.node import Node

CLIENT, ADMIN = "a token of the clients", "a token of the operators"


async def ask(node: Node, method: str, path: str, body: Any = None, shown: str = ADMIN) -> Any:
    headers = {"authorization": f"Bearer {shown}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, node.config.master_url + path, json=body) as response,
    ):
        return response.status, await response.json()


async def entries(node: Node) -> list[tuple[str, str, str, str]]:
    _, found = await ask(node, "GET", "/v1/audit", shown=CLIENT)
    assert all(one["node"] == node.config.node_id and one["at"] > 0 for one in found)
    return [(one["who"], one["action"], one["detail"], one["outcome"]) for one in found]


def test_who_changed_what_is_kept(tmp_path: Path) -> None:
    async def main() -> NodeConfig:
        async with cluster(tmp_path, "AB", client_token=CLIENT, admin_token=ADMIN) as nodes:
            a, b = nodes["A"], nodes["B"]
            change = {"FullReplicationTimeFactor": 2}
            assert (await ask(a, "PATCH", "/v1/settings", change))[0] == 200
            assert (await ask(a, "PATCH", "/v1/settings", {"no": 1}))[0] == 400
            assert (await ask(a, "PATCH", "/v1/settings", change, CLIENT))[0] == 403
            await create(a)
            drop = {"operations": [{"kind": "drop_table", "table": "t"}]}
            assert (await ask(a, "POST", "/v1/transactions", drop, CLIENT))[0] == 200
            dropped = ("site A", "drop_table", "t at position 2", "done")
            await until(lambda: "t" not in b.tables())
            assert dropped in await entries(b)
            path = "/v1/peers/B?timeout=60"
            assert (await ask(a, "DELETE", path))[0] == 200
            found = await entries(a)
            operator = [entry for entry in found if entry[0] == "operator"]
            assert [entry[1:3] for entry in operator] == [
                ("remove_peer", "id B"),
                ("change_settings", "no: unknown → 1"),
                ("change_settings", "FullReplicationTimeFactor: 1.3 → 2"),
            ]
            done, refused, changed = (entry[3] for entry in operator)
            assert (done, changed) == ("done", "done")
            assert refused.startswith("[invalid-request] 'no' cannot be set")
            assert dropped in found
            (evicted,) = (entry for entry in found if entry[1] == "evicted")
            assert evicted[0] == "vote" and evicted[2].endswith(": B, with its place")
            assert not any(CLIENT in str(entry) or ADMIN in str(entry) for entry in found)
            return a.config

    async def again(config: NodeConfig) -> None:
        port = int(config.master_url.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)) as listener:
            async with serving(config, listener) as node:
                found = await entries(node)
                assert ("operator", "remove_peer", "id B", "done") in found
                assert node.settings()["FullReplicationTimeFactor"]["value"] == 2

    asyncio.run(again(asyncio.run(main())))
