"""A disk that is slow: who it is is shown and said, and the others can go on without it (P37)."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.service.local_nodes import cluster, until

from sparktxlog import Client
from sparktxlog.health.verdicts import alarms_of
from sparktxlog.runtime.membership import standing_aside
from sparktxlog.runtime.metrics import StatusMetrics
from sparktxlog.runtime.node import Node

_WRITE_S = 0.6


class _SlowDisk:
    """The disk of a node's journal: each write takes long until it is mended."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mended = threading.Event()
        written = node.base.journal.write

        def write(writes: Sequence[Any]) -> None:
            self.mended.wait(_WRITE_S)
            written(writes)

        monkeypatch.setattr(node.base.journal, "write", write)


def test_a_slow_disk_is_named_and_stands_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of all sites wait for it until its node stands aside, as its operator says."""

    monkeypatch.setattr(standing_aside, "_LOOK_S", 0.1)

    async def main() -> None:
        async with cluster(tmp_path, eviction="auto", suspect_timeout=4) as nodes:
            a, c = nodes["A"], nodes["C"]
            await asyncio.to_thread(_commit, a, 0)
            assert not _alarms(a)
            disk = _SlowDisk(c, monkeypatch)
            try:
                assert max([await asyncio.to_thread(_commit, a, n) for n in range(4)]) > _WRITE_S
                await until(lambda: (_peer(a, "C")["write_s"] or 0) >= _WRITE_S)
                for node in nodes.values():
                    await until(lambda node=node: _takes(node, "The disk of C takes ") >= _WRITE_S)
                # The posts of C wait for its disk; that is not its clock.
                await until(lambda: abs(_peer(a, "C")["clock_offset_us"]) < 300_000)
                assert _metric(a, "sparktxlog_peer_write_s", peer="C") >= _WRITE_S

                await c.change_settings({"slow-write-limit": 0.3})
                await until(lambda: a.base.master.view.members == ("A", "B"))
                # Each took longer than that, so one is enough that does not, on a busy machine too.
                assert min([await asyncio.to_thread(_commit, a, n) for n in range(9)]) < _WRITE_S
                assert _takes(a, "C stands aside, because its disk takes ") >= _WRITE_S
                assert _alarms(c).startswith("C stands aside")
                assert _takes(c, "C stands aside, because its disk takes ") >= _WRITE_S
                await until(lambda: "stands aside" in c.status()["phase_reason"])
                await until(lambda: c.base.ordered.value >= a.base.ordered.value)
            finally:
                disk.mended.set()
            await until(lambda: a.base.master.view.members == ("A", "B", "C"))
            await until(lambda: not _alarms(a) + _alarms(c))

    asyncio.run(main())


def _commit(node: Node, number: int) -> float:
    """Create a table; return the seconds until it is ordered."""
    began = monotonic()
    with Client(node.config.master_url, timeout=60) as client:
        client.create_table(f"t{began:.6f}_{number}".replace(".", "_"), {"id": "bigint"})
    return monotonic() - began


def _peer(node: Node, name: str) -> Any:
    return next(peer for peer in node.status()["peers"] if peer["id"] == name)


def _alarms(node: Node) -> str:
    """Return what is said of disks; no worker runs here, which is said, too."""
    texts = [alarm["text"] for alarm in alarms_of(node.status())]
    return "; ".join(text for text in texts if "disk" in text)


def _takes(node: Node, begin: str) -> float:
    """Return the seconds that an alarm names after these words, 0 if there is none."""
    found = re.search(rf"{begin}([\d.]+) s", _alarms(node))
    return float(found[1]) if found else 0.0


def _metric(node: Node, name: str, **labels: str) -> float:
    found = [one for family in StatusMetrics(node.status).collect() for one in family.samples]
    return next(one.value for one in found if (one.name, one.labels) == (name, labels))
