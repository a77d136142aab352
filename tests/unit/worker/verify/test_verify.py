"""Damaged files of a table are named, and count as damage; a failed scan alone proves nothing."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.live_files import live_files
from sparktxlog.model.answers import ReplicaLine
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, ReplicaTable
from sparktxlog.worker.verify import verify
from sparktxlog.worker.verify.verify import recount, verify_replica

SIGNATURE = TableSignature(rows=1_000)
NAMED = ReplicaTable(definition=table("t", "id bigint"), version=1, signature=SIGNATURE)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake of one table, two files, that Spark cannot scan."""

    def fail(*_: object) -> None:
        raise PySparkException("the scan failed")

    monkeypatch.setattr(verify, "read_version", fail)
    monkeypatch.setattr(verify, "tasks_shown", lambda *_: lambda: None)
    for first in (0, 1_000):
        rows = pa.table({"id": pa.array(range(first, first + 1_000), pa.int64())})
        write_deltalake(tmp_path / "t", rows, mode="append")
    return tmp_path


def counted(lake: Path) -> Any:
    """Return what a recount of the table tells the node, None = nothing."""
    state = ReplicaState(worker_id="w", log_id="l", tables={"t": NAMED})
    return recount(Mock(), DiskLake(lake), state, "a", ["t"]).tables.get("t")


def test_a_scan_that_failed_over_whole_files_proves_nothing(lake: Path) -> None:
    assert counted(lake) is None


def drop(directory: Path, mark: str) -> None:
    attic = Attic.of_lake(directory.parent)
    attic.put(directory, kind=Kind.DROPPED, table="t", mark=mark, why="dropped")


def test_a_table_that_is_dropped_meanwhile_is_left_out(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are gone from where they were: that is no damage."""
    # That another one of its name was dropped before says nothing.
    (lake / "before").mkdir()
    drop(lake / "before", "3")

    def dropping(*arguments: Any) -> Any:
        found = live_files(*arguments)
        drop(lake / "t", "7")
        return found

    monkeypatch.setattr(verify, "live_files", dropping)
    assert counted(lake) is None
    monkeypatch.setattr(verify, "live_files", live_files)
    Attic.of_lake(lake).place(Kind.DROPPED, "t", "7").rename(lake / "t")
    for file in (lake / "t").glob("*.parquet"):
        file.unlink()
    assert "is missing" in counted(lake).cause


def test_a_file_that_cannot_be_decoded_is_damage_and_named(
    lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, size = next(iter(live_files(lake / "t", 1).sizes.items()))
    # Footer and size are as they were; the pages are not.
    with (lake / "t" / name).open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * (size // 4))
    found = counted(lake)
    assert (found.sound, found.counted, found.recorded) == (False, "", SIGNATURE.to_text())
    assert found.cause.startswith(f"data file {name} cannot be read: ")
    assert name in caplog.text and caplog.records[-1].levelname == "ERROR"


@pytest.mark.parametrize(("number", "damaged"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_a_disk_that_fails_is_damage_and_a_lack_of_this_process_is_none(
    lake: Path, monkeypatch: pytest.MonkeyPatch, number: int, damaged: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "the system says no")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    found = counted(lake)
    assert damaged is (found is not None)
    if damaged:
        assert found.cause.count("cannot be read") == 2 and "the system says no" in found.cause


def test_a_verification_compares_its_count_with_the_record_and_with_other_sites(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ReplicaState(worker_id="w", log_id="l", position=7, tables={"t": NAMED})
    with closing(ReplicaDirectory(lake)) as directory:
        directory.save(state)
    source = MemoryLog(LogBuilder(lake / "node"), lake)
    other = "1:0000000000000000:0000000000000000"
    source.others = [
        cast(ReplicaLine, {"worker_id": w, "node_id": n, "position": p, "tables": tables})
        for w, n, p, tables in (
            ("w", "a", 7, {"t": {"signature": other}}),
            ("x", "b", 7, {"t": {"signature": SIGNATURE.to_text()}}),
            ("y", "c", 7, {"t": {"signature": other}}),
            ("z", "d", 6, {"t": {"signature": other}}),
            ("v", "e", 7, {}),
        )
    ]
    # A site that was not heard since the node's start.
    source.others.append(cast(ReplicaLine, {"worker_id": "u", "node_id": "f", "position": 7}))
    monkeypatch.setattr(verify, "applier_session", lambda spark: spark)
    monkeypatch.setattr(verify, "count_rows", lambda *_: SIGNATURE)
    found = verify_replica(Mock(), cast(Any, source), lake)
    assert found.compared_sites == ("b", "c", "e", "f") and not found.sound
    (finding,) = found.tables
    assert (finding.counted, finding.differing_sites) == (SIGNATURE.to_text(), {"c": other})
    assert (found.verdict, found.plan, finding.causes) == ("IN_SYNC", "up-to-date", ())
    (told,) = source.recounts
    assert told.tables["t"].sound and (told.worker_id, told.node_id, told.position) == ("w", "a", 7)
    # Its scan fails over whole files: that proves nothing, and people are told.
    monkeypatch.undo()
    monkeypatch.setattr(verify, "applier_session", lambda spark: spark)
    monkeypatch.setattr(verify, "count_rows", Mock(side_effect=PySparkException("no memory")))
    (finding,) = verify_replica(Mock(), cast(Any, source), lake).tables
    assert finding.causes == ("the table cannot be read: no memory",) and not finding.damaged
    assert source.recounts[-1].tables == {}
