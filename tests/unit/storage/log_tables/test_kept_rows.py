"""Pages of a table of the log: across its files, from either end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparktxlog.errors import StorageError
from sparktxlog.model.ids import LARGEST
from sparktxlog.storage.log_tables.kept_rows import read_rows
from sparktxlog.storage.log_tables.log_table import LogTable

SCHEMA = pa.schema(
    [pa.field("n", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))]
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*numbers: int) -> pa.Table:
    found = [{"n": number, "at": BEGIN + timedelta(seconds=number)} for number in numbers]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def numbers(directory: Path, **query: Any) -> list[int]:
    wanted: dict[str, Any] = {"order": "n", "after": None, "limit": 100} | query
    found = read_rows(directory, SCHEMA, **wanted)
    assert found.schema == SCHEMA
    return [int(number) for number in found["n"].to_pylist()]


def test_rows_after_a_value_and_the_last_ones(tmp_path: Path) -> None:
    directory = tmp_path / "a b ü" / "t"  # in URIs that is quoted
    assert numbers(directory) == numbers(directory, after=3) == []
    table = LogTable(directory, SCHEMA)
    for first in range(1, 10, 3):
        table.append(rows(first, first + 1, first + 2))
    assert numbers(directory) == list(range(1, 10))
    assert numbers(directory, limit=4) == [6, 7, 8, 9]
    assert numbers(directory, limit=0) == numbers(directory, after=4, limit=0) == []
    for after in range(11):
        assert numbers(directory, after=after) == list(range(after + 1, 10))
        assert numbers(directory, after=after, limit=2) == list(range(after + 1, 10))[:2]
    moment = int((BEGIN + timedelta(seconds=7)).timestamp() * 1e6)
    assert numbers(directory, order="at", after=moment) == [8, 9]
    # Statistics have times to the millisecond.
    assert numbers(directory, order="at", after=moment - 1) == [7, 8, 9]
    assert numbers(directory, order="at", after=moment + 1) == [8, 9]
    late = pa.Table.from_pylist([{"n": 9, "at": BEGIN + timedelta(microseconds=7)}], schema=SCHEMA)
    LogTable(tmp_path / "late", SCHEMA).append(late)
    begin = int(BEGIN.timestamp() * 1e6)
    found = [numbers(tmp_path / "late", order="at", after=begin + n) for n in (0, 6, 7, 1000)]
    assert found == [[9], [9], [], []]
    assert numbers(tmp_path / "late", order="at", after=LARGEST) == []  # no calendar has it
    table.maintain()  # merged into one file
    assert numbers(directory, limit=4) == [6, 7, 8, 9] and numbers(directory, after=8) == [9]
    table.expire("n", 9)
    assert numbers(directory) == []


def test_a_column_that_came_later_is_empty_in_older_files(tmp_path: Path) -> None:
    LogTable(tmp_path / "t", SCHEMA).append(rows(1))
    wider = SCHEMA.append(pa.field("note", pa.string()))
    (row,) = read_rows(tmp_path / "t", wider, "n", 0, 10).to_pylist()
    assert (row["n"], row["note"]) == (1, None)


def test_a_damaged_table_says_so(tmp_path: Path) -> None:
    LogTable(tmp_path / "t", SCHEMA).append(rows(1))
    for path in (tmp_path / "t").glob("*.parquet"):
        path.write_bytes(b"no parquet")
    with pytest.raises(StorageError, match="cannot be read"):
        numbers(tmp_path / "t")
