"""Files that an image gets, or gives back: of a directory, or of a bucket.

Written files never change.  One that did all the same, or was removed, while it was read is found
by its size and time, or by its mark in the bucket.
"""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sparktxlog.delta.log_files import TablePlace, is_in_log
from sparktxlog.errors import ObjectMissingError, StorageError
from sparktxlog.files.ahead import read_ahead
from sparktxlog.files.durability import write_at_once
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Found, OpenContent, Store
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.model.tables.commit_table import COMMIT_LOG
from sparktxlog.storage.commit_tables.table_places import KEPT_COMMITS
from sparktxlog.worker.tables.places_of_tables import store_of_job

#: Files of a bucket that are asked for at the same time.
_AT_ONCE = 8


class VersionGoneError(Exception):
    """The site does not have all files of a version."""


class Original(Protocol):
    """A file.

    Errors of all methods, in addition to those that they name:
        FileNotFoundError, VersionGoneError: It was removed, or replaced, meanwhile.
        OSError: The disk fails.
        StorageError: As `Store`, in a bucket.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages."""

    @property
    def size_bytes(self) -> int:
        """Its bytes, when it was found."""

    @property
    def modified_ns(self) -> int:
        """When it was written, nanoseconds since 1970 UTC."""

    def chunks(self, buffer: memoryview) -> Iterator[memoryview]:
        """Yield its bytes: all of the buffer each time, but the last."""

    def is_other(self) -> bool:
        """Return whether it is no longer the one that was found."""

    def give(self, target: Store, key: str) -> Created:
        """Put it under a key that nobody else creates meanwhile; within one bucket no bytes travel.

        As `Store.create`.
        """


@dataclass(frozen=True, slots=True)
class DiskOriginal:
    """A file of a directory.  Methods are those of `Original`."""

    file: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def found(cls, file: Path) -> DiskOriginal:
        """Return a file as it is now."""
        status = file.stat()
        return cls(file, status.st_size, status.st_mtime_ns)

    @property
    def url(self) -> str:
        """As `Original.url`."""
        return str(self.file)

    def chunks(self, buffer: memoryview) -> Iterator[memoryview]:
        """As `Original.chunks`."""
        with open(self.file, "rb") as content:
            while size := content.readinto(buffer):
                yield buffer[:size]

    def is_other(self) -> bool:
        """As `Original.is_other`."""
        return DiskOriginal.found(self.file) != self

    def give(self, target: Store, key: str) -> Created:
        """As `Original.give`."""
        try:
            return target.create(key, self.file, alone=True)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise


@dataclass(frozen=True, slots=True)
class StoredOriginal:
    """An object of a bucket.  Methods are those of `Original`.

    Args:
        bucket: All of the bucket.
        store: A prefix of it.
        found_as: Its key in the store, and what it was.
    """

    bucket: Store
    store: Store
    found_as: Found

    @property
    def url(self) -> str:
        """As `Original.url`."""
        return self.store.url_of(self.found_as.key)

    @property
    def size_bytes(self) -> int:
        """As `Original.size_bytes`."""
        return self.found_as.size_bytes

    @property
    def modified_ns(self) -> int:
        """As `Original.modified_ns`: stores keep a second, or a millisecond."""
        return int(self.found_as.changed_s * 1_000) * 1_000_000

    def chunks(self, buffer: memoryview) -> Iterator[memoryview]:
        """As `Original.chunks`."""
        content, filled = self._open(), 0
        with closing(content.pieces):
            for piece in content.pieces:
                left = memoryview(piece)
                while left:
                    size = min(len(left), len(buffer) - filled)
                    buffer[filled : filled + size] = left[:size]
                    left, filled = left[size:], filled + size
                    if filled == len(buffer):
                        yield buffer
                        filled = 0
        if filled:
            yield buffer[:filled]

    def is_other(self) -> bool:
        """As `Original.is_other`."""
        found = self.store.find(self.found_as.key)
        if found is None:
            raise self._gone()
        return (found.mark, found.size_bytes) != (self.found_as.mark, self.size_bytes)

    def give(self, target: Store, key: str) -> Created:
        """As `Original.give`."""
        if isinstance(target, PartOfStore):
            target.may_write()  # a copy within the bucket does not go by it
        source, place = bucket_url(self.url, "source"), bucket_url(target.url_of(key), "target")
        assert source is not None, "it lies in a bucket"
        if place is not None and whole_bucket(source) == whole_bucket(place):
            try:
                return self.bucket.copy(source.prefix, place.prefix)
            except ObjectMissingError as error:
                raise self._gone() from error
        with tempfile.TemporaryDirectory(prefix="sparktxlog-image-") as directory:
            file = Path(directory) / "content"
            write_at_once(file, self._open().pieces)
            return target.create(key, file, alone=True)

    def _open(self) -> OpenContent:
        try:
            content = self.store.open(self.found_as.key)
        except ObjectMissingError as error:
            raise self._gone() from error
        if content.found.mark != self.found_as.mark:
            content.pieces.close()
            raise VersionGoneError(f"{self.url} was replaced meanwhile")
        return content

    def _gone(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "there is no such object", self.url)


def digests_of(original: Original, chunk_bytes: int) -> str:
    """Read a file; return the digests of its chunks, hexadecimal, one after the other.

    Raises:
        VersionGoneError: It changed while it was read.
    """
    size, found = 0, list[str]()
    buffer = memoryview(bytearray(max(1, min(original.size_bytes, chunk_bytes))))
    for chunk in original.chunks(buffer):
        found.append(hashlib.sha256(chunk).hexdigest())
        size += len(chunk)
    if size != original.size_bytes or original.is_other():
        raise VersionGoneError(f"{original.url} changed while it was read")
    return "".join(found)


class TableFiles(Protocol):
    """The files of a table of the site; errors as `Original`."""

    @property
    def name(self) -> str:
        """Name of the table, or UUID of a commit table."""

    @property
    def place(self) -> TablePlace:
        """Where the table is."""

    def has(self, path: str) -> bool:
        """Return whether a file is there."""

    def original(self, path: str) -> Original:
        """Return a file.

        Raises:
            FileNotFoundError: It is not there.
        """

    def read_all(self, paths: Sequence[str]) -> Iterable[bytes]:
        """Yield the bytes of small files, in their order, a few ahead; errors as `original`."""


@dataclass(frozen=True, slots=True)
class DiskTable:
    """A table in a directory.  Methods are those of `TableFiles`."""

    place: Path

    @property
    def name(self) -> str:
        """As `TableFiles.name`."""
        return self.place.name

    def has(self, path: str) -> bool:
        """As `TableFiles.has`."""
        file = self.place / path
        return file.exists() or (is_in_log(path) and self._kept(file).exists())

    def original(self, path: str) -> Original:
        """As `TableFiles.original`."""
        file = self.place / path
        try:
            return DiskOriginal.found(file)
        except FileNotFoundError:
            if not is_in_log(path) or not self._kept(file).exists():
                raise
            return DiskOriginal.found(self._kept(file))

    def read_all(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As `TableFiles.read_all`."""
        return (self._read(self.place / path) for path in paths)

    def _read(self, file: Path) -> bytes:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            if not self._kept(file).exists():
                raise
            return self._kept(file).read_bytes()

    def _kept(self, file: Path) -> Path:
        """Return where a commit that Delta cleaned up has its second name."""
        return self.place.parent / KEPT_COMMITS / self.name / file.name


class StoredTable:
    """A table in a bucket.  Methods are those of `TableFiles`.

    Args:
        tables: Store of all tables of its kind.
        name: As `TableFiles.name`.
    """

    def __init__(self, tables: Store, name: str) -> None:
        self._tables, self._name = tables, name
        place = bucket_url(tables.url, "tables")
        assert place is not None, "they lie in a bucket"
        self._bucket = store_of_job(whole_bucket(place))

    @property
    def name(self) -> str:
        """As `TableFiles.name`."""
        return self._name

    @property
    def place(self) -> PartOfStore:
        """As `TableFiles.place`."""
        return PartOfStore(self._tables, self._name)

    @cached_property
    def _there(self) -> dict[str, Found]:
        """What was there when it was asked first, by path below the table."""
        kept = self._tables.list(f"{KEPT_COMMITS}/{self._name}")
        found = {f"{COMMIT_LOG}{one.key.rpartition('/')[2]}": one for one in kept}
        own = self._tables.list(self._name)
        return found | {one.key.removeprefix(f"{self._name}/"): one for one in own}

    def has(self, path: str) -> bool:
        """As `TableFiles.has`."""
        return path in self._there

    def original(self, path: str) -> Original:
        """As `TableFiles.original`."""
        if (found := self._there.get(path)) is None:
            url = self.place.url_of(path)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
        return StoredOriginal(self._bucket, self._tables, found)

    def read_all(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As `TableFiles.read_all`."""
        # The log of a table may be larger than the memory.
        return read_ahead(self._read, paths, at_once=_AT_ONCE, name="images")

    def _read(self, path: str) -> bytes:
        found = self._there.get(path)
        key = f"{self._name}/{path}" if found is None else found.key
        try:
            return self._tables.read(key)
        except ObjectMissingError as error:
            url = self._tables.url_of(key)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", url) from error
