"""The history of all clients, judged: each checker gets the part that it is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.verification.places import Place
from tests.verification.torture.bank import BankRead, bank_violations
from tests.verification.torture.history import Act, effects, read_queue, violations
from tests.verification.torture.list_append import ListTransaction, anomalies
from tests.verification.torture.preparing import prepared_violations
from tests.verification.torture.replicas import Replica, read_published
from tests.verification.torture.sessions import session_violations
from tests.verification.torture.set_full import SetRead, set_violations
from tests.verification.torture.workloads import BANKS, LISTS, OPENING, SET, BulkHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What clients did and saw, and the disks of the nodes, which are stopped and had ordered all.

    Attributes:
        directory: With the data directory of each node.
        payloads: Node → what it published.
        acts: All transactions, those of `bulk` included.
        faults: How often each befell nodes.
        requests: How many to the bucket met which fault; empty on disks.
    """

    directory: Path
    payloads: Mapping[str, Place]
    acts: list[Act]
    bulk: BulkHistory
    replicas: Sequence[Replica]
    faults: Counter[str]
    requests: dict[str, int]


def orders(
    transactions: Sequence[ListTransaction], positions: Mapping[str, int]
) -> dict[str, list[int]]:
    """Return the elements of each list in the order of the log.

    Args:
        transactions: Their names are their ids.
        positions: Of the ids that took effect.
    """
    found: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for one in transactions:
        for name, elements in one.appends.items() if one.name in positions else ():
            found.setdefault(name, []).append((positions[one.name], elements))
    return {
        name: [element for _, elements in sorted(parts) for element in elements]
        for name, parts in found.items()
    }


def judge(evidence: Evidence) -> Iterator[str]:
    """Yield what is wrong, a sentence each."""
    bulk = evidence.bulk
    queues = [read_queue(name, evidence.directory / name) for name in evidence.payloads]
    yield from violations(evidence.acts, queues)
    for replica in evidence.replicas:
        yield from replica.wrong
    bank_reads = [read for replica in evidence.replicas for read in replica.bank_reads]
    lists, set_reads = list(bulk.lists), list(bulk.set_reads)
    moved: list[BankRead] = []
    for name, payloads in evidence.payloads.items():
        data = evidence.directory / name
        view, states = read_published(name, data, payloads, LISTS, BANKS)
        moved += states
        end = view.position
        set_reads.append(SetRead(f"the disk of {name}", end, end, view.lists[SET], is_final=True))
        seen = {of: view.lists[of] for of in LISTS if of != SET}
        lists.append(ListTransaction(f"the disk of {name}", 0.0, told="read", reads=seen))
    yield from _judge_lists(lists, effects(queues[0]))
    bank_reads += moved
    yield from (f"bank: {line}" for line in bank_violations(bank_reads, OPENING))
    written = {read.position for read in moved}
    told = prepared_violations(bulk.prepared, queues[0], written)
    yield from (f"prepared: {line}" for line in told)
    yield from (f"set: {line}" for line in set_violations(bulk.adds, set_reads))
    yield from (f"session: {line}" for line in session_violations(bulk.lists))
    yield from _idle(bulk, bank_reads)


def _judge_lists(lists: Sequence[ListTransaction], positions: Mapping[str, int]) -> Iterator[str]:
    for kind, text in anomalies(lists, orders(lists, positions)):
        yield f"lists: {kind}: {text}"


def _idle(bulk: BulkHistory, bank_reads: Sequence[BankRead]) -> Iterator[str]:
    """Yield which workload did nothing: then its checker has seen nothing."""
    guarded = [one.told for one in bulk.lists if one.reads and one.appends]
    for what, count in {
        "a conditional append took effect": guarded.count("ordered"),
        "accounts were read": len(bank_reads),
        "money was moved": bulk.transfers["ordered"],
        "a prepared transfer was decided": sum(len(one.answers) for one in bulk.prepared),
        "an element was added": sum(add.told == "ordered" for add in bulk.adds),
    }.items():
        if not count:
            yield f"it never happened that {what}"
