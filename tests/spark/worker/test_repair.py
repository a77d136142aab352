"""A table that somebody else wrote to comes back to the log, from the site's own files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import ORDERS, apply, check, order, rows_in
from tests.support.worker_log import LogBuilder, MemoryLog, expected, rows_table

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import (
    ExpiredError,
    NotAppliedError,
    StorageError,
    UnknownTableError,
)
from sparktxlog.model.copying import Decision
from sparktxlog.model.report import WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.apply.merging import StageRows
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.repair.repairing import RepairOutcome, RepairWay
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import Answer
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state

pytestmark = pytest.mark.spark


class Site(MemoryLog):
    """A log whose node says what a copy would be."""

    copy = ""
    #: Whether reports of tables that stand still are answered with a copy.
    judges = False

    def report(self, report: WorkerReport) -> Answer:
        answer = super().report(report)
        if self.judges and any(table.diverged for table in report.tables.values()):
            return Answer(verdict="DIVERGED", plan="copy", reason="orders is not ours")
        return answer

    def plan(self, worker_id: str) -> Decision:
        plan = "copy" if self.copy else "stop"
        return Decision(worker_id=worker_id, plan=plan, reason=self.copy or "no healthy donor")


@contextmanager
def worker(spark: SparkSession, site: Site) -> Iterator[Applier]:
    with closing(ReplicaDirectory(site.lake)) as directory:
        yield Applier(spark, site, directory)


def repair(spark: SparkSession, site: Site, *, local: bool = False) -> RepairOutcome:
    with worker(spark, site) as applier:
        return applier.repair("orders", local=local)


def two_batches(root: Path, *, interval: int = 10_000) -> tuple[LogBuilder, Site]:
    log = LogBuilder(root, interval=interval)
    log.transaction().create(ORDERS)
    log.inline("append", "orders", [order(number) for number in range(6)])
    log.publish()
    return log, Site(log, root / "lake")


@pytest.mark.thorough
def test_foreign_rows_go_to_quarantine_and_the_table_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, site = two_batches(tmp_path)
    lake = site.lake
    apply(spark, log, lake)
    spark.sql(f"INSERT INTO delta.`{lake / 'orders'}` VALUES (77, 'eve', 1.00), (78, 'eve', 2.00)")
    spark.sql(f"DELETE FROM delta.`{lake / 'orders'}` WHERE id = 1")
    log.transaction().inline("upsert", "orders", [order(2, "later")])
    log.publish()
    assert list(apply(spark, log, lake).diverged) == ["orders"]
    outcome = repair(spark, site)
    assert (outcome.done, outcome.found.way) == (True, RepairWay.RESTORE)
    assert (outcome.found.position, outcome.replayed, outcome.quarantined) == (1, 1, 2)
    assert [commit.operation for commit in outcome.found.foreign] == ["WRITE", "DELETE"]
    check(spark, log, lake)
    (kept,) = Attic.of_lake(lake).entries(Kind.ROWS)
    saved = spark.read.format("delta").load(str(kept.path)).collect()
    assert sorted(row["id"] for row in saved) == [77, 78]
    # The node hears that it was diverged and no longer is, and that all rows were counted.
    assert site.reports[-1].tables["orders"].diverged == ""
    assert site.recounts[-1].tables["orders"].sound
    # It goes on, with every kind of commit.
    log.transaction().inline("upsert", "orders", [order(3, "after")])
    log.transaction().staged("append", "orders", [order(9)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert repair(spark, site).found.way is RepairWay.NOTHING
    # A worker that may copy does the same by itself: it reads no other table, and asks no donor.
    spark.sql(f"INSERT INTO delta.`{lake / 'orders'}` VALUES (79, 'eve', 3.00)")
    log.transaction().inline("upsert", "orders", [order(4, "more")])
    log.publish()
    site.judges = True
    with closing(ReplicaDirectory(lake)) as directory:
        done = Applier(spark, site, directory, copies=CopyOptions()).run_once()
    assert [(one.found.way, one.quarantined) for one in done.repairs] == [(RepairWay.RESTORE, 1)]
    assert (done.copies, done.diverged, done.verdict) == ((), {}, "IN_SYNC")
    check(spark, log, lake)


class Killed(BaseException):
    """The process is gone: nothing catches it."""


@pytest.mark.thorough
def test_a_batch_that_had_begun_is_not_skipped_afterwards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RESTORE keeps the newer `txn`: Spark would skip the batch's MERGE as done before.

    The repair is killed between each two saves of the state, one after the other.
    """
    log, site = two_batches(tmp_path)
    lake = site.lake
    apply(spark, log, lake)
    for number in (2, 3):
        log.transaction().inline("upsert", "orders", [order(number, "merged")])
    log.publish()
    commit = StageRows.commit

    def commit_and_be_followed(self: StageRows, *arguments: Any) -> TableSignature:
        change = commit(self, *arguments)
        write_deltalake(lake / "orders", rows_table(ORDERS, [order(666)]), mode="append")
        return change

    with monkeypatch.context() as patched:
        patched.setattr(StageRows, "commit", commit_and_be_followed)
        assert list(apply(spark, log, lake).diverged) == ["orders"]
    log.transaction().inline("delete_keys", "orders", [(4,)])
    log.publish()
    apply(spark, log, lake)
    state = read_state(lake)
    assert state is not None and (state.position, state.tables["orders"].position) == (4, 1)
    save, left = ReplicaDirectory.save, [0]

    def save_or_die(self: ReplicaDirectory, state: ReplicaState) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        save(self, state)

    monkeypatch.setattr(ReplicaDirectory, "save", save_or_die)
    deaths = 0
    for round_ in range(1, 9):
        left[0] = round_ - 1
        try:
            outcome = repair(spark, site)
        except Killed:
            deaths += 1
        else:
            break
    assert deaths >= 2 and outcome.done
    check(spark, log, lake)


def test_a_table_that_is_gone_is_built_anew_from_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, site = two_batches(tmp_path)
    lake = site.lake
    apply(spark, log, lake)
    (lake / "orders").rename(tmp_path / "aside")
    write_deltalake(lake / "orders", rows_table(ORDERS, [order(666)]))
    log.transaction().inline("upsert", "orders", [order(3, "later")])
    log.publish()
    assert list(apply(spark, log, lake).diverged) == ["orders"]
    site.kept_after = 1
    with pytest.raises(ExpiredError, match=r"rebuild.*no longer holds"):
        repair(spark, site)
    assert rows_in(spark, lake, "orders") == [order(666)]
    site.kept_after = 0
    outcome = repair(spark, site)
    assert (outcome.found.way, outcome.quarantined, outcome.replayed) == (
        RepairWay.REBUILD,
        None,
        2,
    )
    check(spark, log, lake)
    assert rows_in(spark, lake, outcome.path) == [order(666)]


def test_a_table_created_again_is_built_anew_without_the_dropped_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The log before its creation is replayed too, and is about another table of its name."""
    log, site = two_batches(tmp_path, interval=1)
    lake = site.lake
    apply(spark, log, lake)
    log.transaction().drop("orders").transaction().create(ORDERS)
    log.inline("append", "orders", [order(100)])
    log.publish()
    apply(spark, log, lake)
    (lake / "orders").rename(tmp_path / "aside")
    write_deltalake(lake / "orders", rows_table(ORDERS, [order(666)]))
    log.transaction().inline("append", "orders", [order(101)])
    log.publish()
    assert list(apply(spark, log, lake).diverged) == ["orders"]
    assert repair(spark, site).found.way is RepairWay.REBUILD
    check(spark, log, lake)
    assert rows_in(spark, lake, "orders") == [order(100), order(101)]


def test_damaged_rows_are_built_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody wrote a commit: only a full scan can tell that the recorded version is no way back."""
    log, site = two_batches(tmp_path)
    apply(spark, log, site.lake)
    (data,) = site.lake.glob("orders/*.parquet")
    data.unlink()
    outcome = repair(spark, site)
    assert (outcome.found.way, outcome.done) == (RepairWay.REBUILD, True)
    check(spark, log, site.lake)


def test_a_copy_is_offered_and_a_dry_run_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, site = two_batches(tmp_path)
    lake = site.lake
    apply(spark, log, lake)
    write_deltalake(lake / "orders", rows_table(ORDERS, [order(666)]), mode="append")
    site.copy = "copy from B is estimated at 3.0 s"
    offered = repair(spark, site)
    assert not offered.done and offered.found.copy == site.copy
    assert "copy from B" in offered.describe() and "restore to position 1" in offered.describe()
    assert order(666) in rows_in(spark, lake, "orders")
    assert repair(spark, site, local=True).done
    assert rows_in(spark, lake, "orders") == expected(log, "orders")
    with worker(spark, site) as applier, pytest.raises(UnknownTableError, match="It has: orders"):
        applier.repair("order", local=False)


def test_a_batch_under_way_is_ended_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, site = two_batches(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaState, "finish", _full)
        with pytest.raises(StorageError):
            apply(spark, log, site.lake)
    with pytest.raises(NotAppliedError, match="a batch is under way"):
        repair(spark, site)
    apply(spark, log, site.lake)
    assert repair(spark, site).found.way is RepairWay.NOTHING
    frame = spark.read.format("delta").load(str(site.lake / "orders"))
    state = read_state(site.lake)
    assert state is not None and state.tables["orders"].signature == signature_of(frame, ORDERS)


def _full(*_: Any) -> None:
    raise StorageError("full")
