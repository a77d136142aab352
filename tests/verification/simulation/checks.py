"""Invariants of the protocol, asserted at every step of a simulated history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from tests.verification.model.disk import RunKey, key_of
from tests.verification.model.invariants import (
    Answers,
    OneQueue,
    check_entered,
    check_post,
    note_decision,
    violated,
)
from tests.verification.simulation.groups import GroupChecks
from tests.verification.simulation.marks import LOST
from tests.verification.simulation.outcomes import Outcomes
from tests.verification.simulation.synchronous import SynchronousChecks
from tests.verification.simulation.trace import Trace

from sparktxlog.errors import (
    DuplicateTransactionError,
    GroupAwayError,
    PayloadStoreError,
    SessionRolledBackError,
    SynchroTimeoutError,
)
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistAnnouncement,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistRestamp,
    PersistView,
    PersistWithdrawal,
    SendPost,
    TellAccepted,
    TellAcquired,
    TellChange,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.versions import NEWEST
from sparktxlog.protocol.messages.view import Phase, View

if TYPE_CHECKING:
    from tests.verification.simulation.node import SimulatedNode
    from tests.verification.simulation.world import World


def _by_place(one: tuple[str, TableWrites]) -> tuple[int, str]:
    return one[1].position, one[0]


#: A ballot is decided so long after the promises for it, at most, microseconds.
_BALLOT_US = 12_000_000


class Checks:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        config = next(iter(world.nodes.values())).config
        self._outcomes = Outcomes(world.facts, world.marks, config)
        self.synchronous = SynchronousChecks(world)
        self.groups = GroupChecks(world)
        self.queue = OneQueue()
        #: The one queue that all queues are prefixes of.
        self.log = self.queue.log
        self._positions = self.queue.positions
        self.views: dict[int, View] = {}
        self.accepted: dict[RunKey, tuple[str, int]] = {}
        #: Digests of runs that clients were told are refused for certain.
        self._refused: set[bytes] = set()
        #: Digests of what waited for its stamp on a disk that came back: its client had an answer.
        self._answered: set[bytes] = set()
        #: Ticket → run, once stamped.
        self.stamped: dict[int, RunKey] = {}
        self._acquired: dict[RunKey, tuple[RunHeader, int]] = {}
        self._answers = Answers()
        self._posted: dict[tuple[str, int, int, str], int] = {}
        #: (node, ticket) of what is durable and waits for its stamp → the node's incarnation.
        self._unstamped: dict[tuple[str, int], int] = {}
        #: (node, incarnation, session) → ticket stamped last.
        self._last_ticket: dict[tuple[str, int, str], int] = {}
        self.transactions = 0
        #: Longest time in which nothing was ordered that could be (I12).
        self.still_us = 0
        #: True: all is well again, so each member takes what it is given.
        self.nobody_is_refused = False
        self._trace = Trace()
        self._guard: tuple[frozenset[str], ...] = config.guard
        #: Node → when it did something last.
        self._awake = dict.fromkeys(world.nodes, 0)

    @property
    def trace(self) -> str:
        """Digest of everything that was handled, in order."""
        return self._trace.hexdigest()

    # -- seen --------------------------------------------------------------------------------------

    def started(self, node: SimulatedNode) -> None:
        """See a node start."""
        assert node.master is not None
        if node.master.phase is Phase.WEDGED:
            self._world.marks.hit("wedged at start")
        elif node.master.phase is Phase.JOINING:
            self._world.marks.hit("joining at start")
        self._check_tables(node)

    def began_anew(self, node: SimulatedNode) -> None:
        """See a node begin under a later incarnation with what is on its disk."""
        self.synchronous.excuse(node)

    def disk_lost(self, node: SimulatedNode) -> None:
        """See a node lose everything; its queue begins anew."""
        self._world.marks.hit("disk lost")
        self.queue.compared[node.name] = 0

    def disk_changed(self, node: SimulatedNode) -> None:
        """See a node get another disk: what clients were told of what is not on it, it forgot."""
        disk, name = node.disk, node.name
        self.queue.compared[name] = 0
        # A run that was withdrawn, or ordered, since is on it again: nobody hears of it any more.
        self._answered.update(submit.digest for submit in disk.announcements.values())
        self._refused -= self._answered
        self.synchronous.excuse(node)
        for key in [key for key in self.accepted if key[0] == name]:
            if key not in self._positions and key not in disk.incoming:
                del self.accepted[key]
        for line in [line for line in self._last_ticket if line[0] == name]:
            del self._last_ticket[line]
        for link in [link for link in self._posted if link[0] == name]:
            del self._posted[link]
        for waiting in [waiting for waiting in self._unstamped if waiting[0] == name]:
            del self._unstamped[waiting]
        # What waits on it waits again, under no incarnation that has to stamp it.
        for submit in disk.announcements.values():
            self._unstamped[name, submit.ticket] = -1

    def handled(self, node: SimulatedNode, actions: Sequence[Action]) -> None:
        """See what a core wants done."""
        self._trace.add(self._world.now, node.name, actions)
        self._awake[node.name] = self._world.now
        assert node.master is not None
        entered: View | None = None  # two epochs may be entered at once
        for action in actions:
            if isinstance(action, PersistView):
                entered = action.view
            elif isinstance(action, PersistRestamp):
                self._world.marks.hit("run restamped")
                self._check_restamp(node, action, entered or node.master.view)

    def _check_restamp(self, node: SimulatedNode, action: PersistRestamp, view: View) -> None:
        """P20: an old run is stamped anew only by its origin, as a member of the later epoch."""
        header = action.header
        if header.origin != node.name or header.epoch != view.epoch or (
            node.name not in view.members
        ):  # fmt: skip
            violated(f"P20: {node.name} stamps {header} anew, members are {view.members}")

    def posted(self, node: SimulatedNode, action: SendPost) -> None:
        """I11: posted counters of one epoch never fall, counted when a post really leaves."""
        post = action.post
        view = self.views.get(post.epoch)
        if node.name not in (view.members if view else self._world.layout.masters):
            violated(f"P19: {node.name} posts in epoch {post.epoch} without being a member")
        link = (node.name, node.disk.incarnation, post.epoch, action.peer)
        check_post(node.disk, post, self._posted.get(link, -1))
        self._posted[link] = post.counter

    def wrote(self, node: SimulatedNode, persists: Sequence[Action]) -> None:
        """See a write become durable."""
        for action in persists:
            if isinstance(action, (PersistOwnRun, PersistForeignRun)):
                self.synchronous.held(node, action.header)
            if isinstance(action, PersistQueue):
                self.synchronous.queued(node, action)
                self._check_queue(node)
                self._check_created(node, action)
            elif isinstance(action, PersistAnnouncement):
                self._unstamped[node.name, action.ticket] = node.disk.incarnation
            elif isinstance(action, PersistOwnRun):
                self._unstamped.pop((node.name, action.ticket), None)
                self.synchronous.stamped(node, action)
                self.groups.stamped(node, action)
            elif isinstance(action, PersistWithdrawal):
                waiting = [ticket for name, ticket in self._unstamped if name == node.name]
                self.synchronous.withdrawn(node, action, waiting)
                self.groups.withdrawn(node, action)
                for run in action.runs:
                    self._unstamped.pop((node.name, run.ticket), None)
            elif isinstance(action, PersistView):
                self._check_view(node, action.view)

    def _check_queue(self, node: SimulatedNode) -> None:
        """I1, I2, I7, P25c: the queue is that of all, and has the right outcomes."""
        for entry in self.queue.see(node.disk):
            if entry.header.digest in self._refused:
                violated(f"I7: {entry.header} is ordered, its client was told that it is refused")
            self._check_outcome(self._outcomes.ordered(entry))
            self.transactions += entry.header.n

    def _check_created(self, node: SimulatedNode, action: PersistQueue) -> None:
        """P25b: with the entries, added or of a tail, the tables that they create are written."""
        first, end = action.entries[0].position, action.entries[-1].end
        created = self._outcomes.effects.created
        expected = tuple(one for one in created if first <= one[0] <= end)
        if expected:
            self._world.marks.hit("table created")
        if any(table.schema_version == table.first_version > 1 for _, table in expected):
            self._world.marks.hit("table created again")
        if action.tables != expected:
            violated(f"P25b: {node.name} creates {action.tables} in {first}-{end}: {expected}")
        written = self._outcomes.effects.written
        counted = [one for one in written if first <= one[1].position <= end]
        if sorted(action.writes, key=_by_place) != sorted(counted, key=_by_place):
            violated(f"P27: {node.name} writes {action.writes} in {first}-{end}: {counted}")
        self._check_commit_tables(action, first, end)
        if end == node.disk.queue[-1].end:
            self._check_undecided(node, end)
            commits = self._outcomes.effects.commits.at(end)
            if node.disk.commit_tables != commits:
                violated(f"P36: {node.name} has {node.disk.commit_tables} at {end}: {commits}")

    def _check_commit_tables(self, action: PersistQueue, first: int, end: int) -> None:
        """P36: with the entries, commit tables are written as each run left them."""
        in_order = attrgetter("changed", "uuid")
        every = self._outcomes.effects.commits.left
        left = sorted((one for one in every if first <= one.changed <= end), key=in_order)
        written = sorted(action.commit_tables, key=in_order)
        if written != left:
            violated(f"P36: {written} are kept in {first}-{end}: {left}")

    def _check_undecided(self, node: SimulatedNode, position: int) -> None:
        """P35: what a disk has of prepared transactions is what the one queue has there."""
        kept = {name: tuple(sorted(one.said)) for name, one in node.disk.undecided.items()}
        expected = self._outcomes.effects.undecided_at(position)
        if kept != expected:
            violated(f"P35: {node.name} keeps {kept} as undecided at {position}: {expected}")

    def _check_tables(self, node: SimulatedNode) -> None:
        """P25b: the tables of a core are those of the one queue, up to its position."""
        assert node.master is not None
        position, tables = node.master.base.position, dict(node.master.tables)
        expected = self._outcomes.effects.at(position)
        if tables != expected:
            violated(f"P25b: {node.name} has {sorted(tables)} at {position}: {sorted(expected)}")
        for table, writes in self._outcomes.effects.writes_at(position).items():
            if node.master.writes(table) not in (writes, None):
                violated(f"P27: {node.name} knows {node.master.writes(table)} of {table}: {writes}")
        commits = self._outcomes.effects.commits.at(position)
        there = {uuid: table for uuid, table in commits.items() if not table.is_dropped}
        if dict(node.master.commit_tables) != there:
            violated(f"P36: {node.name} knows {dict(node.master.commit_tables)}: {there}")

    def _check_view(self, node: SimulatedNode, view: View) -> None:
        """I4, I5, I6: one decision an epoch; its final queue has all that was promised."""
        if view.version > node.newest:
            violated(f"P31: {node.name} speaks up to {node.newest}, in force is {view.version}")
        if view.version > NEWEST:
            self._world.marks.hit("version raised")
        if note_decision(self.views, view):
            self._note_view(view)
        # A node that lost its disk may learn of the view that still counts its older self.
        counts = node.name in view.members and view.is_current(node.name, node.disk.incarnation)
        if counts:
            check_entered(node.disk, view)
        for key, (header, epoch) in list(self._acquired.items()):
            at = self._positions.get(key)
            if at is not None:
                del self._acquired[key]
            elif epoch < view.epoch and counts:
                violated(f"I6: {header} was told as acquired, and is not in the final queue of "
                          f"epoch {view.epoch - 1}")  # fmt: skip

    def _check_flushed(self, view: View) -> None:
        """I3, P16: what is decided, every new member holds durably, or it lost its disk since."""
        for member in view.members:
            disk = self._world.nodes[member].disk
            if view.is_current(member, disk.incarnation):
                wanted = [header for header in view.tail if view.void(header) is None]
                missing = [header for header in wanted if not disk.holds(header)]
                if missing:
                    violated(f"I3: {member} enters {view.epoch} without {missing[0]}")

    def _check_void(self, view: View) -> None:
        """P32: what is void, no member before it held whole, without gap before it."""
        before = self.views.get(view.epoch - 1)
        for voided in view.voided:
            self._world.marks.hit("run voided")
            lost = replace(voided.header, digest=voided.digest)
            for name in before.members if before else self._world.layout.masters:
                node = self._world.nodes[name]
                if self._world.is_whole(node, lost) and node.disk.reaches(lost):
                    violated(f"P32: {name} holds {lost}, which is void in epoch {view.epoch}")

    def _check_guard(self, view: View) -> None:
        """P40: where a member is left out, all of one set were awake a short while before."""
        before = self.views.get(view.epoch - 1)
        old = before.members if before else self._world.layout.masters
        places = {seat.node_id for seat in view.roster if seat.may_be_member}
        if not self._guard or (before and before.log_id != view.log_id):
            return  # there is none, or an operator let one go on alone
        asleep = {n for n, at in self._awake.items() if self._world.now - at > _BALLOT_US}
        if asleep.intersection(places).intersection(old).difference(view.members):
            self._world.marks.hit("left out under a guard")
            if all(asleep & one for one in self._guard if one & places):
                violated(f"P40: {view.members} go on in {view.epoch}, and {asleep} are away")

    def _note_view(self, view: View) -> None:
        self._check_flushed(view)
        self._check_void(view)
        self._check_guard(view)
        marks, before = self._world.marks, self.views.get(view.epoch - 1)
        members = set(before.members if before else self._world.layout.masters)
        after = set(view.members)
        if members - after:
            marks.hit("member evicted")
        if after - members:
            marks.hit("member admitted")
        if any(view.follows(member) for member in view.members):
            violated(f"P38: a follower is a member of epoch {view.epoch}: {view.members}")
        if after == members:
            marks.hit("nobody evicted")
        if len(after) == 1:
            marks.hit("one member alone")
        if before is not None:
            was = {seat.node_id: seat.incarnation for seat in before.roster}
            now = {seat.node_id: seat.incarnation for seat in view.roster}
            if any(now.get(node, 0) > number for node, number in was.items()):
                marks.hit("returned after a loss")
            if set(was) != set(now) or [s.weight for s in before.roster] != [
                s.weight for s in view.roster
            ]:
                marks.hit("roster changed")
            if view.quorum_rule != before.quorum_rule:
                marks.hit("quorum changed")
            if view.synchro_rule != before.synchro_rule:
                marks.hit("synchro quorum changed")

    def told(self, node: SimulatedNode, action: Action) -> None:
        """See what clients are told (I6, I7)."""
        match action:
            case TellAccepted(header=RunHeader() as header):
                self.accepted[key_of(header)] = (node.name, node.disk.incarnation)
                self.stamped[action.ticket] = key_of(header)
                self._outcomes.accepted(header)
                self._check_session(node, action.ticket)
            case TellAcquired():
                header = action.header
                if key_of(header) not in self._positions:
                    self._acquired[key_of(header)] = (header, header.epoch)
            case TellOrdered():
                self._answers.see(node.name, action)
                self.synchronous.told(node, action)
            case TellRejected():
                self._check_refusal(node, action)
            case TellChange():
                done = action.epoch is not None
                self._world.marks.hit("change done" if done else "change of roster refused")
                if "holds the run" in action.text:
                    self._world.marks.hit("void refused")
            case _:
                pass

    def _check_was_ordered(self, node: SimulatedNode, action: TellRejected) -> None:
        """P25c: a run is withdrawn as a repeat only where an earlier copy is ordered."""
        self._world.marks.hit("repeat withdrawn")
        if not self._world.was_ordered(node, node.submits[action.ticket]):
            violated(f"P25c: {node.name} withdraws as a repeat what was never ordered")

    def _check_refusal(self, node: SimulatedNode, action: TellRejected) -> None:
        """I7, I8: what is refused is in no queue; in the end only lost files are a reason."""
        if action.code == DuplicateTransactionError.code:
            self._check_was_ordered(node, action)
            return
        withdrawn = action.code == PayloadStoreError.code
        if withdrawn:
            self._world.marks.hit("run withdrawn")
        elif action.code == SynchroTimeoutError.code:
            self.synchronous.refused(node, action.ticket)
        elif action.code == GroupAwayError.code:
            self.groups.refused(node, action.ticket)
        elif self.nobody_is_refused and action.code != SessionRolledBackError.code:
            violated(f"I8: {node.name} refuses a submit: {action.code}, {action.text}")
        digest = node.submits[action.ticket].digest
        if digest in self._answered:
            return
        self._refused.add(digest)
        if any(entry.header.digest == digest for entry in node.disk.queue):
            violated(f"I7: {node.name} refuses what is ordered already: {action.text}")

    def _check_session(self, node: SimulatedNode, ticket: int) -> None:
        """P1a: the runs of one session are stamped in submit order."""
        submit = node.submits.get(ticket)
        if submit is not None and submit.session is not None:
            line = (node.name, node.disk.incarnation, submit.session)
            if ticket < self._last_ticket.get(line, 0):
                violated(f"P1a: {node.name} stamps {ticket} behind {self._last_ticket[line]}, "
                          f"which came later in {submit.session}")  # fmt: skip
            self._last_ticket[line] = ticket

    # -- the end -----------------------------------------------------------------------------------

    def check_healed(self) -> None:
        """I8: all members equal, every durable transaction of theirs ordered once."""
        world = self._world
        newest = self.views[max(self.views)] if self.views else None
        if newest is not None and self._is_lost(newest):
            world.marks.hit(LOST)
            return
        expected = set(newest.members) if newest else set(world.layout.masters)
        seats = {s.node_id for s in newest.roster if s.may_be_member} if newest else expected
        for seat in newest.roster if newest else ():
            if seat.follower:
                self._check_follower(world.nodes[seat.node_id])
        for name in seats:
            node = world.nodes[name]
            assert node.master is not None
            status = node.master.status()
            if status.phase is not Phase.NORMAL or status.busy or status.unstamped_runs:
                violated(f"I8: {name} is {status.phase} in epoch {status.epoch}, members "
                          f"{status.members}, waits for {status.waiting_for}")  # fmt: skip
            if len(node.disk.queue) != len(self.log):
                violated(f"I8: {name} has {len(node.disk.queue)} of {len(self.log)} runs")
            self._check_outcome(self._outcomes.check_known(name, node.master))
            self._check_tables(node)
            if node.master.view.version != node.newest:
                violated(f"P31: {name} still works by version {node.master.view.version}")
        self._check_outcome(self._outcomes.check_once(self.log))
        self._check_outcome(self._outcomes.check_no_lost_update(self.log))
        self._check_outcome(self._outcomes.check_commit_histories(self.log))
        for entry in self.log:
            told = self._answers.told.get(key_of(entry.header), (entry.position, entry.rejections))
            if told != (entry.position, entry.rejections):
                violated(f"I7: {entry.header} is at {entry.position}, clients were told {told}")
        for key, (name, incarnation) in self.accepted.items():
            kept = world.nodes[name].disk.incarnation == incarnation and name in seats
            if kept and key not in self._positions:
                violated(f"I8: accepted run {key} was never ordered")

        for (name, ticket), incarnation in self._unstamped.items():
            if world.nodes[name].disk.incarnation == incarnation and name in seats:
                violated(f"I8: {name} accepted {ticket}, and never stamped it")

    def _check_follower(self, node: SimulatedNode) -> None:
        """P38: a follower is at the end, too, and nobody took it for a member."""
        assert node.master is not None
        self._world.marks.hit("follower at the end")
        if node.master.phase is not Phase.FOLLOWING or len(node.disk.queue) != len(self.log):
            violated(
                f"P38: {node.name} is {node.master.phase} in epoch {node.master.view.epoch} and "
                f"has {len(node.disk.queue)} of {len(self.log)} runs"
            )
        self._check_outcome(self._outcomes.check_known(node.name, node.master))
        self._check_tables(node)

    def _is_lost(self, newest: View) -> bool:
        """Return whether the one member of the newest epoch had to come back without its memory.

        The others have forgotten what it alone was to bring: a backup has to be restored.
        """
        (name, *others), nodes = newest.members, self._world.nodes
        gone = not newest.is_current(name, nodes[name].disk.incarnation)
        return gone and not others and name in self._world.rot.ever_lied

    def _check_outcome(self, wrong: str) -> None:
        if wrong:
            violated(wrong)
