"""What a failed write left goes; what any version may need stays."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sparktxlog.delta.log_files import newest_version
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError
from sparktxlog.worker.lakes.leftovers import remove_unnamed


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a live file in each of two partitions, and files that version 0 had."""
    rows = pa.table({"id": [1, 2], "p": [0, 1]})
    for mode in ("append", "overwrite"):
        write_deltalake(tmp_path, rows, partition_by=["p"], mode=mode)
    return tmp_path


def put(path: Path, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a part")
    os.utime(path, (time() - age_s,) * 2)
    return path


def data(table: Path) -> set[Path]:
    return {path for path in table.rglob("*") if path.is_file() and "_delta_log" not in path.parts}


def test_files_since_a_moment_that_no_version_names_go(table: Path) -> None:
    named, begun = data(table), time() - 5.0
    left = put(table / "p=1" / "part-00000-x.snappy.parquet")
    put(left.with_name(f".{left.name}.crc"))
    put(table / "deletion_vector_x.bin")
    put(table / "_change_data" / "cdc-x.snappy.parquet")
    stay = {
        put(table / "part-00002-old.snappy.parquet", age_s=60.0),
        put(table / "notes of somebody.txt"),
    }
    for commit in (table / "_delta_log").iterdir():
        os.utime(commit)
    assert remove_unnamed(table, newest_version(table, 0), begun) == 3 * len(b"a part")
    assert data(table) == named | stay


def test_what_a_version_within_that_time_had_stays(table: Path) -> None:
    """Also of one that another version replaced: readers have it still."""
    assert len(LogState.read(table).removed) == 2
    named = data(table)
    assert remove_unnamed(table, newest_version(table, 0), 0.0) == 0
    assert data(table) == named


def test_nothing_goes_once_somebody_committed(table: Path) -> None:
    left = put(table / "part-00000-x.snappy.parquet")
    assert remove_unnamed(table, newest_version(table, 0) - 1, 0.0) == 0
    assert remove_unnamed(table, -1, 0.0) == 0
    (table / "_delta_log" / "00000000000000000001.json").write_text("{")
    with pytest.raises(CorruptLogError, match="nothing is removed"):
        remove_unnamed(table, 1, 0.0)
    assert left.exists()
