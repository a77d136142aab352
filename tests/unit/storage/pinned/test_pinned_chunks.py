"""Chunks: their digests, the tree over them, compression by sample, and changed files."""

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
from sparktxlog.storage.pinned import pinned_chunks as chunks
from sparktxlog.storage.pinned.pinned_chunks import ChunkReader
from sparktxlog.storage.pinned.pins import PinnedFile, Pins

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
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK, compress=False)
    if not served_first:
        assert reader.file_digests(file) == chunk_digests(data, CHUNK)
    chunks = [reader.read(file, at, CHUNK) for at in range(0, max(size, 1), CHUNK)]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert {chunk.codec for chunk in chunks} == {"identity"}
    for chunk in chunks:
        assert chunk.digest == hashlib.sha256(chunk.data).hexdigest()
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_chunks_served_are_not_read_again_for_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(3 * CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK, compress=False)
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
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK, compress=False)
    part = reader.read(file, CHUNK, 100)
    assert part.data == data[CHUNK : CHUNK + 100]
    assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_digests_forgotten_are_computed_again(tmp_path: Path) -> None:
    reader = ChunkReader(CHUNK, compress=False, max_digests=2)
    contents = [noise(2 * CHUNK, seed) for seed in range(3)]
    files = []
    for number, data in enumerate(contents):
        (tmp_path / str(number)).mkdir()
        files.append(pin(tmp_path / str(number), data))
    for _ in range(2):
        for file, data in zip(files, contents, strict=True):
            assert reader.file_digests(file) == chunk_digests(data, CHUNK)


def test_a_file_travels_compressed_if_its_first_chunk_says_so(tmp_path: Path) -> None:
    text = b"all work and no play " * CHUNK
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    good, bad = pin(tmp_path / "1", text), pin(tmp_path / "2", noise(CHUNK) + text)
    reader = ChunkReader(CHUNK, compress=True)
    # The sample is the first chunk, whichever is asked for first.
    for offset in (CHUNK, 0, 2 * CHUNK):
        chunk = reader.read(good, offset, CHUNK)
        assert chunk.codec == "zstd"
        assert len(chunk.data) < 0.1 * CHUNK
        plain = zstandard.ZstdDecompressor().decompress(chunk.data)
        assert plain == text[offset : offset + CHUNK]
        assert (chunk.digest, chunk.plain_bytes) == (hashlib.sha256(plain).hexdigest(), CHUNK)
        assert reader.read(bad, offset, CHUNK).codec == "identity"
    plainly = ChunkReader(CHUNK, compress=False)
    assert plainly.read(good, 0, CHUNK).data == text[:CHUNK]


def test_a_file_gets_the_fast_level_if_it_shrinks_it_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    compress = chunks._Scratch.compress

    def watch(scratch: chunks._Scratch, data: memoryview, level: int) -> bytes:
        used.append(level)
        return compress(scratch, data, level)

    monkeypatch.setattr(chunks._Scratch, "compress", watch)
    # Numbers of three bytes in eight repeat zeros only; letters need the entropy coder.
    numbers = b"".join(noise(3, seed) + bytes(5) for seed in range(CHUNK // 8))
    letters = bytes(random.Random(3).choices(b"abcdefghijkl", k=CHUNK))
    reader = ChunkReader(CHUNK, compress=True)
    for name, data, level in (("1", numbers, chunks.FAST_LEVEL), ("2", letters, chunks.LEVEL)):
        (tmp_path / name).mkdir()
        chunk = reader.read(pin(tmp_path / name, data), 0, CHUNK)
        assert chunk.codec == "zstd"
        assert zstandard.ZstdDecompressor().decompress(chunk.data) == data
        assert used == [chunks.LEVEL, chunks.FAST_LEVEL, level]
        used.clear()


def test_a_chunk_that_does_not_shrink_travels_plain(tmp_path: Path) -> None:
    data = b"a" * CHUNK + noise(CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK, compress=True)
    assert reader.read(file, 0, CHUNK).codec == "zstd"
    second = reader.read(file, CHUNK, CHUNK)
    assert (second.codec, bytes(second.data)) == ("identity", data[CHUNK:])


@pytest.mark.parametrize("change", ["write into", "truncate", "append", "touch", "remove"])
def test_a_changed_file_is_refused(tmp_path: Path, change: str) -> None:
    data = noise(2 * CHUNK)
    file, reader = pin(tmp_path, data), ChunkReader(CHUNK, compress=False)
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
    file, reader = pin(tmp_path, noise(2 * CHUNK)), ChunkReader(CHUNK, compress=False)
    with pytest.raises(InvalidRequestError) as caught:
        reader.read(file, offset, length)
    fields = caught.value.fields
    assert fields == {"field": field, "value": offset if field == "offset" else length}
