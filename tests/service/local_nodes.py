"""Nodes in the test's own event loop, each behind a real server on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.runtime.node import Node, build_node
from sparktxlog.service.application import build_app
from sparktxlog.service.connections.listener import Server

SECRET = "a secret of the test cluster"


def config_of(
    directory: Path,
    name: str,
    ports: dict[str, int],
    *,
    followers: str = "",
    **settings: Any,
) -> NodeConfig:
    """Return the configuration of one of several nodes on loopback; some of them only follow."""
    values: dict[str, Any] = {
        "node-id": name,
        "master-url": f"http://127.0.0.1:{ports[name]}",
        "data-dir": str(directory / name),
        "cluster-secret": SECRET,
        "publish-interval": 0.05,
        "idle-round-min": 0.2,
        "idle-round-max": 0.5,
        "eviction": "manual",
    }
    others = [other for other in ports if other != name]
    for number, other in enumerate(others, start=1):
        values[f"peer.{number}.id"] = other
        values[f"peer.{number}.url"] = f"http://127.0.0.1:{ports[other]}"
        if other in followers:
            values[f"peer.{number}.roles"] = "follower,replica"
    if name in followers:
        values["roles"] = "follower,replica"
    values |= {key.replace("_", "-"): value for key, value in settings.items()}
    return load_config(None, values, {})


@asynccontextmanager
async def serving(config: NodeConfig, listener: socket.socket) -> AsyncIterator[Node]:
    """Run one node behind its server."""
    running = build_node(config)
    server = Server(
        build_app(running),
        places=running.base.budgets.connections,
        grace_s=1,
        certificate=running.base.certificate,
    )
    await running.start()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield running
    finally:
        running.begin_stop()
        server.should_exit = True
        await task
        await running.stop()


@asynccontextmanager
async def cluster(
    directory: Path, names: str = "ABC", **settings: Any
) -> AsyncIterator[dict[str, Node]]:
    """Run nodes that are each other's peers; all links are up."""
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
    async with AsyncExitStack() as stack:
        nodes = {}
        for name in names:
            config = config_of(directory, name, ports, **settings)
            nodes[name] = await stack.enter_async_context(serving(config, listeners[name]))
        await until(lambda: all(link.up for n in nodes.values() for link in n.base.links.values()))
        yield nodes


async def until(condition: Callable[[], Any], timeout: float = 90) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)
