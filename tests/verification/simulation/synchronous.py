"""Synchronous runs in a simulated hour, and operators that change their quorum and timeout (P34).

They are drawn beside everything else, so that the draws of all else are those without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from tests.verification.model.invariants import violated

from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    PersistOwnRun,
    PersistQueue,
    PersistWithdrawal,
    TellOrdered,
)
from sparktxlog.protocol.messages.events import SynchroTimeoutSet
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.protocol.messages.view import View

if TYPE_CHECKING:
    from tests.verification.simulation.node import SimulatedNode
    from tests.verification.simulation.operator import Operator
    from tests.verification.simulation.world import World

#: Part of the runs that are synchronous.
_RUNS = 0.25
#: Part of the writes to synchronous tables that a node takes for ordinary ones.
_MISTAKEN = 0.3
#: Part of the runs that stay if one before them in their session is withdrawn.
_ALONE = 0.3
#: What an operator sets, and the mean pause between, microseconds.
_RULES = ("N/2+1", "N", "N-1", "2", "1", "2*N/3+1")
_TIMEOUTS_US = (1_000_000, 5_000_000, 20_000_000)
_PAUSE_US = 240_000_000


class Synchronous:
    """Clients that want so many holders, and operators that say how many.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:synchronous")
        self._alone = Random(f"{seed}:alone")

    def draw(self, master: Master, touches: Iterable[Touch]) -> int:
        """Return how many holders a run needs, as a node takes it; 0 = it is an ordinary one.

        Now and then a node takes for ordinary what is not: then it takes no effect.
        """
        drawn = self._random.random()
        known = [master.tables.get(touch.table) for touch in touches]
        synchronous = any(table is not None and table.is_sync for table in known)
        if drawn >= (1 - _MISTAKEN if synchronous else _RUNS):
            return 0
        return master.view.synchro_quorum

    def stands_alone(self) -> bool:
        """Return whether a run stays if one before it in its session is withdrawn."""
        return self._alone.random() < _ALONE

    def operate(self, world: World, operator: Operator, until: int) -> None:
        """Change the rule or the timeout now and then."""
        delay = int(self._random.expovariate(1 / _PAUSE_US))
        if world.now + delay < until:
            world.after(delay, self._change, world, operator, until)

    def _change(self, world: World, operator: Operator, until: int) -> None:
        random = self._random
        members = [node for node in world.nodes.values() if node.member and not node.paused]
        if members:
            node = random.choice(members)
            assert node.master is not None
            if random.random() < 0.5:
                node.handle([SynchroTimeoutSet(timeout_us=random.choice(_TIMEOUTS_US))])
            else:
                rule = random.choice(_RULES)
                operator.ask(node, node.master.view.roster, synchro_rule=rule)
        self.operate(world, operator, until)


class SynchronousChecks:
    """P34: what holds of synchronous runs; watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Digests of runs that were withdrawn for good.
        self._withdrawn: set[bytes] = set()
        #: Digests of runs on a disk that came back, or was begun anew: who vouches for them?
        self._excused: set[bytes] = set()
        #: Digest → nodes that ever held the run durably: a disk may be lost later.
        self._held: dict[bytes, set[str]] = {}

    def _holders(self, digest: bytes) -> int:
        return self._world.facts[digest].holders

    def _view(self, epoch: int) -> View:
        views = self._world.checks.views
        return views.get(epoch) or first_view(next(iter(self._world.nodes.values())).config)

    def refused(self, node: SimulatedNode, ticket: int) -> None:
        """See a client told that its run got no stamp in time."""
        if not node.submits[ticket].facts.holders:
            violated(f"P34: {node.name} refuses the ordinary run {ticket} as a synchronous one")

    def held(self, node: SimulatedNode, header: RunHeader) -> None:
        """See a run become durable."""
        if self._holders(header.digest):
            self._held.setdefault(header.digest, set()).add(node.name)

    def excuse(self, node: SimulatedNode) -> None:
        """See a node get another disk, or begin as another with what it has."""
        for submit in node.disk.announcements.values():
            self._excused.add(submit.digest)
            self._withdrawn.discard(submit.digest)

    def stamped(self, node: SimulatedNode, action: PersistOwnRun) -> None:
        """Nobody stamps a synchronous run in a view with fewer members than it needs holders."""
        header, holders = action.header, self._holders(action.header.digest)
        if not holders:
            if any(self._holders(s.digest) for s in node.disk.announcements.values()):
                self._world.marks.hit("ordinary run stamped while a synchronous one waits")
            return
        self._world.marks.hit("synchronous run stamped")
        submit = node.submits.get(action.ticket)
        inherited = submit is not None and submit.submitted_at is None
        members = len(self._view(header.epoch).members)
        if holders > members and not inherited and header.digest not in self._excused:
            violated(f"P34: {node.name} stamps {header}: {holders} holders of {members} members")

    def withdrawn(
        self, node: SimulatedNode, action: PersistWithdrawal, waiting: Iterable[int]
    ) -> None:
        """See a run forgotten, with all that its session submitted after it and rests on it.

        Args:
            waiting: Tickets of what waited for its stamp at the node.
        """
        first, *more = action.runs
        if self._holders(first.digest) and first.code == "synchro-timeout":
            self._world.marks.hit("synchronous run withdrawn")
            self._withdrawn.add(first.digest)
        submit, gone = node.submits[first.ticket], {run.ticket for run in more}
        if not gone and self._world.was_ordered(node, submit):
            return  # what became of that counts
        after = (node.submits[ticket] for ticket in waiting if ticket > first.ticket)
        resting = {
            one.ticket
            for one in after
            if one.session == submit.session is not None and not one.stands_alone
        }
        if gone != resting:
            violated(f"P34: {node.name} withdraws {gone} with {first.ticket}, not {resting}")
        for run in more:
            self._world.marks.hit("run withdrawn with its session")
            self._withdrawn.add(run.digest)

    def told(self, node: SimulatedNode, action: TellOrdered) -> None:
        """What is told of holders is true."""
        for entry in action.entries:
            header, wanted = entry.header, self._holders(entry.header.digest)
            held = len(self._held.get(header.digest, ()))
            if held < min(wanted, action.holders):
                violated(
                    f"P34: {node.name} tells {action.holders} holders of {header}, {held} hold it"
                )
            if action.holders < wanted and header.origin == node.name:
                self._world.marks.hit("synchronous run told as late")

    def queued(self, node: SimulatedNode, action: PersistQueue) -> None:
        """In an epoch with enough members, so many hold a run before it is appended there.

        What was withdrawn is never ordered.
        """
        epoch = 1 if node.disk.view is None else node.disk.view.epoch
        for entry in action.entries:
            header, wanted = entry.header, self._holders(entry.header.digest)
            if header.digest in self._withdrawn:
                violated(f"P34: {header} is ordered at {entry.position}, and was withdrawn")
            if not wanted or header.epoch != epoch or self._is_final(entry):
                continue
            view = self._view(epoch)
            needed, held = min(wanted, len(view.members)), len(self._held[header.digest])
            if needed > view.quorum:
                self._world.marks.hit("synchronous run with more holders than the quorum")
            if held < needed:
                violated(f"P34: {node.name} appends {header}, {held} of {needed} hold it")

    def _is_final(self, entry: QueueEntry) -> bool:
        """Return whether an entry is in the final queue's tail: there it need not have them."""
        master_views = [n.master.view for n in self._world.nodes.values() if n.master]
        views = [self._world.checks.views.get(entry.header.epoch + 1), *master_views]
        return any(
            view is not None
            and view.epoch > entry.header.epoch
            and view.base.position < entry.position <= view.end.position
            for view in views
        )
