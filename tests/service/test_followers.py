"""Real nodes that follow without vote and promise (P38)."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_acts_by_phase import QUICK, ask, create
from tests.service.test_replica_routes import give_replica
from tests.service.test_staged_files import create as create_of
from tests.service.test_staged_files import stage
from tests.support.node_processes import append

from sparktxlog import Client
from sparktxlog.api.nodes import Nodes
from sparktxlog.errors import FollowerError
from sparktxlog.health.readiness import readiness
from sparktxlog.health.verdicts import judge
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.node import Node
from sparktxlog.service.routing.routes import ROUTES

OK = (200, "")


@asynccontextmanager
async def _joined(
    directory: Path, ports: dict[str, int], name: str, listener: socket.socket, **settings: Any
) -> AsyncIterator[Node]:
    """Run a node that begins as a follower, and starts again when it is told to (join orders)."""
    config = config_of(directory, name, ports, followers="F", **{**QUICK, **settings})
    for _ in range(3):
        async with serving(config, listener.dup()) as node:
            known = asyncio.create_task(_follows(node))
            either: list[asyncio.Future[Any]] = [known, node.base.failed]
            done, _ = await asyncio.wait(either, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            if known in done:
                yield node
                return
            known.cancel()
            assert done, "it neither follows nor starts again"
    raise AssertionError("it starts again and again")


async def _follows(node: Node) -> None:
    await until(lambda: node.status()["phase"] == "FOLLOWING" and node.status()["position"])


async def _commit(node: Node, *numbers: int) -> None:
    for number in numbers:
        found, document = await ask(node, "POST", "/v1/transactions?timeout=20", append(number))
        assert found == OK, document


def _at_end(node: Node, *members: Node) -> bool:
    """Return whether a follower is where the members are, with the same history."""
    shown = [one.status() for one in (node, *members)]
    return len({(one["position"], one["chain_hash"]) for one in shown}) == 1


def test_a_follower_follows_and_shows_where(tmp_path: Path) -> None:
    """It has the queue, is shown by all nodes, and is none of those that count."""

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, b, f = (nodes[name] for name in "ABF")
            await create(a)
            await _commit(a, 1, 2)
            await _commit(b, 3)
            await until(lambda: _at_end(f, a, b))
            begun = monotonic()
            await _commit(a, 4)
            await until(lambda: f.status()["position"] == 5)
            assert monotonic() - begun < 2, "a run of a log at rest comes at once"
            await until(lambda: f.status()["published"] == 5)
            shown = f.status()
            assert (shown["phase"], shown["members"]) == ("FOLLOWING", ["A", "B"])
            following = shown["following"]
            assert following is not None and following["linked"]
            assert following["upstream"] in ("A", "B") and following["lacks"] == 0
            assert all(check.good for check in readiness(shown)), readiness(shown)
            at_a = a.status()
            assert at_a["following"] is None
            seat = next(one for one in at_a["roster"] if one["id"] == "F")
            assert (seat["follower"], seat["member"], seat["weight"]) == (True, False, 0)
            peer = next(one for one in at_a["peers"] if one["id"] == "F")
            assert peer["follower"] and peer["linked"] and not peer["member"]
            assert (await ask(f, "GET", "/v1/tables/t"))[0] == OK
            assert (await ask(f, "GET", "/v1/tables/t?after=5"))[0] == OK
            for node in (a, f):
                found, page = await ask(node, "GET", "/dashboard/overview.json")
                assert found == OK
                states = {one["id"]: one["state"] for one in page["sites"]}
                assert states == {"A": "member", "B": "member", "F": "follower"}
                assert {one["site"] for one in page["survival"]} == {"A", "B"}
            assert (await ask(f, "GET", "/v1/views/survival"))[0] == (503, "follower")

    asyncio.run(main())


def test_a_follower_refuses_what_changes_the_log(tmp_path: Path) -> None:
    """Each such route is refused, certainly, with the URLs of the members."""

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, f = nodes["A"], nodes["F"]
            await create(a)
            await until(lambda: f.status()["position"] == 1)
            members = [nodes[name].config.master_url for name in "AB"]
            tried = 0
            for route in ROUTES:
                if route.at_member:
                    path = re.sub(r"{[a-z_]+(:path)?}", "t", route.path)
                    found, document = await ask(f, route.method, path, {})
                    assert "follower" in str(document), (route.key, found, document)
                    tried += 1
                    if path.startswith("/v1/"):
                        assert found == (503, "follower") and document["definite"], route.key
                        assert document["fields"]["members"] == members
            assert tried > 20
            changed, _ = await ask(f, "PATCH", "/v1/settings", {"tx-log-max-depth": 5})
            assert changed == OK, "its own settings are its own"
            assert a.status()["position"] == 1

    asyncio.run(main())


def test_a_client_of_several_nodes_goes_on_to_a_member(tmp_path: Path) -> None:
    """One that knows only the follower gets an error that names the members."""

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, f = nodes["A"], nodes["F"]
            await create(a)
            await until(lambda: f.status()["position"] == 1)

            def work() -> None:
                urls = [f.config.master_url, a.config.master_url]
                with Client(urls) as client:
                    receipt = client.append("t", [{"id": 1, "v": "x"}])
                    assert receipt.position == 2
                with Client(f.config.master_url) as client:
                    with pytest.raises(FollowerError) as caught:
                        client.append("t", [{"id": 2, "v": "x"}])
                    assert a.config.master_url in caught.value.fields["members"]
                    assert caught.value.definite and not caught.value.retryable
                nodes = Nodes(f.config.master_url)
                nodes.after(2)  # where it may not be yet
                assert nodes.table("t").name == "t"
                nodes.close()

            await asyncio.to_thread(work)

    asyncio.run(main())


def test_nobody_waits_for_a_follower_that_is_gone(tmp_path: Path) -> None:
    """With a follower killed, or cut off, commits are as quick, and nothing is wrong."""

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABF"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            a, b = [
                await stack.enter_async_context(
                    serving(
                        config_of(tmp_path, name, ports, followers="F", **QUICK), listeners[name]
                    )
                )
                for name in "AB"
            ]
            # It was never there: the first epoch does not wait for its word (P29).
            await until(lambda: a.base.links["B"].up and b.base.links["A"].up)
            await create(a)
            async with _joined(tmp_path, ports, "F", listeners["F"]) as f:
                await _commit(a, 1)
                await until(lambda: _at_end(f, a, b))
            begun = monotonic()
            await _commit(a, *range(2, 12))
            await _commit(b, *range(12, 22))
            assert monotonic() - begun < 10
            shown = a.status()
            assert (shown["phase"], shown["suspects"]) == ("NORMAL", [])
            assert shown["waiting_for"] == [] and judge(shown).code in ("in-sync", "no-worker")
            found, view = await ask(a, "POST", "/v1/peers/B/promote?timeout=20", {})
            assert found == OK and view["members"] == ["B", "A"], view
            async with _joined(tmp_path, ports, "F", listeners["F"]) as f:
                await until(lambda: _at_end(f, a, b))
                await until(lambda: f.status()["epoch"] >= view["epoch"])

    asyncio.run(main())


def test_a_follower_is_added_to_a_log_that_runs(tmp_path: Path) -> None:
    """It has the queue's summary or its runs; then its disk is lost, and it comes back."""

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABF"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        two = {name: ports[name] for name in "AB"}
        async with AsyncExitStack() as stack:
            a, b = [
                await stack.enter_async_context(
                    serving(config_of(tmp_path, name, two, **QUICK), listeners[name])
                )
                for name in "AB"
            ]
            await until(lambda: a.base.links["B"].up and b.base.links["A"].up)
            await create(a)
            await _commit(a, *range(1, 6))
            body = {"id": "F", "url": f"http://127.0.0.1:{ports['F']}", "follower": True}
            found, view = await ask(a, "POST", "/v1/peers?timeout=20", body)
            assert found == OK and view["members"] == ["A", "B"]
            assert [one["weight"] for one in view["roster"]] == [1, 1, 0]
            for disk in ("first", "second"):
                async with _joined(tmp_path / disk, ports, "F", listeners["F"]) as f:
                    await _commit(a, 7)
                    await until(lambda f=f: _at_end(f, a, b))  # type: ignore[misc]
                    await until(lambda f=f: f.status()["epoch"] == a.status()["epoch"])  # type: ignore[misc]
                    assert a.status()["members"] == ["A", "B"]

    asyncio.run(main())


def test_a_follower_shortens_its_own_log(tmp_path: Path) -> None:
    """No member posts to it, so it waits for none of them: its disk would fill up."""

    async def main() -> None:
        settings = {**QUICK, "tx_log_max_size": 1}
        async with cluster(tmp_path, "ABF", followers="F", **settings) as nodes:
            a, b, f = (nodes[name] for name in "ABF")
            await create(a)
            await _commit(a, 1, 2, 3)
            await until(lambda: all(one.status()["published"] == 4 for one in (a, b, f)))
            for node in (a, b, f):
                await give_replica(node, 10)
            await until(lambda: len(f.status()["replicas"]) == 3)
            held = f.log.holders.all()
            assert [(one.replica, one.position) for one in held] == [("A", 4), ("B", 4), ("F", 4)]
            assert (await f.maintain()).pruned_to >= 1, "at the end of a segment"

    asyncio.run(main())


def test_a_follower_follows_a_follower(tmp_path: Path) -> None:
    """What G gets, files too, comes from F alone; while F is away G lags, at itself only."""

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABFG"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}

        def config(name: str) -> Any:
            more: dict[str, Any] = {"follow": "F"} if name == "G" else {}
            return config_of(tmp_path, name, ports, followers="FG", **{**QUICK, **more})

        async with AsyncExitStack() as stack:
            a, b, g = [
                await stack.enter_async_context(serving(config(name), listeners[name]))
                for name in "ABG"
            ]
            async with serving(config("F"), listeners["F"].dup()) as f:
                await until(lambda: all(one.base.links["F"].up for one in (a, b, g)))
                await create(a)
                await _commit(a, *range(1, 4))
                await a.submit(create_of("u"), level=Level.ORDERED, timeout=30)
                staged, files = stage(a)
                operation = replace(staged.operations[0], table="u")
                await a.submit(
                    replace(staged, operations=(operation,)), level=Level.ORDERED, timeout=30
                )
                await until(lambda: _at_end(g, f, a, b))
                assert all(Path(g.payloads.path(file.path)).exists() for file in files)
                assert g.status()["following"]["upstream"] == "F"  # type: ignore[index]
                fetched = {one["id"]: one["fetched_bytes"] for one in g.status()["peers"]}
                assert fetched["F"] > 0 == fetched["A"] == fetched["B"], fetched
            await until(lambda: not g.base.links["F"].up)
            await _commit(a, 6)
            assert judge(g.status()).code == "upstream-away"
            assert judge(a.status()).code not in ("upstream-away", "peer-away")
            assert g.status()["position"] == 6
            async with serving(config("F"), listeners["F"].dup()):
                await until(lambda: _at_end(g, a, b))

    asyncio.run(main())


def test_followers_that_follow_each_other_say_so(tmp_path: Path) -> None:
    """Each finds the other alive, so nothing else would; both name all in the circle."""

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AFG"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            a, f, g = [
                await stack.enter_async_context(
                    serving(
                        config_of(tmp_path, name, ports, followers="FG", **{**QUICK, **more}),
                        listeners[name],
                    )
                )
                for name, more in (("A", {}), ("F", {"follow": "G"}), ("G", {"follow": "F"}))
            ]
            await until(lambda: _circles(f, g) == [["F", "G"]] * 2)
            await until(lambda: f.status()["phase"] == g.status()["phase"] == "FOLLOWING")
            await create(a)
            for node in (f, g):
                found = judge(node.status())
                assert (found.code, found.state.value) == ("follow-circle", "lagging")
                assert "F, G follow each other" in found.text
                assert node.status()["position"] == 0

    asyncio.run(main())


def _circles(*nodes: Node) -> list[list[str]]:
    return [(node.status()["following"] or {"circle": []})["circle"] for node in nodes]


def test_a_follower_becomes_a_member_and_back(tmp_path: Path) -> None:
    """One command each: promoted it is admitted by itself, and takes transactions."""

    async def main() -> None:
        async with cluster(tmp_path, "ABF", followers="F", **QUICK) as nodes:
            a, f = nodes["A"], nodes["F"]
            await create(a)
            await _commit(a, 1)
            found, view = await ask(a, "PATCH", "/v1/peers/F?timeout=20", {"follower": False})
            assert found == OK, view
            seat = next(one for one in view["roster"] if one["id"] == "F")
            assert (seat["follower"], seat["weight"]) == (False, 1)
            await until(lambda: a.status()["members"] == ["A", "B", "F"])
            await until(lambda: f.status()["phase"] == "NORMAL")
            await _commit(f, 2)
            found, view = await ask(a, "PATCH", "/v1/peers/F?timeout=20", {"follower": True})
            assert found == OK and view["members"] == ["A", "B"], view
            await until(lambda: f.status()["phase"] == "FOLLOWING")
            assert (await ask(f, "POST", "/v1/transactions", append(3)))[0] == (503, "follower")
            await _commit(a, 3)
            await until(lambda: _at_end(f, a, nodes["B"]))
            found, document = await ask(
                a, "PATCH", "/v1/peers/F?timeout=20", {"follower": True, "weight": 1}
            )
            assert found == (409, "protocol-local") and "and vote" in document["detail"]
            assert "peer set F --role master" in document["hint"]

    asyncio.run(main())
