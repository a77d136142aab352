"""Which releases a session has: its JVM says that of Delta, for the package may be of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparktxlog.api import session, tested_releases
from sparktxlog.api.session import SPARK_RELEASE, build_session
from sparktxlog.api.spark_jars import delta_package
from sparktxlog.worker.apply.worker_session import delta_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_release_of_delta_is_that_of_the_jars(spark: SparkSession) -> None:
    assert delta_release(spark) == delta_package(SPARK_RELEASE).rpartition(":")[2]


def test_a_session_that_begins_names_what_was_not_tested(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tested_releases, "_said", set())
    monkeypatch.setattr(session, "_SETTINGS", {})  # the session of the other tests stays as it is
    older = {"Spark": ((3, 5), (3, 5)), "Delta": ((3, 3), (3, 3))}
    monkeypatch.setattr(tested_releases, "TESTED", tested_releases.TESTED | older)
    for _ in range(2):
        assert build_session("local[2]") is spark
    (said,) = [one for one in caplog.messages if "not tested with sparktxlog" in one]
    assert f"Spark {spark.version} (tested: 3.5)" in said
    assert f"Delta {delta_release(spark)} (tested: 3.3)" in said
