"""A worker killed with SIGKILL at any point leaves tables that the next one brings to their end."""

from __future__ import annotations

import pickle
import signal
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.killed_worker import run as worker
from tests.support.worker_log import LogBuilder, MemoryLog, Row, expected, table

from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def keyed_log(root: Path, *, batches: int) -> LogBuilder:
    log = LogBuilder(root, interval=1)
    log.transaction()
    for name in ("left", "right"):
        log.create(table(name, "id bigint, n decimal(10,2)", keys=["id"]))
        log.staged("append", name, rows(range(10)), files=2)
        log.staged("append", name, rows(range(100, 110)))
    log.inline("upsert", "left", rows(range(5))).inline("delete_keys", "right", [(1,), (3,)])
    log.publish()
    for batch in range(1, batches):
        log.transaction().inline("upsert", "left", rows(range(batch, batch + 3), batch))
        log.staged("append", "left", rows([200 + batch]))
        log.delete_where("right", f"id = {4 + batch}", lambda r, batch=batch: r[0] == 4 + batch)
        log.inline("upsert", "right", rows([batch], batch))
        log.publish()
    (root / "log.pickle").write_bytes(pickle.dumps(strip(log)))
    return log


def strip(log: LogBuilder) -> LogBuilder:
    """Return a copy without what cannot be pickled."""
    copy = LogBuilder(log.root, interval=log.interval)
    copy.segments, copy.tables = log.segments, log.tables
    return copy


def rows(ids: range | list[int], n: int = 0) -> list[Row]:
    return [(i, Decimal(n)) for i in ids]


def check(spark: SparkSession, log: LogBuilder) -> None:
    state = read_state(log.root / "lake")
    assert state is not None and state.position == log.position and state.pending is None
    for name, definition in log.tables.items():
        frame = spark.read.format("delta").load(str(log.root / "lake" / name))
        found = sorted((tuple(row) for row in frame.collect()), key=repr)
        assert found == expected(log, name)
        assert state.tables[name].signature == signature_of(frame, definition)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_killed_again_and_again_ends_in_the_same_tables(
    spark: SparkSession, tmp_path: Path, long_form: bool
) -> None:
    batches, steps, merges = (4, 4, (1, 1, 2, 1)) if long_form else (2, 1, (1,))
    log = keyed_log(tmp_path, batches=batches)
    # Between the commits of one batch: every run does one commit more, and dies.
    assert [worker(tmp_path, "step") for _ in range(steps)] == [-signal.SIGKILL] * steps
    state = read_state(tmp_path / "lake")
    assert state is not None and state.position == 0 and state.pending is not None
    assert commits(tmp_path, "left") + commits(tmp_path, "right") == steps
    # After a MERGE, before anything is recorded or reported.
    codes = [worker(tmp_path, "merge", count) for count in merges]
    # After the record of a whole batch, before its report.
    codes.append(worker(tmp_path, "state", 1))
    assert codes == [-signal.SIGKILL] * (len(merges) + 1)
    state = read_state(tmp_path / "lake")
    assert state is not None and 0 < state.position < log.position
    with closing(ReplicaDirectory(tmp_path / "lake")) as directory:
        Applier(spark, MemoryLog(log, tmp_path / "lake"), directory).run_once()
    check(spark, log)
    # No commit was made twice: create, MERGE, placing; then MERGE and placing, and one MERGE.
    assert commits(tmp_path, "left") == 3 + (batches - 1) * 2
    assert commits(tmp_path, "right") == 3 + (batches - 1)


def commits(root: Path, name: str) -> int:
    return len(list((root / "lake" / name / "_delta_log").glob("*.json")))
