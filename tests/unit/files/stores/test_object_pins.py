"""Pins of a replica in a bucket: a list of names on the node's disk, and reads on a condition."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from tests.support.replica_lakes import chunk_digests

from sparktxlog.errors import CorruptLogError, FileChangedError, NotFoundError
from sparktxlog.files.pinned_chunks import ChunkReader
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.object_pins import LEASES, ObjectPins, pinned_paths

CHUNK = 65_536
SIZES = {"t/a": 0, "t/p=a b%2F/b": 1, "t/c": CHUNK, "t/_delta_log/d": 3 * CHUNK + 17, "u/a": 5}


@pytest.fixture
def contents() -> dict[str, bytes]:
    return {key: random.Random(key).randbytes(size) for key, size in SIZES.items()}


@pytest.fixture
def store(contents: dict[str, bytes]) -> BucketStore:
    made = BucketStore(MemoryStore(), "memory://bucket")
    for key, content in contents.items():
        made.replace(key, content)
    return made


def test_what_is_pinned_is_served_as_it_is(
    tmp_path: Path, store: BucketStore, contents: dict[str, bytes]
) -> None:
    pinned = ObjectPins(store, tmp_path).pin("1", ["u", "t", "t"])
    assert [*pinned] == ["t", "u"]
    assert [one.path for one in pinned["t"]] == sorted(one[2:] for one in SIZES if one[0] == "t")
    reader = ChunkReader(CHUNK)
    for table, objects in pinned.items():
        for one in objects:
            content = contents[f"{table}/{one.path}"]
            assert one.offered().size_bytes == len(content)
            assert one.offered().modified_at > 1_700_000_000_000_000
            assert reader.file_digests(one) == chunk_digests(content, CHUNK)
            chunks = [reader.read(one, at, CHUNK) for at in range(0, max(len(content), 1), CHUNK)]
            assert b"".join(chunk.data for chunk in chunks) == content
            assert {chunk.digest for chunk in chunks} == {
                hashlib.sha256(chunk.data).hexdigest() for chunk in chunks
            }


@pytest.mark.parametrize("key", ["t/a", "t/c"])
def test_an_object_that_somebody_changes_or_removes_is_not_served(
    tmp_path: Path, store: BucketStore, key: str
) -> None:
    (one,) = [
        one for one in ObjectPins(store, tmp_path).pin("1", ["t"])["t"] if one.path == key[2:]
    ]
    store.replace(key, b"?" * SIZES[key])
    for _ in range(2):
        with pytest.raises(FileChangedError, match="no longer"):
            ChunkReader(CHUNK).read(one, 0, CHUNK)
        with pytest.raises(FileChangedError, match="no longer"):
            ChunkReader(CHUNK).file_digests(one)
        store.remove([key])


def test_lists_say_what_is_pinned_until_the_lease_ends(tmp_path: Path, store: BucketStore) -> None:
    pins = ObjectPins(store, tmp_path)
    assert pinned_paths(tmp_path) == {} and pins.release_others() == []
    pins.pin("1", ["t"])
    store.replace("t/new", b"")
    pins.pin("2", ["t", "u"])
    assert pinned_paths(tmp_path) == {
        "t": {"a", "p=a b%2F/b", "c", "_delta_log/d", "new"},
        "u": {"a"},
    }
    assert pins.release("2") and pins.release("2")
    assert pinned_paths(tmp_path)["t"] == {"a", "p=a b%2F/b", "c", "_delta_log/d"}
    pins.pin("3", ["u"])
    assert pins.release_others({"3"}) == ["1"]
    assert pinned_paths(tmp_path) == {"u": {"a"}}
    with pytest.raises(NotFoundError, match="no table 'v'"):
        pins.pin("4", ["u", "v"])
    assert sorted(one.name for one in (tmp_path / LEASES).iterdir()) == ["3"]


def test_a_list_that_cannot_be_read_is_no_empty_list(tmp_path: Path, store: BucketStore) -> None:
    pins = ObjectPins(store, tmp_path)
    pins.pin("1", ["t"])
    (tmp_path / LEASES / "1").write_bytes(b'{"t": ["a')
    with pytest.raises(CorruptLogError, match="pins of a copy"):
        pinned_paths(tmp_path)
    assert pins.release_others() == ["1"] and pinned_paths(tmp_path) == {}
