"""`writeStream` and `readStream` of `txlog` over two sites and a witness."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.epoch_views import QUICK
from tests.support.node_processes import Cluster, queue_of, running

from sparktxlog import connect, stream_into, transaction_id_of_batch
from sparktxlog.api.connect import TxLog
from sparktxlog.api.datasource import errors_from_spark
from sparktxlog.errors import InvalidRequestError, TxLogError

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two sites and a witness."""
    directory = tmp_path_factory.mktemp("sites")
    with running(Cluster(directory, "ABW", settings=QUICK, witnesses="W")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Return a session of its own: other tests connect the shared one with nodes of theirs."""
    return spark.newSession()


@pytest.fixture(scope="module")
def log(cluster: Cluster, session: SparkSession) -> Iterator[TxLog]:
    """Return the log at site A."""
    with closing(connect(session, cluster.nodes["A"].url)) as connected:
        yield connected


def save(frame: DataFrame, checkpoint: Path, table: str, mode: str = "append", **more: str) -> None:
    """Write what there is of a stream, then stop."""
    writer = frame.writeStream.format("txlog").outputMode(mode)
    options = {"table": table, "checkpointLocation": str(checkpoint)} | more
    try:
        writer.options(**options).trigger(availableNow=True).start().awaitTermination()
    except PySparkException as error:
        raise errors_from_spark(error) from error


def refused(kind: type[TxLogError], work: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


def forget_last_commit(checkpoint: Path) -> None:
    """Bring a checkpoint to where a kill between the sink's commit and Spark's leaves it."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def ids(log: TxLog, cluster: Cluster, table: str) -> list[int]:
    """Return the ids that all appends to a table carried, as the queue's files have them."""
    import pyarrow.dataset as ds

    root = cluster.nodes["A"].directory / "A" / "payloads"
    names = [
        file
        for row in log.queue().where("outcome = 'committed'").collect()
        for operation in row["operations"]
        if operation["table"] == table
        for file in operation["files"] or ()
    ]
    found = ds.dataset([str(root / name) for name in names]).to_table(columns=["id"])
    return sorted(found.column("id").to_pylist())


def test_a_batch_that_is_run_again_is_the_same_transaction(
    log: TxLog, cluster: Cluster, session: SparkSession, tmp_path: Path
) -> None:
    log.create_table("sunk", "id bigint not null")
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    session.range(5).coalesce(1).write.parquet(str(source))
    frame = session.readStream.schema("id bigint").parquet(str(source))
    save(frame, checkpoint, "sunk")
    position = log.position()
    forget_last_commit(checkpoint)
    save(frame, checkpoint, "sunk")
    assert log.position() == position
    # A kill; then the other site goes on with a copy of the checkpoint, and has more to read.
    forget_last_commit(checkpoint)
    moved = tmp_path / "moved"
    shutil.move(checkpoint, moved)
    session.range(5, 8).coalesce(1).write.mode("append").parquet(str(source))
    b = cluster.nodes["B"]
    save(frame, moved, "sunk", url=b.url, after=str(position))
    assert queue_of(b)[-1]["position"] == position + 1
    assert queue_of(b)[-1]["origin"] == "B"
    save(frame.where("id < 0"), tmp_path / "empty", "sunk")  # no rows: nothing is recorded
    cluster.agree(position + 1)
    assert log.position() == position + 1
    assert ids(log, cluster, "sunk") == list(range(8))
    payloads = cluster.nodes["A"].directory / "A" / "payloads"
    marks = [path for path in payloads.rglob("*") if path.name.startswith("_submitted")]
    assert marks == []


def test_what_a_sink_cannot_do_says_the_way_out(
    log: TxLog, session: SparkSession, tmp_path: Path
) -> None:
    log.create_table("totals", "id bigint not null, count bigint", keys=["id"])
    source = tmp_path / "source"
    session.range(4).selectExpr("id % 2 AS id").coalesce(1).write.parquet(str(source))
    frame = session.readStream.schema("id bigint").parquet(str(source)).groupBy("id").count()
    for mode in ("update", "complete"):
        text = refused(
            InvalidRequestError,
            lambda mode=mode: save(frame, tmp_path / mode, "totals", mode),  # type: ignore[misc]
        )
        assert f"'{mode}'" in text and "foreachBatch" in text
    text = refused(TxLogError, lambda: save(frame.select("id"), tmp_path / "c", "totals", "update"))
    assert "foreachBatch" in text

    def run(checkpoint: Path) -> None:
        # A batch that is run again is read as well: otherwise Spark misses the query's state.
        writer = frame.writeStream.foreachBatch(stream_into(log, "totals")).outputMode("update")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    run(tmp_path / "way")
    position = log.position()
    forget_last_commit(tmp_path / "way")
    run(tmp_path / "way")
    assert log.position() == position
    refused(InvalidRequestError, lambda: stream_into(log, "totals", "create_table"))
    refused(InvalidRequestError, lambda: transaction_id_of_batch(session.range(1), 0))
