"""How CPU, rate, latency and memory grow: with the log, with tables, with nodes, with batches.

`python -m benchmarks.growth --log 10000000 --only log` goes as far as is asked for; as one of
`python -m benchmarks` it ends at 1,000,000.  Each figure says what it depends on in its name, which
is what `benchmarks.plots` draws.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.peers.etcd import Etcd
from benchmarks.peers.kafka import Brokers, Kafka, KafkaClient
from benchmarks.peers.nats import Nats
from benchmarks.peers.ours import Ours
from benchmarks.peers.peer import Peer
from benchmarks.peers.places import PeerMissingError
from benchmarks.results import Figure, informing, markdown, spread, write
from sparktxlog import Client

BATCH = 1_000
_MIB = 2**20
#: How often each point is measured.
_TURNS = 3
#: Each of three clients sends whole batches.
_WHOLE = 3 * BATCH
PRIVATE = "private memory of a server, MiB"
KEPT = "private memory kept above that at the start, 8 s later, MiB"
#: Tables that one transaction creates.
_CREATED = 500
_LETTERS = "ABCDE"


@contextmanager
def _ours(names: str = "ABC") -> Iterator[Ours]:
    with (
        tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory,
        Cluster(Path(directory), names) as cluster,
    ):
        peer = Ours(cluster)
        peer.prepared()
        try:
            yield peer
        finally:
            peer.close()


@contextmanager
def _kafka(number: int = 3) -> Iterator[Kafka]:
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory, ExitStack() as stack:
        brokers = Brokers(Path(directory), number)
        stack.callback(brokers.servers.stop)
        client = KafkaClient(Path(directory), brokers.addresses)
        stack.callback(client.close)
        yield Kafka(brokers, client, synced=True, replicas=number)


@contextmanager
def _started(start: Callable[[Path], Peer]) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        peer = start(Path(directory))
        try:
            yield peer
        finally:
            peer.close()


def _each(*starts: Callable[[], AbstractContextManager[Peer]]) -> Iterator[Peer]:
    """Start one peer after the other, each as long as it is used; one that fails is left out."""
    for start in starts:
        try:
            with start() as peer:
                yield peer
        except (PeerMissingError, RuntimeError, TimeoutError) as error:
            print(f"growth: a peer is left out: {error}", file=sys.stderr, flush=True)


def _points(measure: Callable[..., list[Figure]], peer: Peer, *given: object) -> list[Figure]:
    """Measure; what a peer cannot do is left out, and said, we may not fail."""
    try:
        return measure(peer, *given)
    except Exception as error:
        if isinstance(peer, Ours):
            raise
        text = f"growth: {peer.name} at {given}: left out: {error}"
        print(text, file=sys.stderr, flush=True)
        return []


def _filled(peer: Peer, total: int) -> list[Figure]:
    """Send batches that nobody measures."""
    peer.batches(total, BATCH)
    peer.settle()
    return []


def _figure(kind: str, at: int, quantity: str, peer: str, values: Sequence[float]) -> Figure:
    unit = quantity.rpartition(", ")[2]
    return spread(f"growth, {kind} {at:,}: {quantity}: {peer}", values, unit)


def _batches(peer: Peer, kind: str, at: int, total: int, batch: int = BATCH) -> list[Figure]:
    """Return CPU and rate of batches, several times."""
    return _of_batches(peer, kind, at, [_batch_turn(peer, total, batch) for _ in range(_TURNS)])


def _batch_turn(peer: Peer, total: int, batch: int = BATCH) -> tuple[float, float]:
    """Return the CPU of 1,000 transactions, ms, and how many there are in a second."""
    os.sync()
    spent = peer.measured(lambda: peer.batches(total, batch))
    return 1e3 * (spent.servers + spent.client) / (total / 1_000), total / spent.seconds


def _of_batches(
    peer: Peer, kind: str, at: int, turns: Sequence[tuple[float, float]]
) -> list[Figure]:
    cpu, rate = zip(*turns, strict=True)
    return [
        _figure(kind, at, "CPU of servers and client for 1,000 transactions, ms", peer.name, cpu),
        _figure(kind, at, "transactions, tx/s", peer.name, rate),
    ]


def _lone(peer: Peer, kind: str, at: int, number: int) -> list[Figure]:
    """Return CPU and time of lone transactions, several times."""
    return _of_lone(peer, kind, at, [_lone_turn(peer, number) for _ in range(_TURNS)])


def _lone_turn(peer: Peer, number: int) -> tuple[float, float]:
    """Return the servers' CPU of a lone transaction, and its p50, ms."""
    times: list[float] = []
    spent = peer.measured(lambda: times.extend(peer.lone(number, 0)))
    return 1e3 * spent.servers / number, 1e3 * statistics.median(times)


def _of_lone(peer: Peer, kind: str, at: int, turns: Sequence[tuple[float, float]]) -> list[Figure]:
    cpu, p50 = zip(*turns, strict=True)
    return [
        _figure(kind, at, "CPU of the servers for a lone transaction, ms", peer.name, cpu),
        _figure(kind, at, "lone transaction, p50, ms", peer.name, p50),
    ]


def log(short: bool, largest: int = 1_000_000) -> list[Figure]:
    """Grow the log tenfold and tenfold; measure at each size, and what a node's memory is."""
    sizes = [10**n for n in range(4, 8) if 10**n <= (20_000 if short else largest)]
    total = 6_000 if short else 30_000
    found: list[Figure] = []
    for peer in _each(_ours, _kafka):
        idle, held = max(peer.private_bytes()), 0
        for size in sizes:
            more = max(0, size - held - _TURNS * total) // _WHOLE * _WHOLE
            _points(_filled, peer, more)
            found += _points(_batches, peer, "log", size, total)
            held += more + _TURNS * total
            private = max(peer.private_bytes()) / _MIB
            time.sleep(8)  # a node gives memory back a few seconds after work
            kept = (max(peer.private_bytes()) - idle) / _MIB
            found.append(_figure("log", size, PRIVATE, peer.name, [private]))
            found.append(_figure("log", size, KEPT, peer.name, [kept]))
            found += _points(_lone, peer, "log", size, 5 if short else 40)
    return found


def tables(short: bool) -> list[Figure]:
    """Measure clusters with more and more tables in turn: lone transactions, batches to one table.

    What one cluster takes later is not what it takes first, whatever tables it has: its log grew.
    """
    numbers = (10, 100) if short else (10, 100, 1_000, 10_000)
    lone, total = (5, 6_000) if short else (40, 60_000)
    with ExitStack() as stack:
        peers = {number: stack.enter_context(_ours()) for number in numbers}
        for number, peer in peers.items():
            _create_tables(peer, number)
            _filled(peer, _WHOLE)
        turns = {number: (list[Any](), list[Any]()) for number in numbers}
        for _ in range(_TURNS):
            for number, peer in peers.items():
                peer.lone(5, 0)
                turns[number][0].append(_lone_turn(peer, lone))
                turns[number][1].append(_batch_turn(peer, total))
        return [
            figure
            for number, peer in peers.items()
            for figure in (
                *_of_lone(peer, "tables", number, turns[number][0]),
                *_of_batches(peer, "tables", number, turns[number][1]),
            )
        ]


def _create_tables(peer: Ours, number: int) -> None:
    """Create tables until there are so many."""
    with Client(next(iter(peer.cluster.urls.values())), timeout=300) as client:
        for made in range(2, number, _CREATED):
            with client.transaction() as transaction:
                for one in range(made, min(made + _CREATED, number)):
                    transaction.create_table(f"other_{one}", {"id": "bigint", "v": "string"})
    peer.settle()


def nodes(short: bool) -> list[Figure]:
    """Measure clusters of one to five nodes; Kafka with as many copies as brokers."""
    found: list[Figure] = []
    total = 6_000 if short else 60_000
    for number in (1, 2) if short else range(1, 6):
        share = total // number // BATCH * BATCH * number
        for peer in _each(partial(_ours, _LETTERS[:number]), partial(_kafka, number)):
            _points(_filled, peer, share)
            found += _points(_batches, peer, "nodes", number, share)
            found += _points(_lone, peer, "nodes", number, 5 if short else 40)
    return found


def batch(short: bool) -> list[Figure]:
    """Send batches of one to 8,192 transactions."""
    sizes = {1: 1_800, 10: 9_000, 100: 60_000, 1_000: 120_000, 8_192: 6 * 3 * 8_192}
    found: list[Figure] = []
    for peer in _each(_ours, _kafka, partial(_started, Etcd), partial(_started, Nats)):
        _points(_filled, peer, 12_000)
        for size, total in sizes.items():
            if size > 1_000 and peer.name.startswith("NATS"):
                continue  # its batches have 1,000 messages at most
            less = 10 if short else 1 if peer.name in {"sparktxlog", "Kafka, fsync"} else 2
            some = max(6 * size, total // less // (6 * size) * 6 * size)
            found += _points(_batches, peer, "batch", size, some, size)
    return found


PARTS: dict[str, Callable[..., list[Figure]]] = {
    "log": log,
    "tables": tables,
    "nodes": nodes,
    "batch": batch,
}


def _part(name: str, measure: Callable[[], list[Figure]]) -> list[Figure]:
    begin = time.perf_counter()
    found = measure()
    print(f"growth, {name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return found


def run(short: bool) -> list[Figure]:
    """Measure all parts."""
    found: list[Figure] = []
    for name, measure in PARTS.items():
        found += _part(name, partial(measure, short))
    return found + tenfold(found)


def tenfold(figures: Sequence[Figure]) -> list[Figure]:
    """Return what 10,000 tables cost, divided by what ten cost."""
    values = {figure.name: figure.value for figure in figures}
    found = []
    for name, quantity in (
        ("lone", "CPU of the servers for a lone transaction, ms"),
        ("batch", "CPU of servers and client for 1,000 transactions, ms"),
    ):
        few, many = (
            values.get(f"growth, tables {number:,}: {quantity}: sparktxlog")
            for number in (10, 10_000)
        )
        if few and many:
            text = f"CPU with 10,000 tables, divided by that with ten: {name}"
            found.append(informing(text, many / few, ""))
    return found


def main() -> int:
    """Measure some parts, as far as is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this (repeat)")
    parser.add_argument("--log", type=int, default=1_000_000, help="transactions, to 10,000,000")
    parser.add_argument("--short", action="store_true", help="small sizes: a check, no figures")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("results.json"), metavar="FILE"
    )
    given = parser.parse_args()
    # Who ends this process ends its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: list[Figure] = []
    for name in given.only or PARTS:
        more = (given.log,) if name == "log" else ()
        found += _part(name, partial(PARTS[name], given.short, *more))
    found += tenfold(found)
    print(markdown(found))
    if not given.short:
        write(given.output, found, keep=given.output.exists())
    return 0


if __name__ == "__main__":
    sys.exit(main())
