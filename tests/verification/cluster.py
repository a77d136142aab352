"""A cluster of sans-I/O masters in one thread: network, disks and clocks are under test control.

Each node is a `Master` and a `SimulatedFront` that keeps exactly what `Persist…` actions said, so
a crash loses everything else.  What nodes send lies in `Cluster.letters` until a test delivers,
drops, duplicates or reorders it.  Payloads are really needed: a push or fetch finds one only at a
node whose front holds it.  Nothing here reads a clock or draws a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.verification.recovered import QueuedIds, announced, in_window, queue_end, repeats_in

from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import RunFacts
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.words.actions import (
    Action,
    Alarm,
    CheckUnstamped,
    FetchPayload,
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistRestamp,
    PersistView,
    PersistVoid,
    PersistWithdrawal,
    PrefetchFiles,
    SendAnnouncement,
    SendEpochMessage,
    SendPost,
    SendPush,
    SendTail,
)
from sparktxlog.protocol.words.balloting import BallotState
from sparktxlog.protocol.words.events import (
    AnnouncementReceived,
    EpochMessageReceived,
    Event,
    FetchFailed,
    FilesHeld,
    LinkChanged,
    PayloadArrived,
    PostReceived,
    Rested,
    RunSubmitted,
    TailReceived,
    Tick,
)
from sparktxlog.protocol.words.messages import Announcement, QueueEntry, RunHeader, Tail
from sparktxlog.protocol.words.recovery import (
    MasterConfig,
    RecoveredRun,
    RecoveredState,
)
from sparktxlog.protocol.words.view import View

#: Entries of one simulated tail message.
TAIL_LIMIT = 5


class SimulatedFront:
    """Durable state of a node, in the memory of the test."""

    def __init__(self) -> None:
        self.reserved = 0
        #: (origin, seq) → header and facts of every durable run, synchronized ones included.
        self.runs: dict[tuple[str, int], tuple[RunHeader, RunFacts]] = {}
        self.queue: list[QueueEntry] = []
        self.tables: dict[str, TableDefinition] = {}
        #: Ticket → own unstamped run.
        self.announcements: dict[int, RunSubmitted] = {}
        #: Digests whose staged files are here.
        self.files: set[bytes] = set()
        self.view: View | None = None
        self.ballot: BallotState | None = None

    def keep(
        self, action: PersistBallot | PersistView | PersistRestamp | PersistVoid, own: str
    ) -> None:
        """Keep what an epoch decision leaves behind."""
        match action:
            case PersistBallot():
                self.ballot = action.state
            case PersistView():
                self.view = action.view
                ordered = {(e.header.origin, e.header.seq) for e in self.queue}
                self.runs = {
                    key: run for key, run in self.runs.items() if key[0] == own or key in ordered
                }
            case PersistVoid():
                header = action.voided.header
                self.runs[header.origin, header.seq] = (header, action.voided.facts)
            case PersistRestamp():
                key = (action.header.origin, action.header.seq)
                self.runs[key] = (action.header, self.runs[key][1])

    def holds(self, header: RunHeader) -> bool:
        """Return whether header and payload of the run are durable here."""
        held = self.runs.get((header.origin, header.seq))
        return held is not None and held[0] == header

    def load(self, id_window: int) -> RecoveredState:
        """Return what a restarted node begins with."""
        watermarks: dict[str, int] = {}
        for entry in self.queue:
            watermarks[entry.header.origin] = entry.header.last
        base, base_key = queue_end(self.queue)
        incoming = [
            RecoveredRun(header=header, facts=facts)
            for (origin, seq), (header, facts) in self.runs.items()
            if seq > watermarks.get(origin, 0)
        ]
        return RecoveredState(
            base=base,
            base_key=base_key,
            reserved=self.reserved,
            watermarks=watermarks,
            incoming=incoming,
            announcements=announced(self.announcements.values()),
            tables=list(self.tables.values()),
            view=self.view,
            ballot=self.ballot,
            recent_ids=[
                (entry.position, self.runs[entry.header.origin, entry.header.seq][1].ids)
                for entry in in_window(self.queue, id_window)
            ],
            repeats=repeats_in(self.queue, id_window),
            older_ids=QueuedIds(
                self.queue, lambda header: self.runs[header.origin, header.seq][1].ids
            ),
        )


@dataclass(slots=True)
class Letter:
    """Something on its way to a node."""

    number: int
    sender: str
    receiver: str
    #: What arrives; None for a fetch, which is looked up when it is delivered.
    event: Event | None
    fetch: FetchPayload | PrefetchFiles | None = None

    @property
    def kind(self) -> str:
        """Name of the message: post, push, announcement, tail, look, fetch, prefetch."""
        match self.event, self.fetch:
            case PostReceived(), _:
                return "post"
            case PayloadArrived(), _:
                return "push"
            case AnnouncementReceived(), _:
                return "announcement"
            case EpochMessageReceived(), _:
                return "epoch"
            case TailReceived(), _:
                return "tail"
            case FilesHeld(), _:
                return "look"
            case _, FetchPayload():
                return "fetch"
            case _:
                return "prefetch"


@dataclass(slots=True)
class Node:
    """One simulated node."""

    config: MasterConfig
    front: SimulatedFront = field(default_factory=SimulatedFront)
    master: Master | None = None
    #: What the running master began with.
    started_with: RecoveredState = field(default_factory=RecoveredState)
    #: Clock of this node minus the cluster's, microseconds.
    skew: int = 0
    #: Facts of submits and arrivals that are not durable yet.
    at_hand: dict[bytes, RunFacts] = field(default_factory=dict)
    submits: dict[int, RunSubmitted] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)


#: Called with (node name, events, actions executed, whole) after each step of a node.
Watcher = Callable[[str, Sequence[Event], Sequence[Action], bool], None]


class Cluster:
    """Masters, their disks, and the letters between them.

    Args:
        members: Node ids in precedence order.
        quorum: Acquisition quorum.
        master_class: The core under test, or a mutant of it.
        settings: Further fields of `MasterConfig`.
    """

    def __init__(
        self,
        members: Sequence[str],
        quorum: int,
        master_class: type[Master] = Master,
        **settings: Any,
    ) -> None:
        self.members = tuple(NodeId(member) for member in members)
        self.quorum = quorum
        self.now = 1_000
        self.master_class = master_class
        self.letters: list[Letter] = []
        self.watchers: list[Watcher] = []
        self._count = 0
        self._tickets = 0
        base = MasterConfig(
            node_id=self.members[0],
            members=self.members,
            quorum=quorum,
            lineage="simulated",
            **settings,
        )
        self.nodes = {member: Node(config=replace(base, node_id=member)) for member in self.members}
        #: Pairs (sender, receiver) whose letters do not arrive.
        self.cut: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------ nodes

    def start(self, name: str) -> None:
        """Start (or restart) a node from its front and let it post."""
        node = self.nodes[NodeId(name)]
        assert node.master is None
        node.at_hand, node.submits = {}, {}
        for submit in node.front.announcements.values():
            node.at_hand[submit.digest] = submit.facts
        node.started_with = node.front.load(node.config.id_window)
        node.master = self.master_class(node.config, node.started_with, self.now + node.skew)
        self.step(name, [Tick()])

    def start_all(self) -> None:
        """Start all nodes that are down."""
        for member in self.members:
            if self.nodes[member].master is None:
                self.start(member)

    def crash(self, name: str) -> None:
        """Lose everything of a node but its front."""
        self.nodes[NodeId(name)].master = None

    def alive(self) -> list[str]:
        """Return the nodes that run, in precedence order."""
        return [member for member in self.members if self.nodes[member].master is not None]

    def step(self, name: str, events: Sequence[Event], executed: int | None = None) -> None:
        """Let a node handle events and carry out its actions.

        Args:
            executed: The node crashes after so many of the actions; None = it survives.
        """
        node = self.nodes[NodeId(name)]
        if node.master is None:
            return
        for event in events:
            if isinstance(event, PayloadArrived):
                node.at_hand[event.header.digest] = event.facts
        actions = node.master.handle_all(events, self.now + node.skew)
        whole = executed is None or executed >= len(actions)
        done = actions if whole else actions[:executed]
        for action in done:
            self._execute(node, action)
        if not whole:
            self.crash(name)
        for watcher in self.watchers:
            watcher(name, events, done, whole)
        if node.master is not None and node.master.wants_rest:
            self.step(name, [Rested()])

    def submit(
        self,
        name: str,
        ids: Iterable[bytes],
        *,
        digest: bytes | None = None,
        staged_bytes: int = 0,
        session: str | None = None,
        facts: RunFacts | None = None,
        executed: int | None = None,
        size_bytes: int = 100,
    ) -> int:
        """Submit a run of plain transactions (or of `facts`) and return its ticket."""
        self._tickets += 1
        if facts is None:
            joined = b"".join(ids)
            facts = RunFacts(n=len(joined) // 16, ids=joined)
        event = RunSubmitted(
            ticket=self._tickets,
            digest=digest or self._tickets.to_bytes(32, "big"),
            size_bytes=size_bytes,
            staged_bytes=staged_bytes,
            facts=facts,
            session=session,
        )
        node = self.nodes[NodeId(name)]
        node.at_hand[event.digest] = facts
        node.submits[event.ticket] = event
        if node.master is not None:
            self.step(name, [event], executed)
        return event.ticket

    # ------------------------------------------------------------------ letters

    def deliver(self, letter: Letter, *, keep: bool = False, executed: int | None = None) -> None:
        """Deliver one letter; with `keep` a copy stays on its way."""
        if not keep:
            self.letters.remove(letter)
        if (letter.sender, letter.receiver) in self.cut:
            self._lost(letter)
            return
        event = letter.event if letter.fetch is None else self._look_up(letter)
        if event is not None:
            self.step(letter.receiver, [event], executed)

    def drop(self, letter: Letter) -> None:
        """Lose one letter; a lost fetch fails."""
        self.letters.remove(letter)
        self._lost(letter)

    def _lost(self, letter: Letter) -> None:
        digest = self._digest(letter)
        if digest is not None:
            self.step(letter.receiver, [FetchFailed(digest=digest, reason="lost")])

    def deliver_all(self, limit: int = 10_000) -> None:
        """Deliver in the order of sending until nothing is on its way."""
        for _ in range(limit):
            if not self.letters:
                return
            self.deliver(self.letters[0])
        raise AssertionError("the nodes never stop talking")

    def tick(self, name: str) -> None:
        """Let a node look at the time."""
        self.step(name, [Tick()])

    def link(self, a: str, b: str, *, up: bool) -> None:
        """Tell both ends that their connection came up or broke."""
        for one, other in ((a, b), (b, a)):
            self.step(one, [LinkChanged(peer=NodeId(other), up=up)])

    def heal(self, rounds: int = 40, pause: int = 100) -> None:
        """Bring everything up and let time pass and letters arrive."""
        self.cut.clear()
        self.start_all()
        for _ in range(rounds):
            self.now += pause
            for name in self.alive():
                self.tick(name)
            self.deliver_all()

    # ------------------------------------------------------------------ execution

    def _send(self, sender: str, receiver: str, event: Event) -> None:
        self._count += 1
        self.letters.append(Letter(self._count, sender, receiver, event))

    def _execute(self, node: Node, action: Action) -> None:
        front, name = node.front, node.config.node_id
        match action:
            case PersistOwnRun():
                header = action.header
                front.runs[header.origin, header.seq] = (header, node.at_hand[header.digest])
                front.announcements.pop(action.ticket, None)
                front.files.add(header.digest)
            case PersistForeignRun():
                header = action.header
                front.runs[header.origin, header.seq] = (header, node.at_hand[header.digest])
                front.files.add(header.digest)
            case PersistReservation():
                front.reserved = action.counter
            case PersistAnnouncement():
                front.announcements[action.ticket] = node.submits[action.ticket]
                front.files.add(action.digest)
            case PersistWithdrawal():
                front.announcements.pop(action.ticket, None)
            case PersistQueue():
                front.queue.extend(action.entries)
                front.tables.update((d.name, d) for _, d in action.tables)
            case SendPost():
                self._send(name, action.peer, PostReceived(post=action.post))
            case SendPush():
                assert front.holds(action.header), "pushed before it was durable"
                facts = front.runs[action.header.origin, action.header.seq][1]
                self._send(name, action.peer, PayloadArrived(header=action.header, facts=facts))
            case SendAnnouncement():
                event = AnnouncementReceived(announcement=action.announcement)
                self._send(name, action.peer, event)
            case SendTail():
                self._send_tail(node, action)
            case FetchPayload() | PrefetchFiles():
                source = self._source(action)
                self._count += 1
                self.letters.append(Letter(self._count, source, name, None, action))
            case CheckUnstamped():
                self._send(name, name, FilesHeld(digest=action.digest))
            case Alarm():
                node.alarms.append(action)
            case PersistBallot() | PersistView() | PersistRestamp() | PersistVoid():
                front.keep(action, name)
            case SendEpochMessage():
                self._send(name, action.peer, EpochMessageReceived(message=action.message))
            case _:
                pass  # told to people and clients: watchers see it

    def _source(self, action: FetchPayload | PrefetchFiles) -> str:
        if isinstance(action, PrefetchFiles):
            return action.announcement.origin
        for source in action.sources:
            node = self.nodes[source]
            if node.master is not None and node.front.holds(action.header):
                return source
        return action.sources[0]

    def _send_tail(self, node: Node, action: SendTail) -> None:
        previous, entries = bytes(32), []
        start = action if action.ahead is None else action.ahead
        for entry in node.front.queue:
            if entry.end <= start.position:
                previous = entry.chain_hash
            else:
                entries.append(entry)
        assert previous == start.chain_hash, "another queue at the lagger's merge base (P28)"
        tail = Tail(
            lineage=node.front.view.lineage if node.front.view else node.config.lineage,
            epoch=node.front.view.epoch if node.front.view else node.config.epoch,
            sender=node.config.node_id,
            previous_hash=previous,
            entries=tuple(entries[:TAIL_LIMIT]),
        )
        self._send(node.config.node_id, action.peer, TailReceived(tail=tail))

    def _digest(self, letter: Letter) -> bytes | None:
        if isinstance(letter.fetch, FetchPayload):
            return letter.fetch.header.digest
        return None if letter.fetch is None else letter.fetch.announcement.digest

    def _look_up(self, letter: Letter) -> Event:
        """Answer a fetch from the source's disk, as it is when the fetch gets there."""
        source, digest = self.nodes[NodeId(letter.sender)], self._digest(letter)
        assert digest is not None
        if isinstance(letter.fetch, FetchPayload):
            header = letter.fetch.header
            if source.master is not None and source.front.holds(header):
                facts = source.front.runs[header.origin, header.seq][1]
                return PayloadArrived(header=header, facts=facts)
        elif source.master is not None and digest in source.front.files:
            self.nodes[NodeId(letter.receiver)].front.files.add(digest)
            return FilesHeld(digest=digest)
        return FetchFailed(digest=digest, reason="not there")


__all__ = ["Announcement", "Cluster", "Letter", "Node", "SimulatedFront", "Watcher"]
