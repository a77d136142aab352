"""Values of a fetch: files, chunks, their digests, the picklable plan of a part, what came of it.

The digest of a file is a tree, SHA-256 over the concatenated binary SHA-256 of the chunks, so that
chunks that were hashed when they came need not be read again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.model.copying import Grant

#: (table, path relative to the table's directory).
FileKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file that the target wants, as the first donor offers it."""

    table: str
    path: str
    size_bytes: int
    #: Microseconds since 1970 UTC; the staged file gets it.
    modified_at: int

    @property
    def key(self) -> FileKey:
        """Table and path."""
        return self.table, self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """Chunks of one file, as a part of a fetch."""

    task: FileTask
    #: Numbers of the chunks, ascending.
    chunks: tuple[int, ...]
    #: Indexes of the grants whose donors have this very file.
    donors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """A part of a fetch for another process: picklable, and all that this process needs."""

    lake: str
    copy_id: str
    #: Number of the part.
    part: int
    #: Without their file lists.
    grants: tuple[Grant, ...]
    files: tuple[PartFile, ...]
    #: Chunks fetched at once by this part.
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk whose bytes are in place: a line of a journal."""

    table: str
    path: str
    chunk: int
    #: SHA-256 of the plain bytes, hexadecimal.
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStats:
    """What a fetch did; of a stopped one, what it did until then."""

    #: False: it was stopped; what is done is kept.
    complete: bool
    files: int
    #: Bytes of all files asked for.
    size_bytes: int
    #: Of them fetched now, plain; and what of it came over the network, after compression.
    fetched_bytes: int = 0
    wire_bytes: int = 0
    #: Found in the workspace, from an earlier attempt or another copy.
    resumed_bytes: int = 0
    chunks: int = 0
    seconds: float = 0.0
    #: Node → plain bytes fetched from it.
    by_donor: tuple[tuple[str, int], ...] = ()
    #: Node → why it was given up.
    dropped: tuple[tuple[str, str], ...] = ()
    #: Chunks that a part put in place; empty for a whole fetch.
    records: tuple[ChunkRecord, ...] = ()


def chunk_spans(size_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each chunk of a file; none of an empty one."""
    for offset in range(0, size_bytes, chunk_bytes):
        yield offset, min(chunk_bytes, size_bytes - offset)


def chunk_count(size_bytes: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a file."""
    return -(-size_bytes // chunk_bytes)


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
