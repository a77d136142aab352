"""`writeStream` and `readStream` of `txlog` over two sites and a witness."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import Cluster, append, queue_of, running, wait_until

from sparktxlog import connect, stream_into, transaction_id_of_batch, write_stream
from sparktxlog.api.connect import TxLog
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.errors import (
    ForeignLogError,
    InvalidRequestError,
    SchemaMismatchError,
    TxLogError,
    UnknownTableError,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(pyspark.__version__ < "4.2", reason="read of the log with Spark 4.2"),
]


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


def changes(session: SparkSession, **options: object) -> DataFrame:
    """Return a stream of the source `txlog`."""
    texts = {name: str(value) for name, value in options.items()}
    return session.readStream.format("txlog").options(**texts).load()


def deliver(frame: DataFrame, place: Path) -> list[Any]:
    """Deliver what there is of a stream into files; return the progress of its batches."""
    writer = frame.writeStream.format("parquet").option("path", str(place / "rows"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        raise errors_from_spark(error) from error
    return [batch for batch in query.recentProgress if batch.numInputRows]


def delivered(session: SparkSession, place: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = session.read.parquet(str(place / "rows")).select(*columns).collect()
    return sorted(tuple(row) for row in rows)


def edit_offset(checkpoint: Path, old: str, new: str) -> None:
    """Change the last offset that a checkpoint keeps."""
    offsets = checkpoint / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    file = offsets / str(last)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    (offsets / f".{last}.crc").unlink(missing_ok=True)


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
        writer = write_stream(log, frame, "totals", "update")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    before = log.position()
    run(tmp_path / "way")
    position = log.position()
    forget_last_commit(tmp_path / "way")
    run(tmp_path / "way")
    assert log.position() == position
    assert position == before + 1
    refused(InvalidRequestError, lambda: stream_into(log, "totals", "create_table"))
    log.create_table("plain", "id bigint, count bigint")
    plain = session.range(1)
    # All of it before anything is started.
    for kind, words, call in (
        (InvalidRequestError, "no keys", (frame, "plain", "update")),
        (InvalidRequestError, "'replace'", (frame, "plain", "replace")),
        (InvalidRequestError, "no stream", (plain, "plain")),
        (SchemaMismatchError, "'count'", (frame.select("id"), "plain")),
        (UnknownTableError, "nowhere", (frame, "nowhere", "complete")),
    ):
        assert words in refused(kind, lambda call=call: write_stream(log, *call))  # type: ignore[misc]
    refused(InvalidRequestError, lambda: transaction_id_of_batch(session.range(1), 0))


@pytest.mark.thorough
def test_changes_of_a_table_are_read_in_batches_and_at_the_other_site(
    log: TxLog, cluster: Cluster, session: SparkSession, tmp_path: Path
) -> None:
    log.create_table("orders", "id bigint not null, day date, v string", keys=["id"])
    first = log.position()
    rows = session.sql("SELECT id, date'2024-02-29' AS day, cast(id AS string) AS v FROM range(6)")
    log.commit_many(
        rows.withColumn("tx", rows["id"] % 3), table="orders", kind="append", transaction="tx"
    )
    log.upsert("orders", rows.where("id = 2").withColumn("v", rows["day"].cast("string")))
    log.delete_keys("orders", rows.where("id = 3").select("id"))
    log.append("orders", session.range(5_000, 205_000).selectExpr("id", "NULL day", "'x' v"))
    position = cluster.publish()
    assert position == first + 6
    frame = changes(session, table="orders", maxTransactionsPerTrigger=first + 2)
    batches = deliver(frame, tmp_path)
    assert [batch.numInputRows for batch in batches] == [4, 200_004]
    end = f'"position": {position}'
    assert end in batches[-1].sources[0].endOffset
    small = "_position", "_change_type", "id", "v"
    found = delivered(session, tmp_path, *small)
    assert found[-1][:2] == (position, "append") and len(found) == 200_008
    assert found[:8] == sorted(
        [
            *((first + 1 + n % 3, "append", n, str(n)) for n in range(6)),
            (first + 4, "upsert", 2, "2024-02-29"),
            (first + 5, "delete_keys", 3, None),
        ]
    )
    times = session.read.parquet(str(tmp_path / "rows")).select("_commit_timestamp").distinct()
    assert 1 <= times.count() <= 6 and times.where("_commit_timestamp IS NULL").count() == 0
    # The other site goes on from the same checkpoint, whose last batch is not known to be done.
    # Without what it wrote, the batch is read again there: the same rows, at the same places.
    every = "_position", "_operation", "_change_type", "_commit_timestamp", "id", "day", "v"
    read = session.read.parquet(str(tmp_path / "rows")).select(*every)
    first_time = read.where(f"_position > {first + 2}").collect()
    forget_last_commit(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "rows")
    log.append("orders", rows.where("id = 5").withColumn("id", rows["id"] + 100))
    cluster.publish()
    there = changes(session, table="orders", url=cluster.nodes["B"].url)
    assert [batch.numInputRows for batch in deliver(there, tmp_path)] == [200_004, 1]
    shutil.rmtree(tmp_path / "rows" / "_spark_metadata")  # Spark wants all batches from the first
    read = session.read.parquet(str(tmp_path / "rows")).select(*every)
    assert set(read.where(f"_position <= {position}").collect()) == set(first_time)
    assert [row["id"] for row in read.where(f"_position > {position}").collect()] == [105]
    plain = session.read.format("txlog").option("table", "orders")
    plain = plain.option("startingPosition", str(first + 5))
    plain = plain.option("endingPosition", str(first + 5))
    assert [row["id"] for row in plain.load().collect()] == [3]
    # A checkpoint of another log, and of another branch of this one.
    hashes = [run["chain_hash"] for run in queue_of(cluster.nodes["A"])]
    for old, new, words in (
        (hashes[-1], hashes[-2], "another branch"),
        ('"log_id": "', '"log_id": "other-', "another log"),
    ):
        edit_offset(tmp_path / "checkpoint", old, new)
        assert words in refused(ForeignLogError, lambda: deliver(there, tmp_path))
        edit_offset(tmp_path / "checkpoint", new, old)
    assert deliver(there, tmp_path) == []


def test_a_delete_by_predicate_stops_a_stream_until_an_option_says_what_to_do(
    log: TxLog, cluster: Cluster, session: SparkSession, tmp_path: Path
) -> None:
    log.create_table("erased", "id bigint")
    start = log.position() + 1
    log.append("erased", session.range(3).toDF("id"))
    log.delete_where("erased", "id < 2")
    log.overwrite("erased", session.range(10, 12).toDF("id"))
    cluster.publish()
    plain = changes(session, table="erased", startingPosition=start)
    for _ in range(2):
        text = refused(InvalidRequestError, lambda: deliver(plain, tmp_path))
        assert f"position {start + 1} " in text and "deleteMarkers" in text
    assert len(delivered(session, tmp_path, "id")) == 3  # all before it is there
    marked = changes(session, table="erased", deleteMarkers="true")
    deliver(marked, tmp_path)
    rows = session.read.option("mergeSchema", "true").parquet(str(tmp_path / "rows"))
    found = rows.where(f"_position > {start}").orderBy("_position", "_predicate", "id")
    assert [(r["_change_type"], r["_predicate"], r["id"]) for r in found.collect()] == [
        ("delete_where", "(`id` < 2)", None),
        ("overwrite", None, 10),
        ("overwrite", None, 11),
        ("delete_where", "TRUE", None),
    ]
    with pytest.raises(PySparkException) as caught:
        changes(session, table="erased", maxFilesPerTrigger=3)
    assert "maxRowsPerTrigger" in str(errors_from_spark(caught.value))
    with pytest.raises(PySparkException) as caught:
        plain.writeStream.format("noop").trigger(continuous="1 second").option(
            "checkpointLocation", str(tmp_path / "continuous")
        ).start()
    assert "processingTime" in str(errors_from_spark(caught.value))


def test_a_running_stream_of_the_queue_goes_on_when_its_site_is_lost(
    log: TxLog, cluster: Cluster, session: SparkSession, tmp_path: Path
) -> None:
    a, b = cluster.nodes["A"], cluster.nodes["B"]
    before = cluster.publish()
    frame = session.readStream.format("txlog").option("maxRowsPerTrigger", "4")
    frame = frame.option("url", f"{a.url},{b.url}").option("startingPosition", "3").load("queue")
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert [p for (p,) in delivered(session, tmp_path, "position")] == list(
            range(3, before + 1)
        )
        assert max(batch.numInputRows for batch in query.recentProgress) == 4
        a.kill()
        all_show(cluster, "B")
        b.commit(append(1))
        wait_until(lambda: b.status()["published"] > before, what="B publishes")
        end = b.status()["published"]
        wait_until(
            lambda: f'"position": {end}' in str(query.lastProgress.sources[0].endOffset),
            what="the stream reaches what B ordered alone",
        )
    finally:
        query.stop()
        a.start()
        all_show(cluster, "AB")
    found = delivered(session, tmp_path, "position", "transaction_id")
    assert [position for position, _ in found] == list(range(3, end + 1))
    b.stop()  # site A, which missed the end, goes on from the checkpoint
    try:
        all_show(cluster, "A")
        a.commit(append(2))
        wait_until(lambda: a.status()["published"] > end, what="A publishes")
        frame = session.readStream.format("txlog").option("url", a.url).load("queue")
        deliver(frame, tmp_path)
    finally:
        b.start()
        all_show(cluster, "AB")
    found = delivered(session, tmp_path, "position", "origin")
    assert [position for position, _ in found] == list(range(3, end + 2))
    assert [origin for _, origin in found[-2:]] == ["B", "A"]
