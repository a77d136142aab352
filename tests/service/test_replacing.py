"""`POST /v1/peers/{id}/replace`: one change of places, so one decision; refused as its siblings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, until
from tests.service.test_peer_routes import create, delete

from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.node import Node

FRESH = "http://127.0.0.1:1"


async def replace(node: Node, old: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ask a node for a replacement and return status and answer."""
    url = f"{node.config.master_url}/v1/peers/{old}/replace"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body) as response,
    ):
        return response.status, await response.json(content_type=None)


def view(node: Node) -> View:
    return node.base.master.view


def test_a_place_changes_hands_by_one_decision(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "ABC", suspect_timeout=2) as nodes:
            a, c = nodes["A"], nodes["C"]
            await a.submit(create(), level=Level.ORDERED, timeout=60)
            status, found = await replace(a, "B", {"id": "D", "url": FRESH})
            assert (status, found["epoch"]) == (200, 2)
            # B's precedence; D is no member before it has the queue.
            assert [seat["id"] for seat in found["roster"]] == ["A", "D", "C"]
            assert found["members"] == ["A", "C"]
            seat = found["roster"][1]
            assert (seat["url"], seat["weight"], seat["witness"], seat["incarnation"]) == (
                FRESH,
                1,
                False,
                1,
            )
            await until(lambda: view(c).epoch == 2)
            assert view(a) == view(c)
            assert sorted(a.base.links) == sorted(["C", "D"])
            # Both go on, and no further decision follows.
            receipt = await c.submit(delete(), level=Level.ORDERED, timeout=60)
            await until(lambda: a.status()["position"] == receipt.position)
            assert (view(a).epoch, view(c).epoch) == (2, 2)
            # Votes and role where they are given; the place in precedence is kept again.
            status, found = await replace(
                a, "D", {"id": "W", "url": FRESH, "weight": 0, "witness": True}
            )
            assert (status, found["epoch"]) == (200, 3)
            seat = found["roster"][1]
            assert (seat["id"], seat["weight"], seat["witness"]) == ("W", 0, True)
            # What is not given is that of the node that goes.
            status, found = await replace(a, "W", {"id": "V", "url": FRESH})
            seat = found["roster"][1]
            assert (seat["id"], seat["weight"], seat["witness"]) == ("V", 0, True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("old", "body", "status", "part"),
    [
        ("X", {"id": "D", "url": FRESH}, 409, "'X' is not a node of the cluster"),
        ("B", {"id": "B", "url": FRESH}, 409, "cannot replace itself"),
        ("B", {"id": "C", "url": FRESH}, 409, "node 'C' is already in the cluster"),
        ("B", {"id": "D", "url": "http://127.0.0.1:1,OF-A"}, 409, "is the address of 'A'"),
        ("B", {"id": "D", "url": FRESH, "weight": 3}, 409, "would have no majority"),
        ("B", {"id": "D", "url": FRESH, "weight": -1}, 400, "expected 0 to"),
        ("B", {"id": "D", "url": "nonsense"}, 400, "nonsense"),
        ("B", {"id": "no id", "url": FRESH}, 400, "no id"),
        ("B", {"id": "D"}, 400, "cannot be read"),
        ("B", {"id": "D", "url": FRESH, "votes": 1}, 400, "cannot be read"),
    ],
)
def test_replacements_that_cannot_be(
    tmp_path: Path, old: str, body: dict[str, Any], status: int, part: str
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "ABC", suspect_timeout=1) as nodes:
            a = nodes["A"]
            given = {
                key: value.replace("OF-A", a.config.master_url) if key == "url" else value
                for key, value in body.items()
            }
            before = view(a)
            answered, document = await replace(a, old, given)
            assert (answered, document["definite"]) == (status, True), document
            assert part in document["detail"]
            assert view(a) == before

    asyncio.run(main())


def test_of_two_nodes_none_can_be_replaced_at_once(tmp_path: Path) -> None:
    """The one that stays would have no majority until the other one has come: add it first."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", suspect_timeout=1) as nodes:
            a = nodes["A"]
            status, document = await replace(a, "B", {"id": "D", "url": FRESH})
            assert (status, document["definite"]) == (409, True)
            assert "would have no majority" in document["detail"]
            assert view(a).epoch == 1

    asyncio.run(main())


def test_too_few_to_decide_it(tmp_path: Path) -> None:
    """Two of three are gone: whoever is left cannot give their places away."""

    async def main() -> None:
        async with cluster(tmp_path, "ABC", suspect_timeout=1) as nodes:
            a = nodes["A"]
            for name in "BC":
                for link in nodes[name].base.links.values():
                    await link.close()
                await nodes[name].base.links["A"].close()
            for link in a.base.links.values():
                await link.close()
            status, document = await replace(a, "C", {"id": "D", "url": FRESH})
            assert (status, document["definite"]) == (409, True)
            assert "too few nodes answer" in document["detail"]
            assert view(a).epoch == 1

    asyncio.run(main())
