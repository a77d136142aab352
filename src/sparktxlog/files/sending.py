"""Sends a file to a peer: its bytes from an offset on.

What is open is what is sent, and only a regular file below its root is opened.  It is opened before
the answer begins: a name may go at any moment, and only before that there is still a way to say so.
A peer compares what came with the digest in its own manifest, and goes on where a transfer broke.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from io import RawIOBase
from typing import Any, Protocol

#: Most bytes that are read at once.
_PIECE_BYTES = 1 << 20


class Sendable(Protocol):
    """A file on a disk or in a bucket."""

    def open(self) -> RawIOBase:
        """Open it to be read; blocks.

        Raises:
            OSError: There is none, or it is no regular file.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A file that a peer may have; belongs to the event loop."""

    file: Sendable
    size_bytes: int
    #: Another name that it may have, for when the first one is gone.
    otherwise: Sendable | None = None
    #: Runs blocking work on files of its directory.
    run: Callable[..., Awaitable[Any]]
    #: Returns the turn in which a piece is read and sent.
    turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    #: Called with the bytes of each piece that was sent, in number.
    sent: Callable[[int], object] = lambda size: None

    async def opened(self) -> RawIOBase | None:
        """Open it if a regular file of this size is there; None = a peer must ask elsewhere.

        **After calling** give what is open to `pieces`, or close it.
        """
        found: RawIOBase | None = await self.run(_opened, self)
        return found

    async def pieces(self, content: RawIOBase, offset: int) -> AsyncIterator[bytes]:
        """Yield the bytes of what `opened` returned from an offset on, and close it."""
        with content:
            content.seek(offset)
            while True:
                async with self.turn():
                    piece = await self.run(content.read, _PIECE_BYTES)
                    if not piece:
                        return
                    yield piece
                self.sent(len(piece))


def _opened(one: Outgoing) -> RawIOBase | None:
    for file in filter(None, (one.file, one.otherwise)):
        with suppress(OSError):
            content = file.open()
            if content.seek(0, os.SEEK_END) == one.size_bytes:
                return content
            content.close()
    return None
