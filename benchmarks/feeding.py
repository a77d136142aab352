"""How late a feed is under load, what it takes (V69), and how long a restore from it takes (V70).

One node gets batches of 1,000 one-row appends at a steady rate; `sparktxlog feed` follows it in a
process of its own.  Then the log is filled as fast as it goes, the node ends, and Spark makes its
table again from the feed alone, and counts its rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, at_most, informing
from benchmarks.sparks import session
from sparktxlog import Client
from sparktxlog.worker.feed.feed_points import route_to, target_of
from sparktxlog.worker.feed.feed_restoring import restore_rows
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.verify.verify import recount_tables

_RATE = 4_000


def run(short: bool) -> list[Figure]:
    """Measure lag, memory and processor time of the feed, then a restore."""
    seconds, total = (5, 20_000) if short else (30, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        place = FeedStore(Path(directory) / "feed")
        with Cluster(Path(directory), "A") as cluster, _feeding(cluster.urls["A"], place) as pid:
            client = Client(cluster.urls["A"], timeout=600)
            create_table(client)
            lag, spent = _watch(client, place, seconds, pid)
            rest = total - seconds * _RATE
            client.submit_many(TABLE, rows_of(rest), run_transactions=BATCH)
            end = int(cluster.get("A", "/v1/info")["position"])
            _wait(place, end)
            most = _peak_bytes(pid)
        lake, spark = Path(directory) / "lake", session()
        begin = time.perf_counter()
        done = restore_rows(spark, place, route_to(place, target_of(place, None)), lake)
        took = time.perf_counter() - begin
        if done.state.position != end or recount_tables(spark, lake):
            raise RuntimeError(f"restored up to {done.state.position:,} instead of {end:,}")
    return [
        at_most(f"feed: longest lag at {_RATE:,} transactions a second", lag, "s", 5),
        informing("feed: processor time for each second of load", spent / seconds, "s"),
        at_most("feed: most memory", most / (1 << 20), "MiB", 1_024),
        at_most(f"feed: restore of {end:,} transactions", took, "s", 60),
    ]


@contextmanager
def _feeding(url: str, place: FeedStore) -> Iterator[int]:
    """Run `sparktxlog feed`; yields the id of its process."""
    command = [sys.executable, "-m", "sparktxlog.cli", "feed", "--url", url, "--to", place.url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def _watch(client: Client, place: FeedStore, seconds: int, pid: int) -> tuple[float, float]:
    """Commit at a steady rate; return the longest lag, and the feed's processor time."""
    rows, ends, ended = rows_of(BATCH), deque[tuple[int, float]](), threading.Event()
    longest, before = 0.0, 0.0

    def load() -> None:
        begin, position = time.perf_counter(), 1
        for number in range(seconds * _RATE // BATCH):
            client.submit_many(TABLE, rows, run_transactions=BATCH)
            position += BATCH
            ends.append((position, time.perf_counter()))
            ended.wait(max(0.0, begin + (number + 1) * BATCH / _RATE - time.perf_counter()))
        ended.set()

    _wait(place, 1)
    before, thread, pause = _cpu_seconds(pid), threading.Thread(target=load), threading.Event()
    thread.start()
    while not (ended.is_set() and not ends):
        seen, now = place.seen(), time.perf_counter()
        while ends and seen is not None and ends[0][0] <= seen.position:
            ends.popleft()
        if ends:
            longest = max(longest, now - ends[0][1])
        pause.wait(0.05)
    thread.join()
    return longest, _cpu_seconds(pid) - before


def _wait(place: FeedStore, position: int) -> None:
    pause = threading.Event()
    while (seen := place.seen()) is None or seen.position < position:
        pause.wait(0.05)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10
