"""The lock of a lake in a bucket: an object that its holder writes again and again.

Nobody can lock an object of a bucket.  So the holder of a lake exchanges `_sparktxlog/lock` every
few seconds, on the condition that it still has the mark of its last exchange.  Who finds an object
that stayed the same for `EXPIRY_S`, by the clock of the store, exchanges it with a higher number,
the *fence*: from then on the former holder's exchanges fail.

A holder believes that it has the lock for `EXPIRY_S - MARGIN_S` after it began its last exchange,
by a clock of its own that only it reads.  What it began by then ends before anybody takes over.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sparktxlog.errors import (
    CorruptLogError,
    LockedError,
    ObjectMissingError,
    StorageError,
    StoreUnavailableError,
)
from sparktxlog.files.stores.proof import prove
from sparktxlog.files.stores.store import Created, clock_of
from sparktxlog.storage.lock import LOCK_NAME

if TYPE_CHECKING:
    from sparktxlog.files.stores.bucket import BucketStore

_logger = logging.getLogger(__name__)

#: Seconds that a lock is worth after its last exchange.
EXPIRY_S = 60.0
#: Of these its holder does not use the last ones: a request may take so long.
MARGIN_S = 25.0
#: Seconds between exchanges.
RENEW_S = 10.0
#: Who takes the lock of a place waits for the proof of a bucket that is new to it.
_PROOF: dict[str, Any] = {"racers": 4, "races": 1}
#: Attempts to take a lock that others take at the same moment.
_ATTEMPTS = 5


def awake_or_not() -> float:
    """Return seconds since this machine began, also those in which it was suspended.

    Linux's monotonic clock stands still then, and a lock would seem to be held when it is not;
    other systems' clock of that name goes on.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the object says."""

    #: Who has the lock; empty = nobody.
    holder: str
    #: Grows whenever somebody takes the lock.
    fence: int
    #: Grows with each exchange, so that each has a mark of its own.
    beat: int = 0
    #: For people: machine and process.
    machine: str = ""
    process: int = 0


class LakeLease:
    """The lock of one lake, for one process.

    Args:
        store: Its root is the lake.
        key: Of the object.
        holder: Names the holder: a second process of the same name must not run, and its lock is
            taken over at once.
        clock: Steady, seconds.
        owned, owner: What is locked, and by what, for messages.
    """

    def __init__(
        self,
        store: BucketStore,
        key: str,
        holder: str,
        *,
        expiry_s: float = EXPIRY_S,
        margin_s: float = MARGIN_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = awake_or_not,
        owned: str = "replica",
        owner: str = "worker",
    ) -> None:
        self._store, self._key = store, key
        self._expiry_s, self._margin_s, self._renew_s = expiry_s, margin_s, renew_s
        self._clock, self._holder = clock, holder
        self._owned, self._rule = f"the {owned} in {store.url}", f"One {owner} writes a {owned}"
        self._owner = owner
        self._said = Held(holder=holder, fence=0, machine=socket.gethostname(), process=os.getpid())
        #: Mark of the object; until when it counts; why it does not any more.
        self._mark, self._until, self._lost = "", 0.0, ""
        #: Why it was not renewed.
        self._why = "the bucket does not answer"
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def fence(self) -> int:
        """The number of this holder: later ones have greater numbers."""
        return self._said.fence

    def take(self) -> None:
        """Take the lock, and keep it until `release`.

        Raises:
            LockedError: Another process has it (definite).
            CorruptLogError: The object is no lock (definite).
            StorageError: As `Store`.
        """
        for _ in range(_ATTEMPTS):
            began, found = self._clock(), self._store.find(self._key)
            if found is None:
                self._said = replace(self._said, fence=1)
                content = msgspec.json.encode(self._said)
                if self._store.create(self._key, content) is Created.OTHER:
                    continue
                made = self._store.find(self._key)
                mark = None if made is None else self._exchanged(made.mark)
            else:
                there = self._read()
                if there.holder not in ("", self._said.holder):
                    self._refuse_living(there, found.changed_s)
                self._said = replace(self._said, fence=there.fence + 1, beat=there.beat)
                mark = self._exchanged(found.mark)
            if mark is not None:
                self._mark, self._until = mark, began + self._expiry_s - self._margin_s
                self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
                self._renewing.start()
                return
        raise LockedError(
            f"{self._store.url_of(self._key)} was taken by others, {_ATTEMPTS} times in turn",
            hint=f"{self._rule}; stop the others first.",
            path=self._store.url,
        )

    def check(self) -> None:
        """Return if the lock is held for a while yet: what is begun now ends before that.

        Raises:
            LockedError: Another process took it over (definite).
            StoreUnavailableError: It could not be renewed in time, and perhaps is held still
                (definite: nothing was done).
        """
        self.check_owner()
        if self._clock() > self._until:
            raise StoreUnavailableError(
                f"the lock of {self._store.url} was not renewed for "
                f"{self._expiry_s - self._margin_s:.0f} s: {self._why}",
                url=self._store.url_of(self._key),
            )

    def check_owner(self) -> None:
        """Return unless it is known that another process took the lock over.

        Raises:
            LockedError: It did (definite).
        """
        if self._lost:
            raise LockedError(
                f"{self._owned} was taken over: {self._lost}",
                hint=f"{self._rule}.  This one was too slow, or out of reach of the "
                "bucket; the other one goes on.",
                path=self._store.url,
            )

    def release(self) -> None:
        """Let others take the lock at once; a second call does nothing."""
        self._ended.set()
        if self._renewing is None:
            return
        self._renewing.join()
        self._renewing = None
        if not self._lost:
            self._said = replace(self._said, holder="")
            try:
                self._renewed()
            except StorageError as error:  # then it expires
                _logger.warning("the lock of %s is not released: %s", self._store.url, error)

    def _renew(self) -> None:
        while not self._ended.wait(self._renew_s):
            began = self._clock()
            try:
                mark = self._renewed()
            # Nobody sees a thread that ended, and a library may panic.
            except BaseException as error:  # noqa: BLE001
                self._why = str(error) or type(error).__name__
                _logger.warning("the lock of %s is not renewed: %s", self._store.url, self._why)
                continue
            if mark is None:
                self._lost = self._taken_by()
                _logger.error("the lock of %s is lost: %s", self._store.url, self._lost)
                return
            self._mark, self._until = mark, began + self._expiry_s - self._margin_s

    def _renewed(self) -> str | None:
        """Exchange the lock that this process holds; return its mark, None = it is lost."""
        mark = self._exchanged(self._mark)
        if mark is not None or (found := self._store.find(self._key)) is None:
            return mark
        try:
            there = self._read()
        except (CorruptLogError, ObjectMissingError):
            return None
        # If the answer to an exchange was lost, its mark is not known, but the number is ours.
        ours = (there.holder, there.fence) == (self._holder, self.fence)
        return self._exchanged(found.mark) if ours else None

    def _exchanged(self, mark: str) -> str | None:
        self._said = replace(self._said, beat=self._said.beat + 1)
        return self._store.exchange(self._key, msgspec.json.encode(self._said), mark)

    def _taken_by(self) -> str:
        try:
            there = self._read()
        except StorageError as error:
            return str(error)
        return f"process {there.process} of {there.machine} has it, with number {there.fence}"

    def _refuse_living(self, there: Held, changed_s: float) -> None:
        """Raise LockedError unless a lock has expired."""
        left_s = self._expiry_s - (self._now_of_store() - changed_s)
        # Stores keep whole seconds.
        if left_s > -1:
            raise LockedError(
                f"{self._owned} is owned by another {self._owner} (process "
                f"{there.process} of {there.machine})",
                hint=f"{self._rule}; stop that one first.  If it was killed, its "
                f"lock ends in {max(left_s, 0) + 1:.0f} s.",
                path=self._store.url,
                machine=there.machine,
                pid=there.process,
            )

    def _now_of_store(self) -> float:
        """Return the time by the clock of the store, seconds since 1970 UTC."""
        key = f"{self._key}-{secrets.token_hex(8)}"
        now = clock_of(self._store, key)
        if now is None:
            raise StorageError(f"{self._store.url_of(key)} was put, and is not there")
        return now

    def _read(self) -> Held:
        content = self._store.read(self._key)
        try:
            return msgspec.json.decode(content, type=Held)
        except msgspec.MsgspecError as error:
            url = self._store.url_of(self._key)
            raise CorruptLogError(
                f"the lock {url} cannot be read: {error}",
                hint=f"If no {self._owner} runs, remove the object.",
                path=url,
            ) from error


@contextmanager
def place_locked(
    store: BucketStore, lock_store: BucketStore, *, owned: str, owner: str
) -> Iterator[LakeLease]:
    """Hold the lock of a place that is no lake; a bucket that is new to it is proved before.

    Args:
        lock_store: Of the same place (`lock_store_at`).
        owned, owner: As in `LakeLease`.

    Raises:
        LockedError: Another process has it (definite).
        LyingStoreError: The bucket does not keep its promises (definite).
        StorageError: As `Store`.
    """
    if store.find(LOCK_NAME) is None:
        prove(store, **_PROOF)
    lease = LakeLease(lock_store, LOCK_NAME, secrets.token_hex(16), owned=owned, owner=owner)
    lease.take()
    try:
        yield lease
    finally:
        lease.release()
