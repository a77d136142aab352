"""Marks: rare branches that the simulation must have taken at least once."""

from __future__ import annotations

from collections import Counter

from sparktxlog.protocol.balloting import Accept, EpochMessage, Flush, Promise
from sparktxlog.protocol.phases import Phase

#: Marks that a run of many seeds must show.
EXPECTED = (
    "phase SUSPECT", "phase WEDGED", "phase IDLE", "phase JOINING", "phase NORMAL",
    "probe", "prepare", "promise", "refusal", "flush", "flushed", "accept", "accepted", "decide",
    "join request", "tail request",
    "promise with an accepted value", "value of an earlier ballot proposed again",
    "flush of a joiner", "final queue with a tail", "flush not complete",
    "run restamped", "wedged at start", "joining at start", "disk lost", "returned after a loss",
    "member evicted", "member admitted", "roster changed", "two ballots for one epoch",
    "nobody evicted", "one member alone",
    "partition", "one-way cut", "crash", "pause", "slow disk", "clock far off",
)  # fmt: skip


class Marks:
    """Counts of what happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def hit(self, mark: str) -> None:
        """Count a mark."""
        self.counts[mark] += 1

    def phase(self, phase: Phase) -> None:
        """Count a change of phase."""
        self.counts[f"phase {phase}"] += 1

    def message(self, message: EpochMessage) -> None:
        """Count a message of an epoch decision, and what is special about it."""
        counts = self.counts
        counts[_NAMES.get(type(message).__name__, type(message).__name__.lower())] += 1
        match message:
            case Promise():
                if message.accepted is not None:
                    counts["promise with an accepted value"] += 1
            case Flush():
                if message.candidate.tail:
                    counts["final queue with a tail"] += 1
            case Accept():
                if message.ballot.node != message.sender:
                    counts["accept for another node"] += 1
            case _:
                pass

    def missing(self) -> list[str]:
        """Return the expected marks that never showed."""
        return [mark for mark in EXPECTED if not self.counts[mark]]


_NAMES = {
    "ProbeAnswer": "probe answer",
    "JoinRequest": "join request",
    "TailRequest": "tail request",
}
