"""One Spark session for all tests of this directory: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from sparktxlog.api.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a local session with Delta."""
    session = build_session("local[2]", app_name="sparktxlog-tests")
    yield session
    session.stop()
