"""Where `make bench-peers` puts what the peers need, beside the environment."""

from __future__ import annotations

import sys
from pathlib import Path

#: Packages of constraints-peers.txt; below it the JARs of Kafka.
PACKAGES = Path(sys.prefix, "bench-peers")
KAFKA = PACKAGES / "kafka"
JAVA_SOURCES = Path(__file__).parents[1] / "java"


class PeerMissingError(Exception):
    """A peer cannot be measured here; the text says why."""


def found(path: Path) -> Path:
    """Return the path, if it is there.

    Raises:
        PeerMissingError: It is not.
    """
    if not path.exists():
        raise PeerMissingError(f"{path.name} is not installed; run: make bench-peers")
    return path
