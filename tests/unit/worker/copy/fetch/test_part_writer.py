"""Chunks get into their file by whichever way the file system has."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparktxlog.worker.copy.fetch.part_writer import PartWriter, chunk_buffer

CHUNK = 2 << 20


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "1.parquet.part"


@pytest.fixture
def writer(part: Path) -> Iterator[PartWriter]:
    writer = PartWriter(part)
    yield writer
    writer.close()


def _chunk(seed: int, size: int) -> memoryview:
    buffer = chunk_buffer(size)
    pattern = bytes((seed + n) % 251 for n in range(4099))
    buffer[:] = (pattern * (size // len(pattern) + 1))[:size]
    return buffer


def _flags(part: Path) -> set[bool]:
    """Return for each descriptor this process has of the file whether it passes the cache by."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(part):
                info = Path(f"/proc/self/fdinfo/{name}").read_text()
                found.add(bool(int(info.split("flags:")[1].split()[0], 8) & os.O_DIRECT))
        except OSError:
            continue
    return found


def test_chunks_in_any_order_make_the_file(writer: PartWriter, part: Path) -> None:
    chunks = [_chunk(1, CHUNK), _chunk(2, CHUNK), _chunk(3, CHUNK - 5_000)]
    for number in (2, 0, 1):
        writer.write(chunks[number], number * CHUNK)
    assert part.read_bytes() == b"".join(chunks)


def test_a_chunk_written_again_replaces_what_was_read_meanwhile(
    writer: PartWriter, part: Path
) -> None:
    writer.write(_chunk(1, CHUNK + 100), 0)
    assert part.read_bytes() == bytes(_chunk(1, CHUNK + 100))
    writer.write(_chunk(9, CHUNK + 100), 0)
    assert part.read_bytes() == bytes(_chunk(9, CHUNK + 100))


def test_small_chunks_and_odd_places_go_through_the_cache(writer: PartWriter, part: Path) -> None:
    writer.write(_chunk(1, 700), 0)
    writer.write(_chunk(2, CHUNK), 700)
    assert part.read_bytes() == bytes(_chunk(1, 700)) + bytes(_chunk(2, CHUNK))
    assert _flags(part) == {False}


def test_memory_that_begins_nowhere_special_is_written_too(writer: PartWriter, part: Path) -> None:
    odd = chunk_buffer(CHUNK + 1)[1:]
    odd[:] = _chunk(4, CHUNK)
    writer.write(odd, 0)
    assert part.read_bytes() == bytes(odd)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_a_way_past_its_cache_gets_the_bytes_all_the_same(
    writer: PartWriter, part: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    writer.write(_chunk(1, CHUNK), 0)
    writer.write(_chunk(2, CHUNK), CHUNK)
    assert part.read_bytes() == bytes(_chunk(1, CHUNK)) + bytes(_chunk(2, CHUNK))
    assert _flags(part) == {False}


def test_a_full_disk_is_no_refusal(
    writer: PartWriter, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer.write(_chunk(1, CHUNK), 0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(_chunk(2, CHUNK), CHUNK)
    assert part.stat().st_size == CHUNK


def test_a_closed_file_is_opened_again(writer: PartWriter, part: Path) -> None:
    writer.write(_chunk(1, CHUNK), 0)
    writer.close()
    assert _flags(part) == set()
    writer.write(_chunk(2, CHUNK), 0)
    assert part.read_bytes() == bytes(_chunk(2, CHUNK))


def test_a_buffer_begins_at_a_page_and_has_the_size_asked_for() -> None:
    import ctypes

    buffer = chunk_buffer(5_000)
    assert len(buffer) == 5_000
    assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % mmap.PAGESIZE == 0
    assert len(chunk_buffer(0)) == 0
