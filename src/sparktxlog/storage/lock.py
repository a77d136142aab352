"""One process per data directory (requirement V05): an advisory lock that dies with its owner."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sparktxlog.errors import LockedError, StorageError

LOCK_NAME = "lock"


class DirectoryLock:
    """Holds `flock` on `<directory>/lock` from construction until `release`.

    The kernel frees it when the process ends, however it ends, so no stale lock is ever left.
    The file holds the owner's process id, for the message only.

    Raises:
        LockedError: Another process owns the directory (definite).
        StorageError: The directory cannot be made or written.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(
                f"data directory {directory} cannot be used: {error.strerror}",
                hint="Check that it exists, is writable and is a directory.",
                directory=str(directory),
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            self._descriptor = None
            raise LockedError(
                f"data directory {directory} is in use by process {owner or 'unknown'}",
                hint="Stop that node, or give this one its own data-dir.",
                directory=str(directory),
                pid=int(owner) if owner.isdigit() else None,
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Give the directory free; doing it twice is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
