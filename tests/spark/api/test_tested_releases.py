"""Which Delta a session has: asked of its JVM, for the package may be of another release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import delta_package
from sparktxlog.worker.apply.worker_session import delta_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_release_of_delta_is_that_of_the_jars(spark: SparkSession) -> None:
    assert delta_release(spark) == delta_package(SPARK_RELEASE).rpartition(":")[2]
