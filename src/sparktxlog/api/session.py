"""Spark sessions that can read and write the project's Delta tables.

`connect` takes any session the user has; this module makes one for jobs, tests, the demo and
whoever has none yet.  Delta's JARs are resolved by Spark's own mechanism and cached.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparktxlog.api.jars import (
    DELTA_PACKAGE,
    IVY_VARIABLE,
    JARS_VARIABLE,
    jar_settings,
    remember_jars,
)
from sparktxlog.errors import MissingDependencyError

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Every site must read times and partition values alike.
    "spark.sql.session.timeZone": "UTC",
    # INT96, Spark's default, has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The defaults (50, 200) cost seconds for each small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "true",
}


def build_session(
    master: str | None = "local[2]",
    conf: Mapping[str, str] | None = None,
    *,
    app_name: str = "sparktxlog",
) -> SparkSession:
    """Return a session with Delta, UTC and settings for small commits; `conf` overrides them.

    Args:
        master: Spark master URL; None leaves it to spark-submit or spark-defaults.conf.

    Raises:
        MissingDependencyError: Spark did not start, for want of Java, of Delta's JARs or of
            such a master (definite).

    **Source:** facts measured in docs/decisions.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        # Executors of local-cluster die where the host's own address cannot be reached.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    # A session that spark-submit started has its JARs already.
    jars = {} if "PYSPARK_GATEWAY_PORT" in os.environ else jar_settings()
    for name, value in (_SETTINGS | jars | dict(conf or {})).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        reason = " ".join(str(error).split("\n")[:3])[:600]
        raise MissingDependencyError(
            f"Spark did not start with master {master or 'of spark-submit'}: {reason}",
            hint=f"It needs Java 17 and {DELTA_PACKAGE}; without a network set {JARS_VARIABLE} "
            f"to local JARs or {IVY_VARIABLE} to a filled cache.",
        ) from error
    session.sparkContext.setLogLevel("WARN")
    if "spark.jars.packages" in jars:
        remember_jars(session.sparkContext.getConf().get("spark.jars", ""))
    return session
