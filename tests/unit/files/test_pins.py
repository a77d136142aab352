"""Pins: the bytes stay whatever becomes of the names, and nothing else is pinned."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.replica_lakes import append_rows, contents

from sparktxlog.errors import DiskFullError, NotFoundError, StorageError
from sparktxlog.files.pins import Pins


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a table of three commits, hidden files and the worker's own directory."""
    for seed in range(3):
        append_rows(tmp_path / "t", 5, seed=seed)
    (tmp_path / "t" / ".part.crc").write_bytes(b"hidden")
    (tmp_path / "t" / "_delta_log" / "_last_checkpoint").write_text("{}")
    (tmp_path / "t" / "p=a%20b").mkdir()
    (tmp_path / "t" / "p=a%20b" / "x.parquet").write_bytes(b"x" * 10)
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "y").write_bytes(b"y")
    (tmp_path / "_sparktxlog").mkdir()
    (tmp_path / "_sparktxlog" / "state.json").write_text("{}")
    return tmp_path


def pinned_bytes(lake: Path, lease: str, table: str) -> dict[str, bytes]:
    return contents(lake / "_sparktxlog" / "leases" / lease / table)


def test_all_files_of_the_named_tables_are_listed_in_order(lake: Path) -> None:
    before = contents(lake / "t")
    pinned = Pins(lake).pin("l1", ["t"])
    assert list(pinned) == ["t"]
    files = [file.offered() for file in pinned["t"]]
    assert [file.path for file in files] == sorted(before)
    assert {".part.crc", "_delta_log/_last_checkpoint", "p=a%20b/x.parquet"} <= set(before)
    for file in files:
        found = (lake / "t" / file.path).stat()
        assert (file.size_bytes, file.modified_at) == (found.st_size, found.st_mtime_ns // 1000)
    assert pinned_bytes(lake, "l1", "t") == before


def test_deletions_rewrites_and_a_vacuum_leave_the_pins(lake: Path) -> None:
    before = contents(lake / "t")
    pins = Pins(lake)
    version = DeltaTable(lake / "t").version()
    pins.pin("l1", ["t"])
    table = DeltaTable(lake / "t")
    table.delete()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    (lake / "t" / "_delta_log" / "00000000000000000000.json").unlink()
    last = lake / "t" / "_delta_log" / "_last_checkpoint"
    fresh = last.with_name("fresh")
    fresh.write_text("another")
    fresh.replace(last)
    assert not (lake / "t" / "p=a%20b" / "x.parquet").exists()
    assert pinned_bytes(lake, "l1", "t") == before
    base = lake / "_sparktxlog" / "leases" / "l1" / "t"
    assert DeltaTable(base, version=version).to_pyarrow_table().num_rows == 15
    shutil.rmtree(lake / "t")
    assert pinned_bytes(lake, "l1", "t") == before


def test_released_pins_are_gone_and_others_stay(lake: Path) -> None:
    pins = Pins(lake)
    for lease in ("l1", "l2", "l3"):
        pins.pin(lease, ["t", "u"])
    assert pins.release("l1")
    assert pins.release("l1")
    # After a crash nobody owns them any more.
    assert Pins(lake).release_others({"l3"}) == ["l2"]
    assert [path.name for path in (lake / "_sparktxlog" / "leases").iterdir()] == ["l3"]
    assert (lake / "t").is_dir()
    assert (lake / "_sparktxlog" / "state.json").exists()
    assert Pins(lake / "nowhere").release_others() == []


def test_what_vanishes_while_linking_is_left_out(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def vanish(source: str, target: str, **options: bool) -> None:
        if source.endswith("x.parquet"):
            raise FileNotFoundError(errno.ENOENT, "gone")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", vanish)
    paths = [file.path for file in Pins(lake).pin("l1", ["t"])["t"]]
    assert paths
    assert "p=a%20b/x.parquet" not in paths


def test_symbolic_links_are_never_pinned(lake: Path) -> None:
    secret = lake / "secret"
    secret.write_text("of the host")
    (lake / "t" / "link").symlink_to(secret)
    (lake / "t" / "folder").symlink_to(lake / "_sparktxlog")
    paths = [file.path for file in Pins(lake).pin("l1", ["t"])["t"]]
    assert not [path for path in paths if path.startswith(("link", "folder"))]
    assert "link" not in pinned_bytes(lake, "l1", "t")


@pytest.mark.parametrize(
    ("number", "kind", "way_out"),
    [
        (errno.EXDEV, StorageError, "one file system"),
        (errno.EPERM, StorageError, "the same user"),
        (errno.EOPNOTSUPP, StorageError, "with hard links"),
        (errno.ENOSPC, DiskFullError, "Free space"),
    ],
)
def test_a_refused_link_names_the_way_out_and_leaves_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError], way_out: str
) -> None:
    def refuse(source: str, target: str, **options: bool) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(kind, match=way_out):
        Pins(lake).pin("l1", ["t"])
    assert not (lake / "_sparktxlog" / "leases" / "l1").exists()


def test_a_missing_table_is_named(lake: Path) -> None:
    with pytest.raises(NotFoundError, match="'nope'"):
        Pins(lake).pin("l1", ["t", "nope"])
    assert not (lake / "_sparktxlog" / "leases" / "l1").exists()


def test_a_name_that_is_no_text_is_left_out(lake: Path) -> None:
    name = os.fsencode(lake / "t") + b"/\xff"
    try:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system takes text only")
    assert all(file.path.isascii() for file in Pins(lake).pin("l1", ["t"])["t"])
