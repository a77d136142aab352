"""A node's disk: what was made durable, and nothing else, survives a crash."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.actions import (
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
    SendAnnouncement,
    SendEpochMessage,
    SendPost,
    SendPush,
    SendTail,
)
from sparktxlog.protocol.messages.balloting import BallotState, Standing
from sparktxlog.protocol.messages.events import (
    AnnouncementReceived,
    EpochMessageReceived,
    Event,
    PayloadArrived,
    PostReceived,
    RunSubmitted,
    TailReceived,
)
from sparktxlog.protocol.messages.posts import MergeBase, QueueEntry, RunHeader, Tail
from sparktxlog.protocol.messages.recovery import (
    MasterConfig,
    RecoveredAnnouncement,
    RecoveredRun,
    RecoveredState,
)
from sparktxlog.protocol.messages.view import View

#: Names of disks; they are compared only.
_instances = itertools.count(1)

#: (origin, incarnation, seq)
RunKey = tuple[str, int, int]


def key_of(header: RunHeader) -> RunKey:
    """Return the name of a run, which no other run ever has."""
    return (header.origin, header.incarnation, header.seq)


def _by_seq(header: RunHeader) -> int:
    return header.seq


def _position(entry: QueueEntry) -> int:
    return entry.position


class CoreDisk:
    """Durable state of one node.

    Args:
        owner: Node id.
        facts: Facts of all payloads that exist anywhere, by digest.
    """

    def __init__(self, owner: str, facts: dict[bytes, RunFacts]) -> None:
        self.owner = owner
        self.incarnation = 1
        #: Log that its node joins, empty = the one that it is configured with.
        self.log_id = ""
        self.reserved = 0
        #: Durable runs beyond the queue.
        self.incoming: dict[RunKey, RunHeader] = {}
        self.queue: list[QueueEntry] = []
        #: Headers in the queue by name, to answer fetches.
        self.ordered: dict[RunKey, RunHeader] = {}
        self.tables: dict[str, TableDefinition] = {}
        #: What was written to each table.
        self.writes: dict[str, TableWrites] = {}
        #: Prepared transactions that are undecided, by id.
        self.undecided: dict[bytes, Undecided] = {}
        #: Commit tables by UUID, dropped ones too.
        self.commit_tables: dict[str, CommitTable] = {}
        self.announcements: dict[int, RunSubmitted] = {}
        self.view: View | None = None
        self.ballot: BallotState | None = None
        #: The greatest that each other node showed.
        self.standings: dict[str, Standing] = {}
        #: How often a node was started with this disk.
        self.starts = 0
        #: Names this disk; images of it bear the same name.
        self.instance = next(_instances)
        #: The disks and incarnations that other nodes showed.
        self.instances: dict[str, tuple[int, int]] = {}
        self._watermarks: dict[str, int] = {}
        self._facts = facts

    def image(self) -> CoreDisk:
        """Return a copy, as somebody takes one who may bring it back later."""
        other = CoreDisk(self.owner, self._facts)
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
        for ticket, submit in self.announcements.items():
            self.announcements[ticket] = replace(submit, submitted_at=None)
        self.incarnation, self.instance, self.reserved = incarnation, next(_instances), 0

    def letter_of(
        self, action: Action, config: MasterConfig, tail_runs: int
    ) -> tuple[str, Event] | None:
        """Return which peer gets what if the node does this that its core wants.

        Args:
            tail_runs: Most runs of one message with a piece of the queue.

        Returns:
            None if the action sends nothing.
        """
        event: Event | None
        match action:
            case SendPost():
                event = PostReceived(post=action.post)
            case SendEpochMessage():
                event = EpochMessageReceived(message=action.message)
            case SendPush():
                assert self.holds(action.header), "pushed before it was durable"
                facts = self._facts[action.header.digest]
                event = PayloadArrived(header=action.header, facts=facts)
            case SendAnnouncement():
                event = AnnouncementReceived(announcement=action.announcement)
            case SendTail():
                event = self._tail(action, config, tail_runs)
            case _:
                return None
        return None if event is None else (action.peer, event)

    def _tail(self, action: SendTail, config: MasterConfig, tail_runs: int) -> Event | None:
        start = action if action.ahead is None else action.ahead
        first = bisect_right(self.queue, start.position, key=_position)
        entries = tuple(self.queue[first : first + tail_runs])
        if not entries:
            return None
        if entries[0].previous_hash != start.chain_hash:
            raise InvariantViolation(f"P28: {action.peer} has another queue than {self.owner}")
        tail = Tail(
            log_id=config.log_id if self.view is None else self.view.log_id,
            epoch=config.epoch if self.view is None else self.view.epoch,
            sender=config.node_id,
            previous_hash=entries[0].previous_hash,
            entries=entries,
            end=self.queue[-1].end,
        )
        return TailReceived(tail=tail)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the log is kept here."""
        return not (self.queue or self.incoming or self.announcements or self.view)

    def holds(self, header: RunHeader) -> bool:
        """Return whether the payload of a run is durable here; its stamp may have changed."""
        held = self.stored(key_of(header))
        return held is not None and held.digest == header.digest

    def stored(self, key: RunKey) -> RunHeader | None:
        """Return the header of a durable run as it is stamped here."""
        return self.incoming.get(key) or self.ordered.get(key)

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
                    for run in action.runs:
                        self.announcements.pop(run.ticket, None)
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
        self.writes.update(action.writes)
        self.commit_tables.update((table.uuid, table) for table in action.commit_tables)
        for _, one, undecided in action.undecided:
            self.undecided.pop(one, None)
            if undecided is not None:
                self.undecided[one] = undecided

    def _put_view(self, action: PersistView) -> None:
        self.view, self.incarnation = action.view, action.incarnation
        own = (self.owner, self.incarnation)
        self.incoming = {key: h for key, h in self.incoming.items() if key[:2] == own}

    def _ids_of(self, header: RunHeader) -> bytes:
        return self._facts[header.digest].ids

    def load(self, id_window: int) -> RecoveredState:
        """Return what a restarted node begins with."""
        recent: list[QueueEntry] = []
        for entry in reversed(self.queue):
            if entry.end <= self.queue[-1].end - id_window:
                break
            recent.append(entry)
        state = RecoveredState(
            reserved=self.reserved,
            watermarks=dict(self._watermarks),
            incoming=[
                RecoveredRun(header=header, facts=self._facts[header.digest])
                for header in self.incoming.values()
            ],
            announcements=[
                RecoveredAnnouncement(
                    ticket=submit.ticket,
                    digest=submit.digest,
                    size_bytes=submit.size_bytes,
                    staged_bytes=submit.staged_bytes,
                    facts=submit.facts,
                    session=submit.session,
                    submitted_at=submit.submitted_at,
                    stands_alone=submit.stands_alone,
                )
                for submit in self.announcements.values()
            ],
            tables=list(self.tables.values()),
            writes=dict(self.writes),
            undecided=list(self.undecided.values()),
            commit_tables=list(self.commit_tables.values()),
            view=self.view,
            ballot=self.ballot,
            standings=dict(self.standings),
            recent_ids=[(e.position, self._ids_of(e.header)) for e in reversed(recent)],
            repeats=[
                (entry.position + rejection.index, rejection.first)
                for entry in reversed(recent)
                for rejection in entry.rejections
                if rejection.first is not None
            ],
            older_ids=QueuedIds(self.queue, self._ids_of),
        )
        if not self.queue:
            return state
        last, header = self.queue[-1], self.queue[-1].header
        base = MergeBase(
            position=last.end, chain_hash=last.chain_hash, origin=header.origin, seq=header.last
        )
        return replace(state, base=base, base_key=header.key)


class QueuedIds:
    """`OlderIds` of a simulated disk: all ids of its queue and what is on its way there.

    Args:
        ids_of: Returns the ids of a run.
    """

    def __init__(self, queue: Sequence[QueueEntry], ids_of: Callable[[RunHeader], bytes]) -> None:
        self._queue = queue
        self._ids_of = ids_of
        self._unwritten: list[tuple[int, bytes]] = []
        #: Id → its positions, ascending, of so many entries of the queue.
        self._positions: dict[bytes, list[int]] = {}
        self._entries = 0

    def appended(self, position: int, ids: bytes) -> None:
        """Keep the ids of a run that is on its way to the disk."""
        end = self._queue[-1].end if self._queue else 0
        self._unwritten = [item for item in self._unwritten if item[0] > end]
        self._unwritten.append((position, ids))

    def find(self, ids: bytes, after: int) -> list[tuple[int, int]]:
        """Return (index, first position behind `after`) of the ids that are queued there."""
        for entry in self._queue[self._entries :]:
            for at, one in enumerate(_split(self._ids_of(entry.header)), start=entry.position):
                self._positions.setdefault(one, []).append(at)
        self._entries = len(self._queue)
        on_their_way: dict[bytes, int] = {}
        for first, held in self._unwritten:
            for at, one in enumerate(_split(held), start=first):
                on_their_way.setdefault(one, at)
        found: dict[bytes, tuple[int, int]] = {}
        for index, one in enumerate(_split(ids)):
            known = (*self._positions.get(one, ()), on_their_way.get(one, 0))
            queued_at = next((at for at in known if at > after), None)
            if queued_at is not None:
                found[one] = (index, queued_at)
        return sorted(found.values())


def _split(ids: bytes) -> list[bytes]:
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]
