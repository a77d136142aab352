"""One node for each module of tests, the catalog of its commit tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.java_programs import compile_java

TOKEN = "a token of the clients"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that is alone and asks clients for a token."""
    running = start_node(tmp_path_factory.mktemp("node"), f'client-token = "{TOKEN}"')
    yield running
    running.stop()


@pytest.fixture(scope="session")
def contract_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the compiled `ContractClient`."""
    return compile_java("sparktxlog/ContractClient.java", tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="session")
def plugin_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the compiled Spark catalog."""
    return compile_java("io/unitycatalog/spark", tmp_path_factory.mktemp("plugin"))
