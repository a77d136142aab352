"""One Spark session for all tests of this directory: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sparktxlog.api.session import build_session

#: For a few rows; see also jvm.py.
_QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session with Delta."""
    session = build_session("local[2]", _QUICK, app_name="sparktxlog-tests")
    yield session
    session.stop()
