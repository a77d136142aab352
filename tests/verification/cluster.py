"""A cluster of sans-I/O masters in one thread: network, disks and clocks are under test control.

Each node is a `Master` and a `CoreDisk` that keeps exactly what `Persist…` actions said, so a crash
loses everything else.  What nodes send lies in `Cluster.letters` until a test delivers,
drops, duplicates or reorders it.  Payloads are really needed: a push or fetch finds one only at a
node whose disk holds it.  Nothing here reads a clock or draws a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.verification.model.disk import CoreDisk

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    PERSISTS,
    Action,
    Alarm,
    CheckUnstamped,
    FetchPayload,
    PrefetchFiles,
)
from sparktxlog.protocol.messages.events import (
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
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.recovery import (
    MasterConfig,
    RecoveredState,
)

#: Entries of one simulated tail message.
TAIL_LIMIT = 5


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


class Node:
    """One simulated node."""

    def __init__(self, config: MasterConfig, facts: dict[bytes, RunFacts]) -> None:
        self.config = config
        self.name = config.node_id
        self.disk = CoreDisk(self.name, facts)
        self.master: Master | None = None
        #: What the running master began with.
        self.started_with = RecoveredState()
        #: Clock of this node minus the cluster's, microseconds.
        self.skew = 0
        self.submits: dict[int, RunSubmitted] = {}
        self.alarms: list[Alarm] = []


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
        self.members = tuple(members)
        self.quorum = quorum
        self.now = 1_000
        self.master_class = master_class
        self.letters: list[Letter] = []
        self.watchers: list[Watcher] = []
        self._count = 0
        self._tickets = 0
        base = MasterConfig(
            node_id=NodeId(self.members[0]),
            members=tuple(map(NodeId, self.members)),
            quorum=quorum,
            log_id="simulated",
            **settings,
        )
        #: Facts of all payloads, by digest.
        self.facts: dict[bytes, RunFacts] = {}
        self.nodes: dict[str, Node] = {
            member: Node(replace(base, node_id=NodeId(member)), self.facts)
            for member in self.members
        }
        #: Pairs (sender, receiver) whose letters do not arrive.
        self.cut: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------ nodes

    def start(self, name: str) -> None:
        """Start (or restart) a node from its disk and let it post."""
        node = self.nodes[name]
        assert node.master is None
        node.submits = dict(node.disk.announcements)
        node.started_with = node.disk.load(node.config.id_window)
        node.master = self.master_class(node.config, node.started_with, self.now + node.skew)
        self.step(name, [Tick()])

    def start_all(self) -> None:
        """Start all nodes that are down."""
        for member in self.members:
            if self.nodes[member].master is None:
                self.start(member)

    def crash(self, name: str) -> None:
        """Lose everything of a node but its disk."""
        self.nodes[name].master = None

    def alive(self) -> list[str]:
        """Return the nodes that run, in precedence order."""
        return [member for member in self.members if self.nodes[member].master is not None]

    def step(self, name: str, events: Sequence[Event], executed: int | None = None) -> None:
        """Let a node handle events and carry out its actions.

        Args:
            executed: The node crashes after so many of the actions; None = it survives.
        """
        node = self.nodes[name]
        if node.master is None:
            return
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
        stands_alone: bool = False,
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
            submitted_at=self.now + self.nodes[name].skew if facts.holders else None,
            stands_alone=stands_alone,
        )
        node = self.nodes[name]
        self.facts[event.digest] = facts
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
        name = node.name
        match action:
            case FetchPayload() | PrefetchFiles():
                source = self._source(action)
                self._count += 1
                self.letters.append(Letter(self._count, source, name, None, action))
            case CheckUnstamped():
                self._send(name, name, FilesHeld(digest=action.digest))
            case Alarm():
                node.alarms.append(action)
            case _ if isinstance(action, PERSISTS):
                node.disk.write([action], node.submits)
            case _:  # what is told to people and clients, watchers see
                letter = node.disk.letter_of(action, node.config, TAIL_LIMIT)
                if letter is not None:
                    self._send(name, *letter)

    def _source(self, action: FetchPayload | PrefetchFiles) -> str:
        if isinstance(action, PrefetchFiles):
            return action.announcement.origin
        holders = (source for source in action.sources if self._holds(source, action.header))
        return next(holders, action.sources[0])

    def _holds(self, name: str, header: RunHeader) -> bool:
        node = self.nodes[name]
        return node.master is not None and node.disk.holds(header)

    def _digest(self, letter: Letter) -> bytes | None:
        if isinstance(letter.fetch, FetchPayload):
            return letter.fetch.header.digest
        return None if letter.fetch is None else letter.fetch.announcement.digest

    def _look_up(self, letter: Letter) -> Event:
        """Answer a fetch from the source's disk, as it is when the fetch gets there."""
        digest = self._digest(letter)
        assert digest is not None
        if isinstance(letter.fetch, FetchPayload):
            header = letter.fetch.header
            if self._holds(letter.sender, header):
                return PayloadArrived(header=header, facts=self.facts[digest])
        elif self.nodes[letter.sender].master is not None:
            return FilesHeld(digest=digest)
        return FetchFailed(digest=digest, reason="not there")
