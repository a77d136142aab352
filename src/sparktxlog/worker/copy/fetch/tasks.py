"""Values of a fetch: files, chunks, their digests, and the result.

The digest of a file is a tree, SHA-256 over the concatenated binary SHA-256 of the chunks, so that
chunks that were hashed when they arrived need not be read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sparktxlog.model.copying import OfferedFile

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

    @classmethod
    def of(cls, table: str, file: OfferedFile) -> FileTask:
        """Return the task for an offered file of a table."""
        return cls(
            table=table, path=file.path, size_bytes=file.size_bytes, modified_at=file.modified_at
        )

    @property
    def key(self) -> FileKey:
        """Table and path."""
        return self.table, self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk whose bytes are in place: a line of a journal."""

    table: str
    path: str
    chunk: int
    #: SHA-256 of the plain bytes, hexadecimal.
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Result of fetching some files."""

    #: Bytes of all requested files.
    size_bytes: int = 0
    #: Plain bytes that were fetched, and what of it came over the network, after compression.
    fetched_bytes: int = 0
    wire_bytes: int = 0
    #: Found in the replica or in the workspace.
    reused_bytes: int = 0
    #: Seconds in which bytes arrived.
    fetch_s: float = 0.0

    def __add__(self, other: Fetched) -> Fetched:
        more = asdict(other)
        return Fetched(**{name: value + more[name] for name, value in asdict(self).items()})


def chunk_count(size_bytes: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a file; an empty one has none."""
    return -(-size_bytes // chunk_bytes)


def tree_digest(chunks: Iterable[bytes]) -> str:
    """Return the digest of a file, hexadecimal, from the binary digests of its chunks."""
    return hashlib.sha256(b"".join(chunks)).hexdigest()


def file_digest(path: Path, size_bytes: int, chunk_bytes: int) -> str | None:
    """Return a file's tree digest, hexadecimal; None if it is shorter than `size_bytes`.

    Raises:
        OSError: The file cannot be read.
    """
    numbers = range(chunk_count(size_bytes, chunk_bytes))
    hashed = hash_chunks(path, size_bytes, chunk_bytes, numbers)
    return tree_digest(hashed.values()) if len(hashed) == len(numbers) else None


def hash_chunks(
    path: Path, size_bytes: int, chunk_bytes: int, wanted: Collection[int]
) -> dict[int, bytes]:
    """Return chunk number → binary SHA-256 of the wanted chunks that the file has in full.

    Raises:
        OSError: The file cannot be read.
    """
    found: dict[int, bytes] = {}
    buffer = memoryview(bytearray(min(size_bytes, chunk_bytes)))
    with path.open("rb") as file:
        for number in wanted:
            view = buffer[: size_bytes - number * chunk_bytes]
            file.seek(number * chunk_bytes)
            if file.readinto(view) == len(view):
                found[number] = hashlib.sha256(view).digest()
    return found
