"""A publisher that is late: writers at its node feel it, nobody else does, and it ends."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster, until
from tests.support.node_processes import call

from sparktxlog import Client
from sparktxlog.runtime.node import Node
from sparktxlog.storage.log_tables.queue_table import QueueTable

_ROW = {"operations": [{"kind": "append", "table": "t", "rows": [{"id": 1}]}], "timeout": 1}


class _SlowDisk:
    """The disk of a node's queue table: writes wait until it goes on."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        opened = node.log.publisher._opened

        def slowly() -> QueueTable:
            assert self.goes_on.wait(60)
            return opened()

        monkeypatch.setattr(node.log.publisher, "_opened", slowly)


def test_writers_wait_for_a_late_publisher_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", publish_lag_limit=0.2) as nodes:
            a, b = nodes["A"], nodes["B"]
            await asyncio.to_thread(_create, a.config.master_url)
            await until(lambda: a.base.published.value == 1 == b.base.ordered.value)
            disk = _SlowDisk(a, monkeypatch)
            try:
                await asyncio.to_thread(_append, a)
                await until(lambda: a.status()["publish_lag_us"] > 200_000)
                await asyncio.to_thread(_is_refused, a)
                await a.change_settings({"publish-lag-limit": 60})
                assert (await asyncio.to_thread(_append, a)).outcome == "committed"
                await a.change_settings({"publish-lag-limit": None})
                writer = asyncio.create_task(asyncio.to_thread(_append, a))
                await until(lambda: a.status()["publish_waiting"] == 1)
                # Its peers go on, and it orders what they take.
                receipt = await asyncio.to_thread(_append, b)
                await until(lambda: a.base.ordered.value >= receipt.position)
                assert b.status()["publish_waiting"] == 0 and not writer.done()
            finally:
                disk.goes_on.set()
            assert (await writer).outcome == "committed"
            await until(lambda: a.base.published.value == a.base.ordered.value)
            assert (a.status()["publish_lag_us"], a.status()["warnings"]) == (0, [])

    asyncio.run(main())


def _create(url: str) -> None:
    with Client(url) as client:
        client.create_table("t", {"id": "bigint"})


def _append(node: Node) -> Any:
    with Client(node.config.master_url, timeout=60) as client:
        return client.append("t", [{"id": 2}])


def _is_refused(node: Node) -> None:
    """Look at what a client without repeats, an operator and Prometheus are told."""
    url = node.config.master_url
    with pytest.raises(Exception) as refused:
        call(f"{url}/v1/transactions", _ROW)
    told = refused.value.document  # type: ignore[attr-defined]
    assert (told["title"], told["definite"], told["retryable"]) == ("busy", True, True)
    assert told["fields"]["limit_s"] == 0.2 < told["fields"]["lag_s"]
    (warning,) = call(f"{url}/v1/status")["warnings"]
    assert warning["code"] == "publishing-late"
