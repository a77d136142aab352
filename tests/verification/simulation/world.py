"""The simulated world: time, nodes, and what travels between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.verification.model.invariants import violated
from tests.verification.simulation.changes import Alterers
from tests.verification.simulation.checks import Checks
from tests.verification.simulation.commits import Committers
from tests.verification.simulation.conditions import ReadersAndWriters
from tests.verification.simulation.groups import Groups
from tests.verification.simulation.marks import Marks
from tests.verification.simulation.network import Network, Weather
from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.prepared import Participants, without_marked
from tests.verification.simulation.rot import Rot
from tests.verification.simulation.synchronous import Synchronous

from sparktxlog.errors import OutdatedError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.action_order import MAX_BATCH
from sparktxlog.protocol.messages.actions import (
    Action,
    CheckFiles,
    CheckUnstamped,
    FetchPayload,
    PrefetchFiles,
    SendEpochMessage,
    SendPost,
    SendTail,
    TellPhase,
)
from sparktxlog.protocol.messages.balloting import (
    Probe,
)
from sparktxlog.protocol.messages.events import (
    EpochMessageReceived,
    Event,
    FetchFailed,
    FilesHeld,
    FilesLost,
    Greeted,
    LinkChanged,
    PayloadArrived,
    PostReceived,
    RunSubmitted,
)
from sparktxlog.protocol.messages.posts import Post, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Phase, Seat, View

#: Tables that there may be.
_TABLES = 40
#: Runs of one simulated tail message.
_TAIL_RUNS = 40
#: Old messages kept to arrive again.
_OLD_MESSAGES = 400
#: How long a broken connection goes unnoticed, and a healed one unused, at most.
_NOTICE_US = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster to simulate."""

    name: str
    #: Votes of the masters, in precedence order.
    masters: dict[str, int]
    witnesses: tuple[str, ...] = ()
    quorum_rule: str = "default"
    #: Nodes that may be added at run time.
    spares: tuple[str, ...] = ()
    #: Follower → nodes that it follows, empty = the members (P38).
    followers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: True: an operator forces the survivor of two equal masters to go on alone (P23).
    forced: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    #: Kind of fault → its weight, instead of the usual one.
    faults: dict[str, int] = field(default_factory=dict)
    #: True: nodes with slow disks stand aside (P37).
    aside: bool = False
    #: True: each node begins as one of this release, and starts again as one of the next.
    upgraded: bool = False


#: In every fourth seed of a layout a node's batches end after so many actions.  A batch begins with
#: a persist, so only the smallest ones end between the queue, the view and the stamps of an epoch.
_SMALL_BATCHES, _SMALL_EVERY = (1, 2, 3), 28


def _tables_of(
    ticket: int, n: int, master: Master
) -> tuple[tuple[Touch, ...], tuple[tuple[int, TableDefinition], ...]]:
    """Return what a run does to tables: now and then it creates one, or writes to one.

    The same table is created again and again, sometimes with another definition; some writes come
    before their table, or were checked against another schema.
    """
    number, kind = divmod(ticket, 8)
    name = f"t{number % _TABLES}"
    if kind == 0:
        columns = (Column(name="id", type="string" if number % 5 == 4 else "bigint"),)
        return (), ((number % n, TableDefinition(name=name, columns=columns)),)
    if kind == 1:
        txs = tuple(range(number % n, n, 2)) if number % 2 else None
        known = master.tables.get(name)
        version = (1 if known is None else known.schema_version) + (number % 7 == 6)
        return (Touch(table=name, schema_version=version, txs=txs),), ()
    return (), ()


class World:
    """Nodes, network and time of one seed.

    Args:
        seed: Source of everything by chance.
        layout: The cluster.
        master_class: The core, or a mutant of it.
    """

    def __init__(self, seed: int, layout: Layout, master_class: type[Master] = Master) -> None:
        self.seed = seed
        self.layout = layout
        self.master_class = master_class
        self.random = Random(f"{layout.name}:{seed}")
        self.now = 0
        self.steps = 0
        self.network = Network(self.random, Weather())
        self.marks = Marks()
        self.rot = Rot(self.random, self.marks.hit)
        self._readers = ReadersAndWriters(f"{layout.name}:{seed}")
        self._alterers = Alterers(f"{layout.name}:{seed}")
        self._participants = Participants(f"{layout.name}:{seed}")
        self._committers = Committers(f"{layout.name}:{seed}")
        self.synchronous = Synchronous(f"{layout.name}:{seed}")
        self.groups = Groups(f"{layout.name}:{seed}")
        #: Told of each phase that a node enters.
        self.on_phase: Callable[[Phase], None] = lambda phase: None
        self.facts: dict[bytes, RunFacts] = {}
        #: (node, digest) of runs whose files are damaged there.
        self.damaged: set[tuple[str, bytes]] = set()
        #: Digests of runs of which the origin cannot deliver a staged file.
        self.lost_files: set[bytes] = set()
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._tickets = 0
        self._ids = 0
        #: Some of all messages ever sent, to arrive once more.
        self._old: list[tuple[str, str, Event]] = []
        #: Sender and receiver → order of the newest post that arrived.
        self._arrived: dict[tuple[str, str], tuple[int, int]] = {}
        #: (reader, sender) → which life of each greeted the other.
        self._greeted: dict[tuple[str, str], tuple[int, int]] = {}
        #: What each node believes of its connection to another: the version spoken there, 0 = cut.
        self._linked: dict[tuple[str, str], int] = {}
        self.nodes = self._make_nodes()
        self.checks = Checks(self)

    def _make_nodes(self) -> dict[str, SimulatedNode]:
        layout = self.layout
        roster = tuple(
            Seat(node_id=NodeId(name), weight=weight) for name, weight in layout.masters.items()
        ) + tuple(Seat(node_id=NodeId(name), witness=True) for name in layout.witnesses)
        roster += tuple(
            Seat(node_id=NodeId(name), weight=0, follower=True) for name in layout.followers
        )
        members = tuple(NodeId(name) for name in layout.masters)
        small = self.seed % _SMALL_EVERY >= _SMALL_EVERY * 3 // 4
        nodes = {}
        for name in (*layout.masters, *layout.witnesses, *layout.spares, *layout.followers):
            config = MasterConfig(
                node_id=NodeId(name),
                members=members,
                quorum=1,
                quorum_rule=layout.quorum_rule,
                roster=roster,
                log_id="simulated",
                follow=tuple(map(NodeId, layout.followers.get(name, ()))),
                **{
                    "id_window": 256,
                    "id_window_us": 120_000_000,
                    "condition_window": 300,
                    "max_run": 64,
                    "suspect_timeout_us": 2_000_000,
                    "start_timeout_us": 6_000_000,
                    "stage_timeout_us": 5_000_000,
                    **layout.settings,
                },
            )
            max_batch = self.random.choice(_SMALL_BATCHES) if small else MAX_BATCH
            nodes[name] = SimulatedNode(self, config, self.facts, max_batch=max_batch)
        return nodes

    # -- time --------------------------------------------------------------------------------------

    def at(self, time: int, work: Callable[..., None], *arguments: Any) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, work, arguments))

    def seconds(self, least: float, most: float) -> int:
        """Draw a time between two numbers of seconds; return it in microseconds."""
        return int(self.random.uniform(least, most) * 1_000_000)

    def after(self, delay: int, work: Callable[..., None], *arguments: Any) -> None:
        """Do something after a delay, microseconds."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, work, arguments))

    def run_until(self, end: int) -> None:
        """Let time pass."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, work, arguments = heapq.heappop(queue)
            work(*arguments)
        self.now = end

    # -- clients -----------------------------------------------------------------------------------

    def new_ids(self, count: int) -> bytes:
        """Return ids that no transaction had before."""
        first, self._ids = self._ids + 1, self._ids + count
        return b"".join([one.to_bytes(16, "big") for one in range(first, first + count)])

    def submit(self, node: SimulatedNode, transactions: int, staged_bytes: int = 0) -> RunSubmitted:
        """Submit a run of new transactions at a node."""
        return self.submit_ids(node, self.new_ids(transactions), staged_bytes)

    def submit_ids(self, node: SimulatedNode, ids: bytes, staged_bytes: int) -> RunSubmitted:
        """Submit a run with these ids at a node, which looks them up first."""
        assert node.master is not None
        self._tickets += 1
        ticket, transactions = self._tickets, len(ids) // 16
        digest = ticket.to_bytes(32, "big")
        known = node.master.acceptance(ids)
        # A real node refuses for a moment while its files lag behind the window of its memory.
        older = node.older_ids.find(ids, 0)
        repeats = dict(known.repeats) | dict(older)
        acceptance = replace(known, repeats=tuple(sorted(repeats.items())))
        touches, creates = _tables_of(ticket, transactions, node.master)
        conditions, more = self._readers.draw(node.master, transactions)
        drawn = self._alterers.draw(node.master, transactions)
        plain = not (creates or drawn.changes)
        said = self._participants.draw(node, transactions, plain=plain)
        busy = range(transactions) if said.participants else [at for at, _ in said.marks]
        commits = self._committers.draw(node.master, transactions, busy)
        written = (*touches, *more, *drawn.touches)
        facts = RunFacts(
            n=transactions, ids=ids, acceptance=acceptance,
            touches=written,
            creates=creates, conditions=conditions or said.conditions, changes=drawn.changes,
            holders=self.synchronous.draw(node.master, written),
            participants=said.participants, valid_until=said.valid_until, marks=said.marks,
            commits=commits,
            copies=self.groups.draw(
                [one.node_id for one in node.master.view.roster if one.may_be_member],
                plain=plain and not (said.marks or commits),
            ),
        )  # fmt: skip
        self.facts[digest] = facts = without_marked(facts)
        event = RunSubmitted(
            ticket=ticket,
            digest=digest,
            size_bytes=100 * transactions,
            staged_bytes=staged_bytes,
            facts=facts,
            session=None if self.random.random() < 0.8 else f"session-{ticket % 3}",
            submitted_at=node.wall(),
            stands_alone=self.synchronous.stands_alone(),
        )
        node.submits[ticket] = event
        node.handle([event])
        return event

    def was_ordered(self, node: SimulatedNode, submit: RunSubmitted) -> bool:
        """Return whether a node's queue has a transaction of a run."""
        own = _ids(submit.facts)
        ordered = (self.facts[entry.header.digest] for entry in node.disk.queue)
        return any(not own.isdisjoint(_ids(facts)) for facts in ordered)

    # -- links -------------------------------------------------------------------------------------

    def relink(self) -> None:
        """Let the nodes notice, each in its time, which connections there are."""
        for a in self.nodes.values():
            for b in self.nodes.values():
                if a is not b:
                    delay = int(self.random.random() * _NOTICE_US)
                    self.after(delay, self._notice, a.name, b.name)

    def lost_sight_of(self, node: SimulatedNode) -> None:
        """A node went down: its peers notice at once or soon, and it forgets them."""
        for other in self.nodes:
            if other != node.name:
                self._linked.pop((node.name, other), None)
        self.relink()

    def _notice(self, a: str, b: str) -> None:
        one, other = self.nodes[a], self.nodes[b]
        if not one.up:
            return
        # The kernel keeps the connections of a paused process.
        up = other.up and self.network.connected(a, b) and self._understand(one, other)
        newest = other.newest if up else 0
        if self._linked.get((a, b)) != newest:
            # A connection begins with a greeting: a witness, who says nothing else, is heard by it.
            if up and not self._is_greeted(a, b) and not one.up:
                return
            self._linked[a, b] = newest
            one.handle([LinkChanged(peer=NodeId(b), up=up, newest=newest)])

    def _understand(self, one: SimulatedNode, other: SimulatedNode) -> bool:
        """Return whether two nodes speak a common version (P31)."""
        # Of a node that has crashed its last words are on the way: its disk has its view.
        views = [n.disk.view if n.master is None else n.master.view for n in (one, other)]
        oldest = max(0 if view is None else view.version for view in views)
        if oldest > min(one.newest, other.newest):
            self.marks.hit("older release refused")
            return False
        return True

    # -- greetings ---------------------------------------------------------------------------------

    def greet(self, node: SimulatedNode) -> bool:
        """Let a node that starts greet whom it reaches; False: it has to join anew first."""
        life = node.life
        for other in self.nodes.values():
            if other is node or not other.up or other.paused or node.life != life:
                continue
            if self.network.connected(node.name, other.name):
                self._introduce(node, other)
        return node.life == life

    def _introduce(self, sender: SimulatedNode, reader: SimulatedNode) -> bool:
        """Let a node show what it loaded, and another one judge it, as `Greeter` does."""
        assert sender.master is not None and reader.master is not None
        shown = self.rot(sender.name, sender.master.standing)
        master, disk, empty = reader.master, sender.disk, sender.disk.is_empty
        empty = empty and sender.name not in self.layout.witnesses  # it keeps no queue
        known, shown_as = reader.disk.instances.get(sender.name, (None, 0))
        seat = master.view.seat(sender.name)
        returned = seat is not None and disk.incarnation == seat.incarnation > 1
        if returned and seat is not None and shown_as < seat.incarnation:
            known = disk.instance  # it was admitted with another disk than it showed here before
        # What a node without a seat showed binds nobody: it is a stranger, and may come with
        # another disk.
        free = seat is None or returned or master.is_blank(sender.name)
        if known is not None and not empty and free:
            known = disk.instance
        if empty and not reader.disk.is_empty and disk.incarnation == 1 and known != disk.instance:
            ignorant = master.phase is Phase.JOINING
            ignorant |= master.phase is Phase.FOLLOWING and not master.view.follows(sender.name)
            if known is None and ignorant:
                return False  # it has this log from others, and does not know their disks
            self.marks.hit("empty disk told")
            self.join_anew(sender, master.view)
            return False
        other = disk.is_empty and sender.master.view.log_id != master.view.log_id
        if other and reader.disk.view is not None:
            if sender.master.view.seat(reader.name) is None:
                return False  # it is none of its peers, and may know an older log
            self.marks.hit("forced log told")
            disk.log_id = master.view.log_id
            sender.crash()
            self.after(100_000, self._start, sender, sender.life)
            return False
        admitted = seat is None or disk.incarnation <= seat.incarnation
        if known in (None, disk.instance) and master.judge(sender.name, shown):
            self.marks.hit("older disk told")
            self.join_anew(sender, master.view)
            return False
        if admitted and known not in (None, disk.instance):
            if seat is not None and disk.incarnation < seat.incarnation:
                self.join_anew(sender, master.view)
            return False  # two nodes with one id
        if admitted:
            reader.disk.instances[sender.name] = (disk.instance, disk.incarnation)
        self._greeted[reader.name, sender.name] = (reader.life, sender.life)
        greeted = Greeted(peer=NodeId(sender.name), standing=shown)
        reader.handle([greeted])
        return True

    def join_anew(self, node: SimulatedNode, view: View | None) -> None:
        """Let a node start under its next incarnation, soon."""
        seat = None if view is None else view.seat(node.name)
        incarnation = max(node.disk.incarnation, 0 if seat is None else seat.incarnation) + 1
        node.crash()
        node.disk.join_anew(incarnation, self._tickets + 1)
        self._tickets += len(node.disk.announcements)
        self.checks.began_anew(node)
        self.rot.lied.discard(node.name)
        self.marks.hit("joined anew")
        self.after(100_000, self._start, node, node.life)

    def _start(self, node: SimulatedNode, life: int) -> None:
        if not node.up and node.life == life:
            node.start()
            self.relink()

    def doubt(self, node: SimulatedNode, peer: str) -> None:
        """A node believes another one no more: that has to greet it anew."""
        self.marks.hit("contradiction seen")
        other = self.nodes[peer]
        if self._greeted.pop((node.name, peer), None) == (node.life, other.life):
            # It may have greeted as a joiner: its disk is known since it was admitted.
            shown = (other.disk.instance, other.disk.incarnation)
            node.disk.instances.setdefault(peer, shown)

    def _is_greeted(self, sender: str, reader: str) -> bool:
        """Return whether a node hears another one, as both are, after a greeting if need be."""
        one, other = self.nodes[sender], self.nodes[reader]
        if not other.up:
            return False
        if self.layout.upgraded and not self._understand(one, other):
            return False
        known = self._greeted.get((reader, sender))
        if not one.up:  # its last words
            return known is not None and known[0] == other.life
        if known == (other.life, one.life):
            return True
        if one.paused or other.paused or not self.network.connected(sender, reader):
            return False
        return self._introduce(one, other) and other.up

    # -- actions -----------------------------------------------------------------------------------

    def carry_out(self, node: SimulatedNode, action: Action) -> None:
        """Carry out what is no `Persist…`."""
        if isinstance(action, SendPost):
            self.checks.posted(node, action)
        elif isinstance(action, SendEpochMessage):
            self.marks.message(action.message)
        letter = node.disk.letter_of(action, node.config, _TAIL_RUNS)
        if letter is not None:
            if isinstance(action, SendTail):
                self.marks.hit("tail served")
            self.send(node, *letter)
            return
        match action:
            case FetchPayload():
                self._fetch(node, action.header, list(action.sources), node.life)
            case PrefetchFiles():
                self._prefetch(node, action, node.life)
            case CheckFiles():
                self.after(100_000, self._checked, node, action.header, node.life)
            case CheckUnstamped():
                self.after(100_000, self._checked_own, node, action.digest, node.life)
            case _:
                self.checks.told(node, action)

    def send(self, sender: SimulatedNode, receiver: str, event: Event) -> None:
        """Put a message on its way."""
        event = self.rot.sent(sender.name, event)
        self._remember(sender.name, receiver, event)
        delays = self.network.delays(sender.name, receiver)
        if len(delays) == 1:
            self.after(delays[0], self._arrive, sender.name, receiver, event)
        elif delays:
            self.after(min(delays), self._arrive, sender.name, receiver, event)
            self.after(max(delays), self._arrive_again, sender.name, receiver, event)
        else:
            self.marks.hit("message lost")

    def _remember(self, sender: str, receiver: str, event: Event) -> None:
        """Keep one of eight messages, up to a bound; then each replaces one of any age."""
        if self.random.random() < 0.125:
            kept = (sender, receiver, event)
            if len(self._old) < _OLD_MESSAGES:
                self._old.append(kept)
            else:
                self._old[int(self.random.random() * _OLD_MESSAGES)] = kept

    def replay(self, count: int) -> None:
        """Let some old messages arrive again, as a network may at any time."""
        for _ in range(min(count, len(self._old))):
            delay = int(self.random.random() * 2_000_000)
            self.after(delay, self._arrive, *self.random.choice(self._old))

    def _arrive(self, sender: str, receiver: str, event: Event) -> None:
        if self.network.passes(sender, receiver) and self._is_greeted(sender, receiver):
            node = self.nodes[receiver]
            if isinstance(event, EpochMessageReceived) and isinstance(event.message, Probe):
                return self._complain(node, event.message)
            if isinstance(event, PostReceived):
                self._note_order(receiver, event.post)
            node.handle([event])
        return None

    def _note_order(self, receiver: str, post: Post) -> None:
        line, order = (post.sender, receiver), (post.start, post.round)
        if order < self._arrived.get(line, order):
            self.marks.hit("post overtaken by a newer one")
        self._arrived[line] = max(order, self._arrived.get(line, order))

    def _arrive_again(self, sender: str, receiver: str, event: Event) -> None:
        if self.nodes[receiver].up and self.network.passes(sender, receiver):
            self.marks.hit("duplicate delivered")
        self._arrive(sender, receiver, event)

    def _complain(self, node: SimulatedNode, probe: Probe) -> None:
        """Let a probe arrive, and see whether the suspects it names are suspected for it."""
        before = None if node.master is None else node.master.phase
        node.handle([EpochMessageReceived(message=probe)])
        if not probe.suspects or node.master is None or node.paused:
            return
        self.marks.hit("complaint")
        if before is Phase.NORMAL and node.master.phase is Phase.SUSPECT:
            suspects = set(probe.suspects).intersection(node.master.status().suspects)
            if any(self._linked.get((node.name, suspect)) for suspect in suspects):
                self.marks.hit("suspected on a complaint")

    # -- fetches -----------------------------------------------------------------------------------

    def _fetch(
        self, node: SimulatedNode, header: RunHeader, sources: list[NodeId], life: int
    ) -> None:
        """Try the sources in their order, each one round trip."""
        if life != node.life:
            return
        if not sources:
            node.handle([FetchFailed(digest=header.digest, reason="nobody has it")])
            return
        source = self.nodes[sources.pop(0)]
        delay = self._round_trip(node, source)
        if delay is not None and not source.paused and self.is_whole(source, header):
            self.after(delay, self._fetched, node, header, life)
        else:
            self.after(delay or 300_000, self._fetch, node, header, sources, life)

    def _round_trip(self, node: SimulatedNode, other: SimulatedNode) -> int | None:
        there = self.network.delays(node.name, other.name)
        back = self.network.delays(other.name, node.name)
        passes = other.up and self.network.connected(node.name, other.name)
        return there[0] + back[0] if there and back and passes else None

    def _fetched(self, node: SimulatedNode, header: RunHeader, life: int) -> None:
        if life == node.life:
            node.handle([PayloadArrived(header=header, facts=self.facts[header.digest])])

    def _prefetch(self, node: SimulatedNode, action: PrefetchFiles, life: int) -> None:
        announcement, origin = action.announcement, self.nodes[action.announcement.origin]
        delay = self._round_trip(node, origin)
        event: Event = FilesHeld(digest=announcement.digest)
        if delay is None:
            delay = 300_000
            event = FetchFailed(digest=announcement.digest, reason="its origin is away")
        elif announcement.digest in self.lost_files:
            # What is asked for and is not there makes the origin look at its own run.
            event = FetchFailed(digest=announcement.digest, reason="its origin has lost a file")
            lost = FilesLost(digest=announcement.digest, text="a staged file is damaged")
            self.after(delay // 2, self._prefetched, origin, lost, origin.life)
        self.after(10 * delay, self._prefetched, node, event, life)

    def is_whole(self, node: SimulatedNode, header: RunHeader) -> bool:
        """Return whether a node holds a run, and its files are not damaged."""
        return node.disk.holds(header) and (node.name, header.digest) not in self.damaged

    def _checked(self, node: SimulatedNode, header: RunHeader, life: int) -> None:
        if life == node.life:
            digest = header.digest
            whole = self.is_whole(node, header)
            lost = FilesLost(digest=digest, text="damaged")
            node.handle([FilesHeld(digest=digest) if whole else lost])

    def _checked_own(self, node: SimulatedNode, digest: bytes, life: int) -> None:
        if life == node.life:
            if digest in self.lost_files:
                self.marks.hit("overdue run lost")
                node.handle([FilesLost(digest=digest, text="a staged file is damaged")])
            else:
                self.marks.hit("overdue run whole")
                node.handle([FilesHeld(digest=digest)])

    def _prefetched(self, node: SimulatedNode, event: Event, life: int) -> None:
        if life == node.life:
            if isinstance(event, FilesHeld):
                self.checks.groups.fetched(node, event.digest)
            node.handle([event])

    # -- phases ------------------------------------------------------------------------------------

    def phase_changed(self, node: SimulatedNode, told: TellPhase) -> None:
        """See a node change its part."""
        self.marks.phase(told.phase)
        self.on_phase(told.phase)
        before, node.told_phase = node.told_phase, (told.phase, told.view.epoch)
        if told.phase is Phase.NORMAL and before == (Phase.SUSPECT, told.view.epoch):
            self.marks.hit("suspect cleared")
        if told.phase is Phase.FAULT and f"[{OutdatedError.code}]" not in told.reason:
            violated(f"{node.name} halts: {told.reason}")


def _ids(facts: RunFacts) -> set[bytes]:
    return {facts.ids[at : at + 16] for at in range(0, len(facts.ids), 16)}
