"""A worker process that kills itself at a named point: `killed_worker.py LOG POINT COUNT`.

LOG is the URL of a node, or the directory of a log made by `LogBuilder`.

Points: `step` after the COUNT-th Delta commit, `merge` after the COUNT-th MERGE, before anything
is recorded or reported, `table` after the last commit of a batch to the COUNT-th table, `state`
after the COUNT-th record of a state, `none` never.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.worker_log import LogBuilder, MemoryLog

from sparktxlog.api.session import build_session
from sparktxlog.worker.apply.batches import StepKind
from sparktxlog.worker.apply.steps import TableSteps
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

ROOT = Path(__file__).parents[3]


def run(log: str | Path, point: str, count: int = 1) -> int:
    """Run such a process and return its exit code."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, __file__, str(log), point, str(count)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def opened(log: str) -> tuple[HttpLogSource, Path]:
    """Return the log as a worker sees it, and the lake."""
    if log.startswith("http"):
        source = HttpLogSource(log)
        return source, Path(source.info().lake_root)
    root = Path(log)
    built: LogBuilder = pickle.loads((root / "log.pickle").read_bytes())
    return MemoryLog(built, root / "lake"), root / "lake"


def main(log: str, point: str, count: int) -> None:
    left = {"count": count}

    def passed() -> None:
        left["count"] -= 1
        if left["count"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    run_step, apply = TableSteps.run_step, TableSteps.apply
    save = ReplicaDirectory.save

    def run_and_die(self: TableSteps, batch: Any, step: Any, *rest: Any) -> None:
        run_step(self, batch, step, *rest)
        if point == "step" or (point == "merge" and step.kind is StepKind.MERGE):
            passed()

    def apply_and_die(self: TableSteps, *arguments: Any) -> None:
        apply(self, *arguments)
        if point == "table":
            passed()

    def save_and_die(self: ReplicaDirectory, state: Any) -> None:
        save(self, state)
        if point == "state":
            passed()

    TableSteps.run_step = run_and_die  # type: ignore[method-assign]
    TableSteps.apply = apply_and_die  # type: ignore[method-assign]
    ReplicaDirectory.save = save_and_die  # type: ignore[method-assign]
    source, lake = opened(log)
    # Fewer and smaller jobs: what counts here is where the process dies.
    quick = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    spark = build_session("local[2]", quick)
    with closing(ReplicaDirectory(lake)) as directory:
        Applier(spark, source, directory).run_once()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
