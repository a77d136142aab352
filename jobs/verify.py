"""Recount the signatures of the site's replica by full scan, and compare it with other sites.

./spark-submit.sh jobs/verify.py --url http://127.0.0.1:7070 [--table NAME …] [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from sparktxlog.api import job
from sparktxlog.worker.verify import Verification, verify_replica


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Recount a replica's tables by full scan, and compare sites.")
    parser.add_argument("--table", action="append", default=[], help="only this one; repeatable")
    return job.run_job(parser.parse_args(argv), verify)


def verify(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    with closing(context.open_source()) as source:
        lake = context.arguments.lake or source.info().lake_root
        found = verify_replica(context.spark, source, lake, context.arguments.table)
    describe(found)
    return (job.OK if found.sound else job.DIVERGED), {"sound": found.sound, **asdict(found)}


def describe(found: Verification) -> None:
    sites = ", ".join(found.compared_sites) or "no other site at this position"
    sys.stderr.write(f"site {found.node_id}, position {found.position}; compared: {sites}\n")
    for table in found.tables:
        verdict = "sound" if table.sound else "DIFFERS"
        sys.stderr.write(f"{verdict:8}{table.table} version {table.version}: {table.counted}\n")
        if table.counted != table.recorded:
            sys.stderr.write(f"        recorded: {table.recorded}\n")
        for node, signature in table.differing_sites.items():
            sys.stderr.write(f"        site {node}: {signature}\n")
        for cause in table.causes:
            sys.stderr.write(f"        {cause}\n")


if __name__ == "__main__":
    job.main(main)
