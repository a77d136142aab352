"""Files are copied without some rows: what is left out and written, and what Spark has to do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from tests.support.worker_log import rows_table, table

from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply import rewriting
from sparktxlog.worker.apply.rewriting import (
    Copied,
    are_copied,
    grouped,
    reaches_python,
)
from sparktxlog.worker.apply.row_copying import copied_files

WIDE = table(
    "wide",
    "id bigint, name string, tags array<struct<x:int,y:string>>, m map<string,int>, f double, "
    "day date, at timestamp, local timestamp_ntz, d decimal(20,3)",
)
#: As Spark 2 names a file whose days are those of the old calendar.
OLD = {"org.apache.spark.version": "2.4.0"}


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "partitionValues": {}, "size": 10, **more}


def row(number: int) -> tuple[Any, ...]:
    tags = None if number % 3 == 0 else [{"x": number, "y": None}, None]
    return (number, f"n{number % 2}", tags, [("k", number)], number / 2, None, None, None, None)


def bits(*rows: int) -> bytes:
    found = bytearray(16)
    for one in rows:
        found[one // 8] |= 1 << one % 8
    return bytes(found)


def copied(
    root: Path,
    definition: TableDefinition,
    files: dict[str, bytes],
    partition: dict[str, str | None] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Do one task; return the rows that it left out, and the files that it made."""
    task = pa.RecordBatch.from_pylist(
        [
            {
                "partition": json.dumps(partition or {}),
                "paths": list(files),
                "gone": list(files.values()),
            }
        ]
    )
    found = pa.Table.from_batches(copied_files([task], table=root, definition=definition))
    left = found.to_pylist()
    made = [json.loads(one["__txlog_made"]) for one in left if one["__txlog_made"] is not None]
    gone = [one for one in left if one["__txlog_made"] is None]
    return gone, [one for one in made if one is not None]


def test_rows_with_a_bit_are_handed_out_and_all_others_are_written(tmp_path: Path) -> None:
    for name, numbers in (("a", range(100)), ("b", range(100, 104)), ("c", range(2))):
        file = rows_table(WIDE, [row(number) for number in numbers])
        pq.write_table(file, tmp_path / f"{name}.parquet", row_group_size=30)
    files = {"a.parquet": bits(0, 7, 31, 99), "b.parquet": b"", "c.parquet": bits(0, 1)}
    gone, (made,) = copied(tmp_path, WIDE, files)
    assert [one["id"] for one in gone] == [0, 7, 31, 99, 0, 1]
    assert gone[1]["tags"] == [{"x": 7, "y": None}, None] and gone[1]["m"] == [("k", 7)]
    path = tmp_path / made["path"]
    stays = [row(number) for number in range(104) if number not in (0, 7, 31, 99)]
    assert pq.read_table(path).equals(rows_table(WIDE, stays))
    assert made["size"] == path.stat().st_size and made["dataChange"] is True
    stats = json.loads(made["stats"])
    assert stats["numRecords"] == 100 and stats["minValues"]["id"] == 1
    assert stats["maxValues"]["id"] == 103 and stats["nullCount"]["day"] == 100
    # What a filter is pushed into has no bounds of floats (decision 65).
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {c.path_in_schema: c.is_stats_set for c in columns}.items() >= {
        "f": False,
        "id": True,
    }.items()


def test_no_file_is_left_of_rows_that_all_go(tmp_path: Path) -> None:
    pq.write_table(rows_table(WIDE, [row(1), row(2)]), tmp_path / "a.parquet")
    gone, made = copied(tmp_path, WIDE, {"a.parquet": bits(0, 1)})
    assert ([one["id"] for one in gone], made) == ([1, 2], [])
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_columns_have_names_in_files_and_those_of_partitions_come_from_the_log(
    tmp_path: Path,
) -> None:
    """One file is from before a column was added, and both have one that the table dropped."""
    definition = TableDefinition(
        name="t",
        columns=(
            Column(name="id", type="bigint"),
            Column(name="a.b", type="int", stored="old"),
            Column(name="p", type="date"),
            Column(name="z", type="string"),
        ),
        partition_by=("p",),
    )
    before = pa.table({"id": [1, 2], "old": pa.array([5, 6], pa.int32()), "dropped": [0.0, 1.0]})
    pq.write_table(before, tmp_path / "a.parquet")
    pq.write_table(before.append_column("z", pa.array(["x", None])), tmp_path / "b.parquet")
    files = {"a.parquet": bits(1), "b.parquet": bits(0)}
    gone, made = copied(tmp_path, definition, files, {"p": "2026-01-02"})
    assert [{**one, "__txlog_made": 0} for one in gone] == [
        {"id": 2, "a.b": 6, "p": "2026-01-02", "z": None, "__txlog_made": 0},
        {"id": 1, "a.b": 5, "p": "2026-01-02", "z": "x", "__txlog_made": 0},
    ]
    assert [one["path"].split("/")[0] for one in made] == ["p=2026-01-02"] * 2
    assert [one["partitionValues"] for one in made] == [{"p": "2026-01-02"}] * 2
    first, second = (pq.ParquetFile(tmp_path / one["path"]).read() for one in made)
    assert first.to_pylist() == [{"id": 1, "old": 5}]
    assert second.to_pylist() == [{"id": 2, "old": 6, "z": None}]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    pq.write_table(rows_table(WIDE, [row(1)]), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(pa.ArrowInvalid):
        copied(tmp_path, WIDE, {"a.parquet": b"", "b.parquet": b""})
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet", "b.parquet"}


@pytest.mark.parametrize("fails", ["opened", "closed"])
def test_a_full_disk_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The end of a file is written when it is closed: also to give it up."""
    pq.write_table(rows_table(WIDE, [row(1)]), tmp_path / "a.parquet")

    opened = pq.ParquetWriter.__init__

    def full(writer: pq.ParquetWriter, *given: Any, **named: Any) -> None:
        if given:
            opened(writer, *given, **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    name = {"opened": "__init__", "closed": "close"}[fails]
    monkeypatch.setattr(pq.ParquetWriter, name, full)
    with pytest.raises(OSError, match="No space left"):
        copied(tmp_path, WIDE, {"a.parquet": b""})
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet"}
    monkeypatch.undo()  # before Arrow closes it itself


def test_what_arrow_reads_in_another_way_than_spark_is_not_copied(tmp_path: Path) -> None:
    definition = table("t", "id bigint, day date, at timestamp")
    rows = rows_table(definition, [(1, None, None)])
    narrow = rows.set_column(0, "id", pa.array([1], pa.int32()))
    files = {
        "good": (rows, {}),
        "with another column": (rows.append_column("x", pa.array([1])), {}),
        "without one": (rows.drop_columns(["at"]), {}),
        "narrow": (narrow, {}),
        "int96": (rows, {"use_deprecated_int96_timestamps": True}),
        "old": (rows.replace_schema_metadata(OLD), {}),
        "twice": (rows.append_column("ID", pa.array([1])), {}),
        "other case": (rows.rename_columns(["ID", "day", "at"]), {}),
    }
    for name, (content, options) in files.items():
        pq.write_table(content, tmp_path / f"{name}.parquet", **options)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    adds = [add(f"{name}.parquet".replace(" ", "%20")) for name in files]
    adds += [add("torn.parquet"), add("gone.parquet"), add("good.parquet", deletionVector={"a": 1})]
    assert are_copied(tmp_path, definition, adds) == [True] * 3 + [False] * 8


def test_files_of_one_partition_are_joined_until_they_are_large() -> None:
    large, small = rewriting.FILE_BYTES, 1

    def file(size: int, value: str) -> Copied:
        return Copied({"path": "x", "partitionValues": {"p": value}, "size": size})

    given = [
        file(small, "a"),
        file(small, "b"),
        file(large, "a"),
        file(large, "a"),
        file(small, "a"),
    ]
    assert [[one.add for one in group] for group in grouped(given)] == [
        [given[0].add, given[2].add],
        [given[1].add],
        [given[3].add],
        [given[4].add],
    ]


def test_executors_without_the_package_leave_the_work_to_spark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Mock()
    session.range.return_value.mapInArrow.side_effect = PySparkException("No module named 'x'")
    assert reaches_python(session) is False
    assert "executors cannot run sparktxlog" in caplog.text and "No module" in caplog.text
    assert reaches_python(session) is False
    assert session.range.call_count == 1
