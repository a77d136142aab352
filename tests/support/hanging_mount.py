"""A mount that answers nothing, as one of a file server that is gone (root, and FUSE).

The system waits for an answer of the one who mounted it, and there is none.  What waits gets an
error once the mount is let go, at the latest after `LONGEST_S`: so a test of code that waits for
it ends, too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LONGEST_S = 60.0
_DETACHED = 2  # MNT_DETACH


@contextmanager
def hanging(directory: Path, longest_s: float = LONGEST_S) -> Iterator[None]:
    """Let a directory, and all below it, answer nothing while the block runs; then it is back."""
    system = ctypes.CDLL(None, use_errno=True)
    place = os.fsencode(directory)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if system.mount(b"hanging", place, b"fuse", 0, options):
        os.close(device)
        pytest.skip(f"may not mount: {os.strerror(ctypes.get_errno())}")
    once = threading.Lock()

    def let_go() -> None:
        if once.acquire(blocking=False):
            os.close(device)  # all that waits gets an error
            assert not system.umount2(place, _DETACHED)

    latest = threading.Timer(longest_s, let_go)
    latest.daemon = True
    latest.start()
    try:
        yield
    finally:
        latest.cancel()
        let_go()
