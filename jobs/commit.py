"""Commit a Parquet, CSV, JSON or Delta input to a table of the log.

./spark-submit.sh jobs/commit.py --url http://127.0.0.1:7070 --table orders --input orders.csv \
    --format csv [--op upsert] [--create --keys id] [--json]
The same as `sparktxlog commit`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("commit")
