"""A directory of a store as a store of its own, such as a table of a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import RawIOBase
from itertools import islice
from pathlib import Path

from sparktxlog.files.stores.store import Created, Found, OpenContent, Store

#: Keys that a bucket removes by one request.
_REMOVED_AT_ONCE = 1000


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class PartOfStore:
    """What is below a directory of a store.  Methods are those of `Store`."""

    whole: Store
    #: Without `/` at either end.
    directory: str
    #: Called before each write; what it raises, the write raises.
    may_write: Callable[[], None] = _nothing

    @property
    def url(self) -> str:
        """As `Store.url`."""
        return self.whole.url_of(self.directory)

    def url_of(self, key: str) -> str:
        """As `Store.url_of`."""
        return self.whole.url_of(self._key(key))

    def find(self, key: str) -> Found | None:
        """As `Store.find`."""
        found = self.whole.find(self._key(key))
        return None if found is None else replace(found, key=key)

    def read(self, key: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """As `Store.read`."""
        return self.whole.read(self._key(key), offset=offset, size=size)

    def read_into(self, key: str, offset: int, into: memoryview) -> int:
        """As `Store.read_into`."""
        return self.whole.read_into(self._key(key), offset, into)

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        """As `Store.open`."""
        content = self.whole.open(self._key(key), offset=offset)
        return replace(content, found=replace(content.found, key=key))

    def reader(self, key: str) -> RawIOBase:
        """As `Store.reader`."""
        return self.whole.reader(self._key(key))

    def create(self, key: str, content: bytes | Path, *, alone: bool = False) -> Created:
        """As `Store.create`."""
        self.may_write()
        return self.whole.create(self._key(key), content, alone=alone)

    def replace(self, key: str, content: bytes | Path) -> None:
        """As `Store.replace`."""
        self.may_write()
        self.whole.replace(self._key(key), content)

    def copy(self, source: str, target: str) -> Created:
        """As `Store.copy`."""
        self.may_write()
        return self.whole.copy(self._key(source), self._key(target))

    def list(self, prefix: str = "") -> Iterator[Found]:
        """As `Store.list`."""
        below = self._key(prefix) if prefix else self.directory
        for found in self.whole.list(below):
            yield replace(found, key=found.key.removeprefix(f"{self.directory}/"))

    def names(self, directory: str) -> Sequence[str]:
        """As `Store.names`."""
        return self.whole.names(self._key(directory))

    def directories(self, directory: str = "") -> Sequence[str]:
        """As `Store.directories`; by default of the root."""
        return self.whole.directories(self._key(directory) if directory else self.directory)

    def remove(self, keys: Iterable[str]) -> None:
        """As `Store.remove`; it is asked before each request whether that may be done."""
        rest = map(self._key, keys)
        while batch := [*islice(rest, _REMOVED_AT_ONCE)]:
            self.may_write()
            self.whole.remove(batch)

    def _key(self, key: str) -> str:
        return f"{self.directory}/{key}"
