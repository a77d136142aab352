"""Transaction ids of the last positions: finds repeats and their first positions (P25c).

The window is counted in positions, so the answer depends only on the synchronized queue and is the
same at every site: the transaction at position `p` is a repeat if its id is at one of the positions
`p - size … p - 1`, whatever the outcome there.  For each repeat the first position of its id is
kept, because clients get the outcome of that one.

Form: a ring of the ids' two words indexed by position, and hash chains through it.  `head` holds
per bucket the newest position, `older` per position the next older one of the same bucket.
Chains descend, so a walk ends at the first position that has left the window; nothing is ever
deleted, merged or rehashed, and no call is slower than the others.  Positions are kept modulo
2**32; a stale link can at worst lead to an entry of the window, whose words are compared anyway.
Cost: 24 bytes per id of the window; numpy for runs, plain integers for a few ids
(docs/decisions/0008-numpy-in-the-core.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparktxlog.model.transactions.operation import LONGEST_RUN

_WORD = (1 << 64) - 1
_LINK = (1 << 32) - 1
#: Odd constants that spread structured ids (counters, UUIDv7) over the buckets.
_MIX_A = 0x9E3779B97F4A7C15
_MIX_B = 0xC2B2AE3D27D4EB4F
#: Up to this many ids, plain integers are faster than arrays.
_FEW = 24


class IdWindow:
    """Ids of the last `size` positions.

    Args:
        size: Positions an id is known for, at least 1.
        max_run: Longest run that is ever added at once.
    """

    __slots__ = (
        "_a", "_a_view", "_b", "_b_view", "_capacity", "_firsts", "_head", "_head_view", "_older",
        "_older_view", "_shift", "end", "first", "size",
    )  # fmt: skip

    def __init__(self, size: int, max_run: int = LONGEST_RUN) -> None:
        self.size = size
        #: Last position added, 0 = none.
        self.end = 0
        #: First position added; ids before it are unknown.
        self.first = 1
        # A whole run is added before it is looked up, hence the room beyond `size`.
        self._capacity = size + max_run
        bits = max(4, min(24, (size - 1).bit_length()))
        self._shift = 64 - bits
        #: Of the repeats in the window: position → where the id stands first.
        self._firsts: dict[int, int] = {}
        self._a: NDArray[np.uint64] = np.zeros(self._capacity, np.uint64)
        self._b: NDArray[np.uint64] = np.zeros(self._capacity, np.uint64)
        self._older: NDArray[np.uint32] = np.zeros(self._capacity, np.uint32)
        self._head: NDArray[np.uint32] = np.zeros(1 << bits, np.uint32)
        # Single elements are read and written several times faster through a memoryview.
        self._a_view = memoryview(self._a)  # type: ignore[arg-type]
        self._b_view = memoryview(self._b)  # type: ignore[arg-type]
        self._older_view = memoryview(self._older)  # type: ignore[arg-type]
        self._head_view = memoryview(self._head)  # type: ignore[arg-type]

    @property
    def size_bytes(self) -> int:
        """Memory of the window."""
        return int(self._a.nbytes + self._b.nbytes + self._older.nbytes + self._head.nbytes)

    def recover(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Fill an empty window from (first position, ids) pieces, oldest first.

        Raises:
            ValueError: The pieces leave a gap or are out of order.
        """
        parts: list[bytes] = []
        start = end = 0
        for first, ids in pieces:
            if not parts:
                start = first
            elif first != end + 1:
                raise ValueError(f"ids of position {first} follow those of position {end}")
            parts.append(ids)
            end = first + len(ids) // 16 - 1
        if not parts:
            return
        ids = b"".join(parts)
        start = max(start, end - self.size + 1)
        ids = ids[-16 * (end - start + 1) :]
        self.end = start - 1
        self.first = start
        for offset in range(0, len(ids), 16 * 65_536):
            self._insert(ids[offset : offset + 16 * 65_536])

    def add(self, ids: bytes) -> list[int]:
        """Add a run's ids at the next positions; return the indices of repeats, ascending.

        Args:
            ids: 16 bytes per transaction, in order.
        """
        n = len(ids) // 16
        if n <= _FEW:
            words = struct.unpack(f"<{2 * n}Q", ids)
            pairs = enumerate(zip(words[::2], words[1::2], strict=True))
            return [index for index, (a, b) in pairs if self._add_one(a, b)]
        first = self.end + 1
        a, b, links = self._insert(ids)
        return self._repeats(first, a, b, links)

    def locate(self, transaction_id: bytes, before: int | None = None) -> int | None:
        """Return the first position of an id of the window, None if it is not in the window.

        Args:
            before: Look among the positions before this one, and in the window as it was there.

        Returns:
            A position; before the window, if the oldest one in it is a repeat itself.
        """
        a = int.from_bytes(transaction_id[:8], "little")
        b = int.from_bytes(transaction_id[8:], "little")
        link = self._head_view[self._bucket(a, b)]
        before = self.end + 1 if before is None else before
        oldest = self._walk(link, self.end + 1, a, b, oldest=True, before=before)
        return self._firsts.get(oldest, oldest) or None

    def locate_all(self, ids: bytes) -> list[tuple[int, int]]:
        """Return (index, first position) of those of the 16-byte ids that the window holds."""
        n = len(ids) // 16
        if n <= _FEW:
            found = [self.locate(ids[16 * index : 16 * index + 16]) for index in range(n)]
            return [(index, at) for index, at in enumerate(found) if at is not None]
        a, b = _words(ids)
        links = self._head[self._buckets(a, b).astype(np.int64)]
        at_end = np.full(n, self.end + 1, np.int64)
        held = self._chains(at_end, a, b, links)
        return [(index, self.locate(ids[16 * index : 16 * index + 16]) or 0) for index in held]

    def note_repeat(self, position: int, first: int) -> None:
        """Note the first position of the id of the repeat at `position`; positions ascend."""
        self._firsts[position] = first
        while (eldest := next(iter(self._firsts))) <= self.end - self._capacity:
            del self._firsts[eldest]

    def _bucket(self, a: int, b: int) -> int:
        mixed = ((a ^ (b * _MIX_B)) * _MIX_A) & _WORD
        return ((mixed ^ (mixed >> 29)) * _MIX_B & _WORD) >> self._shift

    def _buckets(self, a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
        mixed = (a ^ (b * np.uint64(_MIX_B))) * np.uint64(_MIX_A)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_MIX_B)
        return mixed >> np.uint64(self._shift)

    def _walk(
        self, link: int, position: int, a: int, b: int, *, oldest: bool = False, before: int = 0
    ) -> int:
        """Return the newest (or oldest) position before `position` that holds the words, or 0.

        With `before` only positions before that one count, within the window as it was there.
        """
        limit = before or position
        floor = max(self.first - 1, limit - 1 - self.size)
        end, capacity, found, before = self.end, self._capacity, 0, position
        while True:
            at = end - ((end - link) & _LINK)
            if at <= floor or at >= before:
                return found
            slot = at % capacity
            if at < limit and self._a_view[slot] == a and self._b_view[slot] == b:
                if not oldest:
                    return at
                found = at
            before, link = at, self._older_view[slot]

    def _add_one(self, a: int, b: int) -> bool:
        bucket = self._bucket(a, b)
        link = self._head_view[bucket]
        position = self.end + 1
        repeat = self._walk(link, position, a, b) != 0
        slot = position % self._capacity
        self._a_view[slot] = a
        self._b_view[slot] = b
        self._older_view[slot] = link
        self._head_view[bucket] = position & _LINK
        self.end = position
        return repeat

    def _insert(
        self, ids: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]:
        """Put ids into ring and chains; return their words and their links to older entries."""
        a, b = _words(ids)
        n = len(a)
        first = self.end + 1
        # Sorted by (bucket, order): neighbours of one bucket link to each other.
        keyed = (self._buckets(a, b) << np.uint64(32)) | np.arange(n, dtype=np.uint64)
        keyed.sort()
        bucket = (keyed >> np.uint64(32)).astype(np.int64)
        index = (keyed & np.uint64(_LINK)).astype(np.int64)
        newest = np.empty(n, bool)
        newest[-1] = True
        np.not_equal(bucket[1:], bucket[:-1], out=newest[:-1])
        at = ((first + index) & _LINK).astype(np.uint32)
        links_sorted = np.empty(n, np.uint32)
        links_sorted[1:] = at[:-1]
        eldest = np.empty(n, bool)
        eldest[0] = True
        eldest[1:] = newest[:-1]
        links_sorted[eldest] = self._head[bucket[eldest]]
        self._head[bucket[newest]] = at[newest]
        links = np.empty(n, np.uint32)
        links[index] = links_sorted
        for target, source in ((self._a, a), (self._b, b), (self._older, links)):
            self._write(target, first, source)
        self.end = first + n - 1
        return a, b, links

    def _write(self, target: NDArray[Any], first: int, source: NDArray[Any]) -> None:
        slot = first % self._capacity
        head = min(len(source), self._capacity - slot)
        target[slot : slot + head] = source[:head]
        target[: len(source) - head] = source[head:]

    def _repeats(
        self,
        first: int,
        a: NDArray[np.uint64],
        b: NDArray[np.uint64],
        links: NDArray[np.uint32],
    ) -> list[int]:
        return self._chains(first + np.arange(len(a), dtype=np.int64), a, b, links)

    def _chains(
        self,
        before: NDArray[np.int64],
        a: NDArray[np.uint64],
        b: NDArray[np.uint64],
        links: NDArray[np.uint32],
    ) -> list[int]:
        """Return the indices of the words that are in the window before their position."""
        index: NDArray[np.int64] = np.arange(len(a), dtype=np.int64)
        floor = np.maximum(before - 1 - self.size, self.first - 1)
        found: list[int] = []
        while len(index):
            at = self.end - ((self.end - links.astype(np.int64)) & _LINK)
            alive = np.flatnonzero((at > floor) & (at < before))
            if not len(alive):
                break
            index, floor, before = index[alive], floor[alive], at[alive]
            slot = before % self._capacity
            same = (self._a[slot] == a[index]) & (self._b[slot] == b[index])
            links = self._older[slot]
            if same.any():
                found.extend(int(i) for i in index[same])
                rest = ~same
                index, floor, before, links = index[rest], floor[rest], before[rest], links[rest]
        found.sort()
        return found


def _words(ids: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the two words of each 16-byte id."""
    words = np.frombuffer(ids, dtype="<u8").reshape(-1, 2)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
