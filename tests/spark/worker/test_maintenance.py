"""Tables are compacted and vacuumed beside their worker, and pinned files outlive it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.delta.live_files import live_files
from sparktxlog.errors import InvalidRequestError
from sparktxlog.storage.pinned.pins import Pins
from sparktxlog.worker.apply import placing
from sparktxlog.worker.apply.placing import placed_name
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.maintenance import Upkeep, describe, maintain_replica
from sparktxlog.worker.replica.state import ReplicaDirectory, read_snapshots, read_state

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

    with pytest.raises(InvalidRequestError, match="no table 'nothing'"):
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
    assert "skipped: OPTIMIZE" in describe(busy)

    lines: list[str] = []
    (done,) = maintain_replica(spark, source.lake, Upkeep(tables=["plain"]), lines.append)
    assert (done.failed, done.skipped) == ("", "")
    assert (done.optimized, done.vacuumed, done.files) == (True, "full", 1)
    assert lines == [describe(done)]
    # What the replica names from now on is what VACUUM leaves, also if nothing more is ordered.
    named = read_state(source.lake)
    assert named is not None and named.tables["plain"].version == 2
    assert read_snapshots(source.lake)[log.position]["plain"] == 2
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


def test_flat_files_are_put_into_their_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older release placed them flat; rows, deletion vectors and signatures stay."""
    monkeypatch.setattr(placing, "placed_path", lambda file: placed_name(file.path))
    log = LogBuilder(tmp_path)
    log.create(
        table("t", "id bigint, p string", keys=["id"], partition_by=["p"], deletion_vectors=True)
    )
    values = ["a b/%25", None, "x"]
    rows = [(i, values[i % 3]) for i in range(9)]
    log.transaction().staged("append", "t", rows)
    log.publish()
    source = MemoryLog(log, tmp_path / "lake")
    apply(spark, source)
    log.transaction().rename("t", p="q")
    log.transaction().inline("delete_keys", "t", [(3,), (4,)])
    log.publish()
    apply(spark, source)
    monkeypatch.undo()
    directory = source.lake / "t"
    assert len(list(directory.glob("*.parquet"))) == 3
    (planned,) = maintain_replica(spark, source.lake, Upkeep(dry_run=True))
    assert "moves into partitions and VACUUM would run" in planned.skipped
    (done,) = maintain_replica(spark, source.lake, Upkeep())
    assert (done.failed, done.skipped, done.optimized, done.moved_files) == ("", "", False, 3)
    assert "3 files put into partitions" in describe(done)
    places = {path.rsplit("/", 1)[0] for path in live_files(directory).sizes}
    assert places == {"p=a b%2F%2525", "p=__HIVE_DEFAULT_PARTITION__", "p=x"}
    found = spark.read.format("delta").load(str(directory)).orderBy("id").collect()
    assert [tuple(row) for row in found] == [row for row in rows if row[0] not in (3, 4)]
    (again,) = maintain_replica(spark, source.lake, Upkeep())
    assert (again.moved_files, again.failed, again.vacuumed) == (0, "", "full")

    # The worker goes on, and a recount of the moved files is that of the log.
    log.transaction().inline("upsert", "t", [(0, "new"), (100, "x")])
    log.publish()
    assert apply(spark, source) == log.position
    assert recount_tables(spark, source.lake) == {}
    state = read_state(source.lake)
    assert state is not None and not state.diverged
    assert spark.read.format("delta").load(str(directory)).count() == 8


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
