"""Two workers of one site, each with a set of tables, against one worker that applies all.

Each worker is a process with a JVM, as `sparktxlog apply` is.  It replays a first load, so that its
JVM is warm, and waits; then the load is published, and all workers begin at once.  `one` has the
cores that both of the others have together; `one core` shows what a worker with half of them needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, at_least, informing
from sparktxlog import Client
from sparktxlog.api.session import build_session
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

_SCHEMAS = ("left", "right")
#: Tables of a schema; batches of the load, and rows of a table in each of them.
_TABLES, _BATCHES, _ROWS = 4, 4, 2_000
#: End of each batch: transactions.
_INTERVAL = len(_SCHEMAS) * _TABLES
_START_S, _APPLY_S = 120.0, 300.0


@dataclass(frozen=True, slots=True)
class _Took:
    """What one way took: wall time, and the processor time of its workers, seconds."""

    wall_s: float
    cpu_s: float


def run(short: bool) -> list[Figure]:
    """Measure on one node."""
    batches = 1 if short else _BATCHES
    halves = {name: (1, [f"{name}.*"]) for name in _SCHEMAS}
    found = {
        "one worker": _measured({"all": (2, [])}, batches),
        "one worker with one core": _measured({"all": (1, [])}, batches),
        "two workers with a core each": _measured(halves, batches),
    }
    one, small, two = found.values()
    load = f"{batches * _INTERVAL} upserts of {_ROWS:,} rows into {_INTERVAL} tables"
    return [
        *(informing(f"apply {load}: {name}", took.wall_s, "s") for name, took in found.items()),
        *(
            informing(f"cores that are busy meanwhile: {name}", took.cpu_s / took.wall_s, "cores")
            for name, took in found.items()
        ),
        at_least(
            "two replicas with half of the tables: one / two", one.wall_s / two.wall_s, "x", 1.7
        ),
        informing("the same, one with one core / two", small.wall_s / two.wall_s, "x"),
    ]


def _measured(workers: Mapping[str, tuple[int, list[str]]], batches: int) -> _Took:
    """Apply the load once.

    Args:
        workers: Name of each → its cores, and the patterns of its tables.
    """
    settings = {"A": {"signature-interval": _INTERVAL}}
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A", of_each=settings) as cluster,
        closing(Client(cluster.urls["A"])) as client,
        ExitStack() as ending,
    ):
        for name in _names():
            client.create_table(name, {"id": "bigint", "value": "bigint"}, keys=["id"])
        _load(client, cluster, 0, 2)
        started = [
            ending.enter_context(_Worker(cluster.urls["A"], directory, name, cores, only))
            for name, (cores, only) in workers.items()
        ]
        for worker in started:
            worker.answer()
        position = _load(client, cluster, 2, batches)
        begin = time.perf_counter()
        for worker in started:
            worker.go()
        answers = [worker.answer() for worker in started]
        wall_s = time.perf_counter() - begin
        held = [table for answer in answers for table in cast("list[str]", answer["tables"])]
        positions = {cast("int", answer["position"]) for answer in answers}
        if sorted(held) != sorted(_names()) or positions != {position}:
            raise RuntimeError(f"{held} are applied up to {positions}, not all up to {position}")
        return _Took(wall_s, sum(cast("float", answer["cpu_s"]) for answer in answers))


def _names() -> list[str]:
    return [f"{schema}.t{number}" for schema in _SCHEMAS for number in range(_TABLES)]


def _load(client: Client, cluster: Cluster, first: int, batches: int) -> int:
    """Upsert rows into all tables, half of which are new; return the last position."""
    position = 0
    for batch in range(first, first + batches):
        begin = batch * _ROWS // 2
        rows = [{"id": begin + number, "value": batch} for number in range(_ROWS)]
        for name in _names():
            position = client.upsert(name, rows).position or 0
    cluster.wait_published("A", position)
    return position


class _Worker:
    """A process of this module's `main`."""

    def __init__(
        self, url: str, directory: str, name: str, cores: int, only: Sequence[str]
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.replicas", url, f"{directory}/lake-{name}"]
        self._log = Path(directory, f"worker-{name}.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, name, str(cores), *only],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(timeout=_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def go(self) -> None:
        """Let it apply what is published."""
        pipe = cast("IO[bytes]", self._process.stdin)
        pipe.write(b"go\n")
        pipe.flush()

    def answer(self) -> dict[str, object]:
        """Return what it says when it has applied all."""
        line = cast("IO[bytes]", self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"a worker ended:\n{self._log.read_text()[-2_000:]}")
        found: dict[str, object] = json.loads(line)
        return found


def _cpu_s(jvm: int) -> float:
    """Return the processor time of this process and its JVM, seconds."""
    stat = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()
    own = time.process_time()
    return own + (int(stat[11]) + int(stat[12])) / 100


def main(url: str, lake: str, name: str, cores: str, *only: str) -> None:
    """Apply what there is, say so, and again after each line."""
    spark = build_session(f"local[{cores}]", app_name="sparktxlog-benchmarks")
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    with (
        closing(HttpLogSource(url)) as source,
        closing(ReplicaDirectory(lake)) as directory,
    ):
        applier = Applier(spark, source, directory, name=name, tables=only, replays_anyway=True)
        while True:
            before = _cpu_s(jvm)
            outcome = applier.run_once()
            said = {
                "position": outcome.position,
                "tables": list(applier.state.tables),
                "cpu_s": _cpu_s(jvm) - before,
            }
            print(json.dumps(said), flush=True)
            if not sys.stdin.readline():
                break
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
