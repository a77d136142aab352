"""One real node process for the tests of its client side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.node_processes import NodeProcess, free_ports

from sparktxlog import Client


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without peers; body limit 8 MiB."""
    process = NodeProcess(tmp_path_factory.mktemp("node"), "A", free_ports(1)[0], {})
    process.start("body-limit=8388608")
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    """A client of the node."""
    with Client(node.url) as found:
        yield found


@pytest.fixture(scope="session")
def payload_root(node: NodeProcess) -> Path:
    """The node's payload store."""
    with Client(node.url) as found:
        return Path(found.info()["payload_root"])
