"""Copy a donor's replica to this site, its chunks fetched by Spark's executors; then replay on.

./spark-submit.sh jobs/replicate.py --url http://127.0.0.1:7070 [--parts 8] [--json]
All executors must see the lake under the driver's path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api import job
from sparktxlog.worker.apply import Applier
from sparktxlog.worker.copy_terms import CopyOptions
from sparktxlog.worker.fetching import executor_fetcher
from sparktxlog.worker.state import ReplicaDirectory


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Copy a donor's replica, fetched by Spark's executors.")
    parser.add_argument("--parts", type=int, default=0, help="tasks (default: Spark's cores)")
    parser.add_argument("--no-verify", action="store_true", help="copy without recounting rows")
    parser.add_argument("--history", action="store_true", help="copy old versions too")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    return job.run_job(parser.parse_args(argv), replicate)


def replicate(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    a = context.arguments
    options = CopyOptions(verify=not a.no_verify, history=a.history, forced=True)
    with (
        closing(context.open_source()) as source,
        closing(context.open_source()) as reporting,
        closing(ReplicaDirectory(a.lake or source.info().lake_root)) as directory,
    ):
        applier = Applier(
            context.spark, source, directory, reporting=reporting, copies=options,
            open_fetcher=executor_fetcher(context.spark, a.parts),
        )  # fmt: skip
        outcome = applier.catch_up(a.timeout)
    for copy in outcome.copies:
        sys.stderr.write(f"{copy.describe()}\n")
    return job.exit_code_of(outcome, outcome.published), asdict(outcome)


if __name__ == "__main__":
    job.main(main)
