"""Runs dbt in one session of Spark whose default catalog is that of a node.

`python dbt_run.py PROJECT URL JARS`: steps as JSON on standard input, what each gave as JSON in the
last line of standard output.  A step is a command of dbt, a list of words; or a query, a text.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession


def session(url: str, jars: str) -> SparkSession:
    """Return the session, which dbt's method `session` takes; its settings are those of a page.

    Without a URL its tables are plain ones of Delta, in the working directory.
    """
    builder = SparkSession.builder.master("local[1]")
    catalog = {
        "spark.sql.catalog.tx": "io.unitycatalog.spark.UCSingleCatalog",
        "spark.sql.catalog.tx.uri": url,
        "spark.sql.catalog.tx.token": "any",
        "spark.sql.defaultCatalog": "tx",
    }
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **(catalog if url else {}),
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        # Short: what a test needs.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _main(project: str, url: str, jars: str) -> None:
    spark = session(url, jars)
    os.chdir(project)
    dbt, found = dbtRunner(), list[Any]()
    for step in json.load(sys.stdin):
        if isinstance(step, str):
            found.append([list(row) for row in spark.sql(step).collect()])
            continue
        done = dbt.invoke([*step, "--no-use-colors"])
        results = getattr(done.result, "results", None) or []
        ends = {one.node.name: str(one.status) for one in results if hasattr(one, "node")}
        found.append({"success": done.success, "ends": ends, "error": str(done.exception or "")})
    spark.stop()
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    _main(*sys.argv[1:])
