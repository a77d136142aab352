"""Files whose footers say that their days are of the old calendar: only values decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.codec.calendars import TODAYS_CALENDAR, FileCalendar, batches_of, open_parquet
from sparktxlog.errors import InvalidRowsError

SECOND = -2_208_988_800
UTC = pa.timestamp("us", "UTC")
VERSION, DATES, INT96 = (
    f"org.apache.spark.{name}" for name in ("version", "legacyDateTime", "legacyINT96")
)
OLD: dict[str, str] = {VERSION: "4.2.0", DATES: "", INT96: ""}


def written(path: Path, columns: dict[str, Any], footer: dict[str, str], **options: Any) -> Path:
    table = pa.table(columns).replace_schema_metadata(footer)
    pq.write_table(table, path, **options)
    return path


def old_of(path: Path) -> str:
    """Return the columns that Spark shifts in any batch."""
    with open_parquet(path) as file:
        calendar = FileCalendar(file)
        return "".join(calendar.old_column(batch) for batch in file.iter_batches())


def days(*values: int | None) -> pa.Array:
    return pa.array(values, pa.date32())


def nested(plain: pa.Array) -> dict[str, pa.Array]:
    whole = pa.array([0, len(plain)], pa.int32())
    return {
        "struct": pa.StructArray.from_arrays([plain], ["d"]),
        "list": pa.ListArray.from_arrays(whole, plain),
        "map": pa.MapArray.from_arrays(whole, pa.array(range(len(plain))), plain),
        "key": pa.MapArray.from_arrays(whole, plain.drop_null(), plain.drop_null()),
        "deep": pa.ListArray.from_arrays(whole, pa.StructArray.from_arrays([plain], ["d"])),
    }


@pytest.mark.parametrize(
    ("column", "old"),
    [
        (days(-141_427, None), ""),
        (days(None), ""),
        (days(-141_428, 3), "c"),
        (pa.array([SECOND * 10**6, None], UTC), ""),
        (pa.array([None, SECOND * 10**6 - 1], UTC), "c"),
        (pa.array([SECOND * 1000 - 1], pa.timestamp("ms", "UTC")), "c"),
        (pa.array([SECOND * 1000], pa.timestamp("ms", "UTC")), ""),
        # Spark never shifts these.
        (pa.array([-(10**16)], pa.timestamp("us")), ""),
        (pa.array([-(10**9)]), ""),
    ],
)
def test_values_decide(tmp_path: Path, column: pa.Array, old: str) -> None:
    assert old_of(written(tmp_path / "f", {"c": column}, OLD)) == old
    assert old_of(written(tmp_path / "g", {"c": column}, {VERSION: "4.2.0"})) == ""


@pytest.mark.parametrize("name", nested(days(1)))
def test_fields_elements_and_keys_count(tmp_path: Path, name: str) -> None:
    old, modern = (nested(days(*values))[name] for values in ((-200_000, 1), (-1, 1)))
    assert old_of(written(tmp_path / "f", {"a": modern, "b.c": old}, OLD)) == "b.c"
    assert old_of(written(tmp_path / "f", {"a": modern}, OLD)) == ""


@pytest.mark.parametrize(
    ("footer", "modes", "found"),
    [
        ({VERSION: "2.4.8"}, "", ["day", "at", "int96"]),
        ({VERSION: "3.0.3"}, "", ["int96"]),
        ({VERSION: "3.1.0"}, "LEGACY LEGACY", []),
        ({VERSION: "4.2.0", DATES: ""}, "", ["day", "at"]),
        ({VERSION: "4.2.0", INT96: ""}, "", ["int96"]),
        # What Spark does without a version is the session's; the log's workers shift nothing.
        ({DATES: "", INT96: ""}, "", []),
        ({}, "", []),
        ({}, "LEGACY EXCEPTION", ["day", "at"]),
        ({}, "corrected legacy", ["int96"]),
        (TODAYS_CALENDAR, "LEGACY LEGACY", []),
    ],
)
def test_footers_say_what_spark_shifts(
    tmp_path: Path, footer: dict[str, str], modes: str, found: list[str]
) -> None:
    at = pa.array([0], UTC)
    plain = {"day": days(1), "at": at, "local": at.cast(pa.timestamp("us"))}
    path = written(tmp_path / "f", plain, footer)
    int96 = written(tmp_path / "g", {"int96": at}, footer, use_deprecated_int96_timestamps=True)
    columns = []
    for one in (path, int96):
        with open_parquet(one) as file:
            given = {"modes": modes.split()} if modes else {}
            columns += FileCalendar(file, **given).columns
    assert columns == found


def test_int96_of_year_one_and_within_structs(tmp_path: Path) -> None:
    at = pa.array([SECOND * 10**6 - 1], UTC)
    column = pa.StructArray.from_arrays([at], ["x"])
    for name, values in {"plain": at, "struct": column}.items():
        path = tmp_path / name
        written(path, {name: values}, {VERSION: "3.0.0"}, use_deprecated_int96_timestamps=True)
        assert old_of(path) == name


def test_rows_of_such_a_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "f.parquet", {"id": [1], "born": days(-200_000)}, OLD)
    with open_parquet(path) as file, pytest.raises(InvalidRowsError) as caught:
        list(batches_of(file, path))
    error = caught.value
    assert error.definite and error.fields == {"path": str(path), "column": "born"}
    assert "'f.parquet': column 'born' has dates before 1582-10-15" in error.message
    assert "datetimeRebaseModeInWrite" in error.hint
