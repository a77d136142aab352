"""Chunks: their digests, compression, and changed files."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from tests.support.replica_lakes import chunk_digests

from sparktxlog.errors import FileChangedError, InvalidRequestError
from sparktxlog.files.pinned_chunks import ChunkReader
from sparktxlog.files.pins import PinnedFile, Pins

CHUNK = 65_536
SIZES = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17)


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def pin(tmp_path: Path, data: bytes) -> PinnedFile:
    """Return a pinned file with this content; its original is `t/f`."""
    (tmp_path / "t").mkdir(exist_ok=True)
    (tmp_path / "t" / "f").write_bytes(data)
    os.utime(tmp_path / "t" / "f", ns=(10**18, 10**18))  # clocks of file systems are coarse
    lease = os.urandom(4).hex()
    return Pins(tmp_path).pin(lease, ["t"])["t"][0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("served_first", [True, False])
def test_chunks_make_the_file_and_their_digests_its_digest(
    tmp_path: Path, size: int, served_first: bool
) -> None:
    data = noise(size)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK)
    if not served_first:
        assert reader.file_digests(file) == chunk_digests(data, CHUNK)
    chunks = [reader.read(file, at, CHUNK) for at in range(0, max(size, 1), CHUNK)]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert not any(chunk.packed for chunk in chunks)
    for chunk in chunks:
        assert chunk.digest == hashlib.sha256(chunk.data).hexdigest()
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_chunks_served_are_not_read_again_for_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(3 * CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK)
    reader.read(file, 0, CHUNK)
    reader.read(file, 2 * CHUNK, CHUNK)
    offsets = []
    preadv = os.preadv

    def watch(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        offsets.append(offset)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", watch)
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)
    assert offsets == [CHUNK]
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)
    assert offsets == [CHUNK]


def test_a_part_of_a_chunk_is_no_chunk_of_the_tree(tmp_path: Path) -> None:
    data = noise(2 * CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK)
    part = reader.read(file, CHUNK, 100)
    assert part.data == data[CHUNK : CHUNK + 100]
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_digests_forgotten_are_computed_again(tmp_path: Path) -> None:
    reader = ChunkReader(CHUNK, max_digests=2)
    contents = [noise(2 * CHUNK, seed) for seed in range(3)]
    files = []
    for number, data in enumerate(contents):
        (tmp_path / str(number)).mkdir()
        files.append(pin(tmp_path / str(number), data))
    for _ in range(2):
        for file, data in zip(files, contents, strict=True):
            assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_chunks_that_shrink_are_compressed(tmp_path: Path) -> None:
    """Numbers of three bytes in eight repeat zeros only; letters need the entropy coder."""
    noisy = noise(CHUNK)
    numbers = b"".join(noise(3, seed) + bytes(5) for seed in range(CHUNK // 8))
    letters = bytes(random.Random(3).choices(b"abcdefghijkl", k=CHUNK))
    file, reader = pin(tmp_path, noisy + numbers + letters), ChunkReader(CHUNK)
    for number, data in enumerate((noisy, numbers, letters)):
        offset = number * CHUNK
        chunk = reader.read(file, offset, CHUNK, compress=True)
        assert (chunk.digest, chunk.file_bytes) == (hashlib.sha256(data).hexdigest(), CHUNK)
        assert chunk.packed == (data is not noisy)
        if chunk.packed:
            assert len(chunk.data) < 0.6 * CHUNK
            assert zstandard.ZstdDecompressor().decompress(chunk.data) == data
        else:
            assert chunk.data == data
        plain = reader.read(file, offset, CHUNK)
        assert not plain.packed and plain.data == data
        # What was given out before is not overwritten.
        assert chunk.packed or chunk.data == data


@pytest.mark.parametrize("change", ["write into", "truncate", "append", "touch", "remove"])
def test_a_changed_file_is_refused(tmp_path: Path, change: str) -> None:
    data = noise(2 * CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK)
    reader.read(file, 0, CHUNK)
    original = tmp_path / "t" / "f"
    if change == "write into":
        with original.open("r+b") as out:
            out.write(b"!")
    elif change == "truncate":
        os.truncate(original, CHUNK + 5)
    elif change == "append":
        with original.open("ab") as out:
            out.write(b"!")
    elif change == "touch":
        os.utime(original, ns=(1, 1))
    else:
        Path(file.location).unlink()
    for offset in (0, CHUNK):
        with pytest.raises(FileChangedError) as caught:
            reader.read(file, offset, CHUNK)
        assert (caught.value.http_status, caught.value.fields["path"]) == (410, "f")
    with pytest.raises(FileChangedError):
        reader.file_digests(file)


@pytest.mark.parametrize(
    ("offset", "length", "field"),
    [
        (1, CHUNK, "offset"),
        (2 * CHUNK, 1, "offset"),
        (-CHUNK, 1, "offset"),
        (0, 0, "length"),
        (0, CHUNK + 1, "length"),
        (0, -1, "length"),
    ],
)
def test_ranges_outside_the_contract_name_field_and_value(
    tmp_path: Path, offset: int, length: int, field: str
) -> None:
    file, reader = pin(tmp_path, noise(2 * CHUNK)), ChunkReader(CHUNK)
    with pytest.raises(InvalidRequestError) as caught:
        reader.read(file, offset, length)
    fields = caught.value.fields
    assert fields == {"field": field, "value": offset if field == "offset" else length}
