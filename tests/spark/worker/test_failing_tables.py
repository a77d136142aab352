"""Tables whose steps fail for good: each stands still alone, is named, repaired, and dropped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import check, rows_in
from tests.spark.worker.test_repair import Site
from tests.support.worker_log import LogBuilder, MemoryLog, expected, table

from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import ApplyError
from sparktxlog.worker.repair.repairing import RepairWay
from sparktxlog.worker.replica import replica_driver
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state

pytestmark = pytest.mark.spark

#: Each is damaged in another way.
DAMAGED = ("feature", "garbage", "inline", "lost", "merged", "odd", "text")
#: Those whose newest commit stays whole, so that only a step that reads the table sees the damage.
KEYED = ("feature", "merged", "text")


def put(lake: Path, name: str, version: int, changed: Callable[[str], str]) -> None:
    path = commit_path(lake / name, version)
    text = path.read_text()
    assert changed(text) != text
    path.write_text(changed(text))


def damage(log: LogBuilder, lake: Path) -> None:
    """Make tables unreadable, and of two others a file that the last segment needs."""
    put(lake, "text", 1, lambda text: text.replace('"n":"1"', '"n":"1.0"'))
    put(
        lake,
        "feature",
        0,
        lambda text: text.replace('"minReaderVersion":1', '"minReaderVersion":9'),
    )
    put(lake, "garbage", 1, lambda text: text[: len(text) // 2])
    put(lake, "odd", 1, lambda text: text + '\n{"add":5}\n')
    for data in (lake / "merged").glob("*.parquet"):
        whole = data.read_bytes()
        data.unlink()
        data.write_bytes(whole[: len(whole) // 2])
    files = {e.table: e.files[0].path for e in log.segments[-1].effects if e.files}
    for name in ("lost", "inline"):
        (log.payloads / files[name]).rename(log.root / name)


def mend(log: LogBuilder, segment: int) -> None:
    files = {e.table: e.files[0].path for e in log.segments[segment].effects if e.files}
    for name in ("lost", "inline"):
        (log.root / name).rename(log.payloads / files[name])


def write_all(log: LogBuilder, number: int) -> None:
    """Write a row to each table, in one transaction."""
    log.transaction()
    for name in log.tables:
        kind = "upsert" if name in KEYED else "append"
        row = [(1 if name in KEYED else number, number)]
        (log.inline if name == "inline" else log.staged)(kind, name, row)
    # So that its extent is asked for.
    log.delete_where("inline", "id < 0", lambda row: False)
    log.publish()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogBuilder:
    monkeypatch.setattr(replica_driver, "PAUSE_S", 0.01)
    log = LogBuilder(tmp_path, interval=1)
    log.transaction()
    for name in (*DAMAGED, "good"):
        keys, parts = ["id"] if name in KEYED else [], ["n"] if name == "text" else []
        log.create(table(name, "id bigint, n int", keys=keys, partition_by=parts))
    log.publish()
    write_all(log, 1)
    return log


def apply(spark: SparkSession, log: LogBuilder, lake: Path) -> ApplyOutcome:
    with closing(ReplicaDirectory(lake)) as directory:
        return Applier(spark, MemoryLog(log, lake), directory).run_once()


def state_of(lake: Path) -> ReplicaState:
    state = read_state(lake)
    assert state is not None and state.pending is None
    return state


@pytest.mark.thorough
def test_tables_that_cannot_be_applied_stand_still_alone(
    spark: SparkSession, log: LogBuilder, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    apply(spark, log, lake)
    check(spark, log, lake)
    before = state_of(lake)
    write_all(log, 2)
    damage(log, lake)
    outcome = apply(spark, log, lake)
    assert outcome.position == log.position
    assert sorted(outcome.diverged) == sorted(DAMAGED)
    for name, reason in outcome.diverged.items():
        assert f"table {name}: " in reason and f"sparktxlog repair {name}" in reason
        still = state_of(lake).tables[name]
        assert (still.version, still.position) == (before.tables[name].version, before.position)
    assert rows_in(spark, lake, "good") == expected(log, "good")
    # They stay so, and hold up nobody; one of them goes with DROP, and comes again.
    write_all(log, 3)
    for name in ("text", "garbage"):
        log.drop(name)
        log.transaction().create(table(name, "id bigint, n int"))
    log.publish()
    assert sorted(apply(spark, log, lake).diverged) == sorted({*DAMAGED} - {"text", "garbage"})
    for name in ("good", "text", "garbage"):
        assert rows_in(spark, lake, name) == expected(log, name)
    mend(log, 2)
    with closing(ReplicaDirectory(lake)) as directory:
        worker = Applier(spark, Site(log, lake), directory)
        ways = {
            name: worker.repair(name, local=True).found.way
            for name in outcome.diverged
            if name not in ("text", "garbage")
        }
    assert ways == {
        "feature": RepairWay.REBUILD,
        "inline": RepairWay.RESTORE,
        "lost": RepairWay.RESTORE,
        "merged": RepairWay.REBUILD,
        "odd": RepairWay.REBUILD,
    }
    check(spark, log, lake)


@pytest.mark.thorough
def test_tables_that_become_unreadable_are_dropped(
    spark: SparkSession, log: LogBuilder, tmp_path: Path
) -> None:
    """Nobody knows yet that they are damaged: rows before the drop are not missed."""
    lake = tmp_path / "lake"
    apply(spark, log, lake)
    log.transaction()
    for name in log.tables:
        log.staged("append", name, [(2, 2)])
    for name in DAMAGED:
        log.drop(name)
    log.publish()
    damage(log, lake)
    assert apply(spark, log, lake).diverged == {}
    check(spark, log, lake)
    assert not any((lake / name).exists() for name in DAMAGED)


def test_a_fault_of_the_site_stops_no_table_for_good(
    spark: SparkSession, log: LogBuilder, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    log.payloads.rename(tmp_path / "away")
    with pytest.raises(ApplyError):
        apply(spark, log, lake)
    (tmp_path / "away").rename(log.payloads)
    assert apply(spark, log, lake).diverged == {}
    check(spark, log, lake)
