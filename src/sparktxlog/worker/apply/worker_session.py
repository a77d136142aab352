"""Spark sessions of workers: their settings, and the marks of their commits and jobs."""

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
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    # Else a text `${env:HOME}` in a predicate would be what it is at this site.
    "spark.sql.variable.substitute": "false",
    # A predicate sees rows.  Parquet would skip those that its bounds and dictionaries exclude,
    # and for floats these disagree with SQL (docs/decisions/0065-filters-see-rows.md).
    "spark.sql.parquet.filterPushdown": "false",
    # A table without the rows of a file is not the table.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files of other programs do not say that their calendar is that of today.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
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
#: Settings that say what SQL means; workers have Spark's defaults, but for those above.
_MEANING = ("spark.sql.ansi.", "spark.sql.legacy.", "spark.sql.parser.")
_LANGUAGE_HINT = (
    "Start driver and executors with -Duser.language=en "
    "(spark.driver.extraJavaOptions, spark.executor.extraJavaOptions)."
)


def has_jvm(session: SparkSession) -> bool:
    """Return whether the driver of a session has a JVM; with Spark Connect it has none."""
    return not type(session).__module__.startswith("pyspark.sql.connect.")


def delta_release(session: SparkSession) -> str:
    """Return the release of Delta in a session's JVM; empty = unknown, as over Spark Connect."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if not has_jvm(session):
        return ""
    java: Any = session.sparkContext._jvm
    try:
        return str(java.io.delta.package.VERSION())
    except (Py4JError, TypeError):  # no Delta, or one that does not say it
        return ""


def check_digits(session: SparkSession) -> None:
    """Refuse a JVM whose language has other digits: Delta would name its files with them.

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
            hint=_LANGUAGE_HINT,
            field="user.language",
            value=language,
        )


def applier_session(spark: SparkSession) -> SparkSession:
    """Return a separate session for the worker: all users of one share its `txn` settings.

    Whatever the JVM was started with, expressions mean in it what they mean at all sites.

    Raises:
        InvalidRequestError: The JVM's language is one in which Delta fails (definite).
    """
    check_digits(spark)
    session = spark.newSession()
    for name in session.conf.getAll:
        if name.startswith(_MEANING):
            session.conf.unset(name)
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
    _sessions(session).setActiveSession(session._jsparkSession)


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Let a session be the thread's active one meanwhile.

    A new thread has none.  Delta then reads no table with columns mapped by id, and no checkpoint
    of the form v2.
    """
    sessions = _sessions(session)
    before = sessions.getActiveSession()
    be_active(session)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _sessions(session: SparkSession) -> Any:
    # By its whole name: for `org`, `org.apache`, … Java would search all JARs.
    return getattr(session.sparkContext._jvm, "org.apache.spark.sql.classic.SparkSession")


def read_newest(session: SparkSession, table: str) -> DataFrame:
    """Read a table that only this worker writes.

    A named version would make Delta compute its snapshot again, in two Spark jobs.  If another
    writer commits meanwhile, the examination after the step finds it, and the table stops.
    """
    return session.read.format("delta").load(table)


def read_version(session: SparkSession, table: str, version: int) -> DataFrame:
    """Read a table as it was at a version."""
    return session.read.format("delta").option("versionAsOf", version).load(table)
