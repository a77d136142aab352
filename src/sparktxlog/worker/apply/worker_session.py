"""Spark sessions of workers: their settings, and what their commits and jobs are marked with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparktxlog.errors import InvalidRequestError
from sparktxlog.worker.apply.tables import OwnCommit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

#: Fixed for all rows processed by a worker, so that every site evaluates alike.
SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files of older nodes, and of other programs, do not say that their calendar is that of today.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The source is read from files that never change, so it needs no copy.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Listing given files needs no Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Only the worker itself commits.
    "spark.databricks.delta.autoCompact.enabled": "false",
}


def check_digits(session: SparkSession) -> None:
    """Refuse a JVM in whose language numbers have other digits: Delta would name its files so.

    Raises:
        InvalidRequestError: (definite).
    """
    java: Any = session.sparkContext._jvm
    one = str(java.java.text.NumberFormat.getIntegerInstance().format(1))
    if one != "1":
        language = str(java.java.util.Locale.getDefault())
        raise InvalidRequestError(
            f"the JVM's language is {language}, in which 1 is written {one}: Delta would not find "
            "its own files",
            hint="Start driver and executors with -Duser.language=en "
            "(spark.driver.extraJavaOptions, spark.executor.extraJavaOptions).",
            field="user.language",
            value=language,
        )


def applier_session(spark: SparkSession) -> SparkSession:
    """Return a separate session for the worker: all users of one share its `txn` settings.

    Raises:
        InvalidRequestError: The JVM's language is one in which Delta fails (definite).
    """
    check_digits(spark)
    session = spark.newSession()
    for name, value in SESSION_SETTINGS.items():
        session.conf.set(name, value)
    return session


@contextmanager
def marked(session: SparkSession, own: OwnCommit) -> Iterator[None]:
    """Add `txn` and metadata to all commits of the session inside the block."""
    session.conf.set(_APP_ID, own.app_id)
    session.conf.set(_TXN_VERSION, str(own.txn_version))
    session.conf.set(_USER_METADATA, own.to_text())
    try:
        yield
    finally:
        for name in (_APP_ID, _TXN_VERSION, _USER_METADATA):
            session.conf.unset(name)


@contextmanager
def tagged(session: SparkSession, act: str, table: str) -> Iterator[None]:
    """Tag the Spark jobs of a block, for the UI, the event log and `interruptTag`."""
    tag = f"sparktxlog:{act}:{table}"
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


def be_active(session: SparkSession) -> None:
    """Make a session the thread's active one, from which Delta takes settings in some places."""
    # By its whole name: for `org`, `org.apache`, … Java would search all JARs.
    sessions = getattr(session.sparkContext._jvm, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(session._jsparkSession)


def read_newest(session: SparkSession, table: str) -> DataFrame:
    """Read a table that only this worker writes.

    A named version would make Delta compute its snapshot again, in two Spark jobs.  If another
    writer commits meanwhile, the examination after the step finds it, and the table stops.
    """
    return session.read.format("delta").load(table)


def read_version(session: SparkSession, table: str, version: int) -> DataFrame:
    """Read a table as it was at a version."""
    return session.read.format("delta").option("versionAsOf", version).load(table)
