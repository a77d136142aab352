"""Ordinary SQL through the nodes of two sites: `two_buckets_job.py CLASSES URL-A URL-B`."""

from __future__ import annotations

import json
import sys

from tests.spark.bucket_job import QUICK

from sparktxlog.api.session import build_session


def main(classes: str, *urls: str) -> None:
    """Write one table at both sites; print what each reads, and where the table is."""
    settings = QUICK | {"spark.driver.extraClassPath": classes}
    for name, url in zip("ab", urls, strict=True):
        catalog = f"spark.sql.catalog.{name}"
        settings[catalog] = "io.unitycatalog.spark.UCSingleCatalog"
        settings |= {f"{catalog}.uri": url, f"{catalog}.token": "any"}
    spark = build_session("local[2]", settings, stores=["s3"])
    spark.sql("CREATE TABLE a.default.t (id BIGINT, said STRING) USING delta")
    for number, site in enumerate("abab"):
        spark.sql(f"INSERT INTO {site}.default.t VALUES ({number}, 'by {site}'), (9, 'by {site}')")
        spark.sql(
            f"MERGE INTO {site}.default.t AS t USING (SELECT {number} AS id) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET said = concat(said, '!')"
        )
        spark.sql(f"DELETE FROM {site}.default.t WHERE id = 9")
    found = {}
    for site in "ab":
        rows = spark.sql(f"SELECT id, said FROM {site}.default.t ORDER BY id").collect()
        files = spark.table(f"{site}.default.t").inputFiles()
        found[site] = {"rows": [[row.id, row.said] for row in rows], "file": files[0]}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
