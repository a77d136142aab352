"""One process per directory: an advisory lock that ends with its owner."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from sparktxlog.errors import LockedError, StorageError

LOCK_NAME = "lock"


class DirectoryLock:
    """Holds `flock` on a directory and on its file `lock` from construction until `release`.

    The lock of the directory is the safe one: the file may be deleted, and a second process would
    make and lock another file.  The file's lock works on file systems that cannot lock directories.
    The kernel frees both when the process
    ends, so there are no stale locks.  The file holds the owner's process id, for messages only.

    Args:
        directory: What to own; made if missing.
        mode: Permissions of a directory that is made.

    Raises:
        LockedError: Another process owns the directory (definite); field `pid`.
        StorageError: The directory cannot be made or written.
    """

    def __init__(self, directory: Path, *, mode: int = 0o777) -> None:
        self.path = directory / LOCK_NAME
        self._descriptors: list[int] = []
        try:
            directory.mkdir(mode, parents=True, exist_ok=True)
            self._descriptors.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
            self._descriptors.append(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644))
        except OSError as error:
            self.release()
            raise StorageError(
                f"directory {directory} cannot be used: {error.strerror}",
                hint="Check that it exists, is writable and is a directory.",
                directory=str(directory),
            ) from error
        own, file = self._descriptors
        try:
            _lock(own, optional=True)
            _lock(file)
        except BlockingIOError as error:
            owner = _read_owner(file)
            self.release()
            raise LockedError(
                f"directory {directory} is in use by process {owner or 'unknown'}",
                hint="Stop that process, or use another directory.",
                directory=str(directory),
                pid=int(owner) if owner.isdigit() else None,
            ) from error
        with suppress(OSError):  # a full disk; it is for messages only
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Release the directory; a second call does nothing."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def owner_of(directory: Path) -> int | None:
    """Return the process that owns a directory, None = none does, or it is not known; asks only."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        _lock(descriptor)
    except BlockingIOError:
        owner = _read_owner(descriptor)
        return int(owner) if owner.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def _read_owner(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()


def _lock(descriptor: int, *, optional: bool = False) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # Over NFS a lock needs a writable descriptor, which a directory does not have.
        if not optional:
            raise
