"""Where dropped tables go in a lake, and that nothing of two of them is mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.storage.dropped_tables import dropped_path, dropped_tables, put_aside


def table(lake: Path, name: str, content: str) -> Path:
    path = lake / name
    path.mkdir(parents=True)
    (path / "part").write_text(content)
    return path


def test_a_directory_is_moved_as_a_whole_and_found_again(tmp_path: Path) -> None:
    table(tmp_path, "orders_2", "a")
    place = put_aside(tmp_path, "orders_2", 57)
    assert place == dropped_path(tmp_path, "orders_2", 57)
    assert (place / "part").read_text() == "a" and not (tmp_path / "orders_2").exists()
    table(tmp_path, "orders_2", "b")
    put_aside(tmp_path, "orders_2", 8)
    (place.parent / "of a person").mkdir()
    found = [(one.table, one.position) for one in dropped_tables(tmp_path)]
    assert found == [("orders_2", 57), ("orders_2", 8)]
    with pytest.raises(FileNotFoundError):
        put_aside(tmp_path, "orders_2", 60)
    assert list(dropped_tables(tmp_path / "elsewhere")) == []


def test_tables_of_several_schemas(tmp_path: Path) -> None:
    names = ["orders", "bronze.orders", "bronze.earlier"]
    for name in names:
        for _ in range(2):
            table(tmp_path, name, name)
            put_aside(tmp_path, name, 7)
    found = sorted((one.table, one.position) for one in dropped_tables(tmp_path))
    assert found == sorted((name, 7) for name in names * 2)


def test_a_replica_that_went_back_drops_the_table_once_more(tmp_path: Path) -> None:
    """The path says where the latest one is; what the first drop left stays, under another name."""
    for content in "abc":
        table(tmp_path, "t", content)
        place = put_aside(tmp_path, "t", 5)
    assert (place / "part").read_text() == "c"
    kept = {one.path.name: (one.path / "part").read_text() for one in dropped_tables(tmp_path)}
    assert kept == {"t-5": "c", "t-5.earlier": "a", "t-5.earlier-2": "b"}


def test_the_time_of_the_drop_is_that_of_the_directory(tmp_path: Path) -> None:
    table(tmp_path, "t", "a")
    before = (tmp_path / "t" / "part").stat().st_mtime_ns // 1000
    put_aside(tmp_path, "t", 5)
    (one,) = dropped_tables(tmp_path)
    assert one.dropped_at >= before
