"""Chunks of pinned files: read, hashed, and compressed where that makes them smaller.

A file's digests are those of its chunks.  A chunk is hashed once, and later copies get the same
hash, so their receivers notice bytes that the disk damaged meanwhile.  A file that changed since it
was pinned is refused, before and after reading.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import zstandard

from sparktxlog.errors import InvalidRequestError
from sparktxlog.files.pins import Pinned

#: Levels of compression, in the order in which they are tried.  The first takes 2/3 of the time of
#: the second, and finds repeated bytes only.  Both are done with noise at once.
LEVELS = -2, 1
#: A chunk travels compressed if it shrinks to this part or less.
WORTH = 0.9
#: Chunk digests remembered, about 170 bytes each in memory.
_MAX_DIGESTS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk as it is sent."""

    data: memoryview
    #: SHA-256 of the bytes of the file, hexadecimal.
    digest: str
    #: Whether it is a frame of zstd.
    packed: bool
    file_bytes: int


class _Scratch(threading.local):
    """Memory that a thread reuses for each chunk: new memory costs as much as reading."""

    def __init__(self) -> None:
        self.plain = bytearray()
        #: A compressor must not be shared by threads.
        self._compressors = [zstandard.ZstdCompressor(level=level) for level in LEVELS]

    def buffer(self, size: int) -> memoryview:
        """Return a buffer, valid until the next call."""
        if len(self.plain) < size:
            self.plain = bytearray(size)
        return memoryview(self.plain)[:size]

    def compress(self, data: memoryview) -> bytes | None:
        """Return the data compressed, None if that is not worth it."""
        for compressor in self._compressors:
            packed = compressor.compress(data)
            if len(packed) <= WORTH * len(data):
                return packed
        return None


class ChunkReader:
    """Reads chunks of pinned files; every method blocks and may be called from any thread.

    Args:
        chunk_bytes: Size of all chunks but a file's last.
        max_digests: Chunk digests kept in memory.
    """

    def __init__(self, chunk_bytes: int, *, max_digests: int = _MAX_DIGESTS) -> None:
        self._chunk_bytes = chunk_bytes
        self._max_digests = max_digests
        #: File → chunk number → binary SHA-256; the least recently used file comes first.
        self._known: OrderedDict[Hashable, dict[int, bytes]] = OrderedDict()
        self._digests = 0
        self._lock = threading.Lock()
        self._scratch = _Scratch()

    def read(self, file: Pinned, offset: int, length: int, compress: bool = False) -> Chunk:
        """Return up to `length` bytes of a file from `offset` on, fewer at its end.

        Args:
            offset: A multiple of the chunk size, below the file's size; 0 for an empty file.
            length: 1 to the chunk size.
            compress: The bytes may be compressed.

        Raises:
            InvalidRequestError: Offset or length are wrong (definite).
            FileChangedError: The file has changed since it was pinned (definite).
            StorageError: The disk fails.
        """
        self._check_range(file, offset, length)
        length = min(length, file.size_bytes - offset)
        # What is sent as it is needs its own memory until then.
        plain = self._scratch.buffer(length) if compress else memoryview(bytearray(length))
        file.fill(offset, plain)
        digest = self._digest_of(file, offset, plain).hex()
        packed = self._scratch.compress(plain) if compress else None
        if packed is not None:
            data = memoryview(packed)
        else:
            data = memoryview(bytearray(plain)) if compress else plain
        return Chunk(data=data, digest=digest, packed=packed is not None, file_bytes=length)

    def file_digests(self, file: Pinned) -> str:
        """Return the SHA-256 of a file's chunks, hexadecimal; only those not known are read.

        Raises:
            FileChangedError, StorageError: As `read`.
        """
        size, found = file.size_bytes, list[str]()
        file.check()
        for number, offset in enumerate(range(0, size, self._chunk_bytes)):
            digest = self._recall(file.identity, number)
            if digest is None:
                plain = self._scratch.buffer(min(self._chunk_bytes, size - offset))
                file.fill(offset, plain)
                digest = self._digest_of(file, offset, plain)
            found.append(digest.hex())
        return "".join(found)

    # -- reading -----------------------------------------------------------------------------------

    def _check_range(self, file: Pinned, offset: int, length: int) -> None:
        size = file.size_bytes
        if offset % self._chunk_bytes or not 0 <= offset < max(size, 1):
            raise InvalidRequestError(
                f"offset is {offset}, expected a multiple of {self._chunk_bytes} below the file's "
                f"size of {size} bytes",
                field="offset",
                value=offset,
            )
        if not 1 <= length <= self._chunk_bytes:
            raise InvalidRequestError(
                f"length is {length}, 1 to {self._chunk_bytes} bytes are allowed",
                hint="The lease has chunk_bytes.",
                field="length",
                value=length,
            )

    # -- digests -----------------------------------------------------------------------------------

    def _digest_of(self, file: Pinned, offset: int, plain: memoryview) -> bytes:
        """Return the SHA-256 of bytes just read; that of a whole known chunk from memory."""
        if len(plain) < min(self._chunk_bytes, file.size_bytes - offset):
            return hashlib.sha256(plain).digest()
        number = offset // self._chunk_bytes
        digest = self._recall(file.identity, number)
        if digest is None:
            digest = hashlib.sha256(plain).digest()
            self._remember(file.identity, number, digest)
        return digest

    # -- memory ------------------------------------------------------------------------------------

    def _recall(self, identity: Hashable, number: int) -> bytes | None:
        with self._lock:
            return self._known.get(identity, {}).get(number)

    def _remember(self, identity: Hashable, number: int, digest: bytes) -> None:
        with self._lock:
            known = self._known.setdefault(identity, {})
            self._known.move_to_end(identity)
            self._digests += number not in known
            known[number] = digest
            while self._digests > self._max_digests and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._digests -= len(oldest)
