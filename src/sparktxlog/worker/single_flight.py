"""One maintenance of a lake at a time, whoever starts it; needs no Spark."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparktxlog.errors import LockedError
from sparktxlog.worker.state import STATE_DIRECTORY

LOCK_NAME = "maintenance.lock"


@contextmanager
def single_flight(lake: str | Path) -> Iterator[None]:
    """Hold the lock of maintenance on a lake; it dies with the process.

    Raises:
        LockedError: Another maintenance of the lake is running (definite).
    """
    own = Path(lake).absolute() / STATE_DIRECTORY
    own.mkdir(parents=True, exist_ok=True)
    path = own / LOCK_NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise LockedError(
                f"maintenance of {own.parent} is running already (process {holder})",
                hint="Let that one finish; a scheduler may simply try again at its next time.",
                path=str(path),
            ) from error
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
