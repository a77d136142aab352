"""Spark sessions that can read and write the project's Delta tables.

`connect` takes any session; this module makes one for jobs, tests, the demo and users without one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparktxlog.api.spark_jars import (
    STORES,
    STORES_VARIABLE,
    delta_package,
    resolved_jars,
    store_settings,
    stores_of,
)
from sparktxlog.api.tested_releases import warn_of_untested
from sparktxlog.errors import InvalidRequestError, MissingDependencyError, first_lines
from sparktxlog.worker.apply.worker_session import has_jvm

#: Major and minor version of Spark; Delta and connectors have artifacts for each.
SPARK_RELEASE = ".".join(pyspark.__version__.split(".")[:2])

#: What the JVM takes its language from, in this order.
_LOCALES = ("LC_ALL", "LC_CTYPE", "LANG")

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
    # Python asks the JVM for the line that made each column: ten messages for each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def build_session(
    master: str | None = "local[2]",
    conf: Mapping[str, str] | None = None,
    *,
    app_name: str = "sparktxlog",
    stores: Iterable[str] = (),
) -> SparkSession:
    """Return a session with Delta, UTC and settings for small commits; `conf` overrides them.

    Args:
        master: Spark master URL; None leaves it to spark-submit or spark-defaults.conf.
        stores: Object stores that the session reads or writes: `s3`, `azure`, `gcs`, or URLs in
            them. Those of SPARKTXLOG_STORES are added.

    Raises:
        InvalidRequestError: There is no such store (definite).
        ConfigError: An endpoint in the environment has a password (definite).
        MissingDependencyError: Spark did not start: Java or JARs are missing, or there is
            no such master; or it has no connector to a store (definite).

    **Source:** facts measured in docs/decisions.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        # Executors of local-cluster fail if the host's own address cannot be reached.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    wanted = stores_of([*stores, os.environ.get(STORES_VARIABLE, "")])
    settings, given = _SETTINGS | store_settings(wanted, os.environ), dict(conf or {})
    language = dict[str, str]()
    # A session that spark-submit started has its JARs already.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings["spark.jars"] = resolved_jars(SPARK_RELEASE, wanted)
        language = language_settings(given, os.environ)
    for name, value in (settings | given | language).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise MissingDependencyError(
            f"Spark did not start with master {master or 'of spark-submit'}: {first_lines(error)}",
            hint=f"It needs Java 17 and {delta_package(SPARK_RELEASE)}.",
        ) from error
    session.sparkContext.setLogLevel("WARN")
    warn_of_untested(session)
    _check_has_connectors(session, wanted)
    return session


def _check_has_connectors(session: SparkSession, stores: Iterable[str]) -> None:
    """Refuse a session of another start, which cannot get JARs any more."""
    jvm: Any = session.sparkContext._jvm
    settings = session.sparkContext._jsc.hadoopConfiguration()
    for store in stores:
        try:
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(STORES[store][0], settings)
        except Py4JError as error:
            raise MissingDependencyError(
                f"this Spark has no connector to {store}, and it runs already",
                hint=f"End it, and start it with {STORES_VARIABLE}={store}, or as "
                f"./spark-submit.sh … --stores {store}.",
            ) from error


def check_has_jvm(session: SparkSession, what: str, hint: str) -> None:
    """Refuse what needs a JVM in the driver of a session; with Spark Connect there is none.

    Raises:
        InvalidRequestError: (definite).
    """
    if not has_jvm(session):
        raise InvalidRequestError(
            f"{what} needs a driver with a JVM, this session is one of Spark Connect", hint=hint
        )


def language_settings(conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return settings that give new JVMs a language with plain digits, which Delta needs.

    Args:
        conf: Options of Java in it stay, and count for more.
    """
    names = (environment[name] for name in _LOCALES if environment.get(name))
    if re.split(r"[_.@]", next(names, "C"))[0] in ("C", "POSIX", "en"):
        return {}
    keys = (f"spark.{part}.extraJavaOptions" for part in ("driver", "executor"))
    return {key: f"-Duser.language=en {conf.get(key, '')}".strip() for key in keys}
