"""Writes a Delta table in a bucket as a user's job does: `bucket_job.py URL`; prints its rows."""

from __future__ import annotations

import json
import sys

from sparktxlog.api.session import build_session

QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def main(table: str) -> None:
    """Create, append, merge and read."""
    spark = build_session("local[2]", QUICK, stores=[table])
    rows = spark.range(20).selectExpr("id", "id % 2 AS part", "'first' AS said")
    rows.where("id < 10").write.format("delta").partitionBy("part").save(table)
    rows.where("id >= 10").write.format("delta").mode("append").save(table)
    spark.range(15, 25).selectExpr("id", "id % 2 AS part", "'merged' AS said").createTempView("s")
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING s ON t.id = s.id AND t.part = s.part "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    found = spark.read.format("delta").load(table).where("part = 1").orderBy("id").collect()
    settings = dict(spark.sparkContext.getConf().getAll())
    print(json.dumps({"rows": [[row.id, row.said] for row in found], "settings": settings}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
