"""What one client sees, one step after the other, at whichever node: monotonic reads, own writes.

A session asks each node for at least the greatest position that it was told so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.verification.torture.list_append import ListTransaction, Seen, session_steps


def session_violations(transactions: Sequence[ListTransaction]) -> Iterator[str]:
    """Yield what is wrong, a sentence each; what has no session is left out."""
    places = _Places()
    for steps in session_steps(transactions).values():
        session = _Session(places)
        for step in steps:
            yield from session.check([transactions[index] for index in step])


class _Places:
    """Where each element stands in each reader's copy."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}

    def holds(self, seen: Seen, element: int) -> bool:
        """Return whether a read has an element."""
        places = self._known.setdefault(id(seen.elements), {})
        if len(places) < seen.length:
            for place in range(len(places), seen.length):
                places[seen.elements[place]] = place
        return places.get(element, seen.length) < seen.length


class _Session:
    def __init__(self, places: _Places) -> None:
        self._places = places
        self._position = 0
        self._last: dict[str, Seen] = {}
        #: What it wrote since its last read: (list, element, name of the transaction).
        self._unseen: list[tuple[str, int, str]] = []

    def check(self, step: Sequence[ListTransaction]) -> Iterator[str]:
        """Yield what is wrong with one step, whose transactions were submitted at once."""
        for one in step:
            yield from self._read(one)
        for one in step:
            self._position = max(self._position, one.read_position or 0)
            if one.told == "ordered":
                self._position = max(self._position, one.position or 0)
                self._unseen += [
                    (name, element, one.name)
                    for name, elements in one.appends.items()
                    for element in elements
                ]

    def _read(self, step: ListTransaction) -> Iterator[str]:
        if step.read_position is not None and step.read_position < self._position:
            yield (
                f"{step.session} read position {step.read_position} in {step.name}, "
                f"after {self._position}"
            )
        for name, seen in step.reads.items():
            before = self._last.get(name, Seen((), 0))
            end = before.length
            if end > seen.length or (end and seen.elements[end - 1] != before.elements[end - 1]):
                yield f"{step.session} read less of {name} in {step.name} than before"
            self._last[name] = seen
        still = []
        for name, element, writer in self._unseen:
            if name not in step.reads:
                still.append((name, element, writer))
            elif not self._places.holds(step.reads[name], element):
                yield f"{step.session} did not see {element} of {name} in {step.name}: {writer}"
        self._unseen = still
