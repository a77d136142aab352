"""Proves that a bucket keeps what `Store` promises, before anything of value lies in it.

Servers that speak a provider's protocol differ in what they ignore: a condition that is not looked
at overwrites a commit.  No manual says so for all releases, so each store is tried.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING

from sparktxlog.errors import LyingStoreError, ObjectMissingError, StorageError
from sparktxlog.files.foreign_files import INCOMING, with_progress
from sparktxlog.files.stores.store import Created

if TYPE_CHECKING:
    from sparktxlog.files.stores.bucket import BucketStore

#: Writers that race, and how often: the fewer, the more likely a store is right by luck.
#: SeaweedFS lets many that race for a name wait for seconds.
_RACERS = 6
_RACES = 4
#: Requests are signed with the time; S3 refuses those of a clock that is off by 15 minutes.
_CLOCK_S = 300
_CREATE = "If-None-Match: *"
_COPY = f"{_CREATE} of a copy"
_EXCHANGING, _EXCHANGE = "exchanging", "If-Match"
#: Names that Spark and Delta give: an escaped partition value, spaces, letters of other languages.
_ODD = ("at=2026-11-28 10%3A00%3A00/part 1+2.parquet", "ü/日本#?&=/_x.json", "a-b", "a.b", "a/b")
#: Of 10,240 bytes: begin and size, also past the end.
_RANGES = ((0, 1), (1, 255), (5000, None), (10_239, 5), (10_240, None), (99_999, 1))


@dataclass(frozen=True, slots=True)
class StoreProof:
    """What a store was tried with; it passed all."""

    url: str
    checks: tuple[str, ...]
    seconds: float
    #: How far the store's clock is ahead of this machine's, to about a second.
    clock_ahead_s: float


def prove(
    store: BucketStore, *, racers: int = _RACERS, races: int = _RACES, exchanges: bool = True
) -> StoreProof:
    """Try a store below a prefix of its own, which is removed; blocks.

    Args:
        racers: Writers that race for a key; some stores make each wait for the one before, seconds
            in all.
        races: How often they race.
        exchanges: Try `exchange`, too, which only row tables need.

    Raises:
        LyingStoreError: It does something else than it promises (definite).
        StorageError: As `Store`.
    """
    begun = time.monotonic()
    trial = _Trial(store, f"{INCOMING}/proof-{secrets.token_hex(8)}", racers, races)
    checks = tuple(name for name in trial.checks if exchanges or name != _EXCHANGING)
    try:
        for check in checks:
            trial.run(check)
    finally:
        with suppress(StorageError):
            trial.clear()
    return StoreProof(
        store.url,
        checks,
        time.monotonic() - begun,
        trial.clock_ahead_s,
    )


class _Trial:
    """One proof.  Each check raises `LyingStoreError` by `_lie`."""

    def __init__(self, store: BucketStore, prefix: str, racers: int, races: int) -> None:
        self._store, self._prefix = store, prefix
        self._racers, self._races = racers, races
        self._keys = set[str]()
        self._check = ""
        self.clock_ahead_s = 0.0
        self.checks: Mapping[str, Callable[[], None]] = {
            "creating": self._creating,
            "names": self._names,
            "ranges": self._ranges,
            "overwriting": self._overwriting,
            _EXCHANGING: self._exchanging,
            "creating in parts": self._creating_in_parts,
            "copying": self._copying,
            "racing creates": self._racing,
            "racing copies": self._racing_copies,
            "removing": self._removing,
            "clock": self._clock,
        }

    def run(self, check: str) -> None:
        """Run a check."""
        self._check = check
        self.checks[check]()

    def clear(self) -> None:
        """Remove what the checks put."""
        self._store.remove(self._keys | {found.key for found in self._store.list(self._prefix)})

    def _key(self, name: str) -> str:
        key = f"{self._prefix}/{name}"
        self._keys.add(key)
        return key

    def _lie(self, did: str, header: str = "", hint: str = "") -> LyingStoreError:
        ignored = f": it ignores {header}" if header else ""
        return LyingStoreError(
            f"{self._store.url} cannot be trusted: {did}{ignored}",
            hint=hint,
            url=self._store.url,
            check=self._check,
            header=header,
        )

    def _expect(self, key: str, content: bytes) -> None:
        try:
            found = self._store.read(key)
        except ObjectMissingError:
            raise self._lie(f"{key} was put, and is not there") from None
        if found != content:
            raise self._lie(f"{key} has other bytes than were put")

    def _names(self) -> None:
        put = {self._key(f"names/{name}"): name.encode() for name in _ODD}
        for key, content in put.items():
            self._store.create(key, content)
            self._expect(key, content)
        listed = {found.key for found in self._store.list(f"{self._prefix}/names")}
        if listed != put.keys():
            differ = ", ".join(map(repr, sorted(listed ^ put.keys())[:3]))
            raise self._lie(f"a list after the writes lacks names, or changes them: {differ}")
        sizes = {found.key: found.size_bytes for found in self._store.list(f"{self._prefix}/names")}
        if sizes != {key: len(content) for key, content in put.items()}:
            raise self._lie("a list has other sizes than were put")

    def _ranges(self) -> None:
        key, content = self._key("ranges"), bytes(range(256)) * 40
        self._store.create(key, content)
        for begin, size in _RANGES:
            end = None if size is None else begin + size
            try:
                found = self._store.read(key, offset=begin, size=size)
            except StorageError as error:
                if type(error) is not StorageError:
                    raise
                raise self._lie(error.message, "Range") from error
            if found != content[begin:end]:
                raise self._lie(f"bytes from {begin} on are not those that were put", "Range")

    def _overwriting(self) -> None:
        key, marks = self._key("overwriting"), {""}
        for content in (b"first", b"", b"third"):
            self._store.replace(key, content)
            self._expect(key, content)
            found = self._store.find(key)
            if found is None or found.mark in marks:
                raise self._lie(
                    "other bytes have no other ETag, so what was read is mixed up", "ETag"
                )
            marks.add(found.mark)

    def _exchanging(self) -> None:
        key = self._key("exchanging")
        self._store.replace(key, b"first")
        found = self._store.find(key)
        mark = None if found is None else self._store.exchange(key, b"second", found.mark)
        if found is None or mark is None:
            raise self._lie("what is there is not exchanged by its ETag", _EXCHANGE)
        if self._store.exchange(key, b"third", found.mark) is not None:
            raise self._lie("it overwrites what has another ETag", _EXCHANGE)
        self._expect(key, b"second")
        if self._store.exchange(key, b"third", mark) is None:
            raise self._lie("it says another ETag than what it put has", "ETag")

    def _creating(self) -> None:
        key, writer = self._key("creating"), secrets.token_hex(8)
        first = self._store.create(key, b"first", writer=writer)
        second = self._store.create(key, b"second")
        if (first, second) != (Created.NEW, Created.OTHER):
            raise self._lie("it overwrites what should be created", _CREATE)
        self._expect(key, b"first")
        if self._store.create(key, b"first", writer=writer) is not Created.NEW:
            raise self._lie(
                "it does not keep the metadata of objects, so a writer whose answer is lost "
                "does not know its own",
                "metadata",
            )

    def _creating_in_parts(self) -> None:
        key, parted = self._key("parts"), self._store.in_parts()
        if parted.create(key, b"first") is not Created.NEW:
            raise self._lie("an object in parts is not created")
        self._expect(key, b"first")
        if parted.create(key, b"other") is not Created.OTHER:
            raise self._lie("it overwrites what should be created in parts", _CREATE)
        self._expect(key, b"first")

    def _copying(self) -> None:
        source, target = self._key("copying"), self._key("copied")
        self._store.create(source, b"source")
        if self._store.copy(source, target) is not Created.NEW:
            raise self._lie("a copy is not made")
        self._expect(target, b"source")
        self._store.replace(source, b"other!")
        if self._store.copy(source, target) is not Created.OTHER:
            raise self._lie("a copy overwrites what is there", _COPY)
        self._expect(target, b"source")

    def _racing(self) -> None:
        for race in range(self._races):
            key = self._key(f"race-{race}")
            self._race(key, partial(self._create_numbered, key), _CREATE)

    def _create_numbered(self, key: str, number: int) -> Created:
        return self._store.create(key, b"%d" % number)

    def _racing_copies(self) -> None:
        sources = [self._key(f"source-{n}") for n in range(self._racers)]
        for n, source in enumerate(sources):
            self._store.create(source, b"%d" % n)
        for race in range(self._races):
            key = self._key(f"copy-race-{race}")
            self._race(key, partial(self._copy_numbered, sources, key), _COPY)

    def _copy_numbered(self, sources: Sequence[str], key: str, number: int) -> Created:
        return self._store.copy(sources[number], key)

    def _race(self, key: str, create: Callable[[int], Created], header: str) -> None:
        at_once = Barrier(self._racers)

        def run(number: int) -> Created:
            at_once.wait()
            return create(number)

        with ThreadPoolExecutor(self._racers) as racers:
            results = list(racers.map(with_progress(run), range(self._racers)))
        winners = [number for number, result in enumerate(results) if result is Created.NEW]
        if len(winners) != 1:
            raise self._lie(f"of {self._racers} writers at once {len(winners)} were first", header)
        self._expect(key, b"%d" % winners[0])

    def _removing(self) -> None:
        key = self._key("removing")
        self._store.create(key, b"x")
        self._store.remove([key, f"{key}-never-there"])
        listed = any(found.key == key for found in self._store.list(self._prefix))
        if listed or self._store.find(key) is not None:
            raise self._lie("what was removed is still there")
        if self._store.create(key, b"y") is not Created.NEW:
            raise self._lie("what was removed is in the way of a new object")

    def _clock(self) -> None:
        key = self._key("clock")
        before = time.time()
        self._store.replace(key, b"")
        after = time.time()
        found = self._store.find(key)
        if found is None:
            raise self._lie(f"{key} was put, and is not there")
        # Stores keep whole seconds.
        ahead = found.changed_s - min(max(found.changed_s, before - 1), after)
        self.clock_ahead_s = ahead
        if abs(ahead) > _CLOCK_S:
            raise self._lie(
                f"its clock is {ahead:+,.0f} s from this machine's",
                hint="Set the clock of this machine, or of the store.",
            )
