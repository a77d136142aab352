"""Commit a Parquet, CSV, JSON or Delta input to a table of the log.

./spark-submit.sh jobs/commit.py --url http://127.0.0.1:7070 --table orders --input orders.csv \
    --format csv [--op upsert] [--create --keys id] [--json]
The same as `sparktxlog commit`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.api import ingest, job
from sparktxlog.api.job_options import OPTIONS


def main(argv: Sequence[str]) -> int:
    parser = job.parser("Commit an input to a table of the log.", OPTIONS["commit"])
    return job.run_job(parser.parse_args(argv), ingest.commit)


if __name__ == "__main__":
    job.main(main)
