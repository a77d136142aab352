"""What is measured of each peer, and of sparktxlog, in the same words."""

from __future__ import annotations

import os
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeVar

from benchmarks.peers.processes import Spent, private_bytes, spent_now

#: Bytes of a transaction, or of a record.
RECORD_BYTES = 200
#: Clients that send batches: as many for each of three nodes as `submit_many` has connections.
SENDERS = 6
#: Transactions on their way at once when each is sent alone.
OPEN = 64
#: Bytes of a record's key.
KEY_BYTES = 16
_Place = TypeVar("_Place")


class Peer(ABC):
    """Servers that run, and a client of theirs.  **After use:** `close`."""

    #: As figures name it.
    name: str

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Processes of the servers."""

    @property
    def client_pid(self) -> int:
        """Process of the client."""
        return os.getpid()

    @abstractmethod
    def batches(self, total: int, batch: int) -> None:
        """Send `total` transactions in batches, until all are acknowledged."""

    def singles(self, total: int) -> None:
        """Send `total` transactions alone, 64 at once to one node, until all are acknowledged."""
        raise WayMissingError(self.name)

    def lone(self, total: int, pause_s: float) -> list[float]:
        """Send one after the other to one node, with pauses; return the seconds of each."""
        raise WayMissingError(self.name)

    def settle(self) -> None:  # noqa: B027 - most have nothing to do by then
        """Wait until nothing is left to do of what was acknowledged."""

    @abstractmethod
    def close(self) -> None:
        """End the servers and the client."""

    def spent(self) -> Spent:
        """Return what was spent until now."""
        return spent_now(self.pids, self.client_pid)

    def measured(self, act: Callable[[], object]) -> Spent:
        """Return what an act took: seconds until it returns, the rest until all is settled."""
        began = self.spent()
        act()
        acknowledged = self.spent()
        self.settle()
        found = self.spent().since(began)
        return Spent(
            seconds=acknowledged.seconds - began.seconds,
            servers=found.servers,
            client=acknowledged.client - began.client,
            written=found.written,
        )

    def private_bytes(self) -> list[int]:
        """Return the memory of each server that no other process shares."""
        return [private_bytes(pid) for pid in self.pids]


class Records:
    """Records of `RECORD_BYTES`, each with a key of its own; nobody can compress them."""

    def __init__(self) -> None:
        self._numbers = count()
        self._chance = random.Random(7).randbytes(1 << 20)

    def take(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the next ones: key, and the rest."""
        rest = RECORD_BYTES - KEY_BYTES
        for _ in range(number):
            unique = next(self._numbers)
            at = unique * 61 % (len(self._chance) - RECORD_BYTES)
            yield unique.to_bytes(KEY_BYTES, "big"), self._chance[at : at + rest]


def at_once(
    send: Callable[[_Place, list[Exception]], None],
    places: Sequence[_Place],
    errors: type[Exception] | tuple[type[Exception], ...],
) -> None:
    """Send to several places, each in a thread; raise the first failure.

    Args:
        send: Ends once the list that it gets has a failure.
        errors: Those of it.
    """
    failed: list[Exception] = []

    def run(place: _Place) -> None:
        try:
            send(place, failed)
        except errors as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class WayMissingError(Exception):
    """A peer has no such way of writing; its cell stays empty."""
