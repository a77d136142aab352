"""A copy between real nodes: tickets, leases, chunks over HTTP, and the node's verdict."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.node_processes import TABLE, Cluster, call, wait_until

from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import executor_fetcher
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes with rows in the log."""
    cluster = Cluster(tmp_path, "AB")
    for node in cluster.nodes.values():
        # The donor's worker ends after its batch here, and stays a donor.
        node.config.write_text('"worker-dead-after" = 3600\n' + node.config.read_text())
    try:
        cluster.start()
        cluster.nodes["A"].commit(TABLE)
        for number in range(3):
            rows = [{"id": number, "v": f"value {number}"}]
            cluster.nodes["A"].commit(
                {"operations": [{"kind": "append", "table": "t", "rows": rows}]}
            )
        position = cluster.settle()
        for node in cluster.nodes.values():
            call(f"{node.url}/v1/published?at_least={position}&timeout=30")
        yield cluster
    finally:
        cluster.stop()


def lake_of(cluster: Cluster, name: str) -> Path:
    return Path(call(f"{cluster.nodes[name].url}/v1/info")["lake_root"])


def work(spark: SparkSession, cluster: Cluster, name: str, **options: Any) -> ApplyOutcome:
    source = HttpLogSource(cluster.nodes[name].url)
    with closing(source), closing(ReplicaDirectory(lake_of(cluster, name))) as directory:
        return Applier(spark, source, directory, **options).catch_up(timeout_s=30.0)


def rows(spark: SparkSession, cluster: Cluster, name: str) -> list[Any]:
    return sorted(spark.read.format("delta").load(str(lake_of(cluster, name) / "t")).collect())


def test_a_site_is_copied_from_another_by_threads_and_by_executors(
    spark: SparkSession, cluster: Cluster
) -> None:
    assert work(spark, cluster, "A").verdict == "IN_SYNC"
    forced = CopyOptions(forced=True)
    # B's node learns of A's replica with the next posts.
    wait_until(
        lambda: cluster.nodes["B"].replica("A"),
        what="B's node to hear of A's replica",
    )
    outcome = work(spark, cluster, "B", copies=forced)
    (copy,) = outcome.copies
    assert (outcome.verdict, copy.donor, copy.tables) == ("IN_SYNC", "A", {"t": "rename"})
    assert rows(spark, cluster, "B") == rows(spark, cluster, "A") and copy.wire_bytes > 0
    # The storage is lost; executors fetch it anew.
    shutil.rmtree(lake_of(cluster, "B"))
    again = work(spark, cluster, "B", copies=forced, open_fetcher=executor_fetcher(spark, 2))
    assert again.verdict == "IN_SYNC" and again.copies[0].wire_bytes > 0
    assert rows(spark, cluster, "B") == rows(spark, cluster, "A")
    found = call(f"{cluster.nodes['B'].url}/v1/transfers")
    assert str(found).count("'done'") >= 2
