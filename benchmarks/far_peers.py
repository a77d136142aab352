"""How long a lone write takes at etcd, NATS JetStream and Kafka, where their servers are far.

The same relays as in `latency`, which measures sparktxlog: the servers reach each other by them,
the client is beside one server, first the one that leads, then another one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.cluster import free_port
from benchmarks.delayed_links import DelayedLinks
from benchmarks.latency import DELAYS_MS
from benchmarks.peers.etcd import Etcd
from benchmarks.peers.kafka import Brokers, Kafka, KafkaClient
from benchmarks.peers.nats import Nats
from benchmarks.peers.places import PeerMissingError
from benchmarks.results import Figure, spread

#: Place of the client → the seconds that each write took.
Times = dict[str, list[float]]
_LEADER, _OTHER = "at the leader", "at another server"


def _ports(names: Sequence[str]) -> dict[str, int]:
    return {name: free_port() for name in names}


@contextmanager
def _relays(ports: dict[str, int], delay_s: float) -> Iterator[dict[str, int]]:
    """Yield the ports of relays to some ports, by name."""
    with DelayedLinks(ports, delay_s) as links:
        yield {name: int(url.rpartition(":")[2]) for name, url in links.urls.items()}


def _times(peer: Etcd | Nats, names: Iterable[str], writes: int) -> Times:
    with closing(peer):
        other = next(name for name in names if name != peer.leader)
        peer.lone(2, 0)
        return {_LEADER: peer.lone(writes, 0), _OTHER: peer.lone(writes, 0, other)}


def _etcd(directory: Path, delay_s: float, writes: int) -> Times:
    ports = _ports(["m0", "m1", "m2"])
    with _relays(ports, delay_s) as shown:
        return _times(Etcd(directory, 3, shown, ports, slow=True), ports, writes)


def _nats(directory: Path, delay_s: float, writes: int) -> Times:
    ports = _ports(["n0", "n1", "n2"])
    with _relays(ports, delay_s) as shown:
        return _times(Nats(directory, 3, shown, ports), ports, writes)


def _kafka(directory: Path, delay_s: float, writes: int) -> Times:
    """Return the times at the leader; its client has no other place to write to."""
    ports = _ports([f"{kind}-{i}" for i in range(1, 4) for kind in ("broker", "controller")])
    with ExitStack() as stack:
        shown = stack.enter_context(_relays(ports, delay_s))
        both = [
            {i: (of[f"broker-{i}"], of[f"controller-{i}"]) for i in range(1, 4)}
            for of in (shown, ports)
        ]
        brokers = Brokers(directory, 3, *both)
        stack.callback(brokers.servers.stop)
        client = KafkaClient(directory, brokers.addresses)
        stack.callback(client.close)
        peer = Kafka(brokers, client, synced=True)
        peer.lone(30, 0)
        return {_LEADER: peer.lone(writes, 0)}


PEERS: dict[str, Callable[[Path, float, int], Times]] = {
    "etcd": _etcd,
    "NATS JetStream, fsync": _nats,
    "Kafka, fsync": _kafka,
}


def run(short: bool) -> list[Figure]:
    """Measure each peer with each delay."""
    found: list[Figure] = []
    for delay_ms in (20,) if short else DELAYS_MS:
        for name, measure in PEERS.items():
            with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
                try:
                    times = measure(Path(directory), delay_ms / 1e3, 4 if short else 20)
                except (PeerMissingError, RuntimeError, TimeoutError) as error:
                    print(f"far_peers: {name} is left out: {error}", file=sys.stderr, flush=True)
                    continue
            for place, seconds in times.items():
                p50 = 1e3 * statistics.median(seconds)
                text = f"growth, delay {delay_ms:g}: commit, p50, ms: {name}, {place}"
                found.append(spread(text, [p50], "ms"))
    return found
