"""What clients did and were told, and whether the queues on disk keep it.

One client submits a transaction at a node, and again under the same id at other nodes while it does
not know the outcome.  Times are of one monotonic clock, so they order the acts of all clients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable


@dataclass(slots=True)
class Act:
    """One transaction of one client, with all its attempts."""

    transaction_id: str
    #: Before the first attempt, and after the last one; seconds.
    began: float
    ended: float = 0.0
    #: What the client was told: a level, `refused` (it certainly did not happen), or `unknown`.
    told: str = "unknown"
    #: Where, if it was told.
    position: int | None = None


@dataclass(frozen=True, slots=True)
class QueueOnDisk:
    """The queue table of one node, as its files say it."""

    node: str
    positions: Sequence[int]
    ids: Sequence[str]
    hashes: Sequence[str]
    #: Positions without effect.
    rejected: frozenset[int]
    #: Prepared transaction → its position; it takes effect elsewhere, if at all.
    prepared: Mapping[str, int] = field(default_factory=dict)
    #: Positions of committed transactions without operations: marks, and what lets time pass.
    empty: frozenset[int] = frozenset()


def read_queue(node: str, data: Path) -> QueueOnDisk:
    """Read a stopped node's queue table, without any code of the node."""
    columns = ["position", "transaction_id", "chain_hash", "outcome", "operations"]
    table: pa.Table = DeltaTable(str(data / "log" / "synchronized_queue")).to_pyarrow_table(
        columns=columns
    )
    table = table.sort_by("position")
    positions, ids, hashes, outcomes = (table[name].to_pylist() for name in columns[:4])
    # The queues of all nodes have the same texts: they are kept once.
    ids, hashes = list(map(sys.intern, ids)), list(map(sys.intern, hashes))
    gone = (at for at, outcome in zip(positions, outcomes, strict=True) if outcome != "committed")
    prepared = {
        identity: at
        for at, identity, outcome in zip(positions, ids, outcomes, strict=True)
        if outcome == "prepared"
    }
    empty = pc.equal(pc.list_value_length(table["operations"]), 0)
    return QueueOnDisk(
        node,
        positions,
        ids,
        hashes,
        frozenset(gone),
        prepared,
        frozenset(table.filter(empty)["position"].to_pylist()),
    )


def violations(acts: Sequence[Act], queues: Sequence[QueueOnDisk]) -> Iterator[str]:
    """Yield what is wrong, a sentence each; the queues are whole, from position 1 on."""
    yield from _differences(queues)
    first = queues[0]
    effective = effects(first)
    for position, identity in zip(first.positions, first.ids, strict=True):
        if position not in first.rejected and position != effective[identity]:
            yield f"{identity} took effect at {effective[identity]} and again at {position}"
    for act in acts:
        yield from _broken_promise(act, effective)
    known = {act.transaction_id for act in acts}
    strangers = [
        identity
        for identity, position in effective.items()
        if identity not in known and position not in first.empty
    ]
    # The creation of the table is nobody's act.
    if len(strangers) > 1:
        yield f"{len(strangers) - 1} transactions are in the queue that nobody submitted"
    yield from _not_in_real_time(acts, effective)


def effects(queue: QueueOnDisk) -> dict[str, int]:
    """Return the ids that took effect, with the position where each did so first."""
    found: dict[str, int] = {}
    for position, identity in zip(queue.positions, queue.ids, strict=True):
        if position not in queue.rejected:
            found.setdefault(identity, position)
    return found


def _differences(queues: Sequence[QueueOnDisk]) -> Iterator[str]:
    first = queues[0]
    for queue in queues:
        if list(queue.positions) != list(range(1, len(queue.positions) + 1)):
            yield f"the queue of {queue.node} has gaps or positions twice"
        for name in ("positions", "ids", "hashes", "rejected", "prepared"):
            if getattr(queue, name) != getattr(first, name):
                yield f"the queues of {first.node} and {queue.node} have different {name}"


def _broken_promise(act: Act, effective: Mapping[str, int]) -> Iterator[str]:
    found = effective.get(act.transaction_id)
    if act.told == "refused" and found is not None:
        yield f"{act.transaction_id} was refused for certain, and took effect at {found}"
    if act.told in ("accepted", "acquired", "ordered") and found is None:
        yield f"{act.transaction_id} was {act.told}, and is in no queue"
    if act.position is not None and found is not None and act.position != found:
        yield f"{act.transaction_id} was told position {act.position}, and is at {found}"


def _not_in_real_time(acts: Sequence[Act], effective: Mapping[str, int]) -> Iterator[str]:
    """What was ordered before another one was submitted, at any node, stands before it."""
    done = sorted((a for a in acts if a.told == "ordered"), key=lambda act: act.ended)
    begun = sorted((a for a in acts if a.transaction_id in effective), key=lambda act: act.began)
    highest, at = 0, 0
    for act in begun:
        while at < len(done) and done[at].ended < act.began:
            highest = max(highest, effective.get(done[at].transaction_id, 0))
            at += 1
        position = effective[act.transaction_id]
        if position < highest:
            yield (
                f"{act.transaction_id} stands at {position}, before {highest}, which was ordered "
                "before it was submitted"
            )
