"""Space that a node keeps for itself on its disk: for its journal, for maintenance, for a start.

A file takes the space while all is well.  When the disk is full, the file is removed, so that what
the node has accepted can be ordered and published, settings can be changed and the log shortened.
The node takes no transactions until there is space for the file again.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import structlog

_log = structlog.get_logger("sparktxlog.disk")

_NAME = "reserve"
#: Bytes of the reserve: at most so many, and such a part of the file system.
_MOST, _PART = 16 << 20, 8
#: Seconds between two attempts to make the file again.
_AGAIN_S = 1.0


class Reserve:
    """The reserve of a data directory; used in any thread.

    Args:
        directory: It exists.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._lock = threading.Lock()
        #: Bytes that it takes.
        self.size = min(_MOST, shutil.disk_usage(directory).total // _PART)
        self._whole = False
        self._again_at = monotonic()

    def take(self) -> bool:
        """Give the space to what needs it now; return whether there was some."""
        with self._lock:
            there = self._path.exists()
            self._whole = False
            self._again_at = monotonic() + _AGAIN_S
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        if there:
            _log.warning("the disk is full: the reserve is used", bytes=self.size)
        return there

    def is_whole(self) -> bool:
        """Return whether the space is there; make the file again if it was taken."""
        with self._lock:
            if not self._whole and monotonic() >= self._again_at:
                self._again_at = monotonic() + _AGAIN_S
                self._whole = self._make()
            return self._whole

    def make(self) -> None:
        """Take the space from the disk, if it has enough."""
        with self._lock:
            self._whole = self._make()

    def free_bytes(self) -> int:
        """Return how many bytes are free in addition to the reserve."""
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

    def _make(self) -> bool:
        with suppress(FileNotFoundError):
            if self._path.stat().st_size >= self.size:  # where pools are shared, disks shrink
                return True
        # With little more than the reserve it would be taken again at once.
        if self.free_bytes() < 2 * self.size:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("no space is reserved", reason=str(error))
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return True
