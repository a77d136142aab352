"""What a job far from its node commits: `far_worker_job.py URL`; prints the last position."""

from __future__ import annotations

import json
import sys

from tests.spark.bucket_lake_job import QUICK, change_all, commit_all

import sparktxlog


def main(url: str) -> None:
    """Create tables, write them by most kinds of operations, and change them."""
    spark = sparktxlog.build_session("local[2]", QUICK)
    log = sparktxlog.connect(spark, url, staging="http")
    commit_all(log, spark)
    # More than a transaction carries: their files are staged.
    rows = spark.range(5_000).selectExpr("id + 10000 AS id", "concat(id, ' of many') AS v")
    log.upsert("vectors", rows)
    log.append("parted", rows.selectExpr("id", "concat('p', id % 3) AS p"))
    print(json.dumps({"position": change_all(log, spark)}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
