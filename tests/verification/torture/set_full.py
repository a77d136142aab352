"""Elements that are added and never removed: which reads must show them.

A read at a position shows exactly what is ordered up to there.  So an element that was acknowledged
with a position is in each read at that position or a later one, at every node; one that was
acknowledged without a position (`accepted`, `acquired`) is in each read once all is ordered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tests.verification.torture.list_append import Seen

_ACKNOWLEDGED = ("accepted", "acquired", "ordered")
_ABORTED = ("rejected", "refused")
_NEVER = 1 << 62


@dataclass(slots=True)
class Adds:
    """A run of transactions that add one element each, in this order."""

    elements: Sequence[int]
    #: A level, `refused`, `rejected` or `unknown`.
    told: str = "unknown"
    #: Of the first one, if it was told.
    position: int | None = None
    #: Elements whose transactions were rejected.
    rejected: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SetRead:
    """What a node's reader showed."""

    node: str
    #: Position that the reader asked for at least.
    at_least: int
    position: int
    seen: Seen
    #: All that was accepted is ordered, and this is all of it.
    is_final: bool = False


def set_violations(adds: Sequence[Adds], reads: Sequence[SetRead]) -> Iterator[str]:
    """Yield what is wrong, a sentence each."""
    told: dict[int, str] = {}
    placed: dict[int, int] = {}
    for add in adds:
        told.update(dict.fromkeys(add.elements, add.told))
        if add.position is not None and add.told not in _ABORTED:
            placed.update(zip(add.elements, range(add.position, _NEVER), strict=False))
        for element in add.rejected:
            told[element] = "rejected"
            placed.pop(element, None)
    for read in reads:
        if read.position < read.at_least:
            yield f"{read.node} showed position {read.position}, not {read.at_least} or later"
    copies: dict[int, list[SetRead]] = {}
    for read in reads:
        copies.setdefault(id(read.seen.elements), []).append(read)
    views = [_Copy(of_one) for of_one in copies.values()]
    #: Element → position from which on each read has it: of its receipt, or where it was seen.
    due = dict(placed)
    for view in views:
        yield from view.strangers(told)
        yield from view.too_early(placed)
        for element, position in view.first_seen():
            if position < due.get(element, _NEVER):
                due[element] = position
    for view in views:
        yield from view.missing(due, told)


class _Copy:
    """All reads of one reader's copy, which only grows."""

    def __init__(self, reads: Sequence[SetRead]) -> None:
        self._node = reads[0].node
        self._finals = [read.seen.length for read in reads if read.is_final]
        self._elements = reads[0].seen.elements[: max(read.seen.length for read in reads)]
        self._places: dict[int, int] = {}
        for place, element in enumerate(self._elements):
            self._places.setdefault(element, place)
        by_position = sorted((read.position, read.seen.length) for read in reads)
        self._positions = [position for position, _ in by_position]
        #: Fewest elements of a read at that position or a later one.
        self._fewest = _least_from_here([length for _, length in by_position])
        by_length = sorted((read.seen.length, read.position) for read in reads)
        self._lengths = [length for length, _ in by_length]
        #: Earliest position of a read of so many elements or more.
        self._earliest = _least_from_here([position for _, position in by_length])

    def _seen_at(self, place: int) -> int:
        return self._earliest[bisect_right(self._lengths, place)]

    def strangers(self, told: Mapping[int, str]) -> Iterator[str]:
        """Yield elements that stand twice, were never added, or certainly did not happen."""
        if len(self._places) < len(self._elements):
            yield f"{self._node} has an element twice"
        for element in self._places:
            if element not in told:
                yield f"{self._node} has {element}, which nobody added"
            elif told[element] in _ABORTED:
                yield f"{self._node} has {element}, which was {told[element]}"

    def first_seen(self) -> Iterator[tuple[int, int]]:
        """Yield each element with the earliest position of a read that has it."""
        for element, place in self._places.items():
            yield element, self._seen_at(place)

    def too_early(self, placed: Mapping[int, int]) -> Iterator[str]:
        """Yield elements in a read before the position that their clients were told."""
        for element, position in self.first_seen():
            if position < placed.get(element, 0):
                yield (
                    f"{self._node} showed {element} at position {position}, "
                    f"and {placed[element]} was told"
                )

    def missing(self, due: Mapping[int, int], told: Mapping[int, str]) -> Iterator[str]:
        """Yield elements that a read lacks."""
        fewest_of_finals = min(self._finals, default=_NEVER)
        for element, word in told.items():
            place = self._places.get(element, _NEVER - 1)
            at = bisect_left(self._positions, due.get(element, _NEVER))
            if at < len(self._positions) and self._fewest[at] <= place:
                yield f"{self._node} lacks {element} at or after its position {due[element]}"
            if word in _ACKNOWLEDGED and fewest_of_finals <= place:
                yield f"{self._node} lost {element}, which was {word}"


def _least_from_here(values: Sequence[int]) -> list[int]:
    return list(accumulate(reversed(values), min))[::-1]
