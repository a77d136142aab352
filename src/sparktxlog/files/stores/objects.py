"""An object of a store as a file that Python's libraries read."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparktxlog.errors import ObjectMissingError
from sparktxlog.files.stores.store import Found, OpenContent, Store

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The bytes under a key, as a file; its methods block.

    Raises:
        FileNotFoundError: Nothing is under the key.
        StorageError: As `Store`.
    """

    store: Store
    key: str

    @property
    def path(self) -> str:
        """Its URL, for messages."""
        return self.store.url_of(self.key)

    def found(self) -> Found:
        """Return what the store says of it."""
        if (found := self.store.find(self.key)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.path)
        return found

    def size(self) -> int:
        """Return its bytes, in number."""
        return self.found().size_bytes

    def open(self) -> ObjectReader:
        """Begin to read it, with one request."""
        try:
            return ObjectReader(self.store, self.key)
        except ObjectMissingError as error:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.path) from error

    def read(self, most: int | None = None) -> bytes:
        """Return its bytes.

        Args:
            most: If it is longer, this and one more byte are enough; None = all of it.
        """
        with io.BufferedReader(self.open()) as content:
            return content.read(-1 if most is None else most + 1)


class ObjectReader(io.RawIOBase):
    """Reads one object in order; a jump begins another request, for the same bytes."""

    def __init__(self, store: Store, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key
        self._content: OpenContent | None = store.open(key)
        #: What was opened: its size and mark.
        self.found = self._content.found
        #: What came and was not read yet, and where its first byte is; where the reader is.
        self._left, self._came_to, self._at = memoryview(b""), 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.found.size_bytes}
        self._at = begin[whence] + offset
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        into = memoryview(buffer).cast("B")
        if self._at >= self.found.size_bytes:
            return 0
        if self._at != self._came_to:
            self._end()
            self._came_to = self._at
        while not self._left:
            if self._content is None:
                self._content = self._again()
            piece = next(self._content.pieces, None)
            if piece is None:
                raise OSError(errno.EIO, "it ends early", self._store.url_of(self._key))
            self._left = memoryview(piece)
        size = min(len(into), len(self._left))
        into[:size] = self._left[:size]
        self._left = self._left[size:]
        self._came_to = self._at = self._at + size
        return size

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()

    def _again(self) -> OpenContent:
        content = self._store.open(self._key, offset=self._at)
        if content.found.mark != self.found.mark:
            content.pieces.close()
            raise OSError(errno.EIO, "it was replaced", self._store.url_of(self._key))
        return content

    def _end(self) -> None:
        self._left = memoryview(b"")
        content, self._content = self._content, None
        if content is not None:
            with suppress(ValueError):  # a thread is in it: the request ends when that leaves it
                content.pieces.close()
