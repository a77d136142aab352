"""A place for bytes under keys, whatever keeps them.

A key is a relative path of plain names, parted by `/`; none is a directory of another.  What a
method returned from is durable.
Each error says whether anything happened (`definite`); a request whose answer was lost is looked
after before a caller hears of it.

Methods block, and may be called by several threads.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from io import RawIOBase
from pathlib import Path
from time import time
from typing import BinaryIO, Protocol

from sparktxlog.files.foreign_files import open_regular


@dataclass(frozen=True, slots=True)
class Found:
    """What a store says of the bytes under a key."""

    key: str
    size_bytes: int
    #: Seconds since 1970-01-01 UTC, by the clock of the store.
    changed_s: float
    #: Differs whenever the bytes were written again: an ETag, or an inode with its times.
    mark: str


@dataclass(frozen=True, slots=True)
class OpenContent:
    """The bytes under a key, on their way."""

    found: Found
    #: At most a MiB each, all of the same object; closing it ends the request.
    pieces: Generator[bytes, None, None]


class Created(Enum):
    """What is under a key after it was to be created."""

    #: The bytes that were given, by this call: also when its answer was lost.
    NEW = "new"
    #: The same bytes, from before.
    EQUAL = "equal"
    OTHER = "other"


#: Bytes of a piece, at most.
PIECE_BYTES = 1 << 20


def same_bytes(content: bytes | Path, theirs: Generator[bytes, None, None]) -> bool:
    """Return whether bytes, or a file of this machine, are those of a store; ends the request.

    Raises:
        OSError: The file cannot be read.
    """
    with contextlib.closing(theirs):
        if isinstance(content, bytes):
            return _equal(io.BytesIO(content), theirs)
        with os.fdopen(open_regular(content), "rb") as file:
            return _equal(file, theirs)


def _equal(ours: BinaryIO, theirs: Iterator[bytes]) -> bool:
    return all(ours.read(len(piece)) == piece for piece in theirs) and not ours.read(1)


def clock_of(store: Store, key: str) -> float | None:
    """Return the time by the clock of a store, seconds since 1970-01-01 UTC; errors as `Store`.

    Args:
        key: An object that nobody else uses; it is put, looked at and removed.

    Returns:
        None: Somebody removed it meanwhile.
    """
    store.create(key, b"")
    try:
        found = store.find(key)
    finally:
        store.remove([key])
    return None if found is None else found.changed_s


def earlier_clock(store: Store, key: str) -> float:
    """Return the time by the earlier of two clocks, the store's and this machine's.

    What is old by it is old by both; arguments and errors as `clock_of`.
    """
    there = clock_of(store, key)
    return time() if there is None else min(time(), there)


class Store(Protocol):
    """Bytes under keys below one root.

    Errors of all methods, in addition to those that they name:
        InvalidNameError: The key is no relative path (definite).
        BucketMissingError: There is no such bucket (definite).
        StoreForbiddenError: The store does not let this node do that (definite).
        StoreUnavailableError: It is throttled, down or out of reach, also after some attempts.
        DiskFullError: There is no room, or a quota is used up (definite).
        StorageError: It fails in another way.
    """

    @property
    def url(self) -> str:
        """Where its root is: an absolute path, or `s3://bucket/prefix`; without `/` at the end."""

    def url_of(self, key: str) -> str:
        """Return where a key is, as Spark and messages name it."""

    def find(self, key: str) -> Found | None:
        """Return what is under a key; None = nothing."""

    def read(self, key: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes, fewer than `size` where they end; None = all that follow.

        Raises:
            ObjectMissingError: Nothing is under the key (definite).
        """

    def read_into(self, key: str, offset: int, into: memoryview) -> int:
        """Fill a buffer with the bytes from an offset on; return how many there were.

        Errors as `read`.
        """

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        """Begin to read the bytes from an offset on, with one request; errors as `read`."""

    def reader(self, key: str) -> RawIOBase:
        """Open the bytes to be read in any order, as one of Python's files; errors as `read`.

        What reads it may get an OSError, too: the disk fails, or the bytes were replaced meanwhile.
        """

    def create(self, key: str, content: bytes | Path, *, alone: bool = False) -> Created:
        """Put bytes, or a file of this machine, under a key unless it has some already.

        Of several that create at once one gets NEW.  Readers see all bytes or none.

        Args:
            content: A file may get the key as a second name: afterwards nobody writes into it.
            alone: Nobody else creates this key meanwhile; large files then cost less in a bucket.
        """

    def replace(self, key: str, content: bytes | Path) -> None:
        """Put bytes, or a file of this machine, under a key, in place of what it has.

        Args:
            content: As in `create`.
        """

    def copy(self, source: str, target: str) -> Created:
        """Put the bytes of a key under another one, too, unless that has some; none travel.

        Raises:
            ObjectMissingError: Nothing is under `source` (definite).
        """

    def list(self, prefix: str = "") -> Iterator[Found]:
        """Yield what is below a directory, in any order; what is written meanwhile may lack."""

    def names(self, directory: str) -> Sequence[str]:
        """Return the last parts of the keys in a directory, not below it; no order."""

    def directories(self, directory: str) -> Sequence[str]:
        """Return the names of a directory's own directories; no order.

        One whose keys are all removed may still be named.
        """

    def remove(self, keys: Iterable[str]) -> None:
        """Remove what is under keys; a key that has nothing is no error."""
