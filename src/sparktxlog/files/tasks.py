"""Values of a fetch: files, their chunks and digests, and the result."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

from sparktxlog.model.copying import OfferedFile

#: (table, path relative to the table's directory).
FileKey = tuple[str, str]
#: Letters of a SHA-256.
DIGEST_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file that the target wants, as the donor offers it."""

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


@dataclass(slots=True, kw_only=True, eq=False)
class FileWork:
    """A file that is being fetched; picklable."""

    task: FileTask
    chunk_bytes: int
    #: Chunks whose bytes are not in place.
    missing: set[int]

    @classmethod
    def whole(cls, task: FileTask, chunk_bytes: int) -> FileWork:
        """Return the work on a file without present chunks."""
        missing = set(range(chunk_count(task.size_bytes, chunk_bytes)))
        return cls(task=task, chunk_bytes=chunk_bytes, missing=missing)

    def length(self, chunk: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.chunk_bytes, self.task.size_bytes - chunk * self.chunk_bytes)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the missing chunks."""
        return sum(map(self.length, self.missing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Result of fetching some files."""

    #: Bytes of all requested files.
    size_bytes: int = 0
    #: Bytes of files that were fetched, and how many came over the network, after compression.
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


def split_digests(text: str) -> list[str]:
    """Return the digests of a text that has one after the other."""
    return [text[at : at + DIGEST_CHARS] for at in range(0, len(text), DIGEST_CHARS)]


def hash_chunks(path: Path, size_bytes: int, chunk_bytes: int) -> list[str]:
    """Return the SHA-256 of each chunk, hexadecimal, up to the first one that is not there in full.

    Raises:
        OSError: The file cannot be read.
    """
    found = list[str]()
    buffer = memoryview(bytearray(min(size_bytes, chunk_bytes)))
    with path.open("rb") as file:
        for offset in range(0, size_bytes, chunk_bytes):
            view = buffer[: size_bytes - offset]
            if file.readinto(view) != len(view):
                break
            found.append(hashlib.sha256(view).hexdigest())
    return found
