"""Tables are compacted and vacuumed beside their worker, and pinned files outlive it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.errors import InvalidRequestError
from sparktxlog.files.pins import Pins
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.tables.row_upkeep import maintain_replica
from sparktxlog.worker.tables.table_upkeep import Upkeep

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def apply(spark: SparkSession, source: MemoryLog) -> int:
    with closing(ReplicaDirectory(source.lake)) as directory:
        return Applier(spark, source, directory).run_once().position


def test_a_table_of_small_files_is_compacted_and_vacuumed(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path)
    log.transaction()
    log.create(table("plain", "id bigint, name string", keys=["id"]))
    log.create(table("other", "id bigint"))
    log.transaction().staged("append", "plain", [(i, "n") for i in range(60)], files=30)
    log.publish()
    source = MemoryLog(log, tmp_path / "lake")
    apply(spark, source)
    directory = source.lake / "plain"
    pins = Pins(source.lake)
    pinned = pins.pin("lease", ["plain"])["plain"]
    before = {file.path: Path(file.location).read_bytes() for file in pinned}

    with pytest.raises(InvalidRequestError, match="no row table 'nothing'"):
        maintain_replica(spark, source.lake, Upkeep(tables=["nothing"]))
    (other, plain) = maintain_replica(spark, source.lake, Upkeep(dry_run=True))
    assert "OPTIMIZE and VACUUM would run" in plain.skipped
    assert "dry run: VACUUM" in other.skipped
    assert (plain.files, plain.small_files) == (30, 30)

    # A worker at work: nothing is committed beside it.
    with closing(ReplicaDirectory(source.lake)):
        wanted = Upkeep(tables=["plain"], wait_s=0, keep_hours=24 * 9)
        (busy,) = maintain_replica(spark, source.lake, wanted)
    assert (busy.vacuumed, busy.failed) == ("lite", "")
    assert "owned by another worker" in busy.skipped and not busy.optimized
    assert "skipped: OPTIMIZE" in busy.describe()

    lines: list[str] = []
    (done,) = maintain_replica(spark, source.lake, Upkeep(tables=["plain"]), lines.append)
    assert (done.failed, done.skipped) == ("", "")
    assert (done.optimized, done.vacuumed, done.files) == (True, "full", 1)
    assert lines == [done.describe()]
    # What the replica names from now on is what VACUUM leaves, also if nothing more is ordered.
    named = read_state(source.lake)
    assert named is not None and named.tables["plain"].version == 2
    # Within the table's own retention old versions stay.
    assert len(list(directory.glob("*.parquet"))) == 31
    (again,) = maintain_replica(spark, source.lake, Upkeep(tables=["plain"]))
    assert (again.optimized, again.vacuumed) == (False, "full")
    _points_keep_files(spark, source.lake, directory)

    # The worker accepts it and goes on.
    log.transaction().inline("upsert", "plain", [(3, "changed"), (100, "new")])
    log.publish()
    assert apply(spark, source) == log.position
    state = read_state(source.lake)
    assert state is not None and not state.diverged
    assert spark.read.format("delta").load(str(directory)).count() == 61

    # Old files go, the pinned ones of a running copy stay.
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{directory}` RETAIN 0 HOURS").collect()
    assert len(list(directory.glob("*.parquet"))) < 31
    kept = {file.path: Path(file.location).read_bytes() for file in pinned}
    assert {p: b for p, b in kept.items() if p.endswith(".parquet")} == {
        p: b for p, b in before.items() if p.endswith(".parquet")
    }


def _points_keep_files(spark: SparkSession, lake: Path, directory: Path) -> None:
    """A restore point of nine days ago keeps files beyond the table's own retention."""
    old, then = directory / "old.parquet", time.time() - 8 * 86_400
    old.touch()
    os.utime(old, (then, then))
    wanted = Upkeep(tables=["plain"], keep_hours=24 * 9)
    (for_point,) = maintain_replica(spark, lake, wanted)
    assert (for_point.vacuumed, for_point.failed, old.exists()) == ("full", "", True)
    maintain_replica(spark, lake, Upkeep(tables=["plain"]))
    assert not old.exists()


def test_a_compaction_that_fails_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(table("plain", "id bigint"))
    log.transaction().staged("append", "plain", [(i,) for i in range(60)], files=30)
    log.publish()
    source = MemoryLog(log, tmp_path / "lake")
    apply(spark, source)
    directory = source.lake / "plain"
    before = {path.name for path in directory.iterdir()}
    # The last one that is read: what comes before it is written by then.
    damaged = max(directory.glob("*.parquet"))
    size = damaged.stat().st_size
    damaged.unlink()
    damaged.write_bytes(b"PAR1" + b"?" * (size - 8) + b"PAR1")
    wanted = Upkeep(tables=["plain"], vacuum=False)
    (failed,) = maintain_replica(spark, source.lake, wanted)
    assert failed.failed and not failed.optimized
    assert {path.name for path in directory.iterdir()} == before
