"""What a page shows of a Delta table: its size, and some of its rows."""

from __future__ import annotations

import json
import struct
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.delta.test_deletion_vectors import in_file

from sparktxlog.delta.log_files import commit_path
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, StorageError
from sparktxlog.storage import table_samples
from sparktxlog.storage.table_samples import CHARACTERS, COLUMNS, ROWS, read_sample

DAYS = pa.table({"id": [1, 2, 3], "day": ["a", "b", "b"], "at": [date(2026, 1, 2), None, None]})


def test_a_sample_has_size_columns_partitions_and_nulls(tmp_path: Path) -> None:
    write_deltalake(tmp_path, DAYS, partition_by=["day"])
    more = pa.table({"id": [4], "day": ["c"], "at": [None], "more": [b"\x01\xff"]}).cast(
        pa.schema([*DAYS.schema, ("more", pa.binary())])
    )
    write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
    first, newest = read_sample(tmp_path, 0), read_sample(tmp_path, None)
    assert (first.version, first.columns, first.rows) == (0, ("id", "day", "at"), 3)
    assert sorted(first.sample) == [
        ("1", "a", "2026-01-02"),
        ("2", "b", None),
        ("3", "b", None),
    ]
    assert (newest.version, newest.files, newest.rows) == (1, 3, 4)
    sizes = DeltaTable(tmp_path).get_add_actions()
    assert newest.size_bytes == sum(pa.table(sizes).column("size_bytes").to_pylist())
    named = [dict(zip(newest.columns, row, strict=True)) for row in newest.sample]
    (last,) = [row for row in named if row["id"] == "4"]
    assert last == {"id": "4", "day": "c", "at": None, "more": "01ff"}
    (first_row,) = [row for row in named if row["id"] == "1"]
    assert first_row == {"id": "1", "day": "a", "at": "2026-01-02", "more": None}
    assert (newest.left_out, newest.more_columns) == ("", 0)


def test_a_sample_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = pa.table({f"c{number}": ["x" * 500] * 3_000 for number in range(COLUMNS + 5)})
    write_deltalake(tmp_path / "wide", wide)
    found = read_sample(tmp_path / "wide", None)
    assert (len(found.sample), len(found.columns), found.more_columns) == (ROWS, COLUMNS, 5)
    assert found.sample[0][0] == f"{'x' * (CHARACTERS - 1)}…"
    for _ in range(10):
        write_deltalake(tmp_path / "many", DAYS.slice(0, 1), mode="append")
    found = read_sample(tmp_path / "many", None)
    assert (len(found.sample), found.files, found.rows) == (8, 10, 10)
    assert found.left_out == "Only the first 8 files were looked into."
    monkeypatch.setattr(table_samples, "GROUP_BYTES", 10)
    found = read_sample(tmp_path / "many", None)
    assert found.sample == () and "have more than 10 bytes" in found.left_out
    monkeypatch.setattr(table_samples, "LOG_BYTES", 10)
    with pytest.raises(StorageError, match="10 at most are read"):
        read_sample(tmp_path / "many", None)


def test_a_year_that_python_does_not_know_is_shown_as_such(tmp_path: Path) -> None:
    days = pa.array([5_000_000, 1], pa.int32()).cast(pa.date32())
    lists = pa.ListArray.from_arrays([0, 1, 2], days)
    write_deltalake(tmp_path, pa.table({"day": days, "days": lists}))
    far, near = read_sample(tmp_path, None).sample
    assert far == ("outside the years 1 to 9999",) * 2
    assert near == ("1970-01-02", "[datetime.date(1970, 1, 2)]")


def test_a_log_without_statistics_or_version_says_so(tmp_path: Path) -> None:
    write_deltalake(tmp_path, DAYS)
    path = commit_path(tmp_path, 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read_sample(tmp_path, 0)
    assert found.rows is None and len(found.sample) == 3
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(CorruptLogError):
            read_sample(missing, 7)


def test_deleted_rows_are_left_out_and_not_counted(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [0, 1, 2, 3]}))
    heads = struct.pack("<IIHHI", 12_346, 1, 0, 1, 16)
    gone = struct.pack("<HH", 0, 2)
    raw = struct.pack("<iqI", 1_681_511_377, 1, 0) + heads + gone
    (add,) = LogState.read(tmp_path).adds.values()
    vector = in_file(tmp_path, raw, 2)["deletionVector"]
    commit_path(tmp_path, 1).write_text(json.dumps({"add": {**add, "deletionVector": vector}}))
    found = read_sample(tmp_path, None)
    assert (sorted(found.sample), found.rows) == ([("1",), ("3",)], 2)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    write_deltalake(tmp_path, DAYS)
    write_deltalake(tmp_path, DAYS, mode="append")
    first, second = (tmp_path / path for path in LogState.read(tmp_path).adds)
    first.write_bytes(b"no Parquet")
    found = read_sample(tmp_path, None)
    assert (len(found.sample), found.rows) == (3, 6)
    assert found.left_out.startswith(f"File {first.name} cannot be read: ")
    second.unlink()
    assert read_sample(tmp_path, None).sample == ()
