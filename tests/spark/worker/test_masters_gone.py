"""All masters are gone: what workers applied is read as before, the log itself is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.copying.test_states import Sites

from sparktxlog import connect, errors_from_spark
from sparktxlog.errors import TransportError, UnreachableError
from sparktxlog.worker.replica.state import read_state

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def sites(tmp_path: Path, spark: SparkSession) -> Iterator[Sites]:
    """Two nodes without evictions, and their replicas."""
    sites = Sites(tmp_path, spark)
    try:
        sites.start()
        yield sites
    finally:
        sites.cluster.stop()


def ids(frame: DataFrame) -> list[int]:
    """Return the ids of a table's rows, sorted."""
    return sorted(row["id"] for row in frame.collect())


def test_replicas_are_read_while_all_masters_are_gone(sites: Sites, spark: SparkSession) -> None:
    a, b = sites.a, sites.b
    for _ in range(3):
        position = sites.commit()
    sites.apply_at_a()
    assert sites.work(b, at_least=position).position == position
    # Of its own: other tests connect the shared one with nodes of theirs.
    session = spark.newSession()
    with closing(connect(session, [a.url, b.url])) as log:
        assert ids(log.table("t")) == [1, 2, 3]
        a.kill()
        b.kill()

        for node in (a, b):
            assert ids(session.read.format("delta").load(str(node.lake / "t"))) == [1, 2, 3]
            assert sites.rows(node.lake) == [1, 2, 3]
        for view in ("queue", "masters", "tables"):
            with pytest.raises(PySparkException) as caught:
                session.read.format("txlog").load(view).collect()
            assert_says_who(errors_from_spark(caught.value), a.url)
        # The first question breaks with the connection that was kept for it.
        with pytest.raises(TransportError) as broken:
            log.table("t")
        assert broken.value.retryable and a.url in str(broken.value)
        with pytest.raises(UnreachableError) as unread:
            log.table("t")
        assert_says_who(unread.value, a.url)
        with pytest.raises(UnreachableError) as uncommitted:
            log.append("t", session.sql("SELECT 9L AS id, 'x' AS v"))
        assert_says_who(uncommitted.value, a.url)

        # A worker that runs now stops before it touches anything.
        with pytest.raises(TransportError) as unapplied:
            sites.work(a)
        assert unapplied.value.retryable and a.url in str(unapplied.value)
        state = read_state(a.lake)
        assert state is not None and state.position == position

        sites.cluster.start()
        assert ids(log.table("t")) == [1, 2, 3]
        assert session.read.format("txlog").load("masters").count() == 2
    sites.commit()
    sites.apply_at_a()
    assert sites.rows(a.lake) == [1, 2, 3, 4]


def assert_says_who(error: BaseException, url: str) -> None:
    """Check that nothing happened, that it may be tried again, and that the node is named."""
    assert isinstance(error, UnreachableError)
    assert error.definite and error.retryable
    assert f"[unreachable] no node answers at {url}" in str(error)
    assert "Start it with `sparktxlog serve`" in str(error)
