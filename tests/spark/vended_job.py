"""What a session does without credentials of its own: `vended_job.py JAR URL`; prints it.

The catalog of the node at URL gives them.
"""

from __future__ import annotations

import json
import sys

from tests.spark.buckets_job import QUICK

from sparktxlog.api.session import build_session


def main(jar: str, url: str) -> None:
    """Create a table, write it and read it."""
    settings = QUICK | {"spark.sql.catalog.a": "io.unitycatalog.spark.UCSingleCatalog"}
    settings |= {"spark.sql.catalog.a.uri": url, "spark.sql.catalog.a.token": "any"}
    spark = build_session("local[2]", settings, stores=["s3"])
    spark.sql(f"ADD JAR {jar}")
    spark.sql("CREATE TABLE a.default.t (id BIGINT, said STRING) USING delta")
    spark.sql("INSERT INTO a.default.t VALUES (1, 'x'), (2, 'y')")
    spark.sql("UPDATE a.default.t SET said = 'new' WHERE id = 2")
    rows = spark.sql("SELECT id, said FROM a.default.t ORDER BY id").collect()
    print(json.dumps({"rows": [[row.id, row.said] for row in rows]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
