"""The interface of a payload store; CONTRIBUTING.md says how to add one, for example in S3.

`local_store` is the store in a directory, and `payload_expiry` removes files from it.
"""

from __future__ import annotations

from collections.abc import Iterable
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
