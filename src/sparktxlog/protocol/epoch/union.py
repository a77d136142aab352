"""The final queue of an epoch: what any answering member acquired (protocol P15).

A transaction that was added anywhere, or reported as acquired, is held by q members; at least one
of them is among the `|M| - q + 1` that answer.  So the longest answered queue, followed by the
sorted union of everything acquired after it, contains all that was promised to clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.balloting import MemberState
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader, chain_hash
from sparktxlog.protocol.messages.view import Voided
from sparktxlog.protocol.order.origin_queues import same_run


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalQueue:
    """Base, the runs after it, and the end."""

    #: Member whose queue reaches `base`.
    holder: NodeId
    base: MergeBase
    tail: tuple[RunHeader, ...]
    end: MergeBase
    #: Per origin: last sequence number in it.
    watermarks: Mapping[str, int]

    def is_held(self, state: MemberState) -> bool:
        """Return whether an answer shows that all of this queue is durable there (P16)."""
        marks = dict(state.watermarks)
        for header in state.acquired:
            marks[header.origin] = header.last
        if any(marks.get(origin, 0) < last for origin, last in self.watermarks.items()):
            return False
        named = {(header.origin, header.seq): header for header in state.acquired}
        return all(named.get((run.origin, run.seq), run) == run for run in self.tail)

    def without(self, voided: Voided) -> FinalQueue:
        """Return the queue with a void run in the place of its original, if it has that."""
        tail = tuple(voided.header if voided.is_of(run) else run for run in self.tail)
        return replace(self, tail=tail, end=end_of(self.base, tail))


def outvoted(states: Mapping[NodeId, MemberState]) -> set[NodeId]:
    """Return the members that name a run otherwise than more of the others do (P10).

    An origin gave its number twice: a copy of its data directory ran in its place.  If as many name
    the one as the other, the later one counts.
    """
    counting, wrong = dict(states), set[NodeId]()
    while torn := _first_torn(counting):
        named = {node: run for node, run in _waiting(counting) if (run.origin, run.seq) == torn}
        times = Counter(named.values())
        right = max(times, key=lambda run: (times[run], run.key, run.digest))
        wrong |= {node for node, run in named.items() if run != right}
        counting = {node: state for node, state in states.items() if node not in wrong}
    return wrong


def _first_torn(states: Mapping[NodeId, MemberState]) -> tuple[NodeId, int] | None:
    """Return origin and number of the first run that two answers name differently."""
    found: dict[tuple[NodeId, int], RunHeader] = {}
    torn = {
        (run.origin, run.seq)
        for _, run in _waiting(states)
        if found.setdefault((run.origin, run.seq), run) != run
    }
    return min(torn, default=None)


def _waiting(states: Mapping[NodeId, MemberState]) -> Iterator[tuple[NodeId, RunHeader]]:
    """Yield the acquired runs after the longest queue, and the members that name them."""
    marks = states[_holder(states)].watermarks if states else {}
    for node, state in states.items():
        for run in state.acquired:
            if run.seq > marks.get(run.origin, 0):
                yield node, run


def _holder(states: Mapping[NodeId, MemberState]) -> NodeId:
    """Return the member with the longest queue."""
    return max(states, key=lambda node: (states[node].base.position, node))


def final_queue(states: Mapping[NodeId, MemberState]) -> FinalQueue:
    """Return the final queue that the answers of the data quorum give.

    Raises:
        InvariantViolation: The answers contradict each other.
    """
    holder = _holder(states)
    longest = states[holder]
    found: dict[tuple[str, int], RunHeader] = {}
    for _, header in _waiting(states):
        same_run(found.setdefault((header.origin, header.seq), header), header)
    tail = tuple(sorted(found.values(), key=lambda header: header.key))
    if tail and tail[0].key <= longest.key:
        raise InvariantViolation(
            f"run {tail[0].key} was acquired and sorts before {longest.key}, the end of {holder}'s "
            "queue (I2)",
            peer=holder,
        )
    return FinalQueue(
        holder=holder,
        base=longest.base,
        tail=tail,
        end=end_of(longest.base, tail),
        watermarks={**longest.watermarks, **{header.origin: header.last for header in tail}},
    )


def end_of(base: MergeBase, tail: tuple[RunHeader, ...]) -> MergeBase:
    """Return the merge base at the end of `tail` after `base`."""
    if not tail:
        return base
    position, hashed = base.position, base.chain_hash
    for header in tail:
        position += header.n
        hashed = chain_hash(hashed, header)
    return MergeBase(
        position=position, chain_hash=hashed, origin=tail[-1].origin, seq=tail[-1].last
    )
