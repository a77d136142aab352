"""Two sites for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.adopting.sites import TwoSites, two_sites


@pytest.fixture(scope="module")
def sites(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSites]:
    """Return two sites that all tests of a module share."""
    with two_sites(spark, tmp_path_factory.mktemp("sites")) as found:
        yield found
