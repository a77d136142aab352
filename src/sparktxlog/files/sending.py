"""Sends a file to a peer: its bytes from an offset on.

What is open is what is sent, and only a plain file below its root is opened.  A peer compares what
came with the digest in its own manifest, and goes on where a transfer broke.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from sparktxlog.storage.foreign_files import ForeignFile

#: Most bytes that are read at once.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A file that a peer may have; belongs to the event loop."""

    file: ForeignFile
    size_bytes: int
    #: Runs blocking work on files of its directory.
    run: Callable[..., Awaitable[Any]]
    #: Returns the turn in which a piece is read and sent.
    turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    #: Called with the bytes of each piece that was sent, in number.
    sent: Callable[[int], object] = lambda size: None

    async def is_here(self) -> bool:
        """Return whether a plain file of this size is there."""
        found: bool = await self.run(_is_here, self)
        return found

    async def pieces(self, offset: int) -> AsyncIterator[bytes]:
        """Yield its bytes from an offset on."""
        with await self.run(self.file.open) as content:
            while True:
                async with self.turn():
                    piece = await self.run(os.pread, content.fileno(), _PIECE_BYTES, offset)
                    if not piece:
                        return
                    yield piece
                offset += len(piece)
                self.sent(len(piece))


def _is_here(one: Outgoing) -> bool:
    try:
        return one.file.size() == one.size_bytes
    except OSError:
        return False
