"""The latest entries of a kind, in a ring of named values of the journal.

A ring is bounded without a write that removes: entry `number` has the name `prefix` + `number`
modulo the size, so it takes the place of an older one.  The number is kept with the entry, so that
the order is known after a restart, whatever the clocks said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from sparktxlog.storage.interfaces import PutValue

_T = TypeVar("_T")


def ring_value(prefix: str, size: int, number: int, value: bytes) -> PutValue:
    """Return the write of an entry that says its own order."""
    return PutValue(name=f"{prefix}{number % size}", value=value)


def ring_values(prefix: str, saved: Mapping[str, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield place and value of each entry of a ring, in no order.

    Args:
        saved: Named values of the journal.
    """
    for name, value in saved.items():
        if name.startswith(prefix) and value:
            yield int(name.removeprefix(prefix)), value


class ValueRing(Generic[_T]):
    """Entries with their numbers.

    Args:
        prefix: Of their names; no other name of the journal begins with it.
        size: Entries that are kept.
        kind: Type of an entry.
        saved: Named values of the journal.
        codec: Part of `msgspec` that encodes them.
    """

    def __init__(
        self,
        prefix: str,
        size: int,
        kind: Any,
        saved: Mapping[str, bytes],
        codec: ModuleType = msgspec.msgpack,
    ) -> None:
        self._prefix, self._size, self._codec = prefix, size, codec
        found = [
            codec.decode(value, type=tuple[int, kind]) for _, value in ring_values(prefix, saved)
        ]
        #: Number since the journal was made → entry, ascending; a value may be changed for a while
        #: without a write.
        self.entries: dict[int, _T] = dict(sorted(found, key=lambda item: item[0]))

    def add(self, entry: _T) -> tuple[int, PutValue]:
        """Add an entry; return its number, and the write that keeps it."""
        number = next(reversed(self.entries), -1) + 1
        return number, self.put(number, entry)

    def put(self, number: int, entry: _T) -> PutValue:
        """Replace or add the entry of a number; return the write that keeps it."""
        self.entries[number] = entry
        while len(self.entries) > self._size:
            del self.entries[next(iter(self.entries))]
        value = self._codec.encode((number, entry))
        return ring_value(self._prefix, self._size, number, value)

    def newest_first(self) -> list[_T]:
        """Return all entries."""
        return list(reversed(self.entries.values()))
