"""A worker process that kills itself at a named point: `killed_worker.py ROOT POINT COUNT`.

Points: `step` after the COUNT-th Delta commit, `merge` after the COUNT-th MERGE, before anything
is recorded or reported, `state` after the COUNT-th record of a state, `none` never.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.worker_log import MemoryLog

from sparktxlog.api.session import build_session
from sparktxlog.worker.apply.batches import StepKind
from sparktxlog.worker.apply.steps import TableSteps
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory


def main(root: Path, point: str, count: int) -> None:
    left = {"count": count}

    def passed() -> None:
        left["count"] -= 1
        if left["count"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    run_step, save = TableSteps.run_step, ReplicaDirectory.save

    def run_and_die(self: TableSteps, batch: Any, step: Any, *rest: Any) -> None:
        run_step(self, batch, step, *rest)
        if point == "step" or (point == "merge" and step.kind is StepKind.MERGE):
            passed()

    def save_and_die(self: ReplicaDirectory, state: Any) -> None:
        save(self, state)
        if point == "state":
            passed()

    TableSteps.run_step = run_and_die  # type: ignore[method-assign]
    ReplicaDirectory.save = save_and_die  # type: ignore[method-assign]
    log = pickle.loads((root / "log.pickle").read_bytes())
    # Fewer and smaller jobs: what counts here is where the process dies.
    quick = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    spark = build_session("local[2]", quick)
    with closing(ReplicaDirectory(root / "lake")) as directory:
        Applier(spark, MemoryLog(log, root / "lake"), directory).run_once()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
