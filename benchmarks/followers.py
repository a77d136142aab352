"""What a follower costs those that it follows: a member's commits and CPU, with it and without.

Two members, and a follower that is started and stopped in turns on one machine; its place stays.
Turns alternate, each second one in the other order, so that what drifts meets both alike.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_most, informing, spread
from sparktxlog import Client

#: Turns of each kind, commits of one writer in each, and commits of many after them.
_TURNS, _COMMITS, _WRITERS, _FULL = 6, 300, 16, 2_000
_SHORT_TURNS, _SHORT_COMMITS, _SHORT_FULL = 2, 20, 64
#: Figures to reach: percent of a commit's time and of a member's CPU, and seconds of lag.
_MOST_PERCENT, _MOST_CPU_PERCENT, _MOST_LAG_S = 2.0, 3.0, 2.0
_SETTLE_S, _PATIENCE_S = 1.0, 60.0


class _Turns:
    """A cluster with a follower that comes and goes.

    Args:
        commits: Of a turn.
    """

    def __init__(self, cluster: Cluster, commits: int) -> None:
        self._cluster, self._commits = cluster, commits
        self._number = 0
        #: With a follower, without → milliseconds of a commit, and CPU milliseconds of A for one.
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.cpu: dict[bool, list[float]] = {True: [], False: []}

    def turn(self, *, follows: bool) -> None:
        """Commit with or without a follower, and note what that took."""
        cluster = self._cluster
        if follows and "F" not in cluster.processes:
            cluster.start("F")
            cluster.wait_ready("F")
            self.wait_followed()
        elif not follows and "F" in cluster.processes:
            cluster.stop("F")
        time.sleep(_SETTLE_S)
        times, cpu = list[float](), cluster.cpu_seconds("A")
        with Client(cluster.urls["A"], timeout=_PATIENCE_S) as client:
            for _ in range(self._commits):
                begin = time.perf_counter()
                client.append("events", [self._row()])
                times.append(time.perf_counter() - begin)
        # What the follower makes of it afterwards belongs to the turn.
        time.sleep(_SETTLE_S)
        spent = cluster.cpu_seconds("A") - cpu
        self.times[follows].append(1e3 * statistics.median(times))
        self.cpu[follows].append(1e3 * spent / self._commits)

    def _row(self) -> dict[str, Any]:
        self._number += 1
        return {"id": self._number, "name": f"event {self._number}", "value": 0.5}

    def wait_followed(self) -> float:
        """Wait until the follower is where A is now; return for how long, seconds."""
        begin, end = time.perf_counter(), self._cluster.get("A", "/v1/status")["position"]
        while self._cluster.get("F", "/v1/status")["position"] < end:
            if time.perf_counter() - begin > _PATIENCE_S:
                raise TimeoutError(f"the follower is not at position {end}")
            time.sleep(0.01)
        return time.perf_counter() - begin

    def full_load(self, commits: int) -> tuple[float, float]:
        """Commit by many writers; return commits a second, and the greatest lag seen, seconds."""
        over, lags = threading.Event(), [0.0]

        def look() -> None:
            while not over.is_set():
                lags.append(self.wait_followed())

        def write(count: int) -> None:
            with Client(self._cluster.urls["A"], timeout=_PATIENCE_S) as client:
                for number in range(count):
                    client.append("events", [{"id": -number, "name": "event", "value": 0.5}])

        looking = threading.Thread(target=look)
        writers = [
            threading.Thread(target=write, args=(commits // _WRITERS,)) for _ in range(_WRITERS)
        ]
        looking.start()
        begin = time.perf_counter()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        took = time.perf_counter() - begin
        over.set()
        looking.join()
        return commits / took, max(lags)


def run(short: bool = False) -> list[Figure]:
    """Measure; two minutes and a half, `short` checks that it works."""
    turns = _SHORT_TURNS if short else _TURNS
    commits = _SHORT_COMMITS if short else _COMMITS
    with tempfile.TemporaryDirectory(prefix="benchmark-followers-") as root:
        cluster = _FollowedCluster(Path(root), "ABF", of_each={"F": {"roles": ["follower"]}})
        with cluster:
            with Client(cluster.urls["A"], timeout=_PATIENCE_S) as client:
                client.create_table("events", {"id": "bigint", "name": "string", "value": "double"})
            found = _Turns(cluster, commits)
            found.turn(follows=True)  # all is warm, and counts for nothing
            found.times[True].clear()
            found.cpu[True].clear()
            for number in range(turns):
                first = bool(number % 2)
                for follows in (first, not first):
                    found.turn(follows=follows)
            if "F" not in cluster.processes:
                cluster.start("F")
                cluster.wait_ready("F")
                found.wait_followed()
            rate, lag_s = found.full_load(_SHORT_FULL if short else _FULL)
    return _figures(found, rate, lag_s)


class _FollowedCluster(Cluster):
    """Members A and B, and F that follows; members know its role."""

    def peer_lines(self, peer: str) -> str:
        """Return more lines of a peer's entry."""
        return 'roles = ["follower"]\n' if peer == "F" else ""


def _figures(found: _Turns, rate: float, lag_s: float) -> list[Figure]:
    figures = []
    for what, unit, values, most in (
        ("a commit, p50", "ms", found.times, _MOST_PERCENT),
        ("CPU of a member for a commit", "ms", found.cpu, _MOST_CPU_PERCENT),
    ):
        figures += [
            spread(f"{what}, without a follower", values[False], unit),
            spread(f"{what}, with a follower", values[True], unit),
        ]
        # Each turn with the one next to it.
        more = [
            100 * (with_one / without - 1)
            for with_one, without in zip(values[True], values[False], strict=True)
        ]
        figures.append(at_most(f"{what}: more with a follower", statistics.median(more), "%", most))
    return [
        *figures,
        informing("commits of 16 writers with a follower", rate, "tx/s"),
        at_most("lag of a follower at full load, the most", lag_s, "s", _MOST_LAG_S),
    ]
