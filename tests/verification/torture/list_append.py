"""Is a history of reads of lists and appends to them serializable?  In the manner of Jepsen's Elle.

Each element is appended once in the whole history, so a list that was read tells in which order its
elements were appended, and who wrote what the reader saw.  The dependencies of all transactions
are a graph (see `graph`), and whatever no serial order explains is a cycle in it.

Anomalies, by their usual names:

    G0        cycle of writes
    G1a       somebody read what was rejected or refused
    G1b       somebody read a part of what a transaction appended to one list
    G1c       cycle of writes and reads
    G-single  cycle with one anti-dependency: a lost update, a read of two states
    G2        cycle with several of them: write skew
    …-process, …-realtime   the same with the order of sessions, and with real time

and `garbage` (read, but never appended), `duplicate`, `incompatible-order` (two reads of a list, of
which neither continues the other), `lost` (acknowledged, and not there), `aborted-write` (refused,
and there).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from tests.verification.torture.graph import RT, RW, SO, WR, WW, worst_cycles


class Seen(NamedTuple):
    """The first `length` elements of a list, in a reader's copy that only grows."""

    elements: Sequence[int]
    length: int


class Anomaly(NamedTuple):
    """What is wrong: its class, and a sentence."""

    kind: str
    text: str


@dataclass(slots=True)
class ListTransaction:
    """One transaction: what it read, then what it appended; or only one of these.

    Attributes:
        told: A level, `read` (it only read), `rejected` or `refused` (it certainly did not happen),
            or `unknown`.
        read_position: Position that it read at.
        position: Position that it was told.
    """

    name: str
    began: float
    ended: float = float("inf")
    told: str = "unknown"
    session: str = ""
    reads: Mapping[str, Seen] = field(default_factory=dict)
    appends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    read_position: int | None = None
    position: int | None = None


_KNOWN = frozenset({"ordered", "read"})
_ABORTED = frozenset({"rejected", "refused"})


def anomalies(
    transactions: Sequence[ListTransaction], orders: Mapping[str, Sequence[int]] | None = None
) -> list[Anomaly]:
    """Return what is wrong with a history, the worst of each knot.

    Args:
        transactions: All of all clients.
        orders: For each list its elements in the order of the log; None: the longest read tells.
    """
    known = _Lists(transactions, orders)
    found = [*known.wrong_orders(), *known.wrong_reads()]
    names = [transaction.name for transaction in transactions]
    edges = known.edges()
    for kind, cycle in worst_cycles(edges):
        steps = [f"{names[v]} -{k}->" for v, k in cycle if v < len(names)]
        found.append(Anomaly(kind, f"{' '.join(steps)} {steps[0].split(' ')[0]}"))
    return found


class _Lists:
    """The lists as the log has them, and how the transactions are related to them."""

    def __init__(
        self,
        transactions: Sequence[ListTransaction],
        orders: Mapping[str, Sequence[int]] | None,
    ) -> None:
        self._all = transactions
        self._is_whole = orders is not None
        self._orders = _longest_reads(transactions) if orders is None else orders
        #: Element → index of its transaction.
        self._appenders = {
            element: index
            for index, transaction in enumerate(transactions)
            for elements in transaction.appends.values()
            for element in elements
        }
        #: For each list the transactions of its elements, None: nobody's.
        self._writers = {
            name: [self._appenders.get(element) for element in order]
            for name, order in self._orders.items()
        }
        #: (list, reader's copy) → how many elements it shares with the log from the first on.
        self._shared: dict[tuple[str, int], int] = {}
        in_effect = {w for writers in self._writers.values() for w in writers if w is not None}
        self._in_effect = [
            transaction.told in _KNOWN or index in in_effect
            for index, transaction in enumerate(transactions)
        ]

    def wrong_orders(self) -> Iterator[Anomaly]:
        """Yield what is wrong with the lists themselves."""
        for name, order in self._orders.items():
            if len(set(order)) < len(order):
                yield Anomaly("duplicate", f"{name} has an element twice")
            for element, writer in zip(order, self._writers[name], strict=True):
                if writer is None:
                    yield Anomaly("garbage", f"{element} of {name} was never appended")
                elif self._all[writer].told in _ABORTED:
                    one, kind = self._all[writer], "aborted-write" if self._is_whole else "G1a"
                    yield Anomaly(kind, f"{one.name} was {one.told}, {name} has {element}")
        if not self._is_whole:
            return
        there = {name: set(order) for name, order in self._orders.items()}
        for one in self._all:
            for name, elements in one.appends.items() if one.told == "ordered" else ():
                if not there.get(name, set()).issuperset(elements):
                    yield Anomaly("lost", f"{one.name} was ordered, {name} lacks {elements}")

    def wrong_reads(self) -> Iterator[Anomaly]:
        """Yield reads that show what no transaction left there."""
        told: set[tuple[str, int]] = set()
        for index, one in enumerate(self._all):
            for name, seen in one.reads.items():
                shared, copy = self._common(name, seen), (name, id(seen.elements))
                if shared < seen.length and copy not in told:
                    told.add(copy)
                    yield self._disagreement(one, name, seen, shared)
                writers = self._writers.get(name, [])
                if (
                    0 < seen.length == shared < len(writers)
                    and writers[shared - 1] == writers[shared] != index
                ):
                    yield Anomaly("G1b", f"{one.name} read a part of what was appended to {name}")

    def _common(self, name: str, seen: Seen) -> int:
        """Return how many elements of a read agree with the log."""
        key, order = (name, id(seen.elements)), self._orders.get(name, ())
        if key not in self._shared:
            pairs = zip(order, seen.elements, strict=False)
            most = min(len(order), len(seen.elements))
            self._shared[key] = next((at for at, (a, b) in enumerate(pairs) if a != b), most)
        return min(self._shared[key], seen.length)

    def _disagreement(self, one: ListTransaction, name: str, seen: Seen, at: int) -> Anomaly:
        element = seen.elements[at]
        writer = self._appenders.get(element)
        text = f"{one.name} read {element} as number {at} of {name}"
        if writer is None:
            return Anomaly("garbage", f"{text}, which was never appended")
        if element in seen.elements[:at]:
            return Anomaly("duplicate", f"{text}, and before that already")
        other = self._all[writer]
        if other.told in _ABORTED or element not in self._orders.get(name, ()):
            return Anomaly("G1a", f"{text}; {other.name} was {other.told} and is not there")
        return Anomaly("incompatible-order", f"{text}, where the log has another one")

    def edges(self) -> list[list[tuple[int, str]]]:
        """Return the graph; vertices after those of the transactions are moments."""
        edges: list[list[tuple[int, str]]] = [[] for _ in self._all]
        for writers in self._writers.values():
            for one, other in pairwise(writers):
                if one != other and one is not None and other is not None:
                    edges[one].append((other, WW))
        for index, transaction in enumerate(self._all):
            for name, seen in transaction.reads.items() if self._in_effect[index] else ():
                shared, writers = self._common(name, seen), self._writers.get(name, [])
                before = writers[shared - 1] if shared else None
                after = writers[shared] if shared < len(writers) else None
                if before not in (None, index):
                    edges[before].append((index, WR))
                if after not in (None, index):
                    edges[index].append((after, RW))
        self._add_sessions(edges)
        self._add_moments(edges)
        return edges

    def _add_sessions(self, edges: list[list[tuple[int, str]]]) -> None:
        """A session's step comes after what it knows to have happened."""
        for steps in session_steps(self._all).values():
            last: list[int] = []
            for step in steps:
                step = [index for index in step if self._in_effect[index]]
                if last and step:
                    # A moment between both: pairs of two runs of 10,000 would fill the memory.
                    between = len(edges)
                    edges.append([(index, SO) for index in step])
                    for before in last:
                        edges[before].append((between, SO))
                last = [index for index in step if self._all[index].told in _KNOWN] or last

    def _add_moments(self, edges: list[list[tuple[int, str]]]) -> None:
        """What began after another one had ended comes after it; but a read may be of an old state.

        Each end is a moment, from which an edge leads to the next one, so there are few edges.
        """
        done = [index for index, one in enumerate(self._all) if one.told in _KNOWN]
        done.sort(key=lambda index: self._all[index].ended)
        ends = [self._all[index].ended for index in done]
        first = len(edges)
        edges += [[(first + at + 1, RT)] for at in range(len(done))]
        if done:
            edges[-1].clear()
        for at, index in enumerate(done):
            edges[index].append((first + at, RT))
        for index, one in enumerate(self._all):
            ended = bisect_left(ends, one.began)
            if ended and one.appends and self._in_effect[index]:
                edges[first + ended - 1].append((index, RT))


def session_steps(transactions: Sequence[ListTransaction]) -> dict[str, list[list[int]]]:
    """Return for each session its steps: indices of what began at one moment, as a run does."""
    sessions: dict[str, list[int]] = {}
    for index in sorted(range(len(transactions)), key=lambda index: transactions[index].began):
        if transactions[index].session:
            sessions.setdefault(transactions[index].session, []).append(index)
    return {
        name: [list(step) for _, step in groupby(of, key=lambda index: transactions[index].began)]
        for name, of in sessions.items()
    }


def _longest_reads(transactions: Sequence[ListTransaction]) -> dict[str, Sequence[int]]:
    longest: dict[str, Seen] = {}
    for one in transactions:
        for name, seen in one.reads.items():
            longest[name] = max(seen, longest.get(name, seen), key=lambda s: s.length)
    return {name: seen.elements[: seen.length] for name, seen in longest.items()}
