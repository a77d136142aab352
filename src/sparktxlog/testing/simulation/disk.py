"""A node's disk: what was made durable, and nothing else, survives a crash."""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.operation import RunFacts
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.actions import (
    Action,
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistRestamp,
    PersistView,
)
from sparktxlog.protocol.balloting import BallotState
from sparktxlog.protocol.events import RunSubmitted
from sparktxlog.protocol.messages import QueueEntry, RunHeader
from sparktxlog.protocol.recovery import RecoveredRun, RecoveredState
from sparktxlog.protocol.view import View
from sparktxlog.testing.recovered import announced, in_window, queue_end

#: (origin, incarnation, seq)
RunKey = tuple[str, int, int]


def key_of(header: RunHeader) -> RunKey:
    """Return the name of a run, which no other run ever has."""
    return (header.origin, header.incarnation, header.seq)


class SimulatedDisk:
    """Durable state of one node.

    Args:
        owner: Node id.
        facts: Facts of all payloads that exist anywhere, by digest.
    """

    def __init__(self, owner: str, facts: dict[bytes, RunFacts]) -> None:
        self.owner = owner
        self.incarnation = 1
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
        self._watermarks: dict[str, int] = {}
        self._facts = facts

    def holds(self, header: RunHeader) -> bool:
        """Return whether the payload of a run is durable here; its stamp may have changed."""
        key = key_of(header)
        held = self.incoming.get(key) or self.ordered.get(key)
        return held is not None and held.digest == header.digest

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
                case PersistReservation():
                    self.reserved = action.counter
                case PersistAnnouncement():
                    self.announcements[action.ticket] = submits[action.ticket]
                case PersistBallot():
                    self.ballot = action.state
                case PersistView():
                    self._put_view(action)
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
            recent_ids=[
                (entry.position, self._facts[entry.header.digest].ids)
                for entry in in_window(self.queue, id_window)
            ],
        )
