"""`whole-cluster-above-bytes`: bulk loads wait until all sites are there, small commits do not."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.service.local_nodes import config_of, serving, until

from sparktxlog import Client
from sparktxlog.errors import MembersMissingError

_SETTINGS: dict[str, Any] = {
    "eviction": "auto",
    "suspect_timeout": 1,
    "start_timeout": 3,
    "whole_cluster_above_bytes": 100_000,
}
_LARGE = pa.table({"id": pa.array(range(20_000), pa.int64())})


def _commit(url: str, rows: Any, timeout: float = 1) -> str | None:
    with Client(url, timeout=timeout) as client:
        return client.append("t", rows).outcome


def _open_load(url: str) -> None:
    with Client(url, timeout=2) as client, client.open_transaction() as tx:
        for _ in range(3):
            tx.append("t", _LARGE.slice(0, 10_000))


def _run(url: str) -> Any:
    with Client(url, timeout=1) as client:
        one = _LARGE.append_column("load", pa.array([1] * len(_LARGE)))
        return client.submit_many("t", one, transaction_column="load")


def test_v03_a_bulk_load_is_refused_as_a_whole_while_a_site_is_missing(tmp_path: Path) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "ABC"}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            third = await stack.enter_async_context(AsyncExitStack())
            nodes = {}
            for name in "ABC":
                config = config_of(tmp_path, name, ports, **_SETTINGS)
                holder = third if name == "C" else stack
                node = serving(config, listeners[name].dup())
                nodes[name] = await holder.enter_async_context(node)
            a = nodes["A"]
            await until(lambda: all(one.good for n in nodes.values() for one in n.ready()))
            await until(lambda: len(list(a.base.master.view.members)) == 3)
            url = a.config.master_url

            def begin() -> None:
                with Client(url) as client:
                    client.create_table("t", {"id": "bigint"})

            await asyncio.to_thread(begin)
            assert await asyncio.to_thread(_commit, url, _LARGE) == "committed"
            await third.aclose()
            for load in (lambda: _commit(url, _LARGE), lambda: _run(url), lambda: _open_load(url)):
                with pytest.raises(MembersMissingError) as refused:
                    await asyncio.to_thread(load)
                assert refused.value.definite
                assert refused.value.fields["waits_for"] == ["C"]
                assert refused.value.fields["limit_bytes"] == 100_000
            # Also once it is no member any more; small ones go on.  They wait for it until then:
            # while nothing does, nobody need miss it.
            assert await asyncio.to_thread(_commit, url, [{"id": 1}], 60) == "committed"
            await until(lambda: set(a.base.master.view.members) == {"A", "B"})
            before = a.base.ordered.value
            with pytest.raises(MembersMissingError):
                await asyncio.to_thread(_commit, url, _LARGE)
            assert a.base.ordered.value == before
            back = serving(config_of(tmp_path, "C", ports, **_SETTINGS), listeners["C"].dup())
            await stack.enter_async_context(back)
            await until(lambda: set(a.base.master.view.members) == {"A", "B", "C"})
            assert await asyncio.to_thread(_commit, url, _LARGE) == "committed"

    asyncio.run(main())
