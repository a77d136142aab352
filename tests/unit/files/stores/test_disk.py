"""A directory as a store: what it shares, hides, forces and refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparktxlog.errors import DiskFullError, InvalidNameError, StorageError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Created


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> DiskStore:
    return DiskStore(root)


def test_files_and_copies_share_their_bytes(store: DiskStore, root: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"bytes")
    store.create("d/a", given)
    store.copy("d/a", "e/b")
    inodes = {path.stat().st_ino for path in (given, root / "d/a", root / "e/b")}
    assert len(inodes) == 1
    store.replace("d/a", b"other")
    assert (given.read_bytes(), store.read("e/b")) == (b"bytes", b"bytes")


def test_bytes_and_names_are_forced_before_the_answer(
    store: DiskStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = list[str]()

    def note(descriptor: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not name what is open")
    monkeypatch.setattr(os, "fsync", note)
    store.create("d/e/a", b"x")
    assert Path(forced[0]).parent == root / "d/e" and forced[0].endswith(".new")
    assert forced[1:] == [str(root / "d/e"), str(root / "d"), str(root)]
    forced.clear()
    store.copy("d/e/a", "f/a")
    assert forced == [str(root / "d/e/a"), str(root / "f"), str(root)]
    forced.clear()
    store.remove(["d/e/a", "d/e/none"])
    assert forced == [str(root / "d/e")]


def test_what_is_on_its_way_is_hidden_and_refused(store: DiskStore, root: Path) -> None:
    store.create("a", b"x")
    assert os.listdir(root) == ["a"]
    (root / ".incoming").mkdir()
    (root / ".incoming" / "left").write_bytes(b"of a crash")
    (root / f".{'0' * 16}.new").write_bytes(b"of a crash")
    (root / "d").mkdir()
    (root / "d" / f".{'0' * 16}.new").write_bytes(b"of a crash")
    assert [found.key for found in store.list()] == ["a"] and store.names("d") == []
    for key in (".incoming/left", f"d/.{'0' * 16}.new"):
        with pytest.raises(InvalidNameError, match="itself gives"):
            store.find(key)


def test_links_and_directories_are_no_files(store: DiskStore, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the node")
    store.create("d/a", b"x")
    (root / "link").symlink_to(secret)
    (root / "way").symlink_to(tmp_path)
    assert store.find("link") is None and store.find("d") is None
    for key in ("link", "d", "way/secret"):
        with pytest.raises(StorageError, match="link"):
            store.read(key)
    assert [found.key for found in store.list()] == ["d/a"]
    with pytest.raises(StorageError):
        store.create("way/new", b"x")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_named(
    store: DiskStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError) as caught:
        store.create("a", b"x")
    assert caught.value.definite
    assert store.find("a") is None and os.listdir(root) == []


def test_what_is_removed_while_it_is_compared_is_made(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"old")
    opened = DiskStore.open

    def removed(self: DiskStore, key: str, *, offset: int = 0) -> object:
        store.remove([key])
        monkeypatch.undo()
        return opened(self, key, offset=offset)

    monkeypatch.setattr(DiskStore, "open", removed)
    assert store.create("a", b"new") is Created.NEW
    assert store.read("a") == b"new"


def test_a_file_that_becomes_shorter_is_no_whole_one(store: DiskStore, root: Path) -> None:
    store.create("a", bytes(3 << 20))
    opened = store.open("a")
    next(opened.pieces)
    os.truncate(root / "a", 5)
    with pytest.raises(StorageError, match="shorter"):
        list(opened.pieces)
