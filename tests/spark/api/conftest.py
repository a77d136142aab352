"""One node and one connected log for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode, start_node

from sparktxlog.api.connect import TxLog, connect


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that all tests of a module share."""
    running = start_node(tmp_path_factory.mktemp("node"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def log(spark: SparkSession, node: RunningNode) -> Iterator[TxLog]:
    """Return a connected log that applies what it commits."""
    with connect(spark, node.url, apply="inline") as connected:
        yield connected
