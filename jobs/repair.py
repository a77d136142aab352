"""Bring a table that somebody else wrote to back to what the log says, without another site.

./spark-submit.sh jobs/repair.py orders --url http://127.0.0.1:7070 [--dry-run] [--local] [--json]
The same as `sparktxlog repair`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.api import job, replica_jobs
from sparktxlog.api.job_options import OPTIONS


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Bring a table back to what the log says.", OPTIONS["repair"])
    parser.add_argument("table", help="table to look at, and to repair")
    return job.run_job(parser.parse_args(argv), replica_jobs.repair)


if __name__ == "__main__":
    job.main(main)
