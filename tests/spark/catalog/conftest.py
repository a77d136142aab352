"""One node for each module of tests, the catalog of its commit tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.java_programs import compile_java, connector_jar

TOKEN = "a token of the clients"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that is alone and asks clients for a token."""
    running = start_node(tmp_path_factory.mktemp("node"), f'client-token = "{TOKEN}"')
    yield running
    running.stop()


@contextmanager
def reader_tables_node(directory: Path) -> Iterator[RunningNode]:
    """Run a node that keeps reader tables, too, below `plain`."""
    plain = f'reader-table-dir = "{directory / "plain"}"'
    running = start_node(directory, f'client-token = "{TOKEN}"', plain)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def tx(spark: SparkSession, node: RunningNode, connector: Path) -> Iterator[SparkSession]:
    """Return the session, with the catalog `tx` of the module's node."""
    with catalogs(spark, node, connector, tx=TOKEN):
        yield spark


@pytest.fixture(scope="session")
def contract_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the compiled `ContractClient`."""
    return compile_java("sparktxlog/ContractClient.java", tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="session")
def connector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the JAR that has the class of the catalogs."""
    return connector_jar(tmp_path_factory.mktemp("connector"))


@contextmanager
def catalogs(
    spark: SparkSession, node: RunningNode, connector: Path, **tokens: str
) -> Iterator[None]:
    """Let the session have catalogs of a node, each with its own token."""
    places = {name: (node.url, token) for name, token in tokens.items()}
    with catalogs_at(spark, connector, places):
        yield


@contextmanager
def catalogs_at(
    spark: SparkSession, connector: Path, places: Mapping[str, tuple[str, str]]
) -> Iterator[None]:
    """Let the session have catalogs: name → node's URL and token.

    The connector joins Spark's class path while it runs.  The catalogs are of the one session of
    all tests.  Delta looks for them in the active one, and tests before may have left another so.
    """
    jvm = spark.sparkContext._jvm
    active = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    active.setActiveSession(spark._jsparkSession)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(jvm.java.io.File(str(connector)).toURI().toURL())
    settings = {}
    for name, (url, token) in places.items():
        catalog = f"spark.sql.catalog.{name}"
        settings[catalog] = "io.unitycatalog.spark.UCSingleCatalog"
        settings |= {f"{catalog}.uri": url, f"{catalog}.token": token}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)
    # The session keeps the catalogs that it has loaded, and those of another node may have a name.
    spark._jsparkSession.sessionState().catalogManager().reset()
