"""A session that knows several nodes goes on when its home is lost, the data source too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import Cluster, queue_of, running

from sparktxlog import connect

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two sites and a witness, so that either may be lost."""
    with running(Cluster(tmp_path, "ABW", settings=QUICK, witnesses="W")) as cluster:
        yield cluster


def save(frame: DataFrame) -> None:
    frame.write.format("txlog").option("table", "t").mode("append").save()


def test_the_data_source_goes_on_at_the_next_node(cluster: Cluster, spark: SparkSession) -> None:
    a, b = cluster.nodes["A"], cluster.nodes["B"]
    # Of its own: other tests connect the shared one with nodes of theirs.
    session = spark.newSession()
    with closing(connect(session, [a.url, b.url])) as log:
        assert log.url == a.url
        rows = session.sql("SELECT id, 'x' AS v FROM range(3)")
        save(rows)
        assert queue_of(a)[-1]["origin"] == "A"
        a.kill()
        all_show(cluster, "B")
        save(rows)
        assert queue_of(b)[-1]["origin"] == "B"
        masters = session.read.format("txlog").load("masters")
        assert [row["node_id"] for row in masters.where("is_asked").collect()] == ["B"]
        queue = session.read.format("txlog").load("queue")
        assert queue.where("position = 1").count() == 1
        a.start()
        all_show(cluster, "AB")
        save(rows)
    assert [run["origin"] for run in queue_of(a)[-3:]] == ["A", "B", "A"]
    cluster.agree(a.status()["position"])
