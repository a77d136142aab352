"""A node that knows the secret and does not belong: both ends say so, and nobody else can."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_peer_routes import Stranger

from sparktxlog.runtime.node import Node


def said(node: Node) -> list[str]:
    return [one["text"] for one in node.status()["warnings"] if one["code"] == "stranger"]


@pytest.mark.parametrize(
    ("names", "settings", "why"),
    [
        ("AB", {}, "is not a configured peer of 'A'"),
        ("AX", {"signature_interval": 77}, "configuration of node 'X' is"),
        ("AX", {"cluster": "other"}, "'X'"),
    ],
    ids=["no place", "other settings", "other log"],
)
def test_both_ends_warn_of_a_node_that_does_not_belong(
    tmp_path: Path, names: str, settings: dict[str, Any], why: str
) -> None:
    async def main() -> None:
        doors = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABX"}
        ports = {name: door.getsockname()[1] for name, door in doors.items()}
        at_a = config_of(tmp_path, "A", {name: ports[name] for name in names})
        at_x = config_of(tmp_path, "X", {name: ports[name] for name in "AX"}, **settings)
        async with serving(at_a, doors["A"]) as a, serving(at_x, doors["X"]) as x:
            await until(lambda: said(a) and said(x))
            refused = "Node X knows the secret of this cluster and is refused: "
            await until(lambda: any(one.startswith(refused) and why in one for one in said(a)))
            await until(lambda: any(one.startswith("A refuses this node: ") for one in said(x)))
        doors["B"].close()

    asyncio.run(main())


def test_who_does_not_know_the_secret_makes_no_warning(tmp_path: Path) -> None:
    async def main() -> None:
        doors = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: door.getsockname()[1] for name, door in doors.items()}
        async with serving(config_of(tmp_path, "A", ports), doors["A"]) as a:
            for secret, number in (
                ("another secret of a stranger", 0),
                (a.config.cluster_secret, 1),
            ):
                async with Stranger(a, "X", str(secret)) as stranger:
                    assert (await stranger.greet(a.membership.greeter.own))[0] == 403
                    assert len(said(a)) == number
            (text,) = said(a)
            assert text.startswith("Node X knows the secret")
        doors["B"].close()

    asyncio.run(main())
