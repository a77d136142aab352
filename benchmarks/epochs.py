"""Epochs: how long commits rest when a node dies, and when one comes back that missed a lot.

Three nodes on loopback, suspect-timeout 1 s, clients that commit one row after the other at
`ordered` at the nodes that stay; while one returns, with a short rest between two commits: three
nodes on two processors that are never at rest would measure the processors.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import statistics
import tempfile
import threading
import time
import urllib.error
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, at_most, informing
from sparktxlog import Client

SETTINGS: dict[str, Any] = {"suspect-timeout": 1, "start-timeout": 3, "log-level": "info"}
_PHASE = re.compile(r"^(\S+Z) .* phase .* phase=(WEDGED|NORMAL)", re.MULTILINE)
MISSED, MISSED_LITTLE = 100_000, 5_000
KILLS = 6
#: Returns of a node that missed little, for the figures of a single epoch change.
RETURNS = 10
#: Rest of a client between two commits while a node returns, seconds.
_REST_S = 0.025
_GOAL_S = 2.0
_numbers = itertools.count(10_000_000)


class Committer(threading.Thread):
    """Commits one row after the other at a node, and notes when each was ordered.

    Args:
        rest_s: Pause between two commits, seconds.
    """

    def __init__(self, url: str, rest_s: float) -> None:
        super().__init__(daemon=True)
        self._rest_s = rest_s
        self._address = urlsplit(url).netloc
        self._over = threading.Event()
        #: (sent, ordered), seconds of `perf_counter`.
        self.done: list[tuple[float, float]] = []

    def run(self) -> None:
        """Commit until stopped; what fails is not counted."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        while not self._over.is_set():
            begin = time.perf_counter()
            try:
                if commit(connection) == 200:
                    self.done.append((begin, time.perf_counter()))
            except (OSError, http.client.HTTPException):
                connection.close()
                self._over.wait(0.01)
            if self._rest_s:
                self._over.wait(self._rest_s)

    def stop(self) -> None:
        """End after the commit under way."""
        self._over.set()
        self.join()


class Committers:
    """Committers at some nodes, as long as the context lasts."""

    def __init__(self, cluster: Cluster, names: str, rest_s: float = 0.0) -> None:
        self.each = [Committer(cluster.urls[name], rest_s) for name in names]

    def __enter__(self) -> Self:
        for committer in self.each:
            committer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for committer in self.each:
            committer.stop()

    def median_s(self, begin: float, end: float) -> float:
        """Return the median seconds from sending to ordered of commits within a time."""
        found = [b - a for each in self.each for a, b in each.done if begin <= a and b <= end]
        return statistics.median(found)

    def longest_gap_s(self, begin: float, end: float) -> float:
        """Return the longest time without an ordered commit at any of the nodes."""
        gaps = [0.0]
        for each in self.each:
            times = [begin, *(b for _, b in each.done if begin < b < end), end]
            gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
        return max(gaps)


def commit(connection: http.client.HTTPConnection) -> int:
    """Commit a row at `ordered`; return the HTTP status."""
    row = {"id": next(_numbers), "sensor": 1, "value": 0.5, "note": "x"}
    body = {"operations": [{"kind": "append", "table": TABLE, "rows": [row]}]}
    connection.request(
        "POST",
        "/v1/transactions?level=ordered&timeout=30",
        json.dumps(body),
        {"content-type": "application/json"},
    )
    answer = connection.getresponse()
    answer.read()
    return answer.status


def state_of(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a node's status, empty while it does not answer."""
    try:
        found: dict[str, Any] = cluster.get(name, "/v1/status", timeout=5)
    except (urllib.error.URLError, OSError):
        return {}
    return found


def wait_members(cluster: Cluster, names: str, members: str, timeout: float = 120) -> None:
    """Wait until nodes take part in an epoch of these members."""
    deadline = time.perf_counter() + timeout
    for name in names:
        while True:
            found = state_of(cluster, name)
            if found and found["phase"] == "NORMAL" and set(found["members"]) == set(members):
                break
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{name} shows {found.get('members')}, not {members}")
            time.sleep(0.01)


def rest_after_kill_s(cluster: Cluster, victim: str) -> float:
    """Kill a node; return the seconds until a commit sent right then is ordered elsewhere."""
    others = "".join(name for name in cluster.names if name != victim)
    with Committers(cluster, others):
        time.sleep(1.0)
        process = cluster.processes.pop(victim)
        process.send_signal(signal.SIGKILL)
        begin = time.perf_counter()
        times: list[float] = []

        def probe(name: str) -> None:
            connection = http.client.HTTPConnection(urlsplit(cluster.urls[name]).netloc, timeout=60)
            if commit(connection) == 200:
                times.append(time.perf_counter() - begin)
            connection.close()

        probes = [threading.Thread(target=probe, args=(name,)) for name in others]
        for thread in probes:
            thread.start()
        for thread in probes:
            thread.join()
        process.wait()
        wait_members(cluster, others, others)
    cluster.start(victim)
    wait_members(cluster, "".join(cluster.names), "".join(cluster.names))
    return min(times)


def frozen_s(cluster: Cluster, name: str) -> float:
    """Return how long a node stood still for its last epoch change, by its log, seconds."""
    told = _PHASE.findall((cluster.root / f"site-{name.lower()}.log").read_text())
    wedged = max(index for index, (_, phase) in enumerate(told) if phase == "WEDGED")
    # Behind the next one it may have been NORMAL again, after a suspicion that came to nothing.
    begin, end = (datetime.fromisoformat(time) for time, _ in told[wedged : wedged + 2])
    return (end - begin).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A node came back; all in seconds."""

    #: From its first answer to member with the whole queue.
    back_s: float
    #: How long the others stood still for the epoch change.
    still_s: float
    #: Their longest rest while it caught up.
    gap_s: float
    #: Their median commit, in the epoch before and in the one that it returned to.
    before_s: float
    after_s: float


def readmission(cluster: Cluster, missed: int) -> Return:
    """Let a node miss transactions and come back under steady commits."""
    cluster.stop("C")
    client = Client(cluster.urls["A"])
    wait_members(cluster, "AB", "AB")
    client.submit_many(TABLE, rows_of(missed), run_transactions=BATCH)
    with Committers(cluster, "AB", _REST_S) as committers:
        quiet = time.perf_counter()
        time.sleep(3)
        before_s = committers.median_s(quiet, time.perf_counter())
        before = state_of(cluster, "A")
        cluster.start("C")
        while not state_of(cluster, "C"):
            time.sleep(0.005)
        begin = time.perf_counter()
        # It starts in the epoch that it knows, as a member of that.
        while not _is_back(state_of(cluster, "C"), before):
            time.sleep(0.025)
        end = time.perf_counter()
        time.sleep(3.5)
        after_s = committers.median_s(end + 0.5, time.perf_counter())
        gap_s = committers.longest_gap_s(begin, end + 0.4)
        still_s = max(frozen_s(cluster, name) for name in "AB")
    cluster.wait_position(cluster.get("A", "/v1/info")["position"])
    return Return(
        back_s=end - begin, still_s=still_s, gap_s=gap_s, before_s=before_s, after_s=after_s
    )


def _is_back(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a node is member of an epoch behind `before`, with all that was there."""
    return bool(now) and (
        now["epoch"] > before["epoch"]
        and now["phase"] == "NORMAL"
        and now["node_id"] in now["members"]
        and now["position"] >= before["position"]
    )


def run(short: bool) -> list[Figure]:
    """Measure kills, then a return."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), **SETTINGS) as cluster,
    ):
        create_table(Client(cluster.urls["A"]))
        cluster.wait_position(1)
        victims = "CB" if short else "CBA" * (KILLS // 3)
        rests = [rest_after_kill_s(cluster, victim) for victim in victims]
        missed = MISSED_LITTLE if short else MISSED
        first = readmission(cluster, missed)
        count = 2 if short else RETURNS
        returns = [first, *(readmission(cluster, MISSED_LITTLE) for _ in range(count))]
    still_s = statistics.median(each.still_s for each in returns)
    after_s = statistics.median(each.after_s for each in returns)
    kills = f"{len(rests)} kills, suspect-timeout 1 s"
    return [
        at_most(
            f"kill -9 to the next ordered commit, p50 ({kills})",
            statistics.median(rests),
            "s",
            _GOAL_S,
        ),
        at_most("kill -9 to the next ordered commit, max", max(rests), "s", _GOAL_S),
        at_most(
            f"return after {missed:,} transactions, first answer to member", first.back_s, "s", 3
        ),
        informing(
            "the others' commit, p50, two members",
            1e3 * statistics.median(each.before_s for each in returns),
            "ms",
        ),
        informing("the same, three members (one round)", 1e3 * after_s, "ms"),
        informing(
            f"the others stood still for a return, p50 ({len(returns)} returns)",
            1e3 * still_s,
            "ms",
        ),
        informing("the same, max", 1e3 * max(each.still_s for each in returns), "ms"),
        at_most("the p50 in rounds", still_s / after_s, "rounds", 1),
        informing(
            "the others' longest rest while a node caught up, p50",
            1e3 * statistics.median(each.gap_s for each in returns),
            "ms",
        ),
    ]
