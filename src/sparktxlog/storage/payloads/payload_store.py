"""The interface of a payload store; CONTRIBUTING.md says how to add one, for example in S3.

`local_store` is the store in a directory, and `payload_expiry` removes files from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sparktxlog.model.transactions.operation import StagedFile


class FileSink(Protocol):
    """Where files of published rows go."""

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        """Write a file; it replaces one of the same name that an interrupted call left.

        **After calling** bring it to the disk before anything refers to it.
        """


class PayloadStore(FileSink, Protocol):
    """Staged and published files, named relative to one root that node and executors share."""

    def sync(self, relatives: Iterable[str]) -> None:
        """Bring files of `write_file` to the disk; only after that they may be referred to."""

    def path(self, relative: str) -> str:
        """Return the absolute path of a checked relative name; the file need not exist.

        Raises:
            InvalidNameError: It would leave the root, or crosses a link (definite).
        """

    def verify(self, file: StagedFile) -> None:
        """Check existence, size, digest and rows, then fsync file and directories.

        Raises:
            PayloadStoreError: No such file: node and executors see different stores (definite).
            ManifestMismatchError: Size, rows or digest differ (definite).
        """

    def has(self, file: StagedFile) -> bool:
        """Return whether the file was verified before, or is here with its size."""

    def receive(
        self, file: StagedFile, chunks: Iterable[bytes], offset: int = 0, *, named: bool = True
    ) -> None:
        """Write, verify, fsync and put in place a file fetched from a peer; resumes at offset.

        If `chunks` raises, received bytes are kept for a later call.

        Args:
            named: False: **after calling** for several files call `sync_names` for all of them.

        Raises:
            ManifestMismatchError: The received bytes are another file; none are kept (definite).
            PayloadStoreError: `offset` is beyond the bytes that are here (definite).
            BusyError: Another transfer of the same file is under way (definite).
            DiskFullError: No space left; received bytes are kept (definite).
        """

    def receive_part(self, file: StagedFile, part: Sequence[bytes], offset: int) -> int:
        """Take the next bytes of a file that is uploaded; with the last ones, put it in place.

        Only the bytes after those that are here are taken, so a part may be repeated.

        Args:
            part: In pieces; none = only ask for what is here.
            offset: Its place in the file.

        Returns:
            How many bytes are here now.  All of them: the file is verified, fsynced and in place.

        Raises:
            ManifestMismatchError: They are another file, and none are kept; or another file has
                that name (definite).
            BusyError: Another part of the same file is being taken (definite).
            DiskFullError: No space left; bytes taken before are kept (definite).
        """

    def sync_names(self, relatives: Iterable[str]) -> None:
        """Bring the names of files to the disk, each directory once."""

    def received_bytes(self, file: StagedFile) -> int:
        """Return how many bytes of an interrupted transfer are here, to resume there."""
