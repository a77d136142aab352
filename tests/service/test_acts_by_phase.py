"""What each act meets in each phase of a node, and that it always states where it stands.

See docs/epochs.md, "Phases".
A node is IDLE between two actions of its core only: on to JOINING at once.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_catalog_api import Caller
from tests.support.delta_writer import path_of as catalog_path
from tests.support.node_processes import TABLE, append, run_payload

from sparktxlog.config import NodeConfig
from sparktxlog.protocol.messages.actions import Alarm
from sparktxlog.protocol.messages.balloting import Accept, EpochMessage
from sparktxlog.runtime.node import Node
from sparktxlog.transport.peer_link import PeerLink

QUICK: dict[str, Any] = {"eviction": "auto", "suspect_timeout": 1.0, "start_timeout": 1.0}

RUN = "application/vnd.sparktxlog.run"
#: HTTP status and code of the problem, empty = none.
Answer = tuple[int, str]
OK = (200, "")
UNCONFIRMED = (400, "invalid-request")
NO_WITNESS = (404, "not-found")
#: Certainly not done: what the node is does not allow it.
NOT_NOW = (409, "protocol-local")
PAUSED = (503, "paused")
OUTSIDE = (503, "not-a-member")
FOLLOWS = (503, "follower")

#: Commits at levels `accepted` and `ordered`, `pause`, `promote`, `force` without and with the
#: confirmation.
ACTS = ("keep", "commit", "pause", "promote", "unconfirmed", "force")
TABLE_OF_ANSWERS: dict[str, tuple[Answer, ...]] = {
    "NORMAL": (OK, OK, OK, OK, UNCONFIRMED, OK),
    "SUSPECT": (OK, (503, "no-quorum"), OK, NOT_NOW, UNCONFIRMED, OK),
    # What it takes may still be ordered; a change is under way that holds it so.
    "WEDGED": (OK, (504, "unknown-outcome"), OK, NOT_NOW, UNCONFIRMED, OK),
    "JOINING": (OUTSIDE, OUTSIDE, OK, NOT_NOW, UNCONFIRMED, NOT_NOW),
    "FAULT": (NOT_NOW, NOT_NOW, OK, NOT_NOW, UNCONFIRMED, NOT_NOW),
    "WITNESS": (NO_WITNESS, NO_WITNESS, NO_WITNESS, NOT_NOW, UNCONFIRMED, NOT_NOW),
    "FOLLOWING": (FOLLOWS, FOLLOWS, OK, FOLLOWS, FOLLOWS, FOLLOWS),
    "paused": (PAUSED, PAUSED, OK, OK, UNCONFIRMED, OK),
}


async def ask(node: Node, method: str, path: str, body: Any = None) -> tuple[Answer, Any]:
    """Send a request as a client or an operator does; return what came of it, and the document."""
    url = node.config.master_url + path
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as found:
        document = await found.json(content_type=None)
        return (found.status, document.get("title", "")), document


async def create(node: Node) -> None:
    assert (await ask(node, "POST", "/v1/transactions", TABLE))[0] == OK


# -- a node in each phase --------------------------------------------------------------------------


@asynccontextmanager
async def normal(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with cluster(directory, "ABC", **QUICK) as nodes:
        await create(nodes["A"])
        yield nodes["A"]


@asynccontextmanager
async def paused(directory: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with normal(directory, patch) as a:
        assert (await ask(a, "PATCH", "/v1/settings", {"paused": True}))[0] == OK
        yield a


@asynccontextmanager
async def suspect(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A comes back, and B does not."""
    async with cluster(directory, "AB", **QUICK) as nodes:
        await create(nodes["A"])
    own, mute = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    ports = {"A": own.getsockname()[1], "B": mute.getsockname()[1]}
    with mute:
        async with serving(config_of(directory, "A", ports, **QUICK), own) as a:
            # Nobody is missed before there is something to order.
            await ask(a, "POST", "/v1/transactions?level=accepted", append(0))
            await until(lambda: restricted_s(a) > QUICK["suspect_timeout"])
            yield a


def restricted_s(node: Node) -> float:
    """Return for how long a node has known that it cannot order."""
    return float((node.status()["restricted"] or {}).get("since_us", 0)) / 1e6


@asynccontextmanager
async def wedged(directory: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Of the decision that A asked for the last message gets lost, again and again."""
    send = PeerLink.epoch

    def lose_accepts(link: PeerLink, message: EpochMessage) -> None:
        if not isinstance(message, Accept):
            send(link, message)

    async with normal(directory, patch) as a:
        patch.setattr(PeerLink, "epoch", lose_accepts)
        found, _ = await ask(a, "POST", "/v1/peers/C/promote?timeout=0.1", {})
        assert found == (504, "unknown-outcome")
        await until(lambda: a.status()["phase"] == "WEDGED")
        yield a
        patch.undo()


@asynccontextmanager
async def joining(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """C has lost its place."""
    async with cluster(directory, "ABC", **QUICK) as nodes:
        a, c = nodes["A"], nodes["C"]
        await create(a)
        assert (await ask(a, "DELETE", "/v1/peers/C", {}))[0] == OK
        await until(lambda: c.status()["phase"] == "JOINING")
        yield c


@asynccontextmanager
async def fault(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """C found that its history is another one."""
    async with cluster(directory, "ABC", **QUICK) as nodes:
        c = nodes["C"]
        await create(nodes["A"])
        await until(lambda: c.status()["position"] == 1)
        c.core.cycle.raise_alarm(Alarm(code="diverged", text="another history", fatal=True))
        yield c


@asynccontextmanager
async def witness(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABW"}
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}

    def config(name: str) -> NodeConfig:
        roles = "roles" if name == "W" else "peer.2.roles"
        return config_of(directory, name, ports, **QUICK, **{roles: "witness"})

    async with AsyncExitStack() as stack:
        nodes = {
            name: await stack.enter_async_context(serving(config(name), listeners[name]))
            for name in "ABW"
        }
        await until(lambda: all(link.up for n in nodes.values() for link in n.base.links.values()))
        await create(nodes["A"])
        yield nodes["W"]


@asynccontextmanager
async def following(directory: Path, _: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with cluster(directory, "ABF", followers="F", **QUICK) as nodes:
        await create(nodes["A"])
        await until(lambda: nodes["F"].status()["position"] == 1)
        yield nodes["F"]


Entry = Callable[[Path, pytest.MonkeyPatch], AbstractAsyncContextManager[Node]]
PHASES: dict[str, Entry] = {
    "NORMAL": normal,
    "SUSPECT": suspect,
    "WEDGED": wedged,
    "JOINING": joining,
    "FAULT": fault,
    "WITNESS": witness,
    "FOLLOWING": following,
    "paused": paused,
}


# -- the acts --------------------------------------------------------------------------------------


async def act(node: Node, name: str, state: str) -> tuple[Answer, Any]:
    """Carry out an act at a node, and undo a pause that was none before."""
    own, epoch = node.config.node_id, node.status()["epoch"]
    wait = 0.5 if state == "WEDGED" else 30
    match name:
        case "keep":
            return await ask(node, "POST", "/v1/transactions?level=accepted", append(1))
        case "commit":
            return await ask(node, "POST", f"/v1/transactions?timeout={wait}", append(2))
        case "pause":
            found = await ask(node, "PATCH", "/v1/settings", {"paused": True})
            if found[0] == OK and state != "paused":
                assert node.status()["paused"] is True
                assert (await ask(node, "PATCH", "/v1/settings", {"paused": False}))[0] == OK
            return found
        case "promote":
            return await ask(node, "POST", "/v1/peers/B/promote?timeout=30", {})
        case "unconfirmed":
            return await ask(node, "POST", "/v1/force", {"confirm": f"{own} {epoch + 1}"})
        case _:
            wanted = {"confirm": f"{own} {epoch}", "though_linked": True}
            return await ask(node, "POST", "/v1/force?timeout=30", wanted)


@pytest.mark.parametrize("state", TABLE_OF_ANSWERS)
def test_each_act_is_answered_as_the_phase_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    phase = "NORMAL" if state == "paused" else state

    async def shown(node: Node) -> dict[str, Any]:
        """Return the status, once it shows the phase, with the one position of this node."""
        await until(lambda: node.status()["phase"] == phase)
        found, status = await ask(node, "GET", "/v1/status")
        assert (found, status["phase"], status["paused"]) == (OK, phase, state == "paused")
        found, info = await ask(node, "GET", "/v1/info")
        assert found == OK
        # The core may be ahead of what is durable, for a moment.
        assert 0 <= status["position"] <= status["chain_position"]
        assert len(status["chain_hash"]) == 64
        assert (int(status["chain_hash"], 16) == 0) is (status["chain_position"] == 0)
        return {**status, "info": info["position"]}

    async def main() -> None:
        async with PHASES[state](tmp_path, monkeypatch) as node:
            stands = await shown(node)
            expected = 0 if state == "WITNESS" else 1
            assert (stands["position"], stands["info"]) == (expected, expected)
            for name, answer in zip(ACTS, TABLE_OF_ANSWERS[state], strict=True):
                await shown(node)
                found, document = await act(node, name, state)
                assert (name, found) == (name, answer), document
                if found != OK:
                    assert document["definite"] is (found[0] != 504), name
            last = (await ask(node, "GET", "/v1/status"))[1]
            alone = answer == OK
            assert last["phase"] == ("NORMAL" if alone else phase)
            assert (last["members"] == [node.config.node_id]) is alone

    asyncio.run(main())


def test_b12_b42_a_paused_node_is_idle_and_rejects_every_way_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but a change of roles, and its position on the disk; it goes on where it was."""

    async def main() -> None:
        async with normal(tmp_path, monkeypatch) as node:
            async with aiohttp.ClientSession() as session:
                caller = Caller(node, session)
                commits = await caller.create("c")
            transaction_id = str(uuid.uuid4())
            later = round((time.time() + 600) * 1e6)
            prepared = append(1, transaction_id) | {"participants": ["p"], "valid_until": later}
            opened = (await ask(node, "POST", "/v1/open-transactions", {}))[1]["transaction_id"]
            await ask(node, "POST", f"/v1/open-transactions/{opened}/operations", append(2))
            assert (await ask(node, "POST", "/v1/transactions?timeout=30", prepared))[0] == OK
            assert (await ask(node, "PATCH", "/v1/settings", {"paused": True}))[0] == OK
            position = (await ask(node, "GET", "/v1/status"))[1]["position"]
            url = node.config.master_url
            async with aiohttp.ClientSession() as session:
                writes: dict[str, dict[str, Any]] = {
                    "/v1/transactions": {"json": append(3)},
                    "/v1/runs": {"data": run_payload(3, 1), "headers": {"content-type": RUN}},
                    f"/v1/open-transactions/{opened}/commit": {},
                    f"/v1/transactions/{transaction_id}/marks": {
                        "json": {"participant": "p", "yes": True}
                    },
                }
                for path, what in writes.items():
                    async with session.post(url + path, **what) as told:
                        document = await told.json()
                    assert (path, told.status, document["title"]) == (path, *PAUSED)
                    assert document["definite"] is True
                caller = Caller(node, session)
                body = commits.update(commits.stage(1, commits.add()))
                status, answer = await caller.commit(body, "c")
                assert (status, answer["details"][0]["reason"]) == PAUSED
                status, answer = await caller.ask("DELETE", catalog_path("c"))
                assert (status, answer["details"][0]["reason"]) == PAUSED
            stands = (await ask(node, "GET", "/v1/status"))[1]
            assert stands["position"] == position
            for role in ("promote", "demote"):
                found, document = await ask(node, "POST", f"/v1/peers/C/{role}?timeout=30", {})
                assert found == OK, document
            assert (await ask(node, "PATCH", "/v1/settings", {"paused": None}))[0] == OK
            path = f"/v1/open-transactions/{opened}/commit?timeout=30"
            found, document = await ask(node, "POST", path)
            assert (found, document["position"]) == (OK, position + 1)

    asyncio.run(main())


def test_a_node_that_lost_its_place_does_not_say_that_a_table_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of no new ones: a client of several nodes goes on to the next one."""

    async def main() -> None:
        async with joining(tmp_path, monkeypatch) as node:
            assert (await ask(node, "GET", "/v1/tables/t"))[0] == OK
            for path in ("/v1/tables/u", "/v1/descriptions/u"):
                found, document = await ask(node, "GET", path)
                assert (found, document["definite"]) == (OUTSIDE, True)
                assert "JOINING" in document["detail"] and "'u'" in document["detail"]

    asyncio.run(main())
