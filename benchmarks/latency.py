"""How long a commit takes where the sites are far from each other, in delays of one way.

Three nodes reach each other by relays that let all bytes arrive late; clients are beside their
nodes.  A commit needs two delays: its run goes to the others, and what they say of it comes back.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.cluster import Cluster
from benchmarks.delayed_links import DelayedLinks
from benchmarks.epochs import wait_members
from benchmarks.results import Figure, at_most, informing
from sparktxlog import Client

#: Delays of one way, milliseconds.
DELAYS_MS = (0, 20, 80, 200)
#: Commits of a writer in each case.
_COMMITS = 30
#: A commit takes at most so many delays, and so many milliseconds at the nodes.
_MOST_DELAYS, _MOST_MS = 2.1, 5.0


class FarCluster(Cluster):
    """Nodes that reach each other by relays only, each with a delay; clients reach them directly.

    Args:
        delay_s: Of one way.
    """

    def __init__(self, root: Path, delay_s: float, names: str = "ABC", **settings: Any) -> None:
        super().__init__(root, names, **settings)
        self._ports = {name: int(url.rsplit(":", 1)[1]) for name, url in self.urls.items()}
        self._links = DelayedLinks(self._ports, delay_s)

    def __enter__(self) -> Self:
        self._links.__enter__()
        super().__enter__()
        wait_members(self, "".join(self.names), "".join(self.names))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._links.__exit__(kind, error, trace)

    def start(self, name: str) -> None:
        """Start a node's process behind its relay."""
        self._of_each = {**self._of_each, name: {"listen": f"127.0.0.1:{self._ports[name]}"}}
        super().start(name)

    def peer_url(self, name: str) -> str:
        """Return the address of a node's relay."""
        return self._links.urls[name]


def _commit_times(url: str, commits: int, pause_s: float) -> list[float]:
    """Return the seconds that commits took, one after the other.

    Args:
        pause_s: Between two commits, half of it to one and a half; 0 = back to back.
    """
    chance, times = random.Random(1), []
    with Client(url, timeout=60) as client:
        for number in range(commits):
            time.sleep(pause_s * chance.uniform(0.5, 1.5))
            begin = time.perf_counter()
            client.append("events", [{"id": number, "name": f"event {number}", "value": 0.5}])
            times.append(time.perf_counter() - begin)
    return times


def _at_each_site(cluster: Cluster, commits: int) -> list[float]:
    """Return the seconds of commits of one writer at each site, all at the same time."""
    times: list[float] = []
    writers = [
        threading.Thread(target=lambda url=url: times.extend(_commit_times(url, commits, 0)))
        for url in cluster.urls.values()
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return times


def _cases(cluster: Cluster, delay_ms: float, commits: int) -> dict[str, list[float]]:
    """Return for each case the seconds that commits took."""
    url = cluster.urls["A"]
    with Client(url, timeout=60) as client:
        client.create_table("events", {"id": "bigint", "name": "string", "value": "double"})
    _commit_times(url, 3, 0)
    return {
        "spaced": _commit_times(url, commits, 0.5 + 2 * delay_ms / 1e3),
        "back to back": _commit_times(url, commits, 0),
        "one writer at each site": _at_each_site(cluster, commits),
    }


def _figures(delay_ms: float, name: str, times: list[float]) -> list[Figure]:
    p50 = 1e3 * statistics.median(times)
    text = f"commit, three sites {delay_ms:g} ms apart, {name}: p50"
    if not delay_ms:
        return [informing(text, p50, "ms")]
    most = _MOST_DELAYS * delay_ms + _MOST_MS
    return [
        at_most(text, p50, "ms", most),
        informing(f"{text}, in delays of one way", p50 / delay_ms, ""),
    ]


def run(short: bool) -> list[Figure]:
    """Measure with each delay."""
    found: list[Figure] = []
    for delay_ms in (20,) if short else DELAYS_MS:
        with (
            tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
            FarCluster(Path(directory), delay_ms / 1e3) as cluster,
        ):
            for name, times in _cases(cluster, delay_ms, 4 if short else _COMMITS).items():
                found += _figures(delay_ms, name, times)
    return found
