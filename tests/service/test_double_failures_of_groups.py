"""Two sites fail at once, and tables have two copies each (V47).

Of the six pairs of four sites, four hit two groups: each has its other copy then.  A pair that is
a group takes its rows along, and nothing else.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.service.local_nodes import config_of, serving, until

from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import alter_group, create_group
from sparktxlog.errors import GroupAwayError
from sparktxlog.runtime.node import Node

#: E votes, and holds rows of no group.
_SITES, _GROUPS = "ABCDE", {"eu": "AB", "us": "CD"}
_SETTINGS: dict[str, Any] = {
    "eviction": "auto",
    "suspect_timeout": 1,
    "start_timeout": 3,
    "synchro_timeout": 2,
}


def _make(url: str) -> None:
    with Client(url) as client:
        client.create_table("plain", {"id": "bigint"})
        for name, sites in _GROUPS.items():
            create_group(client, name, list(sites), len(sites))
            client.create_table(name, {"id": "bigint"}, group=name)
            for number in range(3):
                assert client.append(name, [{"id": number}]).outcome == "committed"


def _plain(url: str) -> None:
    with Client(url, timeout=60) as client:
        assert client.append("plain", [{"id": 1}]).outcome == "committed"


def _rows(node: Node, table: str) -> list[int]:
    """Return the ids that the files of a table have on a node's disk."""
    found = Path(node.payloads.root).rglob(f"*/{table}/*.parquet")
    return sorted(number for file in found for number in pq.read_table(file)["id"].to_pylist())


@pytest.mark.parametrize("lost", ["AC", "BD", "AB"])
def test_two_sites_fail_at_once(tmp_path: Path, lost: str) -> None:
    left = [name for name in _SITES if name not in lost]
    holders = {group: [one for one in sites if one in left] for group, sites in _GROUPS.items()}

    def goes_on(url: str) -> None:
        """Write to each group: with one copy where one is left, as an operator says."""
        with Client(url, timeout=30) as client:
            for group, sites in holders.items():
                if len(sites) < len(_GROUPS[group]):
                    with pytest.raises(GroupAwayError, match=f"'{group}' needs 2 of its 2 sites"):
                        client.append(group, [{"id": 9}])
                    if sites:
                        alter_group(client, group, copies=len(sites))
                if sites:
                    assert client.append(group, [{"id": 3}]).outcome == "committed"

    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in _SITES}
        ports = {name: one.getsockname()[1] for name, one in listeners.items()}
        async with AsyncExitStack() as stack:
            nodes, stops = dict[str, Node](), dict[str, AsyncExitStack]()
            for name in _SITES:
                config = config_of(tmp_path, name, ports, **_SETTINGS)
                stops[name] = await stack.enter_async_context(AsyncExitStack())
                running = serving(config, listeners[name])
                nodes[name] = await stops[name].enter_async_context(running)
            e = nodes["E"]
            await until(lambda: all(e.base.master.heard(other) for other in "ABCD"))
            await asyncio.to_thread(_make, e.config.master_url)
            await asyncio.gather(*(stops[name].aclose() for name in lost))
            # It waits for both, which are missed therefore.
            await asyncio.to_thread(_plain, e.config.master_url)
            await until(lambda: set(e.base.master.view.members) == set(left))
            for group, sites in _GROUPS.items():
                kept = [_rows(nodes[name], group) for name in holders[group]]
                assert kept == [[0, 1, 2]] * len(holders[group]), (group, sites)
            await asyncio.to_thread(goes_on, e.config.master_url)
            for group in _GROUPS:
                for name in holders[group]:
                    await until(lambda name=name, group=group: 3 in _rows(nodes[name], group))  # type: ignore[misc]

    asyncio.run(main())
