"""sparktxlog beside the systems that users would take instead, in turn in one run."""

from benchmarks.peers.suite import run

__all__ = ["run"]
