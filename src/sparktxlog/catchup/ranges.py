"""Received pieces of the log that wait to be applied: sorted, disjoint, bounded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRange:
    """Positions `first` … `last`, both included, 1 ≤ first ≤ last; whole runs."""

    first: int
    last: int


class RangeQueue:
    """Ranges ascending; what is there already, or was applied, is never in it twice.

    Args:
        limit: Ranges kept at most.  The furthest are dropped: they are asked for again later.
    """

    __slots__ = ("_limit", "_ranges")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Disjoint, ascending.
        self._ranges: list[PositionRange] = []

    def add(self, received: PositionRange, applied: int) -> None:
        """Take in what of a range is neither applied nor here."""
        first, pieces = max(received.first, applied + 1), []
        for known in self._ranges:
            if known.first > received.last:
                break
            if known.first > first:
                pieces.append(PositionRange(first=first, last=known.first - 1))
            first = max(first, known.last + 1)
        if first <= received.last:
            pieces.append(PositionRange(first=first, last=received.last))
        ordered = sorted((*self._ranges, *pieces), key=lambda known: known.first)
        self._ranges = ordered[: self._limit]

    def drop_to(self, position: int) -> None:
        """Forget everything up to a position, which became the applied one."""
        self._ranges = [
            PositionRange(first=max(known.first, position + 1), last=known.last)
            for known in self._ranges
            if known.last > position
        ]

    @property
    def head(self) -> PositionRange | None:
        """The least range, None if nothing waits."""
        return self._ranges[0] if self._ranges else None

    def __len__(self) -> int:
        return len(self._ranges)
