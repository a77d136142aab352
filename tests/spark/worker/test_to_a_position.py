"""Image and log to one position, and images whose rows are counted, by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.support.command_line import invoke
from tests.support.worker_log import LogBuilder, MemoryLog, expected, rows_table, table

from sparktxlog.errors import ApplyError
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.apply.placing import placed_name
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import LogTail
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

#: A command's arguments and expected exit code → its line of JSON.
Shell = Callable[..., Any]


class CutLog(MemoryLog):
    """A log that is cut for the worker, whose hash at the cut is made up."""

    def __init__(self, log: LogBuilder, lake: Path, position: int) -> None:
        super().__init__(log, lake)
        self.cut = Cut(position=position, chain_hash=f"cut at {position}", epoch=1)

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> LogTail:
        return super().segments(after, wait_s=wait_s, limit=limit).cut_at(self.cut)


def stumbled(*_: Any) -> ReplicaState:
    """Fail after the commits of a batch, before it is recorded as done."""
    raise ApplyError("stumbled")


def mixed_log(root: Path) -> LogBuilder:
    """Return one segment of twelve transactions that touches two tables in every way."""
    log = LogBuilder(root)
    log.transaction().create(table("t", "id bigint, name string", keys=["id"]))
    log.create(table("plain", "id bigint, name string"))
    log.transaction().inline("append", "plain", [(1, "a"), (2, "b")])
    log.transaction().staged("append", "plain", [(3, "c"), (4, "d")])
    log.inline("upsert", "t", [(1, "one"), (2, "two")])
    log.transaction().inline("append", "plain", [(5, "e")])
    log.transaction().delete_where("plain", "id = 2", lambda row: row[0] == 2)
    log.transaction().inline("upsert", "t", [(2, "deux"), (3, "three")])
    log.transaction().inline("append", "plain", [(6, "f"), (2, "again")])
    log.transaction().inline("overwrite", "t", [(7, "seven")])
    log.transaction().staged("upsert", "t", [(8, "eight")])
    log.transaction().inline("overwrite", "t", [(9, "nine")])
    log.transaction().inline("append", "plain", [(10, "wrong")])
    log.inline("delete_keys", "t", [(9,)])
    log.transaction().inline("append", "plain", [(11, "later")])
    log.publish()
    return log


def apply(spark: SparkSession, source: MemoryLog) -> ApplyOutcome:
    with closing(ReplicaDirectory(source.lake)) as directory:
        return Applier(spark, source, directory).run_once()


def rows(lake: Path, name: str) -> list[Any]:
    found = DeltaTable(lake / name).to_pyarrow_table().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.thorough
def test_a_replica_stops_at_run_ends_inside_a_segment_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = mixed_log(tmp_path), tmp_path / "lake"
    (segment,) = log.segments
    # Inside of appends and upserts.
    outcome = apply(spark, CutLog(log, lake, 7))
    assert (outcome.position, outcome.published) == (7, 7)
    state = read_state(lake)
    assert state is not None and state.chain_hash == "cut at 7"
    for name in ("t", "plain"):
        assert rows(lake, name) == expected(log, name, until=7)
    # Inside of overwrites; broken off when everything is committed and nothing recorded.
    cut = CutLog(log, lake, 9)
    with monkeypatch.context() as patched, closing(ReplicaDirectory(lake)) as directory:
        patched.setattr(ReplicaState, "finish", stumbled)
        with pytest.raises(ApplyError, match="stumbled"):
            Applier(spark, cut, directory).run_once()
    for name in ("t", "plain"):
        assert rows(lake, name) == expected(log, name, until=9)
    state = read_state(lake)
    assert state is not None and state.pending is not None
    assert (state.position, state.pending.last, state.pending.cut) == (7, 9, cut.cut)
    # Whoever goes on knows nothing of the cut but what the state says, and ends there again first.
    outcome = apply(spark, MemoryLog(log, lake))
    assert (outcome.position, outcome.batches) == (segment.last, 2)
    for name in ("t", "plain"):
        assert rows(lake, name) == expected(log, name)
    state = read_state(lake)
    assert state is not None and state.chain_hash == segment.to_hash
    # The worker's own sums are those of the rows: none was counted twice, none left out.
    assert recount_tables(spark, lake) == {}


@pytest.fixture
def shell(
    jobs_share_spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Return what runs commands in this process."""

    def run(*arguments: object, code: int = 0) -> Any:
        found = invoke(monkeypatch, *map(str, arguments), "--json")
        out, err = capsys.readouterr()
        assert found == code, out + err
        return json.loads(out)

    return run


def test_a_row_altered_before_the_backup_is_found(
    spark: SparkSession, shell: Shell, tmp_path: Path
) -> None:
    log, lake, store = LogBuilder(tmp_path), tmp_path / "lake", tmp_path / "backups"
    log.transaction().create(table("t", "id bigint, name string", keys=["id"]))
    log.transaction().staged("append", "t", [(1, "a"), (2, "b")])
    log.publish()
    apply(spark, MemoryLog(log, lake))
    nobody = ("--url", "http://127.0.0.1:9")
    shell("backup", store, "--lake", lake, "--name", "good", *nobody)

    file = next(e.files[0] for e in log.segments[0].effects if e.files)
    target = lake / "t" / placed_name(file.path)
    fresh = target.with_suffix(".new")
    pq.write_table(rows_table(log.tables["t"], [(1, "a"), (2, "x")]), fresh)
    # Of the same size, else the backup itself would refuse it.
    assert fresh.stat().st_size == target.stat().st_size
    fresh.replace(target)
    shell("backup", store, "--lake", lake, "--name", "bad", *nobody)

    stored = sorted(store.rglob("*"))
    verified = shell("backup", "verify", store, "good", "--recount")
    assert sorted(store.rglob("*")) == stored, "an image is only read"
    assert (verified["damaged"], verified["signatures"], verified["differing"]) == ([], "equal", {})
    restored = shell("restore", store, "good", "--lake", tmp_path / "good")
    assert (restored["digests"], restored["signatures"]) == ("equal", "equal")
    assert rows(tmp_path / "good", "t") == [(1, "a"), (2, "b")]

    # The digests are those of the backup: only counting the rows tells.
    assert shell("backup", "verify", store, "bad")["signatures"] == "not counted"
    found = shell("backup", "verify", store, "bad", "--recount", code=4)
    assert found["damaged"] == [] and set(found["differing"]) == {"t"}
    restored = shell("restore", store, "bad", "--lake", tmp_path / "bad", code=4)
    assert restored["signatures"] == "differ" and restored["differing"] == found["differing"]
    taken = shell("restore", store, "bad", "--lake", tmp_path / "taken", "--no-verify")
    assert taken["signatures"] == "not counted"
