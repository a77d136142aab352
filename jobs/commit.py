"""Commit a Parquet, CSV, JSON or Delta input to a table of the log.

./spark-submit.sh jobs/commit.py --url http://127.0.0.1:7070 --table orders --input orders.csv \
    --format csv [--op upsert] [--create --keys id] [--json]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from sparktxlog.api import job
from sparktxlog.api.connect import connect
from sparktxlog.api.ingest import FORMATS, Ingest, ingest
from sparktxlog.model.operation import ROW_KINDS, OperationKind


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("SPARKTXLOG_URL", "http://127.0.0.1:7070"))
    parser.add_argument("--table", required=True)
    parser.add_argument("--input", required=True, metavar="PATH")
    parser.add_argument("--format", choices=FORMATS, default="parquet")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    kinds = sorted(kind.value for kind in ROW_KINDS)
    parser.add_argument("--op", choices=kinds, default="append")
    parser.add_argument("--create", action="store_true", help="create the table if it is missing")
    parser.add_argument("--keys", default="", help="of a created table, comma separated")
    parser.add_argument("--partition-by", default="", help="as --keys")
    parser.add_argument("--transaction-column", help="one transaction for each of its values")
    parser.add_argument("--transaction-ids-column", help="UUIDs of those transactions")
    parser.add_argument("--transaction-id", help="UUID that makes a repeated commit one")
    parser.add_argument("--level", default="ordered")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, else local[*])")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    return job.run_job(parser.parse_args(argv), commit)


def commit(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    a = context.arguments
    wanted = Ingest(
        table=a.table, source=a.input, format=a.format, kind=OperationKind(a.op),
        options=dict(pair.partition("=")[::2] for pair in a.option), create=a.create,
        keys=tuple(filter(None, a.keys.split(","))),
        partition_by=tuple(filter(None, a.partition_by.split(","))),
        transaction_column=a.transaction_column, level=a.level, timeout=a.timeout,
        transaction_ids_column=a.transaction_ids_column, transaction_id=a.transaction_id,
    )  # fmt: skip
    with connect(context.spark, a.url) as log:
        return job.OK, ingest(log, wanted)


if __name__ == "__main__":
    job.main(main)
