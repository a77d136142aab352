"""A node that keeps nothing may have lost its disk: it takes nothing until a peer took it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, config_of, until
from tests.service.test_staged_files import create

from sparktxlog.errors import NotMemberError
from sparktxlog.model.receipt import Level
from sparktxlog.runtime.node import build_node


def test_a_fresh_node_without_a_peer_takes_no_transaction(tmp_path: Path) -> None:
    """Seeds 0, 4, 8, 9, 12 and 13 of `tests.verification.nodes`.

    A client committed at a node that came back with an empty disk, before its first greeting: with
    data of its own under another instance no peer ever let it in again.
    """

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))  # a peer that never answers
        ports = {"A": 1, "B": listener.getsockname()[1]}
        running = build_node(config_of(tmp_path, "A", ports))
        await running.start()
        try:
            with pytest.raises(NotMemberError, match="B has not accepted it") as caught:
                await running.submit(create(), level=Level.ACCEPTED, timeout=5)
            assert caught.value.definite and caught.value.retryable
            assert not running.membership.joining.proven
        finally:
            await running.stop()
            listener.close()

    asyncio.run(main())


def test_a_node_that_keeps_something_takes_transactions_though_it_is_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a = nodes["A"]
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            config = a.config
        alone = build_node(config)
        await alone.start()
        try:
            await until(lambda: alone.membership.joining.proven, 5)
            receipt = await alone.submit(create(), level=Level.ACCEPTED, timeout=20)
            assert receipt.level is Level.ACCEPTED
        finally:
            await alone.stop()

    asyncio.run(main())
