"""Sends a file to a peer: its bytes from an offset on.

What is open is what is sent, and only a plain file below its root is opened.  It is opened before
the answer begins: a name may go at any moment, and only before that there is still a way to say so.
A peer compares what came with the digest in its own manifest, and goes on where a transfer broke.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from typing import Any

from sparktxlog.storage.foreign_files import ForeignFile

#: Most bytes that are read at once.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A file that a peer may have; belongs to the event loop."""

    file: ForeignFile
    size_bytes: int
    #: Another name that it may have, for when the first one is gone.
    otherwise: ForeignFile | None = None
    #: Runs blocking work on files of its directory.
    run: Callable[..., Awaitable[Any]]
    #: Returns the turn in which a piece is read and sent.
    turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    #: Called with the bytes of each piece that was sent, in number.
    sent: Callable[[int], object] = lambda size: None

    async def opened(self) -> FileIO | None:
        """Open it if a plain file of this size is there; None = a peer must ask elsewhere.

        **After calling** give what is open to `pieces`, or close it.
        """
        found: FileIO | None = await self.run(_opened, self)
        return found

    async def pieces(self, content: FileIO, offset: int) -> AsyncIterator[bytes]:
        """Yield the bytes of what `opened` returned from an offset on, and close it."""
        with content:
            while True:
                async with self.turn():
                    piece = await self.run(os.pread, content.fileno(), _PIECE_BYTES, offset)
                    if not piece:
                        return
                    yield piece
                offset += len(piece)
                self.sent(len(piece))


def _opened(one: Outgoing) -> FileIO | None:
    for file in filter(None, (one.file, one.otherwise)):
        with suppress(OSError):
            content = file.open()
            if os.fstat(content.fileno()).st_size == one.size_bytes:
                return content
            content.close()
    return None
