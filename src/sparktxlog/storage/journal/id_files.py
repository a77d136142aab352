"""Ids of the queue before its last positions: sorted files by the journal (docs/formats-log.md).

The core keeps the ids of the last `id-window` positions in memory.  A later repeat must still be
recognised.  So the journal writes the ids of older positions to files, about 65,536 at a time,
before they leave that memory.  A file is written once, synced, and searched by bisection through a
memory map; a thread merges small files into larger ones.

    64 bytes   magic "TXLOGID1", first position, count, newest timestamp; 64-bit, little endian
    8 × count  mixed word of each id, ascending
    8 × count  second word of each id
    4 × count  offset from the first position; the top bit is set if it was rejected
    8 × count  in the order of positions: what the content is known by, zeros = not known
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparktxlog.errors import CorruptLogError
from sparktxlog.files.durability import sync_directory, write_durably
from sparktxlog.model.transactions.operation import DIGEST_BYTES
from sparktxlog.storage.journal.queue_ids import put_digests

_HEAD = struct.Struct("<8sQQQ32x")
_MAGIC = b"TXLOGID1"
_MIX = np.uint64(0x9E3779B97F4A7C15)
_REJECTED = np.uint32(1 << 31)
_OFFSET = np.uint32((1 << 31) - 1)
#: Bytes of one id.
_EACH = 20 + DIGEST_BYTES
#: Number of neighbours that become one file; files with so many ids are not merged.
_MERGED, _LARGEST = 8, 1 << 23


@dataclass(frozen=True, slots=True)
class _IdFile:
    path: Path
    first: int
    count: int
    #: Newest timestamp of its runs, microseconds of the log clock.
    ts: int
    words: NDArray[np.uint64]
    seconds: NDArray[np.uint64]
    places: NDArray[np.uint32]
    #: Of the contents, by position; zeros = not known.
    digests: NDArray[np.uint8]

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def matches(self, words: NDArray[np.uint64], seconds: NDArray[np.uint64]) -> Iterator[Any]:
        """Yield (index, position, rejected) of the ids in this file."""
        lows = np.searchsorted(self.words, words, "left")
        highs = np.searchsorted(self.words, words, "right")
        for index in np.flatnonzero(lows < highs):
            for at in range(int(lows[index]), int(highs[index])):
                if self.seconds[at] == seconds[index]:
                    place = self.places[at]
                    position = self.first + int(place & _OFFSET)
                    yield int(index), position, bool(place & _REJECTED)


class IdFiles:
    """The files of one log; `put` in order of positions, by one thread; searches from any.

    Args:
        directory: Made when the first file is.
        end: Last position of the queue; later files are of another history and are removed.
    """

    def __init__(self, directory: Path, end: int) -> None:
        self._directory = directory
        self._merging: Future[None] | None = None
        self._merger: ThreadPoolExecutor | None = None
        found = sorted(
            map(_open, directory.glob("*.ids")), key=lambda file: (file.first, -file.count)
        )
        kept: list[_IdFile] = []
        for file in found:
            # A kill may leave both a merged file and its sources.
            inside = bool(kept) and file.last <= kept[-1].last
            if inside or file.last > end:
                file.path.unlink()
            else:
                kept.append(file)
        for left in (*directory.glob("*.new"), *directory.glob("*.part")):  # of earlier releases
            left.unlink()
        self._files: tuple[_IdFile, ...] = tuple(kept)

    @property
    def end(self) -> int:
        """Last position whose id is in a file, 0 = none."""
        return self._files[-1].last if self._files else 0

    @property
    def start(self) -> int:
        """First position whose id is in a file; `end` + 1 if there is none."""
        return self._files[0].first if self._files else 1

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(_HEAD.size + _EACH * file.count for file in self._files)

    def put(self, first: int, ids: bytes, rejected: Iterable[int], ts: int, digests: bytes) -> None:
        """Write the ids of the positions from `first` on to a file; durable when it returns.

        Args:
            ids: 16 bytes for each position.
            rejected: Positions that took no effect.
            ts: Newest timestamp among them.
            digests: Of their contents, `DIGEST_BYTES` for each position.
        """
        words, seconds = _words(ids)
        places = np.arange(len(words), dtype=np.uint32)
        for position in rejected:
            places[position - first] |= _REJECTED
        file = self._write(first, ts, words, seconds, places, np.frombuffer(digests, np.uint8))
        self._files = (*self._files, file)
        self._merge_soon()

    def expire(self, ts: int, position: int) -> None:
        """Remove files that are older than `ts` and lie before `position`."""
        gone = [file for file in self._files if file.ts < ts and file.last < position]
        if gone and (self._merging is None or self._merging.done()):
            self._files = self._files[len(gone) :]
            for file in gone:
                file.path.unlink()

    def cut(self, end: int) -> None:
        """Remove files that reach beyond position `end`, whose runs were not kept."""
        if self.end > end:
            self._wait()
            gone = [file for file in self._files if file.last > end]
            self._files = self._files[: len(self._files) - len(gone)]
            for file in gone:
                file.path.unlink()

    def first_of(self, ids: bytes, after: int = 0) -> dict[int, tuple[int, bool]]:
        """Return, by index of the ids found: first position after `after`, rejected there."""
        found: dict[int, tuple[int, bool]] = {}
        files = self._files
        if not files:
            return found
        words, seconds = _words(ids)
        for file in files:
            if file.last <= after:
                continue
            for index, position, rejected in file.matches(words, seconds):
                if position > after and position < found.get(index, (1 << 63, False))[0]:
                    found[index] = (position, rejected)
        return found

    def put_digests(self, found: bytearray, first: int) -> None:
        """Put the digests of contents into those of the positions from `first` on."""
        last = first + len(found) // DIGEST_BYTES - 1
        for file in self._files:
            low, high = max(first, file.first), min(last, file.last)
            if low <= high:
                start, end = low - file.first, high + 1 - file.first
                piece = file.digests[DIGEST_BYTES * start : DIGEST_BYTES * end].tobytes()
                put_digests(found, first, low, piece)

    def before(self, position: int, most: int) -> Callable[[], Iterator[tuple[int, bytes]]]:
        """Return what reads the ids that stand without gap before a position, so many at a time.

        It reads the present files; it can be called again.
        """
        files: list[_IdFile] = []
        start = position
        for file in reversed(self._files):
            if file.first < start <= file.last + 1:
                files.insert(0, file)
                start = file.first

        def read() -> Iterator[tuple[int, bytes]]:
            for file in files:
                ids = _ids_of(file)[: 16 * (position - file.first)]
                for at in range(0, len(ids), 16 * most):
                    yield file.first + at // 16, ids[at : at + 16 * most]

        return read

    def close(self) -> None:
        """Wait for a merge that is under way."""
        self._wait()
        if self._merger is not None:
            self._merger.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._merging is not None:
            self._merging.result()

    def _write(
        self,
        first: int,
        ts: int,
        words: NDArray[np.uint64],
        seconds: NDArray[np.uint64],
        places: NDArray[np.uint32],
        digests: NDArray[np.uint8],
    ) -> _IdFile:
        order = np.argsort(words, kind="stable")
        path = self._directory / f"{first:020}-{len(words)}.ids"
        if not self._directory.is_dir():
            self._directory.mkdir()
            sync_directory(self._directory.parent)
        columns = (np.ascontiguousarray(one[order]).data for one in (words, seconds, places))
        head = _HEAD.pack(_MAGIC, first, len(words), ts)
        write_durably(path, chain([head], columns, [digests.tobytes()]))
        return _open(path)

    def _merge_soon(self) -> None:
        if self._merging is not None and self._merging.done():
            self._merging.result()
            self._merging = None
        if self._merging is None and (group := self._mergeable()):
            if self._merger is None:
                self._merger = ThreadPoolExecutor(1, thread_name_prefix="id-files")
            self._merging = self._merger.submit(self._merge, group)

    def _mergeable(self) -> tuple[_IdFile, ...]:
        """Return neighbours of about the same size to merge into one file, the newest first."""
        files = self._files
        for end in range(len(files), _MERGED - 1, -1):
            group = files[end - _MERGED : end]
            counts = [file.count for file in group]
            if max(counts) < _MERGED * min(counts) and sum(counts) <= _LARGEST:
                return group
        return ()

    def _merge(self, group: tuple[_IdFile, ...]) -> None:
        first = group[0].first
        shifts = [np.uint32(file.first - first) for file in group]
        merged = self._write(
            first,
            max(file.ts for file in group),
            np.concatenate([file.words for file in group]),
            np.concatenate([file.seconds for file in group]),
            np.concatenate([f.places + shift for f, shift in zip(group, shifts, strict=True)]),
            np.concatenate([file.digests for file in group]),
        )
        files = self._files
        at = files.index(group[0])
        self._files = (*files[:at], merged, *self._files[at + len(group) :])
        for file in group:
            file.path.unlink()


def _open(path: Path) -> _IdFile:
    """Map a file.

    Raises:
        CorruptLogError: It is not an id file, or torn.
    """
    size = path.stat().st_size
    raw = np.memmap(path, np.uint8, "r")
    magic, first, count, ts = _HEAD.unpack(raw[: _HEAD.size].tobytes().ljust(_HEAD.size, b"\0"))
    if magic != _MAGIC or size != _HEAD.size + _EACH * count:
        raise CorruptLogError(
            f"{path} is damaged: {size:,} bytes are not those of {count:,} ids",
            hint="Remove the file: repeats of its transactions are then no longer recognised.",
            path=str(path),
        )
    ends = [_HEAD.size + width * count for width in (0, 8, 16, 20)]
    return _IdFile(
        path=path,
        first=first,
        count=count,
        ts=ts,
        words=raw[ends[0] : ends[1]].view("<u8"),
        seconds=raw[ends[1] : ends[2]].view("<u8"),
        places=raw[ends[2] : ends[3]].view("<u4"),
        digests=raw[ends[3] :],
    )


def _words(ids: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the mixed first word of each 16-byte id, and its second: together they are the id."""
    pairs = np.frombuffer(ids, "<u8").reshape(-1, 2)
    seconds = np.ascontiguousarray(pairs[:, 1])
    mixed = (pairs[:, 0] ^ (seconds * _MIX)) * _MIX
    return mixed ^ (mixed >> np.uint64(32)), seconds


def _ids_of(file: _IdFile) -> bytes:
    order = np.argsort(file.places & _OFFSET)
    mixed, seconds = file.words[order], file.seconds[order]
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(pow(int(_MIX), -1, 1 << 64))
    return np.column_stack((mixed ^ (seconds * _MIX), seconds)).astype("<u8").tobytes()
