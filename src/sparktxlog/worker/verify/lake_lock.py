"""Locks: one maintenance and one verification of a lake at a time; needs no Spark."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparktxlog.errors import LockedError
from sparktxlog.worker.replica.state import STATE_DIRECTORY

MAINTENANCE, VERIFICATION = "maintenance", "verification"
#: Files in a lake's state directory, with the process that holds them.
LOCK_NAMES = (f"{MAINTENANCE}.lock", f"{VERIFICATION}.lock")


@contextmanager
def one_at_a_time(lake: str | Path, what: str = MAINTENANCE) -> Iterator[None]:
    """Hold the lock of one kind of work on a lake; the kernel frees it when the process ends.

    Maintenance and verification may run at once: VACUUM keeps files that readers may still need.

    Raises:
        LockedError: The same kind of work on the lake is running (definite).
    """
    own = Path(lake).absolute() / STATE_DIRECTORY
    if not own.parent.is_dir():
        # There is no lake.  It is not made: the path may be mistyped.
        yield
        return
    own.mkdir(exist_ok=True)
    path = own / f"{what}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise LockedError(
                f"{what} of {own.parent} is running already (process {holder})",
                hint="Let that one finish; a scheduler may simply try again at its next time.",
                path=str(path),
            ) from error
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
