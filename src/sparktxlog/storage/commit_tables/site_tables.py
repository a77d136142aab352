"""What a site keeps of commit tables: staged commits, files, published versions, on any store.

Spark writes below a table's location, and the node reads what Spark staged, and places what was
ordered: the files of a version, then its commit file.  `table_places` has them in a directory,
`bucket_places` in a bucket.

Nothing has to be durable when a commit is taken or placed.  What was taken is durable in the
journal or the payload store, before the log promises anything.  So the node places again what a
power loss takes from here: `sync` is called before the journal says that it need not.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Protocol

from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.delta.log_files import STAGED_COMMITS, TablePlace
from sparktxlog.errors import BusyError, StagedCommitError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.durability import read_whole, storing
from sparktxlog.files.foreign_files import ForeignFile
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile

#: Longest commit file, bytes: some hundred thousand files.
MAX_COMMIT_BYTES = 256 << 20
#: Most bytes of all that are read and decoded at once before they are ordered.
_MOST_BYTES = MAX_COMMIT_BYTES + MAX_COMMIT_BYTES // 2
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TableFile(Protocol):
    """A file of a table; its methods block."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    def open(self) -> RawIOBase:
        """Open it to be read.

        Raises:
            OSError: There is none, or it is no plain file.
        """

    def read(self, most: int | None = None) -> bytes:
        """Return its bytes; errors as `open`.

        Args:
            most: If it is longer, this and at least one more byte is enough; None = all of it.
        """

    def size(self) -> int:
        """Return its bytes, in number; errors as `open`."""

    def link_as(self, target: ForeignFile) -> None:
        """Give it, or a copy of it, a place on a disk of the node; errors as `open`.

        **After calling** sync the file and the directory of `target`.
        """


class SiteTables(ABC):
    """Where the commit tables of a site are; its methods block."""

    def __init__(self) -> None:
        #: How many bytes of staged commit files may still be in memory.
        self._left, self._counting = _MOST_BYTES, threading.Lock()

    @property
    @abstractmethod
    def arrivals(self) -> Arrivals:
        """Where files of peers arrive, on a disk of the node: `<UUID>/<path below the table>`."""

    # -- places ------------------------------------------------------------------------------------

    @abstractmethod
    def take(self, owner: str) -> None:
        """Prove at a start that the store keeps its promises, and that this site alone has it.

        Until a call succeeded after one that failed, tables are not changed there (`check_ready`).

        Args:
            owner: Names the site, the same one at each start.

        Raises:
            ConfigError: It is another site's, or cannot be used (definite).
            StorageError: It cannot be asked at the moment.
        """

    def check_ready(self) -> None:  # noqa: B027 - a directory is ready
        """Check that tables may be changed there; asks nothing.

        Raises:
            StoreNotReadyError: `take` was called, and has not succeeded yet (definite).
        """

    @abstractmethod
    def make(self, uuid: str) -> None:
        """Make the empty place of a table that is to be created.

        Raises:
            NotOfferedError: Its URL would not be its path (definite).
        """

    @abstractmethod
    def drop_unused(self, uuid: str) -> None:
        """Remove the place of a table that was never created, if nothing was written there."""

    @abstractmethod
    def has(self, uuid: str) -> bool:
        """Return whether the table has a place here."""

    @abstractmethod
    def location(self, uuid: str) -> str:
        """Return the URL of a table's place, as Hadoop writes it."""

    @abstractmethod
    def uuid_at(self, location: str) -> str | None:
        """Return the table whose place a URL names; None = none of this site."""

    @abstractmethod
    def where(self, uuid: str) -> str:
        """Return a table's place for those that run work on files, and for messages."""

    @abstractmethod
    def root(self, uuid: str) -> TablePlace:
        """Return a table's place for those that only read it."""

    @abstractmethod
    def file(self, uuid: str, relative: str) -> TableFile:
        """Return a file of a table, to be opened; `relative` was checked."""

    # -- what Spark wrote --------------------------------------------------------------------------

    def first(self, uuid: str) -> AbstractContextManager[bytes]:
        """Give the commit file of version 0; its bytes count until the block is left.

        Raises:
            StagedCommitError: There is none (definite).
            BusyError: Too many commit files are being read (definite).
        """
        return self._read(self.file(uuid, commit_file_name(0)), "location")

    @contextmanager
    def staged(self, uuid: str, name: str, size: int) -> Iterator[bytes]:
        """Give a staged commit file; as `first`.

        Raises:
            StagedCommitError: There is none, or it has another size (definite).
            BusyError: Too many commit files are being read (definite).
        """
        with self._read(self.file(uuid, f"{STAGED_COMMITS}/{name}"), "file-name") as content:
            if len(content) != size:
                raise StagedCommitError(
                    f"file-size is {size:,}, staged commit {name!r} has {len(content):,} bytes",
                    field="file-size",
                    value=size,
                )
            yield content

    @contextmanager
    def _read(self, file: TableFile, field: str) -> Iterator[bytes]:
        with _reading_staged(file.path, field):
            content = file.open()
        with content:
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            if size > MAX_COMMIT_BYTES:
                raise StagedCommitError(
                    f"{file.path} has more than {MAX_COMMIT_BYTES:,} bytes",
                    field=field,
                    value=file.path.rpartition("/")[2],
                )
            with self._taken(size):
                with _reading_staged(file.path, field):
                    found = BufferedReader(content).read(size)
                yield found

    @contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        """Count bytes of a commit file that is read and decoded, while the block runs."""
        with self._counting:
            if size > self._left:
                raise BusyError(
                    f"the commit files that are being read have more than {_MOST_BYTES:,} bytes "
                    "together",
                    hint="Try again in a moment.",
                )
            self._left -= size
        try:
            yield
        finally:
            with self._counting:
                self._left += size

    def check(self, uuid: str, files: Iterable[NeededFile]) -> int:
        """Check that the files of a commit are here, by their sizes.

        Returns:
            How many bytes those have that the commit brings.

        Raises:
            StagedCommitError: One is missing or has another size (definite).
        """
        brought = 0
        for file in files:
            try:
                size = self.file(uuid, file.path).size()
                found = f"has {size:,} bytes"
            except FileNotFoundError:
                size, found = -1, "is not at this site"
            except OSError as error:
                size, found = -1, f"cannot be taken: {error.strerror}"
            if size < max(0, file.size) or (file.is_exact and size != file.size):
                raise StagedCommitError(
                    f"the commit adds {file.path!r} of {file.size:,} bytes, which {found}",
                    field="add.path",
                    value=file.path[:120],
                )
            brought += size if file.is_new else 0
        return brought

    @abstractmethod
    def set_all_aside(self, name: str) -> None:
        """Move all tables of a node that leaves its history out of the way, durably.

        Args:
            name: Of the act.

        Raises:
            StorageError: Some may be moved; try again.
        """

    # -- what was ordered --------------------------------------------------------------------------

    @abstractmethod
    def holds(self, uuid: str, file: StagedFile) -> bool:
        """Return whether a file has its place and the right bytes; repeated calls read it once.

        What else is in that place goes to the attic.
        """

    @abstractmethod
    def arrived(self, uuid: str, file: StagedFile) -> None:
        """Give a file that arrived from a peer its place; nothing happens if it has that.

        Raises:
            CorruptLogError: Another file has that place.
            DiskFullError, StorageError: Try again.
        """

    def copies(self, uuid: str, file: StagedFile) -> bool:
        """Return whether a file has its place now, by a copy from the bucket of another site."""
        return False

    @abstractmethod
    def doubt(self, uuid: str, file: StagedFile) -> None:
        """Make the next `holds` read a file again: its bytes may have decayed."""

    def read(self, path: str) -> bytes:
        """Return the bytes of a file of the payload store, or of one that waits to be published.

        Raises:
            StorageError: It cannot be read.
        """
        with storing(path):
            return read_whole(path)

    @abstractmethod
    def place(self, uuid: str, sources: Mapping[str, str | bytes]) -> set[str]:
        """Give files their places in a table; what is there already stays.

        Another file in the place of one goes to the attic: no version has it, or it was damaged.
        So does a writer's own large one that lost bytes with the power.

        Args:
            sources: Path below the table → the file, which is whole and durable, or its bytes.

        Returns:
            What has to be synced before the files need not be placed again.

        Raises:
            CorruptLogError: Another file has that place.
            DiskFullError, StorageError: Some may be placed; try again.
        """

    @abstractmethod
    def set_aside(self, uuid: str, path: str) -> None:
        """Move a file of a table to the attic, if there is one."""

    @abstractmethod
    def found(self, uuid: str, versions: range, files: Iterable[NeededFile]) -> set[str]:
        """Return what has to be synced of versions that somebody else put into the place."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Make durable what `place`, `publish` and `found` returned, if it is there still.

        Raises:
            StorageError: It fails.
        """

    @abstractmethod
    def force_first(self, uuid: str) -> None:
        """Make version 0 durable, in the place where its writer made it; errors as `sync`."""

    # -- published versions ------------------------------------------------------------------------

    @abstractmethod
    def published(self, uuid: str, version: int) -> bytes | None:
        """Return the commit file of a published version, None = it is not published.

        Raises:
            StorageError: It is no plain file, or the store fails.
        """

    @abstractmethod
    def is_published(self, uuid: str, version: int) -> bool:
        """Return whether a version's commit file is in its place."""

    @abstractmethod
    def versions(self, uuid: str) -> list[int]:
        """Return the published versions, ascending."""

    @abstractmethod
    def log_directory(self, uuid: str) -> Path:
        """Return a directory of this machine that has the newest checkpoint of a table's log."""

    @abstractmethod
    def kept_commit(self, uuid: str, version: int) -> TableFile:
        """Return the second name of a commit file; its user compares its digest."""

    @abstractmethod
    def forget_kept(self, uuid: str, version: int) -> None:
        """Remove the second name of a commit file, which has other bytes than the log."""

    @abstractmethod
    def keep_commits(self, uuid: str, versions: Iterable[int] | None) -> None:
        """Give published commit files a second name, unless they have one.

        A power loss may take it away again, while Delta is far from cleaning up the first one.

        Args:
            versions: None = all that lack one.

        Raises:
            DiskFullError, StorageError: Some may lack it; try again.
        """

    @abstractmethod
    def publish(self, uuid: str, version: int, source: str | bytes) -> set[str]:
        """Publish a version, unless it is; return what has to be synced, as `place`.

        Args:
            source: Its commit file, which is whole and durable, or the bytes of that.

        Raises:
            CorruptLogError: The version is published with other bytes.
        """


@contextmanager
def _reading_staged(path: str, field: str) -> Iterator[None]:
    """Say why a file that a writer should have staged cannot be read."""
    name = path.rpartition("/")[2]
    try:
        yield
    except FileNotFoundError:
        raise StagedCommitError(
            f"there is no file {path} at this site",
            hint="Stage the commit at the location that this node gave, on storage that node "
            "and Spark share.",
            field=field,
            value=name,
        ) from None
    except OSError as error:
        raise StagedCommitError(
            f"{path} cannot be read: {error.strerror}", field=field, value=name
        ) from error
