"""How columns of files in `log/` are written: what is compressed, and that all is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES
from sparktxlog.storage.log_tables.row_files import ColumnForms

COUNT = 300
ROWS = pa.table(
    {
        "n": pa.array(range(COUNT)),
        "same": pa.array(["x", None, "y"] * (COUNT // 3)),
        "list": pa.array(
            [[{"kind": "append", "file": f"{n}", "size": None}] for n in range(COUNT)],
            pa.list_(pa.struct({"kind": pa.string(), "file": pa.string(), "size": pa.int64()})),
        ),
        "nothing": pa.nulls(COUNT, pa.list_(pa.string())),
        "map": pa.array([{"a": 1.5}] * COUNT, pa.map_(pa.string(), pa.float64())),
    }
)


def chunks_of(path: Path) -> dict[str, Any]:
    group = pq.read_metadata(path).row_group(0)
    found = [group.column(number) for number in range(group.num_columns)]
    return {chunk.path_in_schema: chunk for chunk in found}


def written(rows: pa.Table, forms: ColumnForms, path: Path) -> dict[str, Any]:
    with forms.writer(path, rows.schema) as writer:
        writer.write_table(rows)
    assert pq.read_table(path).equals(rows)
    return chunks_of(path)


def test_only_what_differs_is_compressed(tmp_path: Path) -> None:
    chunks = written(ROWS, ColumnForms.for_rows(ROWS), tmp_path / "f")
    compressed = {path for path, one in chunks.items() if one.compression == "ZSTD"}
    a_map = {path for path in chunks if path.startswith("map.")}
    assert compressed == {"n", "list.list.element.file"} | a_map
    assert {path for path, one in chunks.items() if one.is_stats_set} == {"n", "same"}
    assert not chunks["n"].has_dictionary_page and chunks["same"].has_dictionary_page


def test_forms_of_some_rows_are_right_for_all(tmp_path: Path) -> None:
    """Single transactions follow a large run."""
    forms = ColumnForms.for_rows(ROWS)
    written(ROWS.slice(0, 1), forms, tmp_path / "one")
    other = ROWS.set_column(1, "same", pa.array([f"{number} times" for number in range(COUNT)]))
    written(other, forms, tmp_path / "other")
    assert ColumnForms.for_rows(other).dictionaries == ("list", "nothing", "map")


@pytest.mark.parametrize("name", LOG_TABLES)
def test_every_table_can_be_written_without_rows(tmp_path: Path, name: str) -> None:
    rows = LOG_TABLES[name].empty_table()
    with ColumnForms.for_rows(rows).writer(tmp_path / name, rows.schema) as writer:
        writer.write_table(rows)
    assert pq.read_table(tmp_path / name).num_rows == 0
