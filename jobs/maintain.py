"""Shorten the site's log to its limits, then compact and vacuum the tables of its replica.

./spark-submit.sh jobs/maintain.py --url http://127.0.0.1:7070 [--tables NAME …] [--json]
Only one at a time runs on a lake; for schedulers see docs/scheduling.md.  Backup images, and what
copies put aside, are removed where an option says so, never by default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from sparktxlog.api.jobs import job, upkeep
from sparktxlog.worker.replica.maintenance import MANY_FILES, WAIT_S, Upkeep, maintain_replica
from sparktxlog.worker.verify.single_flight import single_flight


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Shorten the log, compact and vacuum the replica's tables.")
    parser.add_argument("--tables", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--no-optimize", action="store_true", help="compact no tables")
    parser.add_argument("--no-vacuum", action="store_true", help="keep old files")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--min-files", type=int, default=MANY_FILES, metavar="N",
                        help="compact tables of N small files or more")  # fmt: skip
    parser.add_argument("--wait", type=float, default=WAIT_S, metavar="SECONDS",
                        help="wait so long for a running worker")  # fmt: skip
    upkeep.add_leftover_arguments(parser)
    return job.run_job(parser.parse_args(argv), maintain)


def maintain(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    a = context.arguments
    wanted = Upkeep(
        tables=a.tables, optimize=not a.no_optimize, vacuum=not a.no_vacuum, dry_run=a.dry_run,
        many_files=a.min_files, wait_s=a.wait,
    )  # fmt: skip
    with closing(context.open_source()) as source:
        info = source.info()
        unwanted, lake = upkeep.unwanted_of(a, info), a.lake or info.lake_root
        with single_flight(lake):
            log = {} if a.dry_run else source.maintain_log()
            sys.stderr.write(f"log: {log or 'untouched'}\n")
            found = maintain_replica(
                context.spark, lake, wanted, lambda line: print(line, file=sys.stderr, flush=True)
            )
            removed = upkeep.remove_unwanted(lake, unwanted, source)
    return upkeep.result_of(log, found, removed, dry_run=a.dry_run)


if __name__ == "__main__":
    job.main(main)
