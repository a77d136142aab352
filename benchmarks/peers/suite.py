"""Kafka, etcd, NATS JetStream, plain Delta and sparktxlog in turn: CPU, clock and bytes of a unit.

All servers run all the time, each with its warm client; turn by turn each works while the others
rest, so that other load, heat and the disk meet all of them.  CPU is that of all server processes,
and, named apart, of the client; of sparktxlog it counts until all nodes have published what they
ordered.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.peers.etcd import Etcd
from benchmarks.peers.kafka import Brokers, Kafka, KafkaClient
from benchmarks.peers.nats import Nats
from benchmarks.peers.ours import Ours
from benchmarks.peers.peer import Peer, WayMissingError
from benchmarks.peers.places import PeerMissingError
from benchmarks.peers.plain_delta import PlainDelta
from benchmarks.peers.processes import Spent
from benchmarks.results import Figure, spread

BATCH = 1_000
#: Each of three clients sends whole batches.
_WHOLE = 3 * BATCH
#: Pause of a client that sends alone, and seldom.
_SPACED_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each peer does in a turn."""

    turns: int
    #: Name of a peer → transactions in batches; slow ones do fewer.
    batches: Mapping[str, int]
    singles: int
    lone: int
    spaced: int
    #: Rest of a peer's servers in which their idle CPU is measured, seconds.
    rest_s: float = 2.0

    @classmethod
    def of(cls, short: bool) -> Sizes:
        """Return the sizes of a check, or of a measurement."""
        if short:
            few = dict.fromkeys(("etcd", "NATS JetStream, fsync"), 6_000)
            return cls(turns=2, batches=few, singles=300, lone=10, spaced=3)
        fewer = {"etcd": 60_000, "NATS JetStream, fsync": 90_000}
        fewer |= {"NATS JetStream, no fsync": 90_000, "plain Delta append, one copy": 90_000}
        return cls(turns=5, batches=fewer, singles=6_000, lone=80, spaced=8)

    def batch_total(self, peer: str, usual: int) -> int:
        """Return how many transactions a peer sends in batches."""
        return self.batches.get(peer, usual)


@dataclass(slots=True)
class Turns:
    """What the turns of a peer took, each for one unit."""

    peer: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Note what a turn took."""
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        """Return the median of the turns, None without any."""
        found = self.values.get(name)
        return statistics.median(found) if found else None

    def figures(self) -> Iterator[Figure]:
        """Yield a figure for each quantity."""
        for name, values in self.values.items():
            yield spread(f"{name}: {self.peer}", values, UNITS[name])


#: Quantity → unit.
UNITS = {
    "batches of 1,000, three nodes": "tx/s",
    "batches of 1,000, CPU of servers and client for 1,000": "ms",
    "batches of 1,000, CPU of the client for 1,000": "ms",
    "batches of 1,000, bytes written for a transaction of 200 B": "B",
    "single, 64 at once": "tx/s",
    "single, 64 at once, CPU of the servers for one": "ms",
    "single, 64 at once, CPU of the client for one": "ms",
    "lone, back to back, p50": "ms",
    "lone, back to back, CPU of the servers for one": "ms",
    "lone, every 250 ms, p50": "ms",
    "lone, every 250 ms, CPU of the servers for one, above idle": "ms",
    "idle, CPU of the servers in a second": "ms",
}


class Suite:
    """The peers that run here, and what was measured of them."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.peers: list[Peer] = []
        self.turns: dict[str, Turns] = {}
        #: Peer → why it is left out.
        self.missing: dict[str, str] = {}

    def begin(self, root: Path, stack: ExitStack) -> None:
        """Start all; one that is not installed is left out."""
        self._begin("sparktxlog", lambda: _ours(root / "ours", "ABC", stack))
        self._begin("sparktxlog, one node", lambda: _ours(root / "one", "A", stack))
        self._begin("Kafka", lambda: _kafka(root / "kafka", stack))
        self._begin("etcd", lambda: [Etcd(_made(root / "etcd"))])
        self._begin("NATS", lambda: [Nats(_made(root / "nats"))])
        self._begin("NATS", lambda: [Nats(_made(root / "lazy"), synced=False)])
        self._begin("Delta", lambda: [PlainDelta(_made(root / "delta"))])

    def _begin(self, name: str, start: Callable[[], Sequence[Peer]]) -> None:
        try:
            started = start()
        except (PeerMissingError, RuntimeError, TimeoutError) as error:
            self._leave_out(name, error)
            return
        self.add(started)

    def add(self, started: Sequence[Peer]) -> None:
        """Let peers that run take part."""
        self.peers += started
        self.turns |= {peer.name: Turns(peer.name) for peer in started}

    def _leave_out(self, name: str, error: Exception) -> None:
        self.missing[name] = str(error)
        print(f"peers: {name} is left out: {error}", file=sys.stderr, flush=True)

    def warm(self, usual: int) -> None:
        """Let all do a little of everything: JVMs compile, connections open.

        Args:
            usual: Transactions in batches of a peer that is not slow; a third of them.
        """
        for peer in self.peers:
            third = self._sizes.batch_total(peer.name, usual) // (3 * _WHOLE) * _WHOLE
            with suppress(WayMissingError):
                self._try(peer, partial(_warm, peer, max(_WHOLE, third)))

    def measure(self, usual: int) -> None:
        """Measure turn by turn; each turn begins with another peer.

        Args:
            usual: Transactions in batches of a peer that is not slow.
        """
        for turn in range(self._sizes.turns):
            first = turn % len(self.peers)
            for way in (self._batches, self._singles, self._lone, self._spaced):
                for peer in (*self.peers[first:], *self.peers[:first]):
                    if peer.name in self.missing:
                        continue
                    os.sync()  # what one left to be written is not the next one's
                    with suppress(WayMissingError):
                        self._try(peer, partial(way, peer, self.turns[peer.name], usual))
            print(f"peers: turn {turn + 1} of {self._sizes.turns}", file=sys.stderr, flush=True)

    def _try(self, peer: Peer, act: Callable[[], None]) -> None:
        """Measure; a peer that fails is left out from then on, we may not fail."""
        try:
            act()
        except WayMissingError:
            raise
        except Exception as error:
            if isinstance(peer, Ours):
                raise
            self._leave_out(peer.name, error)

    def _batches(self, peer: Peer, turns: Turns, usual: int) -> None:
        if len(peer.pids) == 1 and not isinstance(peer, PlainDelta):
            return  # growth measures one node
        total = self._sizes.batch_total(peer.name, usual)
        spent = peer.measured(lambda: peer.batches(total, BATCH))
        name = "batches of 1,000"
        turns.add(f"{name}, three nodes", total / spent.seconds)
        turns.add(f"{name}, CPU of servers and client for 1,000", _ms(spent, total / BATCH))
        turns.add(f"{name}, CPU of the client for 1,000", 1e3 * spent.client / (total / BATCH))
        each = spent.written / total / len(peer.pids)
        turns.add(f"{name}, bytes written for a transaction of 200 B", each)

    def _singles(self, peer: Peer, turns: Turns, usual: int) -> None:
        total = self._sizes.singles
        spent = peer.measured(lambda: peer.singles(total))
        name = "single, 64 at once"
        turns.add(name, total / spent.seconds)
        turns.add(f"{name}, CPU of the servers for one", 1e3 * spent.servers / total)
        turns.add(f"{name}, CPU of the client for one", 1e3 * spent.client / total)

    def _lone(self, peer: Peer, turns: Turns, usual: int) -> None:
        times: list[float] = []
        spent = peer.measured(lambda: times.extend(peer.lone(self._sizes.lone, 0)))
        turns.add("lone, back to back, p50", 1e3 * statistics.median(times))
        name = "lone, back to back, CPU of the servers for one"
        turns.add(name, 1e3 * spent.servers / self._sizes.lone)

    def _spaced(self, peer: Peer, turns: Turns, usual: int) -> None:
        times: list[float] = []
        idle = peer.measured(lambda: time.sleep(self._sizes.rest_s))
        share = idle.servers / idle.seconds
        number = self._sizes.spaced
        spent = peer.measured(lambda: times.extend(peer.lone(number, _SPACED_S)))
        turns.add("lone, every 250 ms, p50", 1e3 * statistics.median(times))
        name = "lone, every 250 ms, CPU of the servers for one, above idle"
        turns.add(name, 1e3 * (spent.servers - share * spent.seconds) / number)
        turns.add("idle, CPU of the servers in a second", 1e3 * share)

    def figures(self) -> list[Figure]:
        """Return all, quantity by quantity."""
        found = [figure for turns in self.turns.values() for figure in turns.figures()]
        order = list(UNITS)
        return sorted(found, key=lambda figure: order.index(figure.name.rpartition(": ")[0]))


def _warm(peer: Peer, total: int) -> None:
    peer.batches(total, BATCH)
    peer.singles(1_000)
    peer.lone(20, 0)
    peer.settle()


def _ms(spent: Spent, units: float) -> float:
    return 1e3 * (spent.servers + spent.client) / units


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _ours(directory: Path, names: str, stack: ExitStack) -> list[Peer]:
    cluster = stack.enter_context(Cluster(_made(directory), names))
    peer = Ours(cluster)
    if len(names) == 1:
        peer.name += ", one node"
    else:
        peer.prepared()
    return [peer]


def _kafka(directory: Path, stack: ExitStack) -> list[Peer]:
    brokers = Brokers(_made(directory))
    stack.callback(brokers.servers.stop)
    client = KafkaClient(directory, brokers.addresses)
    stack.callback(client.close)
    return [Kafka(brokers, client, synced=synced) for synced in (True, False)]


def run(short: bool) -> list[Figure]:
    """Measure all peers that are installed."""
    suite = Suite(Sizes.of(short))
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        ExitStack() as stack,
    ):
        try:
            usual = 12_000 if short else 300_000
            suite.begin(Path(directory), stack)
            suite.warm(usual)
            suite.measure(usual)
        finally:
            for peer in suite.peers:
                peer.close()
    return suite.figures()
