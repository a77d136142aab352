"""What a session gets whose catalog's node refuses its token, or does not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN, catalogs_at

import sparktxlog
from sparktxlog.errors import UnauthorizedError, UnreachableError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

STATEMENTS = (
    "SHOW SCHEMAS IN {0}",
    "SHOW TABLES IN {0}.default",
    "SELECT * FROM {0}.default.orders",
    "INSERT INTO {0}.default.orders VALUES (1)",
    "CREATE TABLE {0}.default.other (id INT) USING delta",
    "CREATE SCHEMA {0}.other",
    "DROP TABLE {0}.default.orders",
)


def test_each_statement_ends_with_the_error_that_clients_get(
    spark: SparkSession, node: RunningNode, connector: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    places = {"wrong": (node.url, "expired"), "gone": (closed, TOKEN)}
    with catalogs_at(spark, connector, places):
        for name, kind in (("wrong", UnauthorizedError), ("gone", UnreachableError)):
            for statement in STATEMENTS:
                with pytest.raises((PySparkException, Py4JJavaError)) as caught:
                    spark.sql(statement.format(name)).collect()
                typed = sparktxlog.errors_from_spark(caught.value)
                assert type(typed) is kind, (statement, typed)
                assert isinstance(typed, kind) and typed.definite and typed.hint
