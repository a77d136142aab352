"""Spark sessions that can read and write the project's Delta tables.

`connect` takes any session; this module makes one for jobs, tests, the demo and users without one.

The wheel of delta-spark contains no JARs.  Spark resolves them with `spark.jars.packages`, which
needs a network and prints a page of text at each start.  So the list of resolved files is kept
next to the cache, and later starts use it.  spark-submit.sh keeps the same list.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparktxlog.errors import InvalidRequestError, MissingDependencyError, first_lines
from sparktxlog.worker.apply.worker_session import has_jvm

#: Major and minor version of Spark; Delta has an artifact for each.
_SPARK = ".".join(pyspark.__version__.split(".")[:2])
#: A later patch release of either side has broken the pair before.
DELTA_PACKAGE = f"io.delta:delta-spark_{_SPARK}_2.13:4.4.0"
#: Directory in which Spark's resolver keeps the JARs.
IVY_VARIABLE = "SPARKTXLOG_IVY"
#: Local JARs, comma separated, used instead of resolving anything.
JARS_VARIABLE = "SPARKTXLOG_JARS"

_LIST = f"delta-spark_{_SPARK}_2.13-4.4.0.jars"

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
) -> SparkSession:
    """Return a session with Delta, UTC and settings for small commits; `conf` overrides them.

    Args:
        master: Spark master URL; None leaves it to spark-submit or spark-defaults.conf.

    Raises:
        MissingDependencyError: Spark did not start: Java or Delta's JARs are missing, or there is
            no such master (definite).

    **Source:** facts measured in docs/decisions.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        # Executors of local-cluster fail if the host's own address cannot be reached.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    # A session that spark-submit started has its JARs already.
    given, jars, language = dict(conf or {}), dict[str, str](), dict[str, str]()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        jars, language = jar_settings(), language_settings(given, os.environ)
    for name, value in (_SETTINGS | jars | given | language).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise MissingDependencyError(
            f"Spark did not start with master {master or 'of spark-submit'}: {first_lines(error)}",
            hint=f"It needs Java 17 and {DELTA_PACKAGE}; without a network set {JARS_VARIABLE} "
            f"to local JARs or {IVY_VARIABLE} to a filled cache.",
        ) from error
    session.sparkContext.setLogLevel("WARN")
    if "spark.jars.packages" in jars:
        remember_jars(session.sparkContext.getConf().get("spark.jars", ""))
    return session


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


def jar_cache() -> Path:
    """Return the resolver's directory: SPARKTXLOG_IVY, else `~/.cache/sparktxlog/ivy`."""
    given = os.environ.get(IVY_VARIABLE)
    if given:
        return Path(given)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sparktxlog" / "ivy"


def known_jars() -> str:
    """Return the JARs to start with, comma separated; empty = they must be resolved first."""
    local = os.environ.get(JARS_VARIABLE)
    if local:
        return local
    listed = jar_cache() / _LIST
    jars = listed.read_text().strip() if listed.is_file() else ""
    there = all(Path(jar.removeprefix("file://")).is_file() for jar in jars.split(","))
    return jars if there else ""


def remember_jars(jars: str) -> None:
    """Keep the list of resolved JARs for later starts; an unwritable cache is no error."""
    listed = jar_cache() / _LIST
    part = listed.with_name(f"{_LIST}.{os.getpid()}")
    try:
        part.write_text(jars + "\n")
        part.replace(listed)
    except OSError:
        return  # the next start resolves again


def jar_settings() -> dict[str, str]:
    """Return the Spark settings that name the JARs, or let Spark resolve them."""
    jars = known_jars()
    if jars:
        return {"spark.jars": jars}
    cache = jar_cache()
    cache.mkdir(parents=True, exist_ok=True)
    settings = resources.files("sparktxlog.api").joinpath("ivysettings.xml")
    return {
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.jars.ivySettings": str(settings),
        "spark.jars.ivy": str(cache),
    }
