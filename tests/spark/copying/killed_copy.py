"""A copy that kills its own process at a named point: `killed_copy.py ROOT POINT`.

Points: `placed` after files were linked into a table, `committed` after the swap's commit,
`renamed` after a directory took its place, before anything of it is recorded.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.spark.copying.donor import CopyLog, FolderFetcher

from sparktxlog.api.session import build_session
from sparktxlog.worker.copy import swap
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory

POINTS = {
    "placed": (DiskLake, "add_files"),
    "committed": (swap, "_commit"),
    "renamed": (swap, "_rename"),
}


def main(root: Path, point: str) -> None:
    owner, name = POINTS[point]
    done = getattr(owner, name)

    def and_die(*arguments: Any) -> Any:
        done(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, and_die)
    log = pickle.loads((root / "log.pickle").read_bytes())
    quick = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    spark = build_session("local[2]", quick)
    source = CopyLog(log, root / "target", root / "donor")
    with closing(ReplicaDirectory(source.lake)) as directory:
        Applier(
            spark,
            source,
            directory,
            copies=CopyOptions(forced=True),
            open_fetcher=lambda lake, copy_id: FolderFetcher(source.donor, lake, copy_id),
        ).catch_up()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
