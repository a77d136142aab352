"""Tree digests of local files: SHA-256 over the concatenated binary SHA-256 of the chunks.

A tree, so that chunks that were hashed when they came need not be read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from sparktxlog.worker.copy.fetch.tasks import chunk_spans


def tree_digest(chunks: Iterable[bytes]) -> str:
    """Return the digest of a file, hexadecimal, from the binary digests of its chunks."""
    tree = hashlib.sha256()
    for digest in chunks:
        tree.update(digest)
    return tree.hexdigest()


def file_digest(path: str | Path, size_bytes: int, chunk_bytes: int) -> str | None:
    """Return a file's tree digest, hexadecimal; None if it is shorter than `size_bytes`.

    Raises:
        OSError: The file cannot be read.
    """
    numbers = range(-(-size_bytes // chunk_bytes))
    hashed = hash_chunks(path, size_bytes, chunk_bytes, numbers)
    return (
        tree_digest(hashed[number] for number in numbers) if len(hashed) == len(numbers) else None
    )


def hash_chunks(
    path: str | Path, size_bytes: int, chunk_bytes: int, wanted: Iterable[int]
) -> dict[int, bytes]:
    """Return chunk number → binary SHA-256 of the wanted chunks that the file has in full.

    Raises:
        OSError: The file cannot be read.
    """
    spans = list(chunk_spans(size_bytes, chunk_bytes))
    found: dict[int, bytes] = {}
    buffer = memoryview(bytearray(min(size_bytes, chunk_bytes)))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in wanted:
            offset, length = spans[number]
            if _read_at(descriptor, buffer[:length], offset):
                found[number] = hashlib.sha256(buffer[:length]).digest()
    finally:
        os.close(descriptor)
    return found


def _read_at(descriptor: int, into: memoryview, offset: int) -> bool:
    """Fill a buffer from a file; False if the file ends before."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True
