"""What files are fetched from: a node under a lease, or a store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparktxlog.errors import CorruptLogError, ObjectMissingError, StorageError
from sparktxlog.files.donor_link import SILENCE_S, DonorLink
from sparktxlog.files.stores.store import Store
from sparktxlog.files.tasks import FileKey, FileTask, split_digests
from sparktxlog.model.copying import Lease


class FileDonor(Protocol):
    """Sends chunks and digests of its files.  Used by one thread; `abort` and `overdue` by any."""

    def fetch(self, table: str, path: str, offset: int, into: memoryview) -> int:
        """Fill the buffer with a chunk of its digest; return the bytes that a network carried."""

    def digests(self, tasks: Sequence[FileTask]) -> dict[FileKey, list[str]]:
        """Return the SHA-256 of each chunk of some files, hexadecimal."""

    def overdue(self, now_s: float) -> bool:
        """Return whether the request under way takes too long."""

    def abort(self) -> None:
        """Let the request under way fail at once."""

    def close(self) -> None:
        """Close what is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """A donor in a directory or a bucket: files with the digests that they had when stored."""

    store: Store
    #: Where each file is.
    keys: Mapping[FileKey, str]
    #: Size of all chunks except the last one of a file.
    chunk_bytes: int
    #: SHA-256 of each chunk, hexadecimal, one after the other.
    known: Mapping[FileKey, str]

    def fetch(self, table: str, path: str, offset: int, into: memoryview) -> int:
        """As `FileDonor`.

        Raises:
            CorruptLogError: The file is missing or damaged, or its disk cannot read it.
            StorageError: The bucket does not answer, or refuses it.
        """
        key, chunk = self.keys[table, path], offset // self.chunk_bytes
        file = self.store.url_of(key)
        try:
            size = self.store.read_into(key, offset, into)
        except ObjectMissingError as error:
            raise _damaged(file, "it is not there") from error
        except StorageError as error:
            if not isinstance(cause := error.__cause__, OSError):
                raise
            raise _damaged(file, cause.strerror or str(cause)) from error
        expected = split_digests(self.known[table, path])[chunk]
        if size != len(into) or hashlib.sha256(into).hexdigest() != expected:
            raise _damaged(file, f"from byte {offset:,} on it has other bytes than when stored")
        return 0

    def digests(self, tasks: Sequence[FileTask]) -> dict[FileKey, list[str]]:
        """As `FileDonor`."""
        return {task.key: split_digests(self.known[task.key]) for task in tasks}

    def overdue(self, now_s: float) -> bool:
        """Return False: a disk is waited for, and a request to a bucket ends by itself."""
        return False

    def abort(self) -> None:
        """Do nothing: one chunk ends by itself."""

    def close(self) -> None:
        """Do nothing: no file stays open."""


def connect(donor: Lease | StoredFiles, *, silence_s: float = SILENCE_S) -> FileDonor:
    """Open a donor; no file is read yet.

    Args:
        silence_s: Longest silence of a node, seconds.
    """
    return DonorLink(donor, silence_s=silence_s) if isinstance(donor, Lease) else donor


def _damaged(file: str, reason: str) -> CorruptLogError:
    return CorruptLogError(
        f"{file} is damaged: {reason}",
        hint="Use another image.  If the site still has the file, remove the damaged one: the next "
        "image gets the site's.",
        path=file,
    )
