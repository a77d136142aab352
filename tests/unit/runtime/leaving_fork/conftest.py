"""Two nodes whose queues parted: what the tests of leaving a fork begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.parted_queues import Node, OtherNode, parted


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Node, OtherNode]:
    """B, and A, which went on without it."""
    return parted(tmp_path)


@pytest.fixture
def node(pair: tuple[Node, OtherNode]) -> Node:
    """B."""
    return pair[0]


@pytest.fixture
def other(pair: tuple[Node, OtherNode]) -> OtherNode:
    """A."""
    return pair[1]
