"""Bring the site's replica back to the published end: by replay or by copy, as the node plans.

./spark-submit.sh jobs/catch_up.py --url http://127.0.0.1:7070 [--force copy|replay] [--json]
The same as `sparktxlog catch-up`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.api import job, replica_jobs
from sparktxlog.api.job_options import OPTIONS


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Bring the site's replica back by replay or copy.", OPTIONS["catch-up"])
    return job.run_job(parser.parse_args(argv), replica_jobs.catch_up)


if __name__ == "__main__":
    job.main(main)
