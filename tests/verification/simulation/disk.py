"""A node's disk: what was made durable, and nothing else, survives a crash."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.verification.recovered import QueuedIds, announced, in_window, queue_end, repeats_in

from sparktxlog.model.operation import RunFacts
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.words.actions import (
    Action,
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistRestamp,
    PersistStanding,
    PersistView,
    PersistVoid,
    PersistWithdrawal,
)
from sparktxlog.protocol.words.balloting import BallotState, Standing
from sparktxlog.protocol.words.events import RunSubmitted
from sparktxlog.protocol.words.messages import QueueEntry, RunHeader
from sparktxlog.protocol.words.recovery import RecoveredRun, RecoveredState
from sparktxlog.protocol.words.view import View

#: Names of disks; they are compared only.
_instances = itertools.count(1)

#: (origin, incarnation, seq)
RunKey = tuple[str, int, int]


def key_of(header: RunHeader) -> RunKey:
    """Return the name of a run, which no other run ever has."""
    return (header.origin, header.incarnation, header.seq)


def _by_seq(header: RunHeader) -> int:
    return header.seq


class SimulatedDisk:
    """Durable state of one node.

    Args:
        owner: Node id.
        facts: Facts of all payloads that exist anywhere, by digest.
    """

    def __init__(self, owner: str, facts: dict[bytes, RunFacts]) -> None:
        self.owner = owner
        self.incarnation = 1
        #: Log that its node joins, empty = the one that it is configured with.
        self.lineage = ""
        self.reserved = 0
        #: Durable runs beyond the queue.
        self.incoming: dict[RunKey, RunHeader] = {}
        self.queue: list[QueueEntry] = []
        #: Headers in the queue by name, to answer fetches.
        self.ordered: dict[RunKey, RunHeader] = {}
        self.tables: dict[str, TableDefinition] = {}
        self.announcements: dict[int, RunSubmitted] = {}
        self.view: View | None = None
        self.ballot: BallotState | None = None
        #: The greatest that each other node showed.
        self.standings: dict[str, Standing] = {}
        #: How often a node was started with this disk.
        self.starts = 0
        #: Names this disk; images of it bear the same name.
        self.instance = next(_instances)
        #: Other nodes' names, as they were seen.
        self.instances: dict[str, int] = {}
        self._watermarks: dict[str, int] = {}
        self._facts = facts

    def image(self) -> SimulatedDisk:
        """Return a copy, as somebody takes one who may bring it back later."""
        other = SimulatedDisk(self.owner, self._facts)
        for name, value in vars(self).items():
            plain = isinstance(value, (dict, list)) and value is not self._facts
            setattr(other, name, value.copy() if plain else value)
        return other

    def join_anew(self, incarnation: int, first_ticket: int) -> None:
        """Go on under a later incarnation; own runs beyond the queue wait for a stamp again."""
        own = sorted((h for h in self.incoming.values() if h.origin == self.owner), key=_by_seq)
        for ticket, header in enumerate(own, start=first_ticket):
            self.announcements[ticket] = RunSubmitted(
                ticket=ticket, digest=header.digest, size_bytes=header.size_bytes,
                staged_bytes=header.staged_bytes, facts=self._facts[header.digest],
            )  # fmt: skip
        self.incarnation, self.instance, self.reserved = incarnation, next(_instances), 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the log is kept here."""
        return not (self.queue or self.incoming or self.announcements or self.view)

    def holds(self, header: RunHeader) -> bool:
        """Return whether the payload of a run is durable here; its stamp may have changed."""
        key = key_of(header)
        held = self.incoming.get(key) or self.ordered.get(key)
        return held is not None and held.digest == header.digest

    def reaches(self, header: RunHeader) -> bool:
        """Return whether all runs of an origin up to this one are durable here."""
        reached = self._watermarks.get(header.origin, 0)
        own = [h for h in self.incoming.values() if h.origin == header.origin]
        for held in sorted(own, key=_by_seq):
            if held.seq == reached + 1:
                reached = held.last
        return reached >= header.last

    def write(self, actions: Iterable[Action], submits: dict[int, RunSubmitted]) -> None:
        """Make a batch durable; a crash keeps all of it or nothing."""
        for action in actions:
            match action:
                case PersistOwnRun():
                    self.incoming[key_of(action.header)] = action.header
                    self.announcements.pop(action.ticket, None)
                case PersistForeignRun():
                    self.incoming[key_of(action.header)] = action.header
                case PersistRestamp():
                    assert key_of(action.header) in self.incoming, "restamped what is not there"
                    self.incoming[key_of(action.header)] = action.header
                case PersistVoid():
                    self.incoming[key_of(action.voided.header)] = action.voided.header
                case PersistReservation():
                    self.reserved = action.counter
                case PersistAnnouncement():
                    self.announcements[action.ticket] = submits[action.ticket]
                case PersistWithdrawal():
                    self.announcements.pop(action.ticket, None)
                case PersistBallot():
                    self.ballot = action.state
                case PersistView():
                    self._put_view(action)
                case PersistStanding():
                    self.standings[action.node] = action.standing
                case PersistQueue():
                    self._append(action)
                case _:
                    raise AssertionError(f"{action} is nothing to persist")

    def _append(self, action: PersistQueue) -> None:
        for entry in action.entries:
            key = key_of(entry.header)
            held = self.incoming.pop(key, None)
            assert held == entry.header, f"{self.owner} orders {key}, and holds {held}"
            self.ordered[key] = entry.header
            self._watermarks[entry.header.origin] = entry.header.last
            self.queue.append(entry)
        self.tables.update((definition.name, definition) for _, definition in action.tables)

    def _put_view(self, action: PersistView) -> None:
        self.view, self.incarnation = action.view, action.incarnation
        own = (self.owner, self.incarnation)
        self.incoming = {key: h for key, h in self.incoming.items() if key[:2] == own}

    def queued_ids(self) -> QueuedIds:
        """Return all ids of the queue, to be searched."""
        return QueuedIds(self.queue, self._ids_of)

    def _ids_of(self, header: RunHeader) -> bytes:
        return self._facts[header.digest].ids

    def load(self, id_window: int) -> RecoveredState:
        """Return what a restarted node begins with."""
        base, base_key = queue_end(self.queue)
        return RecoveredState(
            base=base,
            base_key=base_key,
            reserved=self.reserved,
            watermarks=dict(self._watermarks),
            incoming=[
                RecoveredRun(header=header, facts=self._facts[header.digest])
                for header in self.incoming.values()
            ],
            announcements=announced(self.announcements.values()),
            tables=list(self.tables.values()),
            view=self.view,
            ballot=self.ballot,
            standings=dict(self.standings),
            recent_ids=[
                (entry.position, self._facts[entry.header.digest].ids)
                for entry in in_window(self.queue, id_window)
            ],
            repeats=repeats_in(self.queue, id_window),
            older_ids=self.queued_ids(),
        )
