"""Copy a donor's replica to this site, its chunks fetched by Spark's executors; then replay on.

./spark-submit.sh jobs/replicate.py --url http://127.0.0.1:7070 [--parts 8] [--json]
All executors must see the lake under the driver's path.  The same as `sparktxlog replicate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.api import job, replica_jobs
from sparktxlog.api.job_options import OPTIONS


def main(argv: Sequence[str]) -> int:
    parser = job.parser(
        "Copy a donor's replica, fetched by Spark's executors.", OPTIONS["replicate"]
    )
    return job.run_job(parser.parse_args(argv), replica_jobs.replicate)


if __name__ == "__main__":
    job.main(main)
