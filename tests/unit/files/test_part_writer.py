"""Chunks get into their file by whichever way the file system has."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from sparktxlog.files.part_writer import chunk_buffer, complete_part, write_chunk

CHUNK = 2 << 20


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "1.parquet.part"


@pytest.fixture
def past_cache(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that a file is opened, whether it is past the cache."""
    opened: list[bool] = []
    real = os.open

    def noting(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(bool(flags & os.O_DIRECT))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", noting)
    return opened


def _chunk(seed: int, size: int) -> memoryview:
    buffer = chunk_buffer(size)
    pattern = bytes((seed + n) % 251 for n in range(4099))
    buffer[:] = (pattern * (size // len(pattern) + 1))[:size]
    return buffer


def test_chunks_in_any_order_make_the_file(part: Path) -> None:
    chunks = [_chunk(1, CHUNK), _chunk(2, CHUNK), _chunk(3, CHUNK - 5_000)]
    for number in (2, 0, 1):
        write_chunk(part, chunks[number], number * CHUNK)
    assert part.read_bytes() == b"".join(chunks)


def test_a_chunk_written_again_replaces_what_was_read_meanwhile(part: Path) -> None:
    write_chunk(part, _chunk(1, CHUNK + 100), 0)
    assert part.read_bytes() == bytes(_chunk(1, CHUNK + 100))
    write_chunk(part, _chunk(9, CHUNK + 100), 0)
    assert part.read_bytes() == bytes(_chunk(9, CHUNK + 100))


def test_small_chunks_and_odd_places_go_through_the_cache(
    part: Path, past_cache: list[bool]
) -> None:
    write_chunk(part, _chunk(1, 700), 0)
    write_chunk(part, _chunk(2, CHUNK), 700)
    assert part.read_bytes() == bytes(_chunk(1, 700)) + bytes(_chunk(2, CHUNK))
    assert past_cache == [False, False]


def test_memory_that_begins_nowhere_special_is_written_too(part: Path) -> None:
    odd = chunk_buffer(CHUNK + 1)[1:]
    odd[:] = _chunk(4, CHUNK)
    write_chunk(part, odd, 0)
    assert part.read_bytes() == bytes(odd)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_a_way_past_its_cache_gets_the_bytes_all_the_same(
    part: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    write_chunk(part, _chunk(1, CHUNK), 0)
    write_chunk(part, _chunk(2, CHUNK), CHUNK)
    assert part.read_bytes() == bytes(_chunk(1, CHUNK)) + bytes(_chunk(2, CHUNK))


def test_a_full_disk_is_no_refusal(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_chunk(part, _chunk(1, CHUNK), 0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        write_chunk(part, _chunk(2, CHUNK), CHUNK)
    assert part.stat().st_size == CHUNK


def test_a_buffer_begins_at_a_page_and_has_the_size_asked_for() -> None:
    import ctypes

    buffer = chunk_buffer(5_000)
    assert len(buffer) == 5_000
    assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % mmap.PAGESIZE == 0
    assert len(chunk_buffer(0)) == 0


def test_a_part_that_another_process_completed_is_not_made_of_zeros(part: Path) -> None:
    """Two attempts at a task may both have fetched all chunks."""
    chunk, place = _chunk(1, 700), part.with_suffix("")
    write_chunk(part, chunk, 0)
    complete_part(part, place, 700, 0)
    with pytest.raises(FileNotFoundError):
        complete_part(part, place, 700, 0)
    assert place.read_bytes() == bytes(chunk) and not part.exists()


def test_an_empty_file_has_no_chunk(part: Path) -> None:
    for _ in ("no part", "a part that is left"):
        complete_part(part, place := part.with_suffix(""), 0, 0)
        assert place.read_bytes() == b""
        part.write_bytes(b"left")
