"""What must hold, whoever drives the cores (docs/protocol.md, "Invariants").

The simulation and the cluster of letters call these step by step, the exploration state by state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from tests.verification.model.disk import CoreDisk, RunKey, key_of

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.messages.actions import TellOrdered
from sparktxlog.protocol.messages.posts import Post, QueueEntry, RunHeader, chain_hash
from sparktxlog.protocol.messages.view import View, same_decision


def violated(story: str) -> NoReturn:
    """Raise a violation; its story begins with the number of the invariant."""
    raise InvariantViolation(story)


class HasDisk(Protocol):
    """A node, as far as its disk goes."""

    @property
    def disk(self) -> CoreDisk:
        """What is durable at the node."""


class OneQueue:
    """I1, I2: all queues are prefixes of one, which is sorted, gapless and linked.

    Each entry of each queue is compared once: no disk takes one back.
    """

    def __init__(self) -> None:
        self.log: list[QueueEntry] = []
        #: Run → its last position.
        self.positions: dict[RunKey, int] = {}
        #: Node → entries of its queue that were compared.
        self.compared: dict[str, int] = {}
        #: Origin → incarnation and last number of its last run.
        self._numbers: dict[str, tuple[int, int]] = {}

    def see(self, disk: CoreDisk) -> list[QueueEntry]:
        """Compare what a queue grew by; return what the one queue grew by."""
        queue, log, name = disk.queue, self.log, disk.owner
        known = len(log)
        for index in range(self.compared.get(name, 0), len(queue)):
            entry = queue[index]
            if index == len(log):
                self._append(entry)
            elif log[index] != entry:
                mine, others = _name(entry.header), _name(log[index].header)
                violated(f"I1: {name} has {mine} at run {index}, others {others}")
        self.compared[name] = len(queue)
        return log[known:]

    def _append(self, entry: QueueEntry) -> None:
        header, last = entry.header, self.log[-1] if self.log else None
        end, previous = (last.end, last.chain_hash) if last else (0, bytes(32))
        if entry.position != end + 1 or (last and header.key <= last.header.key):
            violated(f"I2: {header} at {entry.position} follows {last}")
        if entry.previous_hash != previous or entry.chain_hash != chain_hash(previous, header):
            violated(f"I2: broken hash link at {entry.position}")
        if key_of(header) in self.positions:
            violated(f"I2: {key_of(header)} stands twice in the queue")
        incarnation, number = self._numbers.get(header.origin, (1, 0))
        if header.seq != number + 1 or header.incarnation < incarnation:
            violated(f"I2: {header} follows number {number} of incarnation {incarnation}")
        self._numbers[header.origin] = (header.incarnation, header.last)
        self.positions[key_of(header)] = entry.end
        self.log.append(entry)


def _name(header: RunHeader) -> str:
    return f"{header.origin}:{header.seq}@{header.ts}"


def check_holders(header: RunHeader, nodes: Sequence[HasDisk], quorum: int) -> None:
    """I3, I6: so many nodes hold what is ordered, or was told as acquired (P7)."""
    holders = [node.disk.owner for node in nodes if node.disk.holds(header)]
    if len(holders) < quorum:
        violated(f"I3: {header.key} is held by {holders} only")


def check_entered(disk: CoreDisk, view: View) -> None:
    """I4: nobody is in an epoch without the whole final queue of the one before."""
    end = disk.queue[-1].end if disk.queue else 0
    if end < view.end.position:
        violated(f"I4: {disk.owner} is in {view.epoch} with {end} of {view.end.position} positions")


def note_decision(views: dict[int, View], view: View) -> bool:
    """I5: there is one decision on an epoch; note it, and return whether it is a new one."""
    known = views.get(view.epoch)
    if known is not None and not same_decision(known, view):
        violated(f"I5: two decisions on epoch {view.epoch}: {known} and {view}")
    if known is None or len(view.tail) > len(known.tail):
        views[view.epoch] = view  # the others were told without a part of its tail
    return known is None


class Answers:
    """I7: everybody tells clients the same of a run."""

    def __init__(self) -> None:
        #: Run → its position and what is rejected of it.
        self.told: dict[RunKey, tuple[int, object]] = {}

    def see(self, name: str, action: TellOrdered) -> None:
        """Compare what a node tells with what was told before."""
        for entry in action.entries:
            outcome = (entry.position, entry.rejections)
            before = self.told.setdefault(key_of(entry.header), outcome)
            if before != outcome:
                violated(f"I7: {name} told {entry.header} {outcome}, before {before}")


def check_post(disk: CoreDisk, post: Post, before: int) -> None:
    """I11: posted counters of an epoch never fall, and none lies above the reserved one.

    Args:
        before: Counter of the last post to the same peer, in the same epoch.
    """
    if post.counter < before:
        violated(f"I11: {disk.owner} posted {before}, then {post.counter}")
    if post.counter > disk.reserved:
        violated(f"I11: {disk.owner} posted {post.counter}, reserved are {disk.reserved}")
