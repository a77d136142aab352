"""What is in the place of a file that the journal has the bytes of."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import CorruptLogError, StorageError
from sparktxlog.storage.commit_tables.table_places import TablePlaces

T = "00000000-0000-4000-8000-000000000001"
ROWS, COMMIT = b"some rows", b'{"commitInfo":{}}\n'


def _published(root: Path) -> Path:
    return root / T / "_delta_log" / f"{1:020}.json"


def test_bytes_get_their_places_once(tmp_path: Path) -> None:
    places = TablePlaces(tmp_path)
    for _ in range(2):
        unsynced = places.place(T, {"p=1/x": ROWS}) | places.publish(T, 1, COMMIT)
        path = tmp_path / T / "p=1" / "x"
        assert (path.read_bytes(), _published(tmp_path).read_bytes()) == (ROWS, COMMIT)
        # Nothing of it is on the disk before somebody syncs it.
        published = _published(tmp_path)
        new = (path, path.parent, published, published.parent)
        assert {str(one) for one in new} <= unsynced
        places.sync(unsynced)
    assert len([one for one in (tmp_path / T).rglob("*") if one.is_file()]) == 2


def test_each_file_and_directory_is_synced_after_its_bytes_began_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, synced, begun = TablePlaces(tmp_path), list[int](), list[int]()
    unsynced = places.place(T, {"p=1/x": ROWS}) | places.publish(T, 1, COMMIT)
    gone = tmp_path / T / "gone"

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    def advise(descriptor: int, *_: int) -> None:
        assert not synced
        begun.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    places.sync({*unsynced, str(gone)})
    assert sorted(synced) == sorted(begun) == sorted(os.stat(path).st_ino for path in unsynced)
    # Names are durable after what they name.
    published = _published(tmp_path)
    assert synced.index(published.stat().st_ino) < synced.index(published.parent.stat().st_ino)


@pytest.mark.parametrize("torn", [b"", COMMIT[:5], COMMIT[:5] + bytes(3), bytes(len(COMMIT))])
def test_what_a_power_loss_left_is_filled_in_its_place(tmp_path: Path, torn: bytes) -> None:
    places = TablePlaces(tmp_path)
    places.place(T, {"x": ROWS})
    path, data = _published(tmp_path), tmp_path / T / "x"
    path.write_bytes(torn)
    data.write_bytes(ROWS[: len(torn)])
    (tmp_path / "second name").hardlink_to(data)
    places.place(T, {"x": ROWS})
    assert str(path) in places.publish(T, 1, COMMIT)
    assert (data.read_bytes(), path.read_bytes()) == (ROWS, COMMIT)
    assert (tmp_path / "second name").read_bytes() == ROWS


@pytest.mark.parametrize("foreign", [COMMIT + b"more", b"else", b"{}"])
def test_another_commit_in_its_place_is_told(tmp_path: Path, foreign: bytes) -> None:
    places = TablePlaces(tmp_path)
    places.place(T, {})
    _published(tmp_path).write_bytes(foreign)
    with pytest.raises(CorruptLogError):
        places.publish(T, 1, COMMIT)
    assert _published(tmp_path).read_bytes() == foreign


def test_another_data_file_in_its_place_is_set_aside(tmp_path: Path) -> None:
    places = TablePlaces(tmp_path)
    places.place(T, {})
    (tmp_path / T / "x").write_bytes(b"else")
    places.place(T, {"x": ROWS})
    assert (tmp_path / T / "x").read_bytes() == ROWS
    (tmp_path / T / "x").unlink()
    (tmp_path / T / "x").write_bytes(b"more")
    places.place(T, {"x": ROWS})
    (entry,) = Attic.of_commit_tables(tmp_path).entries(Kind.FILES, T)
    assert [(entry.path / name).read_bytes() for name in ("x", "x-2")] == [b"else", b"more"]


def test_many_files_are_synced_with_few_open_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, synced = TablePlaces(tmp_path), set[int]()
    unsynced = places.place(T, {f"{number}": b"x" for number in range(300)})
    sync, descriptors = os.fsync, Path("/proc/self/fd")

    def opened() -> int:
        return len(list(descriptors.iterdir())) if descriptors.is_dir() else 0

    before = opened()

    def counted(descriptor: int) -> None:
        assert opened() < before + 200
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    places.sync(unsynced)
    assert synced == {os.stat(path).st_ino for path in unsynced}

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        places.sync(unsynced)
