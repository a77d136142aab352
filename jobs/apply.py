"""Apply the published log to the site's replica: once, or following for ever.

./spark-submit.sh jobs/apply.py --url http://127.0.0.1:7070 [--follow] [--json]
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api import job
from sparktxlog.worker.apply import Applier, ApplyOutcome
from sparktxlog.worker.copy_terms import CopyOptions
from sparktxlog.worker.state import ReplicaDirectory


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Apply the published log to the site's Delta tables.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="apply what is ordered by now, then end")
    mode.add_argument("--follow", action="store_true", help="go on until SIGTERM")
    parser.add_argument("--no-copy", action="store_true", help="end where the node says copy")
    parser.add_argument("--at-least", type=int, default=0, metavar="POSITION")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    return job.run_job(parser.parse_args(argv), apply)


def apply(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    arguments = context.arguments
    with closing(context.open_source()) as source, closing(context.open_source()) as reporting:
        lake = arguments.lake or source.info().lake_root
        with closing(ReplicaDirectory(lake)) as directory:
            copies = None if arguments.no_copy else CopyOptions()
            applier = Applier(
                context.spark, source, directory, reporting=reporting, copies=copies
            )  # fmt: skip
            if arguments.follow:
                stop = threading.Event()
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: stop.set())
                outcome = applier.follow(stop)
            else:
                outcome = applier.run_once(arguments.at_least, arguments.timeout)
    return exit_code(outcome, arguments.at_least), asdict(outcome)


def exit_code(outcome: ApplyOutcome, at_least: int) -> int:
    return job.exit_code_of(outcome, at_least)


if __name__ == "__main__":
    job.main(main)
