"""What users do with buckets: `buckets_job.py CLASSES TABLE URL-A URL-B`; prints what it found.

A Delta table is written in a bucket by its URL TABLE, and one by ordinary SQL through the nodes of
two sites.  One job does both: what Spark needs for buckets takes long to load.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sparktxlog.api.session import build_session

QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def by_url(spark: SparkSession, table: str) -> dict[str, Any]:
    """Create, append, merge and read."""
    rows = spark.range(20).selectExpr("id", "id % 2 AS part", "'first' AS said")
    rows.where("id < 10").write.format("delta").partitionBy("part").save(table)
    rows.where("id >= 10").write.format("delta").mode("append").save(table)
    spark.range(15, 25).selectExpr("id", "id % 2 AS part", "'merged' AS said").createTempView("s")
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING s ON t.id = s.id AND t.part = s.part "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    found = spark.read.format("delta").load(table).where("part = 1").orderBy("id").collect()
    return {"rows": [[row.id, row.said] for row in found]}


def until_equal(spark: SparkSession, name: str) -> None:
    """Wait until both sites have the same versions of a table: the other one has a commit later."""
    end = time.monotonic() + 60
    while newest(spark, f"a.default.{name}") != newest(spark, f"b.default.{name}"):
        assert time.monotonic() < end, f"the sites have other versions of {name}"


def newest(spark: SparkSession, table: str) -> int:
    """Return the newest version of a table that a site has, -1 if it has none."""
    try:
        return int(spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0]["version"])
    except AnalysisException:
        return -1


def by_sites(spark: SparkSession) -> dict[str, Any]:
    """Write one table at both sites; return what each reads, and where the table is."""
    spark.sql("CREATE TABLE a.default.t (id BIGINT, said STRING) USING delta")
    for number, site in enumerate("abab"):
        spark.sql(f"INSERT INTO {site}.default.t VALUES ({number}, 'by {site}'), (9, 'by {site}')")
        spark.sql(
            f"MERGE INTO {site}.default.t AS t USING (SELECT {number} AS id) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET said = concat(said, '!')"
        )
        spark.sql(f"DELETE FROM {site}.default.t WHERE id = 9")
    until_equal(spark, "t")
    found = {}
    for site in "ab":
        rows = spark.sql(f"SELECT id, said FROM {site}.default.t ORDER BY id").collect()
        files = spark.table(f"{site}.default.t").inputFiles()
        found[site] = {"rows": [[row.id, row.said] for row in rows], "file": files[0]}
    return found


def main(connector: str, table: str, *urls: str) -> None:
    """Do both."""
    settings = QUICK | {"spark.driver.extraClassPath": connector}
    for name, url in zip("ab", urls, strict=True):
        catalog = f"spark.sql.catalog.{name}"
        settings[catalog] = "io.unitycatalog.spark.UCSingleCatalog"
        settings |= {f"{catalog}.uri": url, f"{catalog}.token": "any"}
    spark = build_session("local[2]", settings, stores=[table])
    found = {"by_url": by_url(spark, table), "by_sites": by_sites(spark)}
    print(json.dumps(found | {"settings": dict(spark.sparkContext.getConf().getAll())}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
