"""Statistics: every value of a file lies inside the bounds that are given."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparktxlog.codec.calendars import TODAYS_CALENDAR
from sparktxlog.codec.row_statistics import RowStatistics
from sparktxlog.errors import ManifestMismatchError
from sparktxlog.storage.parquet_files import inspect_parquet, write_parquet

UTC_MICROS = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("big", pa.int64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", UTC_MICROS),
        ("local", pa.timestamp("us")),
        ("small_decimal", pa.decimal128(9, 2)),
        ("wide_decimal", pa.decimal128(38, 4)),
        ("flag", pa.bool_()),
        ("real", pa.float64()),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ("last", pa.int32()),
    ]
)
characters = st.characters(exclude_categories=["Cs"])
years: dict[str, Any] = {"min_value": datetime(1, 1, 2), "max_value": datetime(9999, 12, 30)}
row = st.fixed_dictionaries(
    {
        "tiny": st.none() | st.integers(-128, 127),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(characters, max_size=40) | st.just("\U0010ffff" * 34 + "a"),
        "day": st.none() | st.dates(),
        "at": st.none() | st.datetimes(**years, timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(**years),
        "small_decimal": st.none() | st.decimals(-9999999, 9999999, places=2),
        "wide_decimal": st.none() | st.decimals(Decimal(-(10**33)), Decimal(10**33), places=4),
        "flag": st.none() | st.booleans(),
        "real": st.none() | st.floats(),
        "blob": st.none() | st.binary(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(characters, max_size=3), max_size=3),
        "point": st.none() | st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.none()}),
        "last": st.none() | st.integers(-5, 5),
    }
)


def stats_of(table: pa.Table, *, schema: pa.Schema | None = None) -> dict[str, Any]:
    found = RowStatistics(schema or table.schema)
    for batch in table.to_batches(max_chunksize=3) or [table]:
        found.take(batch)
    told: dict[str, Any] = json.loads(found.to_json(), parse_float=Decimal)
    return told


def parsed(name: str, value: Any) -> Any:
    match name:
        case "day":
            return date.fromisoformat(value)
        case "at":
            assert value.endswith("Z")
            return datetime.fromisoformat(value)
        case "local":
            assert not value.endswith("Z")
            return datetime.fromisoformat(value)
        case "real":
            return float(value)
        case _:
            return value


@settings(max_examples=150, deadline=None)
@given(st.lists(row, max_size=12))
def test_every_value_lies_inside_the_bounds(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    stats = stats_of(table)
    assert stats["numRecords"] == len(rows)
    assert set(stats["minValues"]) == set(stats["maxValues"])
    for name in stats["minValues"]:
        low, high = parsed(name, stats["minValues"][name]), parsed(name, stats["maxValues"][name])
        values = [r[name] for r in rows if r[name] is not None]
        assert values
        for value in values:
            assert low <= value <= high
    for name in SCHEMA.names:
        if name not in ("tags", "point"):
            assert stats["nullCount"].get(name, 0) == table.column(name).null_count
    assert not {"blob", "tags", "point"} & set(stats["minValues"])


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=12))
def test_exact_columns_have_the_very_minimum_and_maximum(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    stats = stats_of(table)
    for name in ("tiny", "big", "day", "small_decimal", "wide_decimal", "flag", "last"):
        truth = pc.min_max(table.column(name)).as_py()
        if truth["min"] is None:
            assert name not in stats["minValues"]
        else:
            assert parsed(name, stats["minValues"][name]) == truth["min"]
            assert parsed(name, stats["maxValues"][name]) == truth["max"]


def test_long_strings_are_cut_outwards() -> None:
    stats = stats_of(pa.table({"s": ["b" * 40, "a" * 40]}))
    assert stats["minValues"]["s"] == "a" * 32
    assert stats["maxValues"]["s"] == "b" * 32 + "\U0010ffff"
    exact = stats_of(pa.table({"s": ["x" * 32]}))
    assert exact["maxValues"]["s"] == "x" * 32


def test_timestamps_are_rounded_outwards_before_1970_too() -> None:
    column = pa.array([-1, 1_700_000_000_000_001], UTC_MICROS)
    stats = stats_of(pa.table({"at": column}))
    assert stats["minValues"]["at"] == "1969-12-31T23:59:59.999Z"
    assert stats["maxValues"]["at"] == "2023-11-14T22:13:20.001Z"


def test_times_beyond_the_calendar_have_no_bounds() -> None:
    late = pa.array([300_000_000_000_000_000], UTC_MICROS)
    brink = pa.array([253_402_300_799_999_999], UTC_MICROS)
    assert stats_of(pa.table({"at": late}))["maxValues"] == {}
    assert stats_of(pa.table({"at": brink}))["maxValues"] == {}
    days = pa.array([2**31 - 1], pa.date32())
    assert stats_of(pa.table({"d": days}))["maxValues"] == {}


def test_floats_have_bounds_only_where_all_are_finite() -> None:
    table = pa.table(
        {
            "nan": [1.0, 2.0, 3.0, float("nan")],
            "inf": [float("inf"), 1.0, 2.0, 3.0],
            "ok": [1.5, None, None, None],
            "zero": [0.0, None, -0.0, None],
        }
    )
    stats = stats_of(table)
    assert stats["maxValues"] == {"ok": Decimal("1.5"), "zero": 0}
    assert str(stats["minValues"]["zero"]) == "-0.0"


def test_columns_that_do_not_count_and_those_behind_the_first_32_are_left_out() -> None:
    table = pa.table({f"c{i}": [i] for i in range(40)})
    stats = stats_of(table, schema=table.drop_columns(["c0"]).schema)
    assert set(stats["minValues"]) == {f"c{i}" for i in range(1, 33)}


def test_a_column_name_with_a_dot_is_no_path() -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [7]})
    assert stats_of(table)["minValues"] == {"a.b": 7}


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("ns"), pa.uint32()])
def test_forms_that_tables_do_not_hold_have_no_bounds(kind: pa.DataType) -> None:
    assert stats_of(pa.table({"c": pa.array([1], kind)}))["minValues"] == {}


@settings(max_examples=40, deadline=None)
@given(st.lists(row, max_size=8))
def test_written_files_read_back_equal(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    again = pq.read_table(pa.BufferReader(write_parquet(table)))
    assert again.to_pylist() == table.to_pylist() or any(
        r["real"] is not None and r["real"] != r["real"] for r in rows
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(row, min_size=1, max_size=8))
def test_statistics_of_a_file_are_those_of_its_rows(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "f.parquet"
        path.write_bytes(write_parquet(table))
        facts = inspect_parquet(path, lambda schema: None)
    assert json.loads(facts.stats, parse_float=Decimal) == stats_of(table)


def test_written_files_name_todays_calendar() -> None:
    """Else sessions of Spark whose rebase mode is LEGACY read other days."""
    data = write_parquet(pa.table({"day": pa.array([-200_000], pa.date32())}))
    metadata = pq.read_metadata(pa.BufferReader(data)).metadata
    assert metadata == {key.encode(): value.encode() for key, value in TODAYS_CALENDAR.items()}


def test_a_file_is_inspected_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": [3, 1]}), path)
    facts = inspect_parquet(path, lambda schema: None)
    assert facts.nulls == {"id": 0}
    assert (facts.rows, facts.size_bytes) == (2, path.stat().st_size)
    assert facts.schema.names == ["id"]
    assert json.loads(facts.stats)["minValues"] == {"id": 1}
    (tmp_path / "g").write_bytes(b"no")
    with pytest.raises(ManifestMismatchError, match="'g'"):
        inspect_parquet(tmp_path / "g", lambda schema: None)
