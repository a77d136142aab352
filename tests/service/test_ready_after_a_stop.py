"""A node that was down while the others went on without it is not ready before it knows that."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.service.local_nodes import config_of, serving, until
from tests.service.test_staged_files import create

from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.node import Node

_SETTINGS: dict[str, Any] = {"eviction": "auto", "suspect_timeout": 1, "start_timeout": 1}


def is_ready(node: Node) -> bool:
    return all(one.good for one in node.ready())


async def begin(*nodes: Node) -> None:
    """Wait until nodes are ready and have something of the log: none has an empty disk."""
    await until(lambda: all(map(is_ready, nodes)))
    await nodes[0].submit(create("t"), level=Level.ORDERED, timeout=30)
    await until(lambda: all(node.base.ordered.value for node in nodes))


def test_a_node_is_ready_in_the_present_epoch_only(tmp_path: Path) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABC"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        configs = {name: config_of(tmp_path, name, ports, **_SETTINGS) for name in "ABC"}
        async with AsyncExitStack() as stack:
            a = await stack.enter_async_context(serving(configs["A"], listeners["A"]))
            await stack.enter_async_context(serving(configs["B"], listeners["B"]))
            async with serving(configs["C"], listeners["C"].dup()) as c:
                await begin(a, c)
            # Nobody is missed before there is something to order.
            await a.submit(create("u"), level=Level.ACCEPTED, timeout=30)
            await until(lambda: set(a.base.master.view.members) == {"A", "B"})
            gone = a.base.master.view.epoch
            async with serving(configs["C"], listeners["C"]) as c:
                # It has not heard of anything yet, and was a member when it ended.
                assert c.base.master.view.epoch < gone and not is_ready(c)
                reasons = {one.name: one.text for one in c.ready() if not one.good}
                assert list(reasons) == ["membership"] and "present epoch" in reasons["membership"]

                def looks_ready() -> bool:
                    ready = is_ready(c)
                    assert not ready or c.base.master.view.epoch > gone, c.status()["phase_reason"]
                    return ready

                await until(looks_ready)
                assert set(c.base.master.view.members) == {"A", "B", "C"}

    asyncio.run(main())


def test_a_node_whose_peers_are_away_is_ready(tmp_path: Path) -> None:
    """Its greeting fails: nothing is wrong with this node."""

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        configs = {name: config_of(tmp_path, name, ports, **_SETTINGS) for name in "AB"}
        async with AsyncExitStack() as stack:
            a, b = [
                await stack.enter_async_context(serving(configs[name], listeners[name].dup()))
                for name in "AB"
            ]
            await begin(a, b)
        listeners["B"].close()
        async with serving(configs["A"], listeners["A"]) as a:
            await until(lambda: is_ready(a))
            assert not any(link.up for link in a.base.links.values())

    asyncio.run(main())
