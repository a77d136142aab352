"""What the payload directory does beyond the interface: links, repeated looks, concurrency."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.storage_samples import parquet_bytes, staged_of

from sparktxlog.errors import (
    InvalidNameError,
    ManifestMismatchError,
    PayloadStoreError,
    StorageError,
)
from sparktxlog.files.foreign_files import INCOMING, foreign_file
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

NAME = "0a0a/orders/part-0.parquet"


@pytest.fixture
def store(tmp_path: Path) -> LocalPayloadStore:
    return LocalPayloadStore(tmp_path / "payloads")


def test_links_are_refused_wherever_they_stand(store: LocalPayloadStore, tmp_path: Path) -> None:
    content = parquet_bytes()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "part-0.parquet").write_bytes(content)
    store.write_file("0a0a/real/part-0.parquet", content)
    (store.root / "0a0a" / "orders").symlink_to(tmp_path / "outside")
    (store.root / "0a0a" / "near").symlink_to(store.root / "0a0a" / "real")
    (store.root / "0a0a" / "file.parquet").symlink_to(tmp_path / "outside" / "part-0.parquet")
    (store.root / "0a0a" / "nowhere").symlink_to(tmp_path / "new")
    for name in (NAME, "0a0a/near/part-0.parquet", "0a0a/file.parquet", "0a0a/nowhere/x"):
        file = staged_of(name, content)
        for act in (store.verify, store.has):
            with pytest.raises(InvalidNameError):
                act(file)
        with pytest.raises(InvalidNameError):
            store.fetch(file, lambda offset: [content[offset:]])
        with pytest.raises(InvalidNameError):
            store.write_file(name, content)
    assert not (tmp_path / "new").exists()


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "payloads").symlink_to(tmp_path / "disk")
    store = LocalPayloadStore(tmp_path / "payloads")
    store.write_file(NAME, parquet_bytes())
    store.verify(staged_of(NAME, parquet_bytes()))


def test_transfers_under_way_are_not_reachable_by_name(store: LocalPayloadStore) -> None:
    with pytest.raises(InvalidNameError):
        store.path(f"{INCOMING}/x")


def test_a_directory_or_pipe_is_no_staged_file(store: LocalPayloadStore) -> None:
    (store.root / "0a0a").mkdir()
    os.mkfifo(store.root / "0a0a" / "pipe")
    for name in ("0a0a", "0a0a/pipe"):
        file = staged_of(name, b"")
        with pytest.raises(PayloadStoreError):
            store.verify(file)
        assert not store.has(file)


def test_a_file_changed_after_it_was_verified_is_looked_at_again(store: LocalPayloadStore) -> None:
    content = parquet_bytes()
    file = staged_of(NAME, content)
    store.write_file(NAME, content)
    store.verify(file)
    store.write_file(NAME, content[:-10] + b"0123456789")
    with pytest.raises(ManifestMismatchError):
        store.verify(file)


def test_a_file_written_again_leaves_its_other_names_alone(
    store: LocalPayloadStore, tmp_path: Path
) -> None:
    """A worker or a quarantine may have linked what a former life of the node published."""
    store.write_file("inline/7-7/t-append.parquet", b"former")
    os.link(store.path("inline/7-7/t-append.parquet"), tmp_path / "linked")
    store.write_file("inline/7-7/t-append.parquet", b"new")
    assert (tmp_path / "linked").read_bytes() == b"former"
    assert Path(store.path("inline/7-7/t-append.parquet")).read_bytes() == b"new"


def test_a_file_of_a_commit_is_taken_in_and_may_be_anything(
    store: LocalPayloadStore, tmp_path: Path
) -> None:
    source = tmp_path / "x.bin"
    source.write_bytes(b"no Parquet")
    taken = foreign_file(tmp_path, source)
    for given in (taken, b"no Parquet"):
        (file,) = store.take_in({NAME: given})
        assert file == staged_of(NAME, b"no Parquet", rows=0)
        path = Path(store.path(NAME))
        assert path.read_bytes() == b"no Parquet"
        assert path.samefile(source) == (given is taken)
        store.verify(file)
        store.forget_verified(NAME)
        store.verify(file)
    # Bytes have no other name, so what happens to the file changes nothing here.
    source.write_bytes(b"changed it")
    store.forget_verified(NAME)
    store.verify(file)
    (file,) = store.take_in({NAME: taken})
    source.write_bytes(b"once again")
    with pytest.raises(ManifestMismatchError, match="digest"):
        store.verify(file)
    with pytest.raises(InvalidNameError):
        store.take_in({"../x": taken})


@pytest.mark.parametrize("act", ["verify", "fetch", "take_in"])
def test_what_could_not_be_synced_is_written_again(
    store: LocalPayloadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """The system may treat pages as written whose fsync failed; the next fsync brings nothing."""
    content, source = parquet_bytes(), tmp_path / "source"
    source.write_bytes(content)
    file = staged_of(NAME, content)
    if act == "verify":
        store.write_file(NAME, content)
    acts: dict[str, Callable[[], object]] = {
        "verify": lambda: store.verify(file),
        "fetch": lambda: store.fetch(file, lambda offset: [content[offset:]]),
        "take_in": lambda: store.take_in({NAME: foreign_file(tmp_path, source)}),
    }
    sync, dirty = os.fsync, dict[int, bool]()

    def fails(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_ino not in dirty:
            os.utime(descriptor, ns=(1, 1))
            dirty[status.st_ino] = True
            raise OSError(errno.EIO, "cannot be written")
        # It was written to since.
        assert status.st_mtime_ns != 1
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError):
        acts[act]()
    acts[act]()
    assert list(dirty.values()) == [True]
    assert Path(store.path(NAME)).read_bytes() == content
