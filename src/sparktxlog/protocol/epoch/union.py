"""The final queue of an epoch: what any answering member acquired (protocol P15).

A transaction that was added anywhere, or reported as acquired, is held by q members; at least one
of them is among the `|M| - q + 1` that answer.  So the longest answered queue, followed by the
sorted union of everything acquired after it, contains all that was promised to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.order.origin_queues import same_run
from sparktxlog.protocol.words.balloting import MemberState
from sparktxlog.protocol.words.messages import MergeBase, RunHeader, chain_hash
from sparktxlog.protocol.words.view import Voided


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


def final_queue(states: Mapping[NodeId, MemberState]) -> FinalQueue:
    """Return the final queue that the answers of the data quorum give.

    Raises:
        InvariantViolation: The answers contradict each other.
    """
    holder = max(states, key=lambda node: (states[node].base.position, node))
    longest = states[holder]
    found: dict[tuple[str, int], RunHeader] = {}
    for state in states.values():
        for header in state.acquired:
            if header.seq > longest.watermarks.get(header.origin, 0):
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
