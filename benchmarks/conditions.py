"""What conditions cost, and whether clients starve that write one row with `retry`.

Single POSTs to `ordered` at one of three nodes, plain and conditional in turn; then twelve clients
that count one row up, at one site and at three.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.posts import alternate
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client

#: Clients that write the same row.
_WRITERS = 12


def run(short: bool) -> list[Figure]:
    """Measure on three nodes."""
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory)) as cluster,
    ):
        return [*_posts(cluster, 500 if short else 5_000), *_hot_row(cluster, 60 if short else 600)]


def _posts(cluster: Cluster, total: int) -> list[Figure]:
    """Compare plain transactions with those that read a table which nobody writes to."""
    with Client(cluster.urls["A"]) as client:
        for table in ("events", "prices"):
            made = client.create_table(table, {"id": "bigint", "name": "string", "value": "double"})
    conditions = {"read_position": made.position, "reads": ["prices"]}
    port = int(cluster.urls["A"].rsplit(":", 1)[1])
    plain, conditional = alternate(port, total, conditions=conditions)
    return [
        informing("single POSTs to ordered, 3 nodes, 64 clients", plain, "tx/s"),
        informing("the same with a condition that holds", conditional, "tx/s"),
        at_least("conditional rate divided by plain rate", conditional / plain, "x", 0.8),
    ]


def _hot_row(cluster: Cluster, total: int) -> list[Figure]:
    """Count one row up to `total` by clients at one site, then by clients at three."""
    urls = list(cluster.urls.values())
    rates, shares, retries = [], [], []
    for name, sites in (("near", urls[:1]), ("far", urls)):
        with Client(urls[0]) as client:
            made = client.create_table(name, {"id": "bigint", "n": "bigint"}, keys=["id"])
        assert made.position is not None
        cluster.wait_position(made.position)
        commits, attempts, spent = _count_up(name, sites, total)
        with Client(urls[0]) as client:
            if client.table(name).version != sum(commits):
                raise RuntimeError(f"{client.table(name)} after {sum(commits)} commits")
        rates.append(sum(commits) / spent)
        shares.append(min(commits) / sum(commits))
        retries.append(attempts / sum(commits) - 1)
    return [
        informing("one row, 12 clients at 1 site with retry", rates[0], "commits/s"),
        informing("the same at 3 sites", rates[1], "commits/s"),
        at_least("rate at 3 sites divided by rate at 1 site", rates[1] / rates[0], "x", 0.5),
        at_least("least share of a client, 3 sites", 100 * shares[1], "%", 3),
        informing("retries for a commit, 1 site", retries[0], ""),
        informing("retries for a commit, 3 sites", retries[1], ""),
    ]


def _count_up(name: str, sites: Sequence[str], total: int) -> tuple[list[int], int, float]:
    """Return the commits of each client, the attempts of all, and the seconds spent."""
    commits, attempts = [0] * _WRITERS, [0] * _WRITERS
    begin = time.perf_counter()

    def write(number: int) -> None:
        with Client(sites[number % len(sites)], timeout=60) as client:

            @client.retry(attempts=100_000, timeout=600)
            def add_one() -> None:
                attempts[number] += 1
                state = client.table(name)
                with client.transaction(isolation="serializable") as t:
                    t.read_at(state.position, name)
                    t.upsert(name, [{"id": 1, "n": (state.version or 0) + 1}])

            while sum(commits) < total:
                add_one()
                commits[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return commits, sum(attempts), time.perf_counter() - begin
