"""Streams of a site that is killed, its node and its Spark, go on at the other site, and return."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.api.killed_streams import (
    ROWS_OF_A_FILE,
    add_files,
    batches,
    reading,
    running_streams,
    writing,
)
from tests.support.epoch_views import all_show
from tests.support.node_processes import Cluster, NodeProcess, queue_of, running, wait_until

from sparktxlog import connect

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

#: Longer than the other site is stopped.
SUSPECT_S = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two sites and a witness."""
    settings = (f"suspect-timeout = {SUSPECT_S}", "start-timeout = 6")
    with running(Cluster(tmp_path / "sites", "ABW", settings=settings, witnesses="W")) as cluster:
        yield cluster


def finish(session: SparkSession, node: NodeProcess, place: Path) -> list[int]:
    """Let both queries go on at a site until nothing is left; return all ids that were read."""
    writing(session, node.url, place, files=20).trigger(
        availableNow=True
    ).start().awaitTermination()
    end = node.status()["position"]
    wait_until(lambda: node.status()["published"] >= end, what="all is published")
    reading(session, node.url, place).trigger(availableNow=True).start().awaitTermination()
    rows = session.read.parquet(str(place / "rows")).select("id").collect()
    return sorted(row["id"] for row in rows)


def holds_a_batch_alone(node: NodeProcess, other: NodeProcess) -> bool:
    """Stop the other node; return whether a batch then waits for it; if none does, let it go on."""
    other.send(signal.SIGSTOP)
    with suppress(AssertionError):
        wait_until(lambda: node.status()["incoming_transactions"], SUSPECT_S / 2)
        return True
    other.send(signal.SIGCONT)
    return False


def test_both_streams_of_a_killed_site_go_on_at_the_other_one_and_back(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    a, b = cluster.nodes["A"], cluster.nodes["B"]
    session = spark.newSession()
    with closing(connect(session, [a.url, b.url])) as log:
        log.create_table("moved", "id bigint not null")
    cluster.settle()
    place = tmp_path / "streams"
    place.mkdir()
    add_files(place, range(100))
    with running_streams(a.url, place) as process:

        def has_begun() -> bool:
            assert process.poll() is None, (place / "streams.log").read_text()[-3000:]
            return min(batches(place, "writing"), batches(place, "reading")) >= 2

        wait_until(has_begun, 240, "both streams have done some batches")
        wait_until(lambda: holds_a_batch_alone(a, b), 240, "A has a batch that B has not")
        a.kill()  # and then its Spark, which does not know whether that batch was committed
    b.send(signal.SIGCONT)
    written, read = batches(place, "writing"), batches(place, "reading")
    assert 2 <= written < 100 and read >= 2
    all_show(cluster, "B")
    every = list(range(100 * ROWS_OF_A_FILE))
    assert finish(session, b, place) == every
    assert {"A", "B"} <= {run["origin"] for run in queue_of(b)}
    # What A alone had taken returns with it, and has no second effect: B has committed that batch.
    a.start()
    all_show(cluster, "AB")
    add_files(place, range(100, 110))
    every = list(range(110 * ROWS_OF_A_FILE))
    assert finish(session, a, place) == every
    cluster.agree(a.status()["position"])
    rejected = [each["code"] for run in queue_of(a) for each in run["rejected"]]
    assert set(rejected) <= {"duplicate-transaction"}
    # The whole table, read from its beginning, has each row once too.
    again = tmp_path / "again"
    again.mkdir()
    reading(session, b.url, again).trigger(availableNow=True).start().awaitTermination()
    rows = session.read.parquet(str(again / "rows")).select("id").collect()
    assert sorted(row["id"] for row in rows) == every
