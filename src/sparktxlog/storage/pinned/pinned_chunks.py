"""Chunks of pinned files: read, hashed, and compressed if a sample shows that it is worth it.

A file's digests are those of its chunks.  A chunk is hashed once, and later copies get the same
hash, so their receivers notice bytes that the disk damaged meanwhile.  A file that changed since it
was pinned is refused, before and after reading.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import zstandard

from sparktxlog.errors import FileChangedError, InvalidRequestError, StorageError
from sparktxlog.storage.pinned.pins import FileIdentity, PinnedFile

#: Levels of compression, the better one first.  The second takes 2/3 of the time; it is used if the
#: sample gets larger by `SIMILAR` at most.
LEVEL, FAST_LEVEL = 1, -2
SIMILAR = 1.05
#: A file travels compressed if the sample, the begin of its first chunk, shrinks to this part or
#: less.
WORTH = 0.9
SAMPLE_BYTES = 256 << 10
#: Chunk digests remembered, about 170 bytes each in memory.
_MAX_DIGESTS = 200_000

ZSTD = "zstd"
IDENTITY = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk as it is sent."""

    data: memoryview
    #: SHA-256 of the plain bytes, hexadecimal.
    digest: str
    #: `zstd` or `identity`.
    codec: str
    plain_bytes: int


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known of one file; dropped when the file is replaced."""

    #: Chunk number → binary SHA-256.
    digests: dict[int, bytes] = field(default_factory=dict)
    #: Level of compression of its chunks, None = uncompressed.
    level: int | None = None
    sampled: bool = False


class _Scratch(threading.local):
    """Memory that a thread reuses for each chunk: new memory costs as much as reading."""

    def __init__(self) -> None:
        self.plain = bytearray()
        #: By level; a compressor must not be shared by threads.
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}

    def buffer(self, size: int) -> memoryview:
        """Return a buffer, valid until the next call."""
        if len(self.plain) < size:
            self.plain = bytearray(size)
        return memoryview(self.plain)[:size]

    def compress(self, data: memoryview, level: int) -> bytes:
        """Return the data compressed."""
        if level not in self.compressors:
            self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return self.compressors[level].compress(data)


class ChunkReader:
    """Reads chunks of pinned files; every method blocks and may be called from any thread.

    Args:
        chunk_bytes: Size of all chunks but a file's last.
        compress: False = chunks are never compressed.
        max_digests: Chunk digests kept in memory.
    """

    def __init__(
        self, chunk_bytes: int, *, compress: bool, max_digests: int = _MAX_DIGESTS
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._compress = compress
        self._max_digests = max_digests
        self._known: OrderedDict[FileIdentity, _Known] = OrderedDict()
        self._digests = 0
        self._lock = threading.Lock()
        self._scratch = _Scratch()

    def read(self, file: PinnedFile, offset: int, length: int) -> Chunk:
        """Return up to `length` bytes of a file from `offset` on, fewer at its end.

        Args:
            offset: A multiple of the chunk size, below the file's size; 0 for an empty file.
            length: 1 to the chunk size.

        Raises:
            InvalidRequestError: Offset or length are wrong (definite).
            FileChangedError: The file has changed since it was pinned (definite).
            StorageError: The disk fails.
        """
        self._check_range(file, offset, length)
        length = min(length, file.identity.size_bytes - offset)
        level = self._level(file) if self._compress and length else None
        # An uncompressed chunk needs its own memory until it is sent.
        plain = memoryview(bytearray(length)) if level is None else self._scratch.buffer(length)
        self._fill(file, offset, plain)
        digest = self._digest_of(file, offset, plain)
        data, codec = plain, IDENTITY
        if level is not None:
            packed = memoryview(self._scratch.compress(plain, level))
            shrunk = len(packed) < length
            data, codec = (packed, ZSTD) if shrunk else (memoryview(bytearray(plain)), IDENTITY)
        return Chunk(data=data, digest=digest.hex(), codec=codec, plain_bytes=length)

    def file_digests(self, file: PinnedFile) -> str:
        """Return the SHA-256 of a file's chunks, hexadecimal; only those not known are read.

        Raises:
            FileChangedError, StorageError: As `read`.
        """
        size, found = file.identity.size_bytes, list[str]()
        if _identity_at(file) != file.identity:
            raise _changed(file)
        for number, offset in enumerate(range(0, size, self._chunk_bytes)):
            digest = self._recall(file.identity, number)
            if digest is None:
                plain = self._scratch.buffer(min(self._chunk_bytes, size - offset))
                self._fill(file, offset, plain)
                digest = self._digest_of(file, offset, plain)
            found.append(digest.hex())
        return "".join(found)

    # -- reading -----------------------------------------------------------------------------------

    def _check_range(self, file: PinnedFile, offset: int, length: int) -> None:
        size = file.identity.size_bytes
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

    def _fill(self, file: PinnedFile, offset: int, into: memoryview) -> None:
        try:
            descriptor = os.open(file.location, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _changed(file) from error
        except OSError as error:
            raise _unreadable(file, error) from error
        try:
            if FileIdentity.of(os.fstat(descriptor)) != file.identity:
                raise _changed(file)
            done = 0
            while done < len(into):
                count = os.preadv(descriptor, [into[done:]], offset + done)
                if not count:
                    break
                done += count
            if done != len(into) or FileIdentity.of(os.fstat(descriptor)) != file.identity:
                raise _changed(file)
        except OSError as error:
            raise _unreadable(file, error) from error
        finally:
            os.close(descriptor)

    # -- compression -------------------------------------------------------------------------------

    def _level(self, file: PinnedFile) -> int | None:
        """Return the level of compression of a file's chunks, None = uncompressed."""
        with self._lock:
            known = self._known.get(file.identity)
            if known is not None and known.sampled:
                return known.level
        size = min(self._chunk_bytes, SAMPLE_BYTES, file.identity.size_bytes)
        sample = self._scratch.buffer(size)
        self._fill(file, 0, sample)
        shrunk = len(self._scratch.compress(sample, LEVEL))
        level = None
        if shrunk <= WORTH * size:
            fast = len(self._scratch.compress(sample, FAST_LEVEL)) <= SIMILAR * shrunk
            level = FAST_LEVEL if fast else LEVEL
        with self._lock:
            known = self._entry(file.identity)
            known.level, known.sampled = level, True
        return level

    # -- digests -----------------------------------------------------------------------------------

    def _digest_of(self, file: PinnedFile, offset: int, plain: memoryview) -> bytes:
        """Return the SHA-256 of bytes just read; that of a whole known chunk from memory."""
        if len(plain) < min(self._chunk_bytes, file.identity.size_bytes - offset):
            return hashlib.sha256(plain).digest()
        number = offset // self._chunk_bytes
        digest = self._recall(file.identity, number)
        if digest is None:
            digest = hashlib.sha256(plain).digest()
            self._remember(file.identity, number, digest)
        return digest

    # -- memory ------------------------------------------------------------------------------------

    def _entry(self, identity: FileIdentity) -> _Known:
        """Return what is known of a file, as the most recently used; the lock is held."""
        known = self._known.setdefault(identity, _Known())
        self._known.move_to_end(identity)
        return known

    def _recall(self, identity: FileIdentity, number: int) -> bytes | None:
        with self._lock:
            known = self._known.get(identity)
            return None if known is None else known.digests.get(number)

    def _remember(self, identity: FileIdentity, number: int, digest: bytes) -> None:
        with self._lock:
            known = self._entry(identity)
            self._digests += number not in known.digests
            known.digests[number] = digest
            while self._digests > self._max_digests and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._digests -= len(oldest.digests)


def _identity_at(file: PinnedFile) -> FileIdentity:
    try:
        return FileIdentity.of(os.stat(file.location, follow_symlinks=False))  # noqa: PTH116
    except FileNotFoundError as error:
        raise _changed(file) from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _changed(file: PinnedFile) -> FileChangedError:
    return FileChangedError(
        f"{file.path} is no longer the file that was pinned",
        hint="Ask for a new lease if the copy needs this file.",
        path=file.path,
    )


def _unreadable(file: PinnedFile, error: OSError) -> StorageError:
    return StorageError(f"{file.path} cannot be read: {error.strerror}", path=file.path)
