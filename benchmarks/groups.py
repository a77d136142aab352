"""Two groups on the same nodes: what one of them keeps of its rate while the other's site is cut.

Three nodes; group b has its rows at B, group c at C, and all is written at A, one row a
transaction.  First each group is written alone, with all sites there.  Then the other one's site is
stopped, and both are written: what goes to the group that is away waits, and is refused.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import create_group
from sparktxlog.errors import GroupAwayError, TxLogError
from sparktxlog.http.link import Http

#: Group, which is its table, too → its site.
_GROUPS = {"b": "B", "c": "C"}
#: Callers of a group, each with one transaction under way.
_WRITERS = 8


class _Writers:
    """Callers that write to some groups; `refused` counts what a group that is away refuses."""

    def __init__(self, url: str, tables: str) -> None:
        self.done = dict.fromkeys(tables, 0)
        self.refused = dict.fromkeys(tables, 0)
        self._url, self._stop, self._lock = url, threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._write, args=(table,), daemon=True)
            for table in tables
            for _ in range(_WRITERS)
        ]

    def _write(self, table: str) -> None:
        with Client(self._url, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    client.append(table, [{"id": 1, "name": "row"}])
                except GroupAwayError:
                    counted = self.refused
                except TxLogError:
                    continue
                else:
                    counted = self.done
                with self._lock:
                    counted[table] += 1

    def rate(self, table: str, seconds: float) -> float:
        """Write for some seconds; return the transactions to a table a second."""
        for thread in self._threads:
            thread.start()
        time.sleep(seconds / 5)  # the first ones connect
        before, began = self.done[table], time.perf_counter()
        time.sleep(seconds)
        count, took = self.done[table] - before, time.perf_counter() - began
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return count / took


def run(short: bool) -> list[Figure]:
    """Measure on three nodes."""
    seconds = 2.0 if short else 15.0
    settings: dict[str, Any] = {
        "eviction": "auto",
        "suspect-timeout": 1.0,
        "synchro-timeout": 5.0,
    }
    found: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), **settings) as cluster,
    ):
        url = cluster.urls["A"]
        with Client(url) as client:
            for group, site in _GROUPS.items():
                create_group(Http(url), group, [site])
                client.create_table(group, {"id": "bigint", "name": "string"}, group=group)
            client.create_table("plain", {"id": "bigint"})
            for own, other in (("b", "c"), ("c", "b")):
                alone = _Writers(url, own).rate(own, seconds)
                cluster.stop(_GROUPS[other])
                client.append("plain", [{"id": 1}])  # the order waits until the site is left out
                both = _Writers(url, own + other)
                beside = both.rate(own, seconds)
                assert not both.done[other], "nobody holds it"
                name = f"group {own}, written by {_WRITERS} callers"
                found += [
                    informing(f"{name}, alone", alone, "tx/s"),
                    informing(f"{name}, while group {other} is away", beside, "tx/s"),
                    at_least(f"kept of the rate of group {own}", beside / alone, "x", 0.9),
                    informing(f"refused to group {other} meanwhile", both.refused[other], "tx"),
                ]
                cluster.start(_GROUPS[other])
                cluster.wait_ready(_GROUPS[other])
    return found
