"""The cluster secret is replaced as docs/access.md says: ordering never stops for it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from tests.service.local_nodes import SECRET, config_of, serving, until

from sparktxlog import Client
from sparktxlog.runtime.node import Node

NEW = "the secret that comes"
#: Of each round: what a node has.
ROUNDS: tuple[dict[str, Any], ...] = (
    {"cluster_secret": SECRET},
    {"cluster_secret": SECRET, "cluster_secret_also": NEW},
    {"cluster_secret": NEW, "cluster_secret_also": SECRET},
    {"cluster_secret": NEW},
)


def _commit(node: Node, number: int) -> int:
    with Client(node.config.master_url) as client:
        with client.transaction() as transaction:
            transaction.append("t", [{"id": number}])
        assert transaction.receipt.position is not None
        return transaction.receipt.position


def _create(node: Node) -> None:
    with Client(node.config.master_url) as client:
        client.create_table("t", {"id": "bigint"})


def test_both_nodes_order_in_every_round_and_between_rounds(tmp_path: Path) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: place.getsockname()[1] for name, place in listeners.items()}
        for place in listeners.values():
            place.close()

        def config(name: str, round_: int) -> Any:
            return config_of(tmp_path, name, ports, **ROUNDS[round_])

        def place(name: str) -> socket.socket:
            return socket.create_server(("127.0.0.1", ports[name]))

        ordered = 0
        # A goes first in each round: both rounds meet, then both nodes are in the same one.
        for round_a, round_b in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)):
            async with (
                serving(config("A", round_a), place("A")) as a,
                serving(config("B", round_b), place("B")) as b,
            ):
                await until(
                    lambda a=a, b=b: all(x.base.links[y].up for x, y in ((a, "B"), (b, "A")))
                )
                if not ordered:
                    await asyncio.to_thread(_create, a)
                    ordered = 1
                for node in (a, b):
                    assert await asyncio.to_thread(_commit, node, ordered) == ordered + 1
                    ordered += 1

    asyncio.run(main())
