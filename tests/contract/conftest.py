"""A server of buckets that the tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support import store_servers
from tests.support.store_servers import StoreServer


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs") / "state") as server:
        yield server
