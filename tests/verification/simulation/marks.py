"""Marks: rare branches that the simulation must have taken at least once."""

from __future__ import annotations

from collections import Counter

from sparktxlog.protocol.messages.actions import PERSISTS, PersistVoid
from sparktxlog.protocol.messages.balloting import (
    Accept,
    EpochMessage,
    Flush,
    Flushed,
    Prepare,
    Promise,
)
from sparktxlog.protocol.messages.view import Ballot, Phase, View


def crash_mark(kind: type, *, kept: bool) -> str:
    """Return the mark of a crash that struck a write with a `Persist…` of that kind in it."""
    return f"crash {'kept' if kept else 'lost'} {kind.__name__}"


#: Mark of a history that ends early: only a backup would help.
LOST = "the only member lied, and was lost"

#: Marks that a run of many seeds must show.
EXPECTED = (
    "phase SUSPECT", "phase WEDGED", "phase IDLE", "phase JOINING", "phase NORMAL",
    "probe", "prepare", "promise", "refusal", "flush", "flushed", "accept", "accepted", "decide",
    "join request", "tail request",
    "promise with an accepted value", "value of an earlier ballot proposed again",
    "flush of a joiner", "final queue with a tail", "flush not complete", "nobody to flush",
    "joiner that needs no flush", "moment of rest",
    "run restamped", "wedged at start", "joining at start", "disk lost", "returned after a loss",
    "member evicted", "member admitted", "roster changed", "two ballots for one epoch",
    "nobody evicted", "one member alone", "forced",
    "partition", "one-way cut", "slow link", "message lost", "duplicate delivered",
    "post overtaken by a newer one",
    "empty disk told", "joined anew",
    "crash", "rolling restart", "all nodes crashed at once", "crash between two writes of an epoch",
    "pause", "slow disk", "clock far off", "clock a year off", "running clock set", "clock drift",
    "machine slept", "founded with a clock a year off", "brought back by an operator",
    "rival changes",
    "left out under a guard",
    "stale messages", "batch cut short", "tail served", "change of roster refused", "change done",
    "complaint", "suspected on a complaint", "suspect cleared",
    "same id at two nodes", "same id in two epochs", "same id behind the window",
    "expired id", "repeat ordered late",
    "duplicate rejected", "version raised", "table created", "rejected for its table",
    "read held", "version held", "conflict", "conflict within a run", "read too old",
    "condition of a repeat", "table changed", "table dropped", "table created again",
    "stale schema",
    "synchronous run stamped", "synchronous run withdrawn", "synchronous run told as late",
    "synchronous run with more holders than the quorum", "synchro quorum changed",
    "ordinary run stamped while a synchronous one waits", "run withdrawn with its session",
    "run of a group stamped", "run of two groups stamped", "run of a group withdrawn",
    "prepared run of a group stamped",
    "prepared: committed", "prepared: rolled-back", "prepared: expired-transaction",
    "prepared: conflict", "prepared: stale-schema",
    "commit table: create", "commit table: commit", "commit table: drop", "commit table: rename",
    "commit table: version-conflict", "commit table: stale-timestamp",
    "commit table: name-taken", "commit table: unknown-table", "commit repeated",
    "several commit tables: committed", "several commit tables: version-conflict",
    "payload damaged", "run voided", "void refused",
    "failed write kept", "failed write lost", "disk full", "quorum changed", "run withdrawn",
    "overdue run whole",
    "rotten post", "rotten promise", "rotten standing",
    "two disks lost", "two disks lost, the survivor forced",
    "phase FOLLOWING", "follower at the end", "follower promoted", "member made a follower",
    "older disk", "older disk told", "copied disk", "original disk back", "wrong disks",
    *(
        crash_mark(kind, kept=kept)
        for kind in PERSISTS
        if kind is not PersistVoid
        for kept in (True, False)
    ),
)  # fmt: skip


class Marks:
    """Counts of what happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        #: Epoch → ballots prepared, and those of them that were flushed.
        self._prepared: dict[int, set[Ballot]] = {}
        self._flushed: set[tuple[int, Ballot]] = set()
        #: Values that some promise named, until their epoch is over.
        self._voted: dict[int, list[View]] = {}

    def hit(self, mark: str) -> None:
        """Count a mark."""
        self.counts[mark] += 1

    def phase(self, phase: Phase) -> None:
        """Count a change of phase."""
        self.counts[f"phase {phase}"] += 1

    def message(self, message: EpochMessage) -> None:
        """Count a message of an epoch decision, and what is special about it."""
        counts = self.counts
        name = type(message).__name__
        counts[_NAMES.get(name) or name.lower()] += 1
        match message:
            case Promise():
                if message.accepted is not None:
                    counts["promise with an accepted value"] += 1
                    self._voted.setdefault(message.epoch, []).append(message.accepted.view)
            case Prepare():
                ballots = self._prepared.setdefault(message.view.epoch, set())
                ballots.add(message.ballot)
                if len(ballots) == 2:
                    counts["two ballots for one epoch"] += 1
            case Flush():
                self._flushed.add((message.view.epoch, message.ballot))
                if message.candidate.tail:
                    counts["final queue with a tail"] += 1
                if set(message.candidate.members) - set(message.view.members):
                    counts["flush of a joiner"] += 1
            case Flushed():
                if message.missing:
                    counts["flush not complete"] += 1
            case Accept():
                if (message.view.epoch, message.ballot) not in self._flushed:
                    self._unflushed(message)
            case _:
                pass

    def _unflushed(self, accept: Accept) -> None:
        members = accept.candidate.members
        if accept.candidate in self._voted.get(accept.view.epoch, ()):
            self.counts["value of an earlier ballot proposed again"] += 1
        elif len(members) > 1:
            self.counts["nobody to flush"] += 1
            if set(members) - set(accept.view.members):
                self.counts["joiner that needs no flush"] += 1


_NAMES = {
    "ProbeAnswer": "probe answer",
    "JoinRequest": "join request",
    "TailRequest": "tail request",
}
