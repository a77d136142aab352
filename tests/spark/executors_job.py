"""Commits, applies and recounts on separate executors: `executors_job.py URL EVENTS`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import sparktxlog
from sparktxlog.api.session import build_session
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory
from sparktxlog.worker.verify.verify import verify_replica

ROWS = 50_000


def main(url: str, events: Path) -> int:
    """Do it, and return 0 if the replica is sound and whole."""
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.executor.memory": "512m",
    }
    spark = build_session("local-cluster[2,1,1024]", settings)
    log = sparktxlog.connect(spark, url)
    log.create_table("t", "id bigint, n bigint", keys=["id"])
    log.append("t", spark.range(ROWS).selectExpr("id", "id AS n"))
    last = log.upsert("t", spark.range(0, 2 * ROWS, 2).selectExpr("id", "-id AS n"))
    with (
        closing(HttpLogSource(url)) as source,
        closing(ReplicaDirectory(source.info().lake_root)) as directory,
    ):
        Applier(spark, source, directory).run_once(at_least=last.position or 0, timeout_s=60)
        found = verify_replica(spark, source, Path(source.info().lake_root))
    rows = log.table("t").count()
    spark.stop()
    return 0 if found.sound and rows == ROWS + ROWS // 2 else 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
