"""Bring the site's replica back to the published end: by replay or by copy, as the node plans.

./spark-submit.sh jobs/catch_up.py --url http://127.0.0.1:7070 [--force copy|replay] [--json]
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
from sparktxlog.worker.state import ReplicaDirectory


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Bring the site's replica back by replay or copy.")
    parser.add_argument("--force", choices=("copy", "replay"), help="whatever the node plans")
    parser.add_argument("--no-verify", action="store_true", help="copy without recounting rows")
    parser.add_argument("--history", action="store_true", help="copy old versions too")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    return job.run_job(parser.parse_args(argv), catch_up)


def catch_up(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    a = context.arguments
    options = CopyOptions(
        verify=not a.no_verify, history=a.history, forced=a.force == "copy"
    )  # fmt: skip
    with (
        closing(context.open_source()) as source,
        closing(context.open_source()) as reporting,
        closing(ReplicaDirectory(a.lake or source.info().lake_root)) as directory,
    ):
        replays = a.force == "replay"
        applier = Applier(
            context.spark, source, directory, reporting=reporting,
            copies=None if replays else options, replays_anyway=replays,
        )  # fmt: skip
        outcome = applier.catch_up(a.timeout)
    for copy in outcome.copies:
        sys.stderr.write(f"{copy.describe()}\n")
    sys.stderr.write(f"position {outcome.position} of {outcome.published}: {outcome.verdict}\n")
    return job.exit_code_of(outcome, outcome.published), asdict(outcome)


if __name__ == "__main__":
    job.main(main)
