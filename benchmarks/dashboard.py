"""Pages and status of a node with a million transactions and 10,000 tables, under commit load.

And how fast Spark reads its queue, afterwards.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, at_least, at_most, informing
from benchmarks.sparks import median_seconds, session
from sparktxlog import Client, connect

#: Pages that people look at, and what programs ask.
_PAGES = (
    "/v1/status",
    "/",
    "/dashboard/history",
    "/dashboard/queue",
    "/dashboard/tables",
    "/dashboard/tables/wide.t7",
)
#: Those whose first paint is measured.
_PAINTED = ("/", "/dashboard/tables", "/dashboard/tables/wide.t7")
#: Rows a second that a writer commits meanwhile, in batches.
_BATCHES_PER_S = 10
#: Reads after which the JVM has compiled what Spark generates for them.
_WARM_READS = 4


def run(short: bool) -> list[Figure]:
    """Measure on one node without peers, and in a browser where there is one."""
    transactions, tables, asked = (20_000, 100, 40) if short else (1_000_000, 10_000, 300)
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        client = Client(cluster.urls["A"])
        create_table(client)
        for first in range(0, tables, 100):
            with client.transaction() as transaction:
                for number in range(first, first + 100):
                    columns = {"id": "bigint", "v": "string"}
                    transaction.create_table(f"wide.t{number}", columns, keys=["id"])
        share = rows_of(min(50_000, transactions))
        for _ in range(transactions // share.num_rows):
            client.submit_many(TABLE, share, run_transactions=BATCH)
        cluster.wait_published("A", transactions + tables // 100)
        with _load(cluster.urls["A"]):
            times = {path: _times(cluster.urls["A"] + path, asked) for path in _PAGES}
            paints = _first_paints(cluster.urls["A"], Path(directory) / "browser")
        entries = _entries_per_s(cluster.urls["A"])
    figures = [
        at_most(f"{path} under load, 1 M transactions, p95", _p95(found), "ms", 20)
        if path == "/v1/status"
        else informing(f"{path} under load, p95", _p95(found), "ms")
        for path, found in times.items()
    ]
    figures.append(at_least("log.queue() as a DataFrame", entries, "entries/s", 1_000_000))
    figures += [
        at_most(f"first paint of {path} in Chromium, p50", paint, "ms", 300)
        for path, paint in paints.items()
    ]
    return figures


@contextmanager
def _load(url: str) -> Iterator[None]:
    """Commit batches at a steady pace meanwhile."""
    ended = threading.Event()

    def write() -> None:
        rows = rows_of(BATCH)
        with Client(url) as client:
            while not ended.wait(1 / _BATCHES_PER_S):
                client.submit_many(TABLE, rows, run_transactions=BATCH)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _times(url: str, asked: int) -> list[float]:
    """Return how long each answer took, milliseconds."""
    found = []
    for _ in range(asked):
        begun = time.perf_counter()
        with urllib.request.urlopen(url) as answer:
            answer.read()
        found.append((time.perf_counter() - begun) * 1_000)
    return found


def _entries_per_s(url: str) -> float:
    """Return how many rows of the queue Spark reads in a second, with all columns, warm."""
    spark = session()
    with connect(spark, url) as log:

        def read() -> None:
            log.queue().write.format("noop").mode("overwrite").save()

        count = log.queue().count()
        median_seconds(_WARM_READS, read)
        return count / median_seconds(5, read)


def _p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[18]


def _first_paints(url: str, profile: Path) -> dict[str, float]:
    """Return the median time to the first paint of some pages, ms; none if no browser is here."""
    from tests.support.browser import find_browser, open_page

    if find_browser() is None:
        return {}
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0"
    found = dict[str, float]()
    with open_page(profile) as page:
        for path in _PAINTED:
            times = []
            for number in range(6):
                page.open(f"{url}{path}?{number}")
                page.until(f"({paint}) > 0")
                times.append(float(page.value(paint)))
            # The first one starts the browser's processes.
            found[path] = statistics.median(times[1:])
    return found
