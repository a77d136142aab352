"""How the files of a Delta table get their places in the commit table that is made of it.

In a directory they get a second name there, or are copied.  In a bucket they are copied within it:
no byte of them comes to this machine.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable
from sparktxlog.delta.log_files import commits_among
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    CopyConflictError,
    CorruptLogError,
    InvalidRequestError,
    ObjectMissingError,
    PayloadStoreError,
    StorageError,
)
from sparktxlog.files.durability import link_new, storing
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.whole_files import in_parallel
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.commit_tables.bucket_tables import LogCopy
from sparktxlog.storage.commit_tables.directory_tables import directory_of
from sparktxlog.worker.tables.places_of_tables import store_of_job

#: How a file gets its place in the new table.
FileWay = Literal["link", "copy", "move"]
#: Files that are copied at once.
_PARALLEL = 8
_LOG = COMMIT_LOG.rstrip("/")


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A Delta table in a bucket, as others write it.

    Args:
        bucket: All of the bucket.
        key: Of the table.
    """

    bucket: Store
    key: str

    @classmethod
    def at(cls, url: str) -> BucketSource:
        """Return that at a URL, reached by the environment of this process.

        Raises:
            ConfigError: No store here has such URLs (definite).
            InvalidRequestError: It names no prefix (definite).
        """
        place = bucket_url(url, "path")
        assert place is not None, "the caller looked"
        if not place.prefix:
            raise InvalidRequestError(
                f"{url[:200]} is a whole bucket, and a table is below a prefix",
                field="path",
                value=url[:200],
            )
        return cls(store_of_job(whole_bucket(place)), place.prefix)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.bucket.url_of(self.key)

    def newest(self) -> int:
        """Return its newest version now, -1 = it has none."""
        log = self.bucket.list(f"{self.key}/{_LOG}")
        return max(commits_among(one.key.rpartition("/")[2] for one in log), default=-1)

    def plain(self) -> PlainTable:
        """Return the table at its newest version: its log is read, and no other file.

        Raises:
            InvalidRequestError: There is none (definite).
        """
        version, log = self.newest(), LogCopy(self.bucket, self.key)
        problem = f"it has no {COMMIT_LOG}"
        try:
            if version >= 0:
                return PlainTable(path=self.url, log=LogState.read(log.upto(version), version))
        except CorruptLogError as error:
            problem = error.message
        raise InvalidRequestError(
            f"{self.url} cannot be read as a Delta table: {problem}",
            hint=f"Name the prefix that has {COMMIT_LOG}.",
            field="path",
            value=self.url,
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes of its files, by path below it."""
        found = self.bucket.list(self.key)
        return {one.key.removeprefix(f"{self.key}/"): one.size_bytes for one in found}


def sizes_of(source: str, paths: Collection[str]) -> dict[str, int]:
    """Return the sizes of those files of a Delta table that there are, by path."""
    if bucket_url(source, "path") is not None:
        there = BucketSource.at(source).sizes()
        return {path: there[path] for path in paths if path in there}
    found = {}
    for path in paths:
        try:
            found[path] = (Path(source) / path).stat().st_size
        except OSError:
            continue
    return found


def check_way(source: str, root: str | None, way: str) -> None:
    """Refuse a way on which files cannot come to their places.

    Args:
        source: Path or URL of the old table.
        root: URL of the site's commit tables in a bucket, None = they lie in a directory.

    Raises:
        InvalidRequestError: The message says what to do (definite).
    """
    if way not in get_args(FileWay):
        raise InvalidRequestError(
            f"files={way!r} is none of {', '.join(get_args(FileWay))}", field="files", value=way
        )
    place, target = bucket_url(source, "path"), root and bucket_url(root, "commit-table-url")
    if not target:
        if place is not None:
            raise InvalidRequestError(
                f"{source} lies in a bucket, and the commit tables of this site in a directory",
                hint="Adopt it at a site whose commit-table-url is in that bucket, or copy the "
                "rows: CREATE TABLE … AS SELECT.",
                field="path",
                value=source,
            )
        return
    if place is not None and whole_bucket(place) != whole_bucket(target):
        raise InvalidRequestError(
            f"{source} lies in another bucket than the commit tables of this site, {root}",
            hint="Copy it into that bucket by its provider's tools, or copy the rows: CREATE TABLE "
            "… AS SELECT.",
            field="path",
            value=source,
        )
    if way != "copy":
        raise InvalidRequestError(
            f"files={way!r}: a bucket has no links",
            hint="Use files='copy' (--files copy): files are copied within the bucket.  Remove the "
            "old table when nobody needs it.",
            field="files",
            value=way,
        )


class NewPlace(ABC):
    """The place that the node gave to a table, which an adoption fills."""

    @abstractmethod
    def take(self, source: str, paths: Iterable[str], way: FileWay) -> None:
        """Give files of the old table their places.

        Raises:
            InvalidRequestError: They cannot be linked (definite).
            CopyConflictError: One is gone (definite).
            DiskFullError, StorageError: Some may have their places.
        """

    @abstractmethod
    def write_first(self, raw: bytes) -> None:
        """Write the commit file of version 0; errors as `take`."""

    @abstractmethod
    def remove(self) -> None:
        """Remove all of it: it was not made in the end."""


def new_place(location: str, url: str) -> NewPlace:
    """Return the place at a location.

    Args:
        url: Of the node that gave it.

    Raises:
        PayloadStoreError: This process does not see the directory (definite).
    """
    place = bucket_url(location, "location")
    if place is not None:
        return _BucketPlace(store_of_job(whole_bucket(place)), place.prefix)
    directory = directory_of(location)
    if not directory.is_dir():
        raise PayloadStoreError(
            f"this process does not see {directory}, where the node at {url} makes the table",
            hint="Run this where node and Spark executors share the node's commit-table-dir.",
            path=str(directory),
        )
    return _DirectoryPlace(directory)


@dataclass(frozen=True, slots=True)
class _DirectoryPlace(NewPlace):
    directory: Path

    def take(self, source: str, paths: Iterable[str], way: FileWay) -> None:
        """Link or copy them; the node brings them to the disk."""

        def place(path: str) -> None:
            old, new = Path(source) / path, self.directory / path
            if way == "copy":
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(old, new)
                return
            try:
                link_new(old, new, copies=way == "move")
            except OSError as error:
                if way == "move":
                    raise
                raise InvalidRequestError(
                    f"{old} cannot be linked to {new}: {error.strerror}",
                    hint="Use files='copy': links are of one file system.",
                    field="files",
                    value=way,
                ) from error

        with storing(self.directory), ThreadPoolExecutor(_PARALLEL, "adopting") as threads:
            list(threads.map(place, paths))

    def write_first(self, raw: bytes) -> None:
        """As `NewPlace`."""
        with storing(self.directory):
            (self.directory / COMMIT_LOG).mkdir()
            (self.directory / commit_file_name(0)).write_bytes(raw)

    def remove(self) -> None:
        """As `NewPlace`: all in it are second names and copies."""
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _BucketPlace(NewPlace):
    #: All of the bucket, and the key of the table.
    bucket: Store
    key: str

    def take(self, source: str, paths: Iterable[str], way: FileWay) -> None:
        """Copy them within the bucket, or send them from a directory."""
        of_bucket = None if bucket_url(source, "path") is None else BucketSource.at(source)

        def place(path: str) -> None:
            if of_bucket is None:
                made = self.bucket.create(f"{self.key}/{path}", Path(source) / path)
            else:
                try:
                    made = self.bucket.copy(f"{of_bucket.key}/{path}", f"{self.key}/{path}")
                except ObjectMissingError as error:
                    raise CopyConflictError(
                        f"{source}/{path} was removed meanwhile",
                        hint="Nothing was done.  Stop what vacuums the table, and try again.",
                        path=f"{source}/{path}",
                    ) from error
            self._check(path, made)

        in_parallel(place, paths)

    def _check(self, path: str, made: Created) -> None:
        if made is Created.OTHER:
            url = self.bucket.url_of(f"{self.key}/{path}")
            raise CorruptLogError(f"{url} is there already, with other bytes", path=url)

    def write_first(self, raw: bytes) -> None:
        """As `NewPlace`."""
        name = commit_file_name(0)
        self._check(name, self.bucket.create(f"{self.key}/{name}", raw))

    def remove(self) -> None:
        """As `NewPlace`; what is left, upkeep removes after a week."""
        try:
            self.bucket.remove([one.key for one in self.bucket.list(self.key)])
        except StorageError:
            return
