"""Writes chunks into an incomplete file, past the page cache if the system allows it.

A copy is read again much later, if at all.  In the cache it would displace files that the machine's
jobs read, and new pages for it cost more processor time than receiving and hashing together.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

#: Smaller writes go through the cache: each direct one waits for the disk.
_LEAST_DIRECT_BYTES = 1 << 20
#: Errors of a file system that cannot do it for this file, or for these addresses.
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)
_PAST_CACHE = getattr(os, "O_DIRECT", 0)


def chunk_buffer(size: int) -> memoryview:
    """Return memory that can be written past the cache, because it begins at a page."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


def write_chunk(part: Path, data: memoryview, offset: int) -> None:
    """Write a chunk into a file, which is created with its directory.

    Raises:
        OSError: Some of it may be in the file.
    """
    whole = 0 if offset % mmap.PAGESIZE else len(data) - len(data) % mmap.PAGESIZE
    if whole >= _LEAST_DIRECT_BYTES and _write_direct(part, data[:whole], offset):
        data, offset = data[whole:], offset + whole
    if data:
        _write(part, data, offset)


def complete_part(part: Path, place: Path, size_bytes: int, modified_ns: int) -> None:
    """Set an incomplete file's size and time, bring it to the disk, and give it its name.

    Raises:
        OSError: It may be complete, and have either name.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    # One that is gone was completed by another process: it is not made again, of zeros.
    with part.open("r+b" if size_bytes else "ab") as file:
        file.truncate(size_bytes)
        os.utime(file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(file.fileno())
    part.replace(place)


def _write_direct(part: Path, data: memoryview, offset: int) -> bool:
    """Return False if the file system cannot bypass its cache; then do not count any bytes."""
    try:
        _write(part, data, offset, _PAST_CACHE)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        return False
    return True


def _write(part: Path, data: memoryview, offset: int, how: int = 0) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
    finally:
        os.close(descriptor)
