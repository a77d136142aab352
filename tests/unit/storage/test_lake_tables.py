"""Tables in a lake, as their Delta logs describe them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sparktxlog.delta.log_segments import read_version
from sparktxlog.errors import CorruptLogError
from sparktxlog.storage import lake_tables
from sparktxlog.storage.lake_tables import LakeTables

ROWS = pa.table({"id": [1], "day": ["a"]})


def names(tables: LakeTables) -> list[str]:
    state = tables.read("t")
    assert state is not None
    return [field["name"] for field in state.metadata.columns["fields"]]


def test_a_table_is_what_its_newest_version_says(tmp_path: Path) -> None:
    tables = LakeTables(tmp_path)
    assert tables.read("t") is None
    write_deltalake(
        tmp_path / "t",
        ROWS,
        partition_by=["day"],
        description="text",
        configuration={"delta.appendOnly": "true"},
    )
    first = tables.read("t")
    assert first is not None
    assert (first.version, first.metadata.partition_columns) == (0, ("day",))
    assert first.metadata.configuration == {"delta.appendOnly": "true"}
    assert first.metadata.description == "text"
    assert first.protocol.min_writer_version >= 2
    more = ROWS.append_column("more", pa.array([1]))
    write_deltalake(tmp_path / "t", more, mode="append", schema_mode="merge")
    later = tables.read("t")
    assert later is not None
    assert (later.version, later.created, later.etag) == (1, first.created, "1")
    assert names(tables) == ["id", "day", "more"]
    shutil.rmtree(tmp_path / "t")
    assert tables.read("t") is None


def test_a_version_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counting(path: Path) -> object:
        opened.append(path)
        return read_version(path)

    monkeypatch.setattr(lake_tables, "read_version", counting)
    tables = LakeTables(tmp_path)
    write_deltalake(tmp_path / "t", ROWS)
    assert tables.read("t") is tables.read("t")
    assert len(opened) == 1


def test_another_table_in_the_same_place_is_seen(tmp_path: Path) -> None:
    """A copy or a repair may replace a directory by one that has the same newest version."""
    tables = LakeTables(tmp_path)
    write_deltalake(tmp_path / "t", ROWS)
    assert names(tables) == ["id", "day"]
    write_deltalake(tmp_path / "other", ROWS.rename_columns(["k", "v"]))
    (tmp_path / "t").rename(tmp_path / "aside")
    (tmp_path / "other").rename(tmp_path / "t")
    assert names(tables) == ["k", "v"]


@pytest.mark.parametrize("content", [b"{", b""])
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    tables = LakeTables(tmp_path)
    write_deltalake(tmp_path / "t", ROWS)
    assert tables.read("t") is not None
    first = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    first.write_bytes(content)
    os.utime(first, ns=(1, 1))
    with pytest.raises(CorruptLogError, match=str(tmp_path / "t")):
        tables.read("t")
