"""Replay of a missed log, beside a Structured Streaming job that copies the same Delta commits."""

from __future__ import annotations

import io
import json
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from benchmarks.cluster import Cluster
from benchmarks.ordering import BATCH, TABLE, create_table, rows_of
from benchmarks.results import Figure, beside, informing
from benchmarks.sparks import COLUMNS, frame, session
from sparktxlog import Client, connect
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

PEER = "Structured Streaming, Delta to Delta, available-now"


def run(short: bool) -> list[Figure]:
    """Measure small transactions, and staged rows."""
    return [*_small(short), *_staged(short)]


def apply(spark: SparkSession, url: str) -> float:
    """Apply all that is published at a node; return the seconds."""
    with (
        closing(HttpLogSource(url)) as source,
        closing(ReplicaDirectory(source.info().lake_root)) as directory,
    ):
        applier = Applier(spark, source, directory)
        begin = time.perf_counter()
        applier.run_once()
        return time.perf_counter() - begin


def _small(short: bool) -> list[Figure]:
    """One row a transaction; the peer's source has one Delta commit for each."""
    total = 2_000 if short else 20_000
    spark = session()
    rows = rows_of(total)
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        url = cluster.urls["A"]
        client = Client(url)
        create_table(client)
        client.submit_many(TABLE, rows, run_transactions=BATCH)
        cluster.wait_published("A", total + 1)
        warm = Path(directory) / "warm"
        _one_commit_each(warm, rows_of(20))
        _stream(spark, warm, Path(directory) / "warm-copy")
        ours = apply(spark, url)
        if (count := connect(spark, url).table(TABLE).count()) != total:
            raise RuntimeError(f"{count:,} rows applied instead of {total:,}")
        _one_commit_each(Path(directory) / "source", rows)
        peer = _stream(spark, Path(directory) / "source", Path(directory) / "copy")
        copied = DeltaTable(Path(directory) / "copy").count()
    if copied != total:
        raise RuntimeError(f"{copied:,} rows streamed instead of {total:,}")
    name = f"replay {total:,} small transactions"
    return [
        informing(f"{name}: transactions a second", total / ours, "/s"),
        informing(f"{name}: transactions a second of the peer", total / peer, "/s"),
        beside(name, ours, "s", PEER, peer, 0.1),
    ]


def _staged(short: bool) -> list[Figure]:
    """Ten commits of staged rows."""
    rows, commits = (50_000 if short else 1_000_000), 10
    spark = session()
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), "A") as cluster,
    ):
        url = cluster.urls["A"]
        log = connect(spark, url)
        log.create_table("staged", COLUMNS)
        data = frame(spark, rows)
        source = str(Path(directory) / "source")
        for _ in range(commits):
            receipt = log.append("staged", data)
            data.write.format("delta").mode("append").save(source)
        data.unpersist()
        cluster.wait_published("A", receipt.position or 0)
        ours = apply(spark, url)
        peer = _stream(spark, Path(source), Path(directory) / "copy")
        count = log.table("staged").count()
    if count != commits * rows:
        raise RuntimeError(f"{count:,} rows applied instead of {commits * rows:,}")
    return [beside(f"replay {commits * rows:,} staged rows", ours, "s", PEER, peer, 0.25)]


def _stream(spark: SparkSession, source: Path, target: Path) -> float:
    """Copy all that is there with a streaming query; return the seconds."""
    begin = time.perf_counter()
    query = (
        spark.readStream.format("delta")
        .load(str(source))
        .writeStream.format("delta")
        .option("checkpointLocation", f"{target}-checkpoint")
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    return time.perf_counter() - begin


def _one_commit_each(path: Path, rows: pa.Table) -> None:
    """Make a Delta table with one commit a row, checkpointed at the end.

    Written by hand: a library's commit takes 15 ms, and how fast the source was written is not
    what is compared.
    """
    write_deltalake(path, rows.slice(0, 1))
    for version in range(1, len(rows)):
        content = io.BytesIO()
        pq.write_table(rows.slice(version, 1), content)
        name = f"part-{uuid.uuid4()}.parquet"
        (path / name).write_bytes(content.getbuffer())
        now_ms = int(time.time() * 1000)
        add = {
            "path": name,
            "partitionValues": {},
            "size": content.tell(),
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
        info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}}
        (path / "_delta_log" / f"{version:020}.json").write_text(
            json.dumps({"add": add}) + "\n" + json.dumps({"commitInfo": info}) + "\n"
        )
    DeltaTable(path).create_checkpoint()
