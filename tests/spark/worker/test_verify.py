"""Wrong claims, dropped files and altered rows are found, and named."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.worker_log import LogBuilder, MemoryLog, Row, rows_table, table

from sparktxlog.errors import NotAppliedError
from sparktxlog.model.answers import ReplicaLine
from sparktxlog.model.report import RecountedTable
from sparktxlog.worker.apply.placing import placed_name, placed_path
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.verify.verify import TableFinding, recount, verify_replica

pytestmark = pytest.mark.spark


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> MemoryLog:
    """A replica with claimed appends in two segments, partitions, and a MERGE."""
    # Java quotes spaces of all scripts in the names of files.
    log = LogBuilder(tmp_path / "東\u3000京\u00a0%")
    log.transaction()
    log.create(table("plain", "id bigint, name string", keys=["id"]))
    log.create(table("parts", "id bigint, part string", partition_by=["part"]))
    for number in range(4):
        log.transaction()
        log.staged("append", "plain", [(number, "n"), (number + 10, "m")], files=2)
        log.staged("append", "parts", [(number, "a b/%=é"), (number, None)])
        log.publish()
    log.with_claims(lambda name, rows: claim(spark, log, name, rows))
    log.transaction().inline("upsert", "plain", [(100, "up")])
    log.publish()
    return MemoryLog(log, tmp_path / "lake")


def claim(spark: SparkSession, log: LogBuilder, name: str, rows: list[Row]) -> str:
    definition = log.tables[name]
    path = log.root / "claimed.parquet"
    pq.write_table(rows_table(definition, rows), path)
    return signature_of(spark.read.parquet(str(path)), definition).to_text()


def apply(spark: SparkSession, source: MemoryLog) -> None:
    with closing(ReplicaDirectory(source.lake)) as directory:
        Applier(spark, source, directory).run_once()


def verify(spark: SparkSession, source: MemoryLog) -> dict[str, TableFinding]:
    found = verify_replica(spark, source, source.lake)
    assert found.position == source.log.position
    return {finding.table: finding for finding in found.tables}


def test_a_sound_replica_is_sound_beside_other_sites(
    spark: SparkSession, source: MemoryLog
) -> None:
    with pytest.raises(NotAppliedError, match="nothing was applied"):
        verify_replica(spark, source, source.lake)
    apply(spark, source)
    state = read_state(source.lake)
    assert state is not None
    equal = {name: {"signature": t.signature.to_text()} for name, t in state.tables.items()}
    source.others = [
        cast(ReplicaLine, {"worker_id": w, "node_id": node, "position": position, "tables": tables})
        for w, node, position, tables in (
            ("x", "b", state.position, equal),
            ("y", "c", 1, {"plain": {"signature": "9:1:1"}}),
        )
    ]
    found = verify_replica(spark, source, source.lake)
    assert found.sound and found.compared_sites == ("b",)
    # Another site that differs is named.
    equal["parts"]["signature"] = "1:0000000000000000:0000000000000000"
    table_found = verify(spark, source)
    assert table_found["plain"].sound and not table_found["parts"].sound
    assert list(table_found["parts"].differing_sites) == ["b"]
    assert table_found["parts"].causes == ()


def test_a_wrong_claim_is_named_by_transaction(spark: SparkSession, source: MemoryLog) -> None:
    segment = source.log.segments[2]
    wrong = "2:0000000000000001:0000000000000002"
    source.log.segments[2] = replace(
        segment,
        effects=tuple(
            replace(e, claim=wrong) if e.table == "parts" else e for e in segment.effects
        ),
    )
    apply(spark, source)
    found = verify(spark, source)
    assert found["plain"].sound
    (cause,) = found["parts"].causes
    assert "transaction 00000000-0000-0000-0000-000000000004 at position 4" in cause
    assert wrong in cause and found["parts"].counted != found["parts"].recorded


def recounted(spark: SparkSession, source: MemoryLog, *tables: str) -> dict[str, RecountedTable]:
    state = read_state(source.lake)
    assert state is not None
    found = recount(applier_session(spark), DiskLake(source.lake), state, "a", tables)
    assert (found.worker_id, found.node_id, found.position) == (state.worker_id, "a", 6)
    return found.tables


def test_the_node_is_told_what_was_counted(spark: SparkSession, source: MemoryLog) -> None:
    apply(spark, source)
    verify(spark, source)
    (told,) = source.recounts
    assert (told.node_id, told.position) == ("a", source.log.position)
    assert set(told.tables) == {"plain", "parts"}
    assert all(table.sound for table in told.tables.values())
    counted = recounted(spark, source, "plain", "parts", "unknown")
    assert counted == told.tables


def test_a_dropped_file_is_named(spark: SparkSession, source: MemoryLog) -> None:
    apply(spark, source)
    effect = next(e for e in source.log.segments[1].effects if e.table == "plain")
    name = placed_name(effect.files[1].path)
    (source.lake / "plain" / name).unlink()
    found = verify(spark, source)
    assert found["parts"].sound
    assert any(name in cause and "missing" in cause for cause in found["plain"].causes)
    told = source.recounts[-1].tables["plain"]
    assert (told.sound, told.counted) == (False, "") and name in told.cause
    assert not recounted(spark, source, "plain")["plain"].sound


def test_an_altered_row_is_named_by_its_file(spark: SparkSession, source: MemoryLog) -> None:
    apply(spark, source)
    effect = next(e for e in source.log.segments[1].effects if e.table == "parts")
    file = effect.files[0]
    target = source.lake / "parts" / placed_path(file)
    # Same rows and size, one value changed, the payload's copy untouched.
    copy = target.with_suffix(".new")
    shutil.copyfile(target, copy)
    altered = pq.read_table(copy).to_pydict()
    ids = [(value + 1000,) for value in altered["id"]]
    pq.write_table(rows_table(source.log.tables["parts"], ids, ["id"]), copy)
    os.replace(copy, target)
    found = verify(spark, source)
    assert found["plain"].sound
    causes = found["parts"].causes
    assert any(target.name in cause and "was altered" in cause for cause in causes)
    assert any("at position 3" in cause for cause in causes)
    assert found["parts"].counted != found["parts"].recorded
    assert [name for name, t in source.recounts[-1].tables.items() if not t.sound] == ["parts"]
