"""Links that are slow, and links that are silent: only the latter are given up (P3a)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.service.local_nodes import cluster, until
from tests.support.slow_link import SlowLink, slow_link

from sparktxlog.errors import RemoteProtocolError, TransportError
from sparktxlog.runtime.node import Node
from sparktxlog.transport import peer_link
from sparktxlog.transport.kept_connections import Patience
from sparktxlog.transport.peer_link import PeerLink

#: Longest silence here, and how many bytes pass in three times as long.
SILENCE_S = 4.0
LARGE, RATE = 600_000, 600_000 / (2.5 * SILENCE_S)


@asynccontextmanager
async def slow_pair(
    directory: Path, monkeypatch: pytest.MonkeyPatch, rate: float = RATE
) -> AsyncIterator[tuple[Node, Node, PeerLink, SlowLink]]:
    """Run nodes A and B; A reaches B by a slow link."""
    monkeypatch.setattr(peer_link, "_PATIENCE", Patience(silence_s=SILENCE_S))
    async with cluster(directory, "AB") as nodes:
        a, b = nodes["A"], nodes["B"]
        async with slow_link(b.config.listen[1], rate) as slow:
            link = a.base.links["B"]
            link.move((slow.url,))
            await until(lambda: link.up and link.url == slow.url)
            yield a, b, link, slow


async def upload(link: PeerLink) -> bytes:
    return await link._request("POST", "/peer/v1/pushes", b"\xff" * LARGE, peer_link._PATIENCE)


def test_what_moves_arrives_however_long_it_takes_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with slow_pair(tmp_path, monkeypatch) as (_, b, link, _slow):
            payload = bytes(LARGE)
            b.core.holdings.cache(bytes(32), payload)
            ups, rounds, began = link.ups, link.traffic.posts, time.monotonic()
            up = asyncio.create_task(upload(link))
            down = asyncio.create_task(link.get_announced(bytes(32)))
            # It came there whole: no push is in it.
            with pytest.raises(RemoteProtocolError, match="torn"):
                await up
            assert await down == payload
            assert time.monotonic() - began > 2 * SILENCE_S
            assert (link.ups, link.up) == (ups, True)
            # Posts went on beside it.
            assert link.traffic.posts > rounds + 3

    asyncio.run(main())


def test_a_link_that_is_silent_is_given_up_in_the_middle_of_a_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with slow_pair(tmp_path, monkeypatch) as (_, _b, link, slow):
            carried, began = slow.carried, time.monotonic()
            sent = asyncio.create_task(upload(link))
            await until(lambda: slow.carried > carried + 100_000)
            slow.passes.clear()
            with pytest.raises(TransportError):
                await sent
            assert time.monotonic() - began > SILENCE_S
            await until(lambda: not link.up)
            slow.passes.set()
            await until(lambda: link.up)

    asyncio.run(main())
