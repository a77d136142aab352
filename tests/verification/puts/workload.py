"""Writers that put into a bucket by all ways that a store has, through a way that fails."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

from tests.support.faulty_way import Answer, Choice, Fault, by_chance, faulty_way
from tests.support.store_servers import BUCKET, StoreServer, opened
from tests.verification.puts.judgement import number_of
from tests.verification.puts.record import (
    Counted,
    Kind,
    OwnKey,
    Raced,
    Record,
    Told,
    Violation,
    digest_of,
)

from sparktxlog.errors import FileChangedError, ObjectMissingError, StorageError
from sparktxlog.files.stores.bucket import PART_BYTES, BucketStore
from sparktxlog.files.stores.store import Created

PREFIX = "puts"
#: Counted keys, and sequences of raced ones.
REGISTERS, SEQUENCES = 4, 6
#: Refusals, for a hundredth of the requests that meet a fault.
_REFUSALS = (
    Answer(404, "NoSuchBucket"),
    Answer(403, "AccessDenied"),
    Answer(400, "ExpiredToken"),
    Answer(403, "QuotaExceeded"),
)
_REFUSED_SHARE = 0.03
#: Seconds that a request is repeated; the first writers ask once.
_PATIENCES_S = (0.0, 0.5, 60.0, 60.0)
_MOST_BYTES = 20_000
#: One upload in parts of so many has more parts than one.
_LARGE_OF = 150
_SAY_S = 20.0
#: A create whose outcome is not known is asked again so often.
_ASKED = 50


@dataclass(frozen=True, slots=True)
class Share:
    """What one process does."""

    server: StoreServer
    number: int
    puts: int
    threads: int
    faulty: float
    seed: int
    quiet: bool = True


def work(share: Share) -> Record:
    """Put so often, by some threads through a way of this process."""
    record = Record()
    choose = with_refusals(by_chance(share.faulty, share.seed, stale=True), share)
    with faulty_way(share.server.endpoint, choose) as way:
        common = _Common(share, way.url, share.puts, record)
        with ThreadPoolExecutor(share.threads) as threads:
            for done in [threads.submit(_Writer(common, n).run) for n in range(share.threads)]:
                done.result()
        for fault, count in way.happened.items():
            record.faults[fault.code if isinstance(fault, Answer) else fault.value] += count
    return record


def with_refusals(choose: Choice, share: Share) -> Choice:
    """Return a choice that refuses some requests, too: what comes before them may be lost."""
    chance, choosing = random.Random(f"refusals {share.seed}"), threading.Lock()

    def also(method: str) -> Fault | Answer:
        found = choose(method)
        with choosing:
            if chance.random() < share.faulty * _REFUSED_SHARE:
                # Nobody can see that a bucket was away for one HEAD only.
                return chance.choice(_REFUSALS[method == "HEAD" :])
        return found

    return also


@dataclass(slots=True)
class _Common:
    """What the writers of a process share."""

    share: Share
    endpoint: str
    left: int
    record: Record
    #: Sequence → the highest number that somebody has.
    newest: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    said_s: float = field(default_factory=time.monotonic)

    def goes_on(self) -> bool:
        """Return whether there are puts left; say now and then how many."""
        with self.lock:
            if not self.share.quiet and time.monotonic() - self.said_s > _SAY_S:
                self.said_s = time.monotonic()
                print(f"  process {self.share.number}: {self.left:,} puts are left", flush=True)
            return self.left > 0

    def note(self, operation: str, told: str, *, is_put: bool = True) -> None:
        """Count what was told."""
        with self.lock:
            self.record.count[operation, told] += 1
            self.left -= is_put


class _Writer:
    """Puts, one call after the other."""

    def __init__(self, common: _Common, number: int) -> None:
        share = common.share
        self._common, self._name = common, f"{share.number}-{number}"
        self._chance = random.Random(f"{share.seed} {self._name}")
        patience_s = _PATIENCES_S[number % len(_PATIENCES_S)]
        settings = share.server.settings(common.endpoint, patience_s=patience_s)
        self._store: BucketStore = opened(f"s3://{BUCKET}/{PREFIX}", settings)
        self._parts = self._store.in_parts()
        self._own: dict[str, OwnKey] = {}
        self._keys: list[str] = []

    def run(self) -> None:
        """Put until there are enough."""
        acts: dict[Callable[[], None], int] = {
            self._create: 34,
            self._replace: 10,
            self._replace_again: 8,
            self._create_in_parts: 6,
            self._replace_in_parts: 3,
            self._copy: 8,
            self._race: 14,
            self._exchange: 3,
            self._remove: 3,
            self._read: 8,
            self._list: 1,
        }
        kinds, weights = [*acts], [*acts.values()]
        while self._common.goes_on():
            self._chance.choices(kinds, weights)[0]()
        with self._common.lock:
            self._common.record.own |= self._own

    # -- keys of its own ---------------------------------------------------------------------------

    def _new_key(self) -> str:
        key = f"own/{self._name}/{len(self._keys)}"
        self._keys.append(key)
        self._own[key] = OwnKey()
        return key

    def _content(self, most: int = _MOST_BYTES) -> bytes:
        size = int(most ** self._chance.random())
        return f"{self._name} {secrets.token_hex(8)} ".encode() + self._chance.randbytes(size)

    def _create(self) -> None:
        key, content = self._new_key(), self._content()
        self._created("create", key, content, self._store)
        if (again := self._chance.random()) < 0.02:
            other = content if again < 0.01 else self._content()
            self._created("create again", key, other, self._store)

    def _create_in_parts(self) -> None:
        large = self._chance.randrange(_LARGE_OF) == 0
        content = self._content() + bytes(PART_BYTES if large else 0)
        alone = self._chance.random() < 0.3
        self._created("create in parts", self._new_key(), content, self._parts, alone=alone)

    def _created(
        self, operation: str, key: str, content: bytes, store: BucketStore, *, alone: bool = False
    ) -> None:
        def call() -> Created:
            return store.create(key, content, alone=alone)

        self._settled(operation, key, digest_of(content), call)

    def _settled(
        self, operation: str, key: str, digest: bytes, call: Callable[[], Created]
    ) -> None:
        """Create or copy, and note what came of it."""
        own = self._own[key]
        try:
            found = call()
        except StorageError as error:
            own.written(digest, self._failed(operation, error), creates=True)
            if isinstance(error, ObjectMissingError):
                self._noted(key, Violation(Kind.MISSING, error.message))
            return
        self._common.note(operation, found.value)
        self._noted(key, *own.created(digest, found))

    def _replace(self) -> None:
        self._put("replace", self._new_key(), self._content(), self._store)

    def _replace_again(self) -> None:
        if self._keys:
            key = self._chance.choice(self._keys[-200:])
            self._put("replace again", key, self._content(), self._store)

    def _replace_in_parts(self) -> None:
        large = self._chance.randrange(_LARGE_OF) == 0
        content = self._content() + bytes(PART_BYTES if large else 0)
        self._put("replace in parts", self._new_key(), content, self._parts)

    def _put(self, operation: str, key: str, content: bytes, store: BucketStore) -> None:
        told = Told.DONE
        try:
            store.replace(key, content)
            self._common.note(operation, told.value)
        except StorageError as error:
            told = self._failed(operation, error)
        self._own[key].written(digest_of(content), told)

    def _copy(self) -> None:
        if not self._keys:
            return
        source = self._chance.choice(self._keys)
        digest = self._own[source].known
        if digest is not None:
            target = self._new_key()
            self._settled("copy", target, digest, lambda: self._store.copy(source, target))

    def _remove(self) -> None:
        if not self._keys:
            return
        key, told = self._chance.choice(self._keys), Told.DONE
        try:
            self._store.remove([key])
            self._common.note("remove", told.value, is_put=False)
        except StorageError as error:
            told = self._failed("remove", error, is_put=False)
        self._own[key].written(None, told)

    def _read(self) -> None:
        """Read by one of the ways; lists may be old, and nothing else."""
        if not self._keys:
            return
        key = self._chance.choice(self._keys)
        try:
            if self._chance.random() < 0.5:
                digest: bytes | None = digest_of(self._store.read(key))
            else:
                with closing(self._store.open(key).pieces) as pieces:
                    digest = digest_of(b"".join(pieces))
        except ObjectMissingError:
            digest = None
        except StorageError as error:
            self._failed("read", error, is_put=False)
            return
        self._common.note("read", "done", is_put=False)
        self._noted(key, *self._own[key].seen(digest))

    def _list(self) -> None:
        """Each key of a list is one that was written, once; what came lately may lack."""
        try:
            found = [one.key for one in self._store.list(f"own/{self._name}")]
        except StorageError as error:
            self._failed("list", error, is_put=False)
            return
        self._common.note("list", "done", is_put=False)
        if len(set(found)) < len(found):
            self._noted(self._name, Violation(Kind.DOUBLED, "a list says a key twice"))
        for key in set(found) - self._own.keys():
            self._noted(key, Violation(Kind.WRONG, "a list has it, and nobody wrote it"))

    # -- keys of several ---------------------------------------------------------------------------

    def _race(self) -> None:
        """Create the next one of a sequence, as writers of a Delta log do."""
        sequence = self._chance.randrange(SEQUENCES)
        with self._common.lock:
            number = self._common.newest[sequence] + 1
        key, content = f"raced/{sequence}/{number:020}.json", self._content(500)
        told = self._raced(key, content)
        self._common.note("race", told.value)
        with self._common.lock:
            raced = self._common.record.raced.setdefault(key, Raced())
            raced.told[digest_of(content)] = told
            if told in (Told.DONE, Told.LOST):
                self._common.newest[sequence] = max(self._common.newest[sequence], number)

    def _raced(self, key: str, content: bytes) -> Told:
        """Create it until it is known whose it is."""
        may_be_ours = False
        for _ in range(_ASKED):
            try:
                found = self._store.create(key, content)
            except StorageError as error:
                if error.definite and not may_be_ours:
                    return Told.REFUSED
                may_be_ours = True
                self._common.note("race, asked again", "unknown", is_put=False)
                continue
            if found is Created.EQUAL and not may_be_ours:
                self._noted(key, Violation(Kind.WRONG, "its bytes are called those of another"))
            return Told.LOST if found is Created.OTHER else Told.DONE
        return Told.UNKNOWN

    def _exchange(self) -> None:
        """Raise a number by one, as who takes the lock of a lake does."""
        key = f"counted/{self._chance.randrange(REGISTERS)}"
        try:
            found = self._store.find(key)
            assert found is not None, key
            at = number_of(self._store.read(key, mark=found.mark))
        except FileChangedError:
            return
        except StorageError as error:
            self._failed("look", error, is_put=False)
            return
        new, told = (at[0] + 1, f"{self._name}-{secrets.token_hex(8)}"), Told.DONE
        try:
            if self._store.exchange(key, f"{new[0]} {new[1]}".encode(), found.mark) is None:
                told = Told.LOST
            self._common.note("exchange", told.value)
        except StorageError as error:
            told = self._failed("exchange", error)
        with self._common.lock:
            counted = self._common.record.counted.setdefault(key, Counted())
            counted.told[new] = told
            counted.seen.add(at)

    # -- notes -------------------------------------------------------------------------------------

    def _failed(self, operation: str, error: StorageError, *, is_put: bool = True) -> Told:
        told = Told.REFUSED if error.definite else Told.UNKNOWN
        self._common.note(operation, told.value, is_put=is_put)
        return told

    def _noted(self, key: str, *violations: Violation) -> None:
        with self._common.lock:
            self._common.record.violations += [
                replace(one, text=f"{key}, while it was written: {one.text}") for one in violations
            ]


def registers(server: StoreServer) -> None:
    """Put what is counted, at 0."""
    store = server.store(PREFIX)
    for number in range(REGISTERS):
        store.create(f"counted/{number}", b"0 nobody")
