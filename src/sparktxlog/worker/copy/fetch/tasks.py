"""Values of a fetch: files, chunks, the picklable plan of a part, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    #: Seconds of silence after which a donor is given up.
    silence_s: float


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
