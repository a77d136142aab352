"""The Spark job of one site: takes lines of JSON on stdin, answers with lines on stdout.

{"do": "prepare"}                     read the site's source and make its change stream
{"do": "create"}                      create the tables (one site does)
{"do": "bulk"}                        append weather, and the register where it is known
{"do": "commit", "part": [i, n], "level": "ordered"}
                                      commit the i-th of n parts of the change stream
{"do": "apply", "at_least": P}        apply the published queue to the site's tables
{"do": "verify"}                      recount the signatures of all tables by full scan
{"do": "compare", …}                  all sites' tables against the source
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.session import build_session
from sparktxlog.cli.demo import flight_comparison, flights
from sparktxlog.cli.demo.flight_files import AIRPORTS, SourceFiles
from sparktxlog.model.operation import OperationKind
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory
from sparktxlog.worker.verify.verify import verify_replica

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Part of the change stream → what it does to which table, in this order in each transaction.
_OPERATIONS = {
    "announced": (OperationKind.APPEND, "flights"),
    "moved": (OperationKind.UPSERT, "flights"),
    "cancelled": (OperationKind.DELETE_KEYS, "flights"),
    "seen": (OperationKind.UPSERT, "aircraft_position"),
}
#: Most transactions of one batch commit; a progress line follows each.
_CHUNK = 2_000
#: Up to this part of the year a run is too short for the JVM's second compiler.
_SHORT_SCALE = 0.2
_COMMIT_TIMEOUT_S = 240.0
_APPLY_TIMEOUT_S = 600.0


@dataclass(slots=True)
class SiteJob:
    """State between the commands."""

    spark: SparkSession
    site: str
    #: The nodes that the site commits at, its own first.
    urls: tuple[str, ...]
    source: Path
    scale: float
    log: TxLog | None = None
    #: What the site's transactions do, by kind; cached.
    operations: dict[str, DataFrame] = field(default_factory=dict)
    #: Numbers of the site's transactions, ascending.
    numbers: list[int] = field(default_factory=list)
    #: Numbers of the transactions that do something of a kind, ascending.
    concerned: dict[str, list[int]] = field(default_factory=dict)

    def prepare(self) -> dict[str, Any]:
        """Read the source, make the change stream, connect to the node."""
        self.log = connect(self.spark, self.urls)
        raw = self.spark.read.parquet(str(self.source / "flights.parquet"))
        changes = flights.changes_of(flights.flights_of(raw, self.scale)).cache()
        self.operations = {
            name: self._with_ids(frame).cache()
            for name, frame in flights.site_operations(changes).items()
        }
        self.concerned = {
            name: frame.select("number").distinct().sort("number").toArrow()["number"].to_pylist()
            for name, frame in self.operations.items()
        }
        self.numbers = sorted(set().union(*self.concerned.values()))
        count = changes.count()
        changes.unpersist()
        return {"transactions": len(self.numbers), "changes": count}

    @property
    def url(self) -> str:
        """The site's own node."""
        return self.urls[0]

    def _with_ids(self, frame: DataFrame) -> DataFrame:
        made = flights.transaction_id_column(F.lit(self.site), F.col("number"))
        return frame.withColumn("transaction_id", made)

    def create(self) -> dict[str, Any]:
        """Create all tables in one transaction."""
        with self._log().transaction() as t:
            t.create_table("flights", flights.FLIGHT_SCHEMA, keys=flights.FLIGHT_KEYS)
            t.create_table("aircraft_position", flights.AIRCRAFT_SCHEMA, keys=flights.AIRCRAFT_KEYS)
            t.create_table("weather", flights.WEATHER_SCHEMA)
            t.create_table("planes", flights.PLANE_SCHEMA)
        return {"transactions": 1, "rows": 0, "position": t.receipt.position}

    def bulk(self) -> dict[str, Any]:
        """Append whole files in one transaction; they travel as Parquet, not inline."""
        weather = self._weather()
        rows = weather.count()
        register = self.source / "planes.parquet"
        with self._log().transaction(timeout=_COMMIT_TIMEOUT_S) as t:
            t.append("weather", weather)
            if register.exists():
                planes = flights.planes_of(self.spark.read.parquet(str(register)))
                rows += planes.count()
                t.append("planes", planes)
        return {"transactions": 1, "rows": rows, "position": t.receipt.position}

    def _weather(self) -> DataFrame:
        return flights.weather_of(self.spark.read.parquet(str(self.source / "weather.parquet")))

    def commit(self, part: Sequence[int], level: str) -> dict[str, Any]:
        """Commit a part of the change stream, many transactions at once."""
        index, parts = part
        count = len(self.numbers)
        mine = self.numbers[count * index // parts : count * (index + 1) // parts]
        rows = 0
        started = monotonic()
        for begin in range(0, len(mine), _CHUNK):
            chunk = mine[begin : begin + _CHUNK]
            rows += self._commit_chunk(chunk[0], chunk[-1], level)
            _say({"event": "progress", "transactions": len(chunk)})
        return {"transactions": len(mine), "rows": rows, "seconds": monotonic() - started}

    def _commit_chunk(self, first: int, last: int, level: str) -> int:
        within = F.col("number").between(first, last)
        with self._log().batch(level=level, timeout=_COMMIT_TIMEOUT_S) as batch:
            for name, frame in self.operations.items():
                rows = frame.where(within)
                if rows.isEmpty():
                    continue
                kind, table = _OPERATIONS[name]
                batch.add(kind, table, rows, transaction="number", transaction_ids="transaction_id")
        done = batch.receipt
        if done.rejections:
            raise RuntimeError(f"{len(done.rejections)} rejected, first: {done.rejections[0]}")
        return done.rows

    def _log(self) -> TxLog:
        assert self.log is not None, "prepare comes first"
        return self.log

    def apply(self, at_least: int) -> dict[str, Any]:
        """Do what jobs/apply.py does, in this session."""
        started = monotonic()
        with (
            closing(HttpLogSource(self.url, None)) as source,
            closing(HttpLogSource(self.url, None)) as reporting,
            closing(ReplicaDirectory(source.info().lake_root)) as directory,
        ):
            applier = Applier(self.spark, source, directory, reporting=reporting)
            outcome = applier.run_once(at_least, _APPLY_TIMEOUT_S)
        return {
            "position": outcome.position,
            "batches": outcome.batches,
            "diverged": outcome.diverged,
            "verdict": outcome.verdict,
            "seconds": monotonic() - started,
        }

    def verify(self) -> dict[str, Any]:
        """Recount every table's signature by a full scan of its rows."""
        started = monotonic()
        with closing(HttpLogSource(self.url, None)) as source:
            found = verify_replica(self.spark, source, source.info().lake_root)
        return {
            "signatures": {table.table: table.counted for table in found.tables},
            "unsound": [str(table) for table in found.tables if not table.sound],
            "seconds": monotonic() - started,
        }

    def compare(self, lakes: dict[str, str], queue: str, source: dict[str, str]) -> dict[str, Any]:
        """Count the rows of all sites' tables that differ from the source."""
        started = monotonic()
        files = SourceFiles(**{name: Path(path) for name, path in source.items()})
        positions = self.spark.read.format("delta").load(queue)
        positions = positions.select(
            flight_comparison.id_digits(positions, "transaction_id").alias("transaction_id"),
            "position",
        )
        airports = [AIRPORTS[site] for site in lakes]
        source_flights = flight_comparison.read_flights(
            self.spark, files, self.scale, airports
        ).cache()
        expected = flight_comparison.expected_tables(
            self.spark, files, source_flights, positions, airports
        )
        return {
            "differences": flight_comparison.compare_sites(self.spark, lakes, expected),
            "rows": {name: frame.count() for name, frame in expected.items()},
            "shared_keys": flight_comparison.shared_keys(source_flights),
            "seconds": monotonic() - started,
        }


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def _carry_out(job: SiteJob, command: dict[str, Any]) -> dict[str, Any]:
    step: Callable[..., dict[str, Any]] = getattr(job, command.pop("do"))
    return {"event": "done", **step(**command)}


def _session_conf(scale: float) -> dict[str, str]:
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "WARN",
    }
    if scale <= _SHORT_SCALE:
        # Three JVMs that live for two minutes would spend most of them on optimising code.
        conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return conf


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out commands until stdin ends."""
    parser = argparse.ArgumentParser(description="The Spark job of one site of the demo.")
    parser.add_argument("--site", choices=sorted(AIRPORTS), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args(argv)
    spark = build_session(
        arguments.master,
        _session_conf(arguments.scale),
        app_name=f"sparktxlog-demo-{arguments.site}",
    )
    job = SiteJob(
        spark=spark,
        site=arguments.site,
        urls=tuple(arguments.url.split(",")),
        source=arguments.source,
        scale=arguments.scale,
    )
    try:
        for line in sys.stdin:
            try:
                _say(_carry_out(job, json.loads(line)))
            except Exception as error:
                # The story decides what a failure means; the trace is in the site's log.
                _say({"event": "error", "text": f"{type(error).__name__}: {error}"[:2000]})
                raise
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
