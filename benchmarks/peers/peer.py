"""What is measured of each peer, and of sparktxlog, in the same words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from benchmarks.peers.processes import Spent, private_bytes, spent_now

#: Bytes of a transaction, or of a record.
RECORD_BYTES = 200
#: Clients that send batches: as many for each of three nodes as `submit_many` has connections.
SENDERS = 6
#: Transactions on their way at once when each is sent alone.
OPEN = 64


class Peer(ABC):
    """Servers that run, and a client of theirs.  **After use:** `close`."""

    #: As figures name it.
    name: str

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Processes of the servers."""

    @property
    @abstractmethod
    def client_pid(self) -> int:
        """Process of the client."""

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


class WayMissingError(Exception):
    """A peer has no such way of writing; its cell stays empty."""
