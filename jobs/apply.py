"""Apply the published log to the site's replica: once, following for ever, or up to a position.

./spark-submit.sh jobs/apply.py --url http://127.0.0.1:7070 [--follow | --at-most N] [--json]
The same as `sparktxlog apply`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.api import job, replica_jobs
from sparktxlog.api.job_options import OPTIONS, conflict


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Apply the published log to the site's Delta tables.", OPTIONS["apply"])
    arguments = parser.parse_args(argv)
    if found := conflict(arguments):
        parser.error(found)
    return job.run_job(arguments, replica_jobs.apply)


if __name__ == "__main__":
    job.main(main)
