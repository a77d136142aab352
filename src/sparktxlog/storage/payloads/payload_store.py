"""The interface of a payload store; CONTRIBUTING.md says how to add one.

`local_store` is the store in a directory, `bucket_payloads` that in a bucket; `payload_expiry` and
`bucket_expiry` remove files from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sparktxlog.files.arrivals import Source
from sparktxlog.files.foreign_files import ForeignFile
from sparktxlog.files.stores.objects import StoredObject
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.journal.journal import Journal


class FileSink(Protocol):
    """Where files of published rows go."""

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        """Write a file; it replaces one of the same name that an interrupted call left.

        **After calling** bring it to the disk before anything refers to it.
        """


class PayloadStore(FileSink, Protocol):
    """Staged and published files of one site, named relative to one root.

    Its methods block, and may be called by several threads.  In a bucket each raises what `Store`
    does, too, and writes nothing until it is known to be this site's: StoreNotReadyError.
    """

    #: The directory in which files arrive; unless there is a bucket they stay there.
    root: Path

    @property
    def place(self) -> str:
        """Where the root is: an absolute path, or the URL of a bucket."""

    def take(self, owner: str) -> None:
        """As `SiteTables.take`."""

    def sync(self, relatives: Iterable[str]) -> None:
        """Make files of `write_file` durable; only after that they may be referred to."""

    def path(self, relative: str) -> str:
        """Return the path below `root` of a checked relative name; the file need not exist.

        Raises:
            InvalidNameError: It would leave the root, or crosses a link (definite).
        """

    def verify(self, file: StagedFile) -> None:
        """Check existence, size, digest and rows, and make file and name durable.

        Raises:
            PayloadStoreError: No such file: node and executors see different stores (definite).
            ManifestMismatchError: Size, rows or digest differ (definite).
        """

    def forget_verified(self, relative: str) -> None:
        """Make the next `verify` of a file read it again."""

    def has(self, file: StagedFile) -> bool:
        """Return whether a file with this name and size is here."""

    def at_hand(self, file: StagedFile) -> AbstractContextManager[Path]:
        """Give the path of a file on a disk of this machine, for as long as the context lasts.

        Raises:
            PayloadStoreError, ManifestMismatchError: As `verify`, of one that comes from a bucket.
        """

    def kept_copy(self, relative: str) -> Path | None:
        """Return the path of a file, or of a copy that upkeep removes; None = there is none.

        Raises:
            InvalidNameError: As `path` (definite).
        """

    def sendable(self, file: StagedFile) -> ForeignFile | StoredObject:
        """Return what peers get of a file; errors as `path`."""

    def take_in(self, sources: Mapping[str, Source | bytes]) -> tuple[StagedFile, ...]:
        """As `Arrivals.take_in`."""

    def fetch(
        self, file: StagedFile, sent: Callable[[int], Iterable[bytes]], *, named: bool = True
    ) -> None:
        """As `Arrivals.fetch`."""

    def sync_names(self, relatives: Iterable[str]) -> None:
        """As `Arrivals.sync_names`."""

    def receive_part(self, file: StagedFile, part: Sequence[bytes], offset: int) -> int:
        """As `Arrivals.receive_part`."""


class PayloadUpkeep(Protocol):
    """Removes files of a payload store; used by one thread.

    A removal is repeated after a crash.
    """

    def remove(self, relatives: Iterable[str], *, used_before: float = math.inf) -> int:
        """Remove files, and directories that become empty; return how many files there were.

        Args:
            used_before: A file stays if one of its directory at the top was verified at or after
                this moment, monotonic seconds: `remove_unnamed` removes it, if nobody names it.

        Raises:
            StorageError: A file cannot be removed; try again (some may be removed).
        """

    def remove_inline(self, kept_after: int) -> int:
        """Remove inline files of expired positions, and of interrupted publishes.

        Returns:
            How many directories there were.
        """

    def remove_unnamed(
        self,
        journal: Journal,
        kept_after: int,
        older_than_s: float,
        *,
        unfinished_s: float | None = None,
        given_up: Collection[str] = (),
    ) -> int:
        """Remove old files that no transaction names: never submitted, or rejected.

        The youngest file of a directory counts, so files of a job that still stages stay.

        Args:
            journal: Knows which files are named.
            kept_after: Positions up to here are expired.
            older_than_s: Age by modification time, seconds.
            unfinished_s: The same for files of interrupted transfers; default: `older_than_s`.
            given_up: Directories that are old whatever their age is.

        Returns:
            How many directories, or files of interrupted transfers, were removed.
        """

    def size_bytes(self) -> int:
        """Return the bytes of all files, in the bucket and in the directory."""
