"""Writing chunks into a file that is not whole yet: past the page cache where the system lets us.

A copy is read again much later if at all.  Through the cache it would push out what the machine's
jobs read, and fresh pages for it cost more processor time than receiving and hashing together.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from pathlib import Path

#: Smaller writes go through the cache: each direct one waits for the disk.
_LEAST_DIRECT_BYTES = 1 << 20
#: What a file system says that cannot do it for this file, or for these addresses.
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)


def chunk_buffer(size: int) -> memoryview:
    """Return memory that can be written past the cache: it begins at a page."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


class PartWriter:
    """Writes one file at any offset, from any thread.

    Args:
        part: Created, with its directory, by the first write.
    """

    def __init__(self, part: Path) -> None:
        self._part = part
        self._cached: int | None = None
        self._direct: int | None = None
        self._refused = not hasattr(os, "O_DIRECT")
        self._lock = threading.Lock()

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of the data.

        Raises:
            OSError: Some of it may be in the file.
        """
        whole = 0 if offset % mmap.PAGESIZE else len(data) - len(data) % mmap.PAGESIZE
        if whole < _LEAST_DIRECT_BYTES or not self._write_direct(data[:whole], offset):
            whole = 0
        _write_all(self._open_cached(), data[whole:], offset + whole)

    def _write_direct(self, data: memoryview, offset: int) -> bool:
        """Return False if the file system has no way past its cache; then nothing counts."""
        descriptor = self._open_direct()
        if descriptor is None:
            return False
        try:
            _write_all(descriptor, data, offset)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._refused = True
            return False
        return True

    def _open_cached(self) -> int:
        with self._lock:
            if self._cached is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._cached = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            return self._cached

    def _open_direct(self) -> int | None:
        if self._refused:
            return None
        self._open_cached()
        with self._lock:
            if self._direct is None:
                try:
                    self._direct = os.open(self._part, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
                except OSError as error:
                    if error.errno not in _REFUSALS:
                        raise
                    self._refused = True
            return self._direct

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        with self._lock:
            for descriptor in (self._direct, self._cached):
                if descriptor is not None:
                    os.close(descriptor)
            self._direct = self._cached = None


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
