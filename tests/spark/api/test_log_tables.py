"""Spark's Delta reads the tables of `log/` from checkpoints by hand."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.storage_samples import run_of, stored_of

from sparktxlog.delta.log_files import commit_path
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME, QueueTable
from sparktxlog.storage.segments.publishing import restored_rows


def test_a_checkpoint_by_hand_is_the_table_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    queue, directory = QueueTable(tmp_path, "l"), tmp_path / QUEUE_NAME
    entries = stored_of([run_of(seq=number) for number in range(1, 8)])
    for number in range(5):
        queue.append(restored_rows(entries[number : number + 1]))
    queue.maintain()  # merged, so it also says which files were removed
    newest = queue.version
    # Without the commits only the checkpoint says what the table is.
    for version in range(newest + 1):
        commit_path(directory, version).unlink()
    for last in (6, 7):
        queue.append(restored_rows(entries[last - 1 : last]))
        rows = spark.read.format("delta").load(str(directory)).orderBy("position").collect()
        assert [row["position"] for row in rows] == list(range(1, last + 1))
        assert [row["chain_hash"] for row in rows] == [
            one.entry.chain_hash.hex() for one in entries[:last]
        ]
    found = spark.sql(f"DESCRIBE DETAIL delta.`{directory}`").first()
    assert found is not None
    assert (found["name"], found["minReaderVersion"], found["minWriterVersion"]) == (
        QUEUE_NAME,
        1,
        2,
    )
    assert found["numFiles"] == 3
