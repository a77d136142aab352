"""A worker that follows its node's log in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark.sql import SparkSession
from tests.support.node_processes import NodeProcess

from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory


@contextmanager
def follower(spark: SparkSession, node: NodeProcess) -> Iterator[list[ApplyOutcome]]:
    """Let a node's worker follow until the block is left; its outcome is in the list then."""
    stop = threading.Event()
    outcomes: list[ApplyOutcome] = []
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            with (
                closing(HttpLogSource(node.url)) as source,
                closing(HttpLogSource(node.url)) as reporting,
                closing(ReplicaDirectory(node.lake)) as directory,
            ):
                applier = Applier(
                    spark, source, directory, reporting=reporting, copies=CopyOptions()
                )
                outcomes.append(applier.follow(stop))
        except BaseException as failure:
            failures.append(failure)

    worker = threading.Thread(target=follow, name=f"worker {node.name}", daemon=True)
    worker.start()
    try:
        yield outcomes
    finally:
        stop.set()
        worker.join(120)
    assert not failures, failures
    assert not worker.is_alive()
