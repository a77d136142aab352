"""The Spark job of one site: takes lines of JSON on stdin, answers with lines on stdout.

What the lines mean is in `job_lines`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo import flight_comparison, flights
from examples.demo.job_lines import obey, session_settings
from pyspark.sql import functions as F

from sparktxlog import Client
from sparktxlog.api.connect import connect
from sparktxlog.api.session import build_session
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.feed.feed_points import route_to, target_of
from sparktxlog.worker.feed.feed_restoring import restore_rows
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.bucket_replica import open_replica
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.verify import verify_replica

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparktxlog.worker.lakes.lake import Lake

#: Part of the change stream → what it does to which table, in this order in each transaction.
_OPERATIONS = {
    "announced": (OperationKind.APPEND, "flights"),
    "moved": (OperationKind.UPSERT, "flights"),
    "cancelled": (OperationKind.DELETE_KEYS, "flights"),
    "seen": (OperationKind.UPSERT, "aircraft_position"),
}
#: Most transactions of one batch commit.
_CHUNK = 2_000
_COMMIT_TIMEOUT_S = 240.0
_APPLY_TIMEOUT_S = 600.0


class SiteJob:
    """A site's Spark session, its connection to the nodes, and its change stream.

    Args:
        site: Its node id.
        urls: The nodes that it commits at, its own first.
        source: Directory of its part of the source.
        scale: Part of the year.
        cores: Of Spark.
    """

    def __init__(
        self, site: str, urls: Sequence[str], source: str, scale: float, cores: int
    ) -> None:
        self.spark = build_session(
            f"local[{cores}]", session_settings(scale), app_name=f"sparktxlog-demo-{site}"
        )
        self._log = connect(self.spark, urls)
        self._site, self._scale = site, scale
        self._source = Path(source)
        #: What the site's transactions do, by kind; cached.
        self._operations: dict[str, DataFrame] = {}
        #: Numbers of the site's transactions, ascending.
        self._numbers: list[int] = []

    def _read(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self._source / f"{name}.parquet"))

    def prepare(self) -> dict[str, Any]:
        """Read the site's source, and make its change stream."""
        flown = flights.flights_of(self._read("flights"), self._scale)
        changes = flights.changes_of(flown).cache()
        made = flights.transaction_id_column(F.lit(self._site), F.col("number"))
        numbers: set[int] = set()
        for name, frame in flights.site_operations(changes).items():
            operation = frame.withColumn("transaction_id", made).cache()
            self._operations[name] = operation
            numbers.update(operation.select("number").distinct().toArrow()["number"].to_pylist())
        self._numbers = sorted(numbers)
        count = changes.count()
        changes.unpersist()
        return {"transactions": len(numbers), "changes": count}

    def create(self) -> dict[str, Any]:
        """Create all tables in one transaction; one site does."""
        with self._log.transaction() as t:
            t.create_table("flights", flights.FLIGHT_SCHEMA, keys=flights.FLIGHT_KEYS)
            t.create_table("aircraft_position", flights.AIRCRAFT_SCHEMA, keys=flights.AIRCRAFT_KEYS)
            t.create_table("weather", flights.WEATHER_SCHEMA)
            t.create_table("planes", flights.PLANE_SCHEMA)
        return {"transactions": 1, "rows": 0}

    def bulk(self) -> dict[str, Any]:
        """Append whole files in one transaction; they travel as Parquet, not inline."""
        files = {"weather": flights.select_schema(self._read("weather"), flights.WEATHER_SCHEMA)}
        if (self._source / "planes.parquet").exists():
            files["planes"] = flights.select_schema(self._read("planes"), flights.PLANE_SCHEMA)
        with self._log.transaction(timeout=_COMMIT_TIMEOUT_S) as t:
            for table, rows in files.items():
                t.append(table, rows)
        return {"transactions": 1, "rows": sum(rows.count() for rows in files.values())}

    def commit(self, part: int, parts: int, level: str) -> dict[str, Any]:
        """Commit a part of the change stream, many transactions at once."""
        count = len(self._numbers)
        mine = self._numbers[count * part // parts : count * (part + 1) // parts]
        rows = 0
        for begin in range(0, len(mine), _CHUNK):
            chunk = mine[begin : begin + _CHUNK]
            rows += self._commit_chunk(chunk[0], chunk[-1], level)
        return {"transactions": len(mine), "rows": rows}

    def _commit_chunk(self, first: int, last: int, level: str) -> int:
        within = F.col("number").between(first, last)
        with self._log.batch(level=level, timeout=_COMMIT_TIMEOUT_S) as batch:
            for name, frame in self._operations.items():
                rows = frame.where(within)
                if rows.isEmpty():
                    continue
                kind, table = _OPERATIONS[name]
                batch.add(kind, table, rows, transaction="number", transaction_ids="transaction_id")
        done = batch.receipt
        if done.rejections:
            raise RuntimeError(f"{len(done.rejections)} rejected, first: {done.rejections[0]}")
        return done.rows

    def _open_source(self, url: str = "") -> HttpLogSource:
        return HttpLogSource(url or self._log.url, None)

    def apply(self, at_least: int, url: str = "") -> dict[str, Any]:
        """Apply the published queue to the site's tables, as jobs/apply.py does.

        Args:
            url: Of the node of another site, whose own tables get it.
        """
        with (
            closing(self._open_source(url)) as source,
            closing(self._open_source(url)) as reporting,
        ):
            info = source.info()
            with closing(open_replica(info.lake, info.lake_root)) as replica:
                applier = Applier(self.spark, source, replica, reporting=reporting)
                outcome = applier.run_once(at_least, _APPLY_TIMEOUT_S)
                requests = _bucket_requests(replica.place)
        return {
            "position": outcome.position,
            "batches": outcome.batches,
            "diverged": outcome.diverged,
            "verdict": outcome.verdict,
            "requests": requests,
        }

    def verify(self, url: str = "") -> dict[str, Any]:
        """Recount every table's signature by a full scan of its rows; as `apply`."""
        with closing(self._open_source(url)) as source:
            found = verify_replica(self.spark, source, source.info().lake)
        return {
            "signatures": {table.table: table.counted for table in found.tables},
            "unsound": [str(table) for table in found.tables if not table.sound],
        }

    def restore(self, feed: str, lake: str, url: str) -> dict[str, Any]:
        """Make the tables of a feed's end again, and let a new cluster adopt them.

        Args:
            lake: New directory of the tables.
            url: Of a node of another log.
        """
        store = FeedStore(feed)
        done = restore_rows(self.spark, store, route_to(store, target_of(store, None)), lake)
        with connect(self.spark, url) as log:
            for name, table in sorted(done.state.tables.items()):
                log.adopt_table(name, f"{lake}/{name}", keys=table.definition.keys)
        with Client(url) as client:
            info = client.info()
        self.apply(int(info["position"]), url)
        found = self.verify(url)
        if found["unsound"]:
            raise RuntimeError(f"restored, and not sound: {found['unsound']}")
        return {
            "signatures": found["signatures"],
            "proven_at": done.proven_at,
            "log_id": info["log_id"],
        }

    def compare(self, lakes: dict[str, str], queue: str, source: str) -> dict[str, Any]:
        """Count the rows of all sites' tables that differ from the source."""
        return flight_comparison.compare_with_source(
            self.spark, Path(source), self._scale, lakes, queue
        )


def _bucket_requests(lake: Lake) -> dict[str, dict[str, int]]:
    """Return what the worker asked of its bucket, without Spark: kind → `requests`, `bytes`."""
    store = lake.store if isinstance(lake, BucketLake) else None
    if not isinstance(store, BucketStore):
        return {}
    return {
        kind.value: {"requests": found.requests, "bytes": found.bytes}
        for kind, found in store.counts.now().items()
    }


if __name__ == "__main__":
    obey(SiteJob(**json.loads(sys.argv[1])))
