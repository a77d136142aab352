"""One Spark session for all tests of this directory: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sparktxlog.api import session as api_session
from sparktxlog.api.session import build_session

#: For a few rows; see also jvm.py.
_QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A VACUUM lists a table's few directories in so many tasks, 10,000 if nobody says otherwise.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Of a server of Spark Connect that a test starts in this JVM.
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session with Delta."""
    session = build_session("local[2]", _QUICK, app_name="sparktxlog-tests")
    # Else each job looks for the line that began it.
    for name in ("callSite.short", "callSite.long"):
        session.sparkContext.setLocalProperty(name, "tests")
    _keep_classes(session)
    yield session
    session.stop()


def _keep_classes(session: SparkSession) -> None:
    """Keep classes that PySpark asks for by names without a package.

    Each time the JVM looks for them in all packages that PySpark imports, and so in hundreds of
    JARs: a twentieth of its work.
    """
    for path in ("PythonUtils", "functions", "py4j.reflection.TypeUtil"):
        place = session.sparkContext._jvm
        for name in path.split("."):
            found = getattr(place, name)
            setattr(place, name, found)
            place = found


@pytest.fixture
def jobs_share_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs and commands of this process use the tests' Spark, which outlives them."""

    def own(*_: object, **__: object) -> SparkSession:
        made = spark.newSession()
        monkeypatch.setattr(made, "stop", lambda: None)
        return made

    monkeypatch.setattr(api_session, "build_session", own)
