"""What an operator does in a simulated hour: force, votes, void runs, nodes that come back.

He knows what the nodes' disks hold; what he may do, and must not do, is in docs/losing-sites.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tests.verification.model.disk import key_of
from tests.verification.simulation.node import FOUNDED_US, SimulatedNode
from tests.verification.simulation.world import World

from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.events import ChangeRequested, ForceRequested
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.protocol.messages.view import Phase, Seat, View, Voided

_SECOND = 1_000_000


class Operator:
    """Looks after the nodes of one world, and knows what they can do without."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tickets = 1_000_000

    def ask(
        self,
        node: SimulatedNode,
        roster: tuple[Seat, ...],
        rule: str = "",
        synchro_rule: str = "",
    ) -> None:
        """Ask a node for another roster, or another quorum; it may refuse, or go down over it."""
        self._tickets += 1
        request = ChangeRequested(
            ticket=self._tickets, roster=roster, quorum_rule=rule, synchro_rule=synchro_rule
        )
        node.handle([request])

    def start(self, node: SimulatedNode) -> None:
        """Start a node that is down."""
        if not node.up:
            node.start()
            self._world.relink()

    def forget(self, node: SimulatedNode, away_us: int) -> None:
        """Start a node with an empty disk, `away_us` microseconds later."""
        if node.up:
            node.crash()
        node.lose_disk()
        self._world.after(away_us, self.start, node)

    # -- force and votes ---------------------------------------------------------------------------

    def force(self, dead: SimulatedNode) -> None:
        """Let the survivor of two equal masters go on alone (P23).

        The other one is down, or only asks to join: it has no vote any more.
        """
        (survivor,) = (node for node in self._world.nodes.values() if node is not dead)
        if survivor.master is None or not survivor.member or survivor.paused:
            return
        if dead.up and survivor.master.view.is_current(dead.name, dead.disk.incarnation):
            return
        view, views = survivor.master.view, self._world.checks.views
        newest = views[max(views)] if views else view
        if newest.log_id != view.log_id:
            return  # it was the other one that was let go on alone: two forks are a mistake
        is_whole = newest.is_current(dead.name, dead.disk.incarnation)
        if newest.elects({dead.name}) and (newest.epoch > view.epoch or is_whole):
            return  # the other one has all votes: it went on by itself, or does once it is back
        if not view.elects({survivor.name}):
            self._world.marks.hit("forced")
            self._let_go_on_alone(survivor)

    def _let_go_on_alone(self, survivor: SimulatedNode) -> None:
        self._tickets += 1
        log_id = f"forced-{self._tickets}"
        survivor.handle([ForceRequested(ticket=self._tickets, log_id=log_id)])

    def force_for_joiners(self) -> None:
        """Do so too where one asks to come back as another, and the other has half of the votes, or
        none.
        """
        self._world.after(10 * _SECOND, self.force_for_joiners)
        for node in self._world.nodes.values():
            if node.master is not None and node.master.phase is Phase.JOINING:
                self.force(node)

    def go_on_alone(self, survivor: SimulatedNode, dead: list[SimulatedNode], mark: str) -> None:
        """Force the survivor until its disk shows it; only then the others start again."""
        world, view = self._world, survivor.disk.view
        if view is None or not view.elects({survivor.name}):
            if survivor.member and not survivor.paused:
                self._let_go_on_alone(survivor)
            world.after(2 * _SECOND, self.go_on_alone, survivor, dead, mark)
            return
        world.marks.hit(mark)
        for node in dead:
            world.after(self._world.seconds(1, 20), self.start, node)
        if not world.layout.forced:
            self.give_votes()

    def give_votes(self) -> None:
        """After a `force` give each place a vote again, once its node is back."""
        self._world.after(10 * _SECOND, self.give_votes)
        for node in self._world.nodes.values():
            view = None if node.master is None else node.master.view
            if view is not None and node.member:
                back = [seat.witness or seat.node_id in view.members for seat in view.roster]
                roster = tuple(
                    replace(seat, weight=1) if here and not seat.weight else seat
                    for seat, here in zip(view.roster, back, strict=True)
                )
                if roster != view.roster:
                    self.ask(node, roster)
                return

    def usual_quorum(self) -> None:
        """Ask for the quorum again that the cluster began with, until it is in force."""
        world = self._world
        members = [node for node in world.nodes.values() if node.member and not node.paused]
        views = [node.master.view for node in members if node.master is not None]
        if views and all(view.quorum_rule == world.layout.quorum_rule for view in views):
            return
        for node in members[:1]:
            assert node.master is not None
            self.ask(node, node.master.view.roster, world.layout.quorum_rule)
        world.after(10 * _SECOND, self.usual_quorum)

    # -- wrong clocks ------------------------------------------------------------------------------

    def look_after(self, node: SimulatedNode) -> None:
        """Bring a node back that promised too much (`peer quarantine --rejoin`).

        So he does with one of which another says that it has another queue (`--from`).

        If it is a member that the others cannot leave out without its votes, it gives them away
        first (`peer set --weight 0`), and so it does if they cannot decide without it later.
        """
        world = self._world
        world.after(10 * _SECOND, self.look_after, node)
        views = world.checks.views
        far = self._is_far(node)
        if far and not world.checks.log:
            self._begin_again(node)
        if not (far or self._gives_way(node)) or node.skew_us or not views:
            return
        if node.name not in views[max(views)].members and self.may_lose(node):
            world.marks.hit("brought back by an operator")
            self.forget(node, self._world.seconds(1, 10))
        elif far:
            self._take_votes(node)

    def _begin_again(self, node: SimulatedNode) -> None:
        """Nothing is ordered yet, and one node of two that others need stamps too late.

        The other one had written nothing when it was heard first, and was taken for one that lost
        its disk (P29).  An operator lets the one that is left go on alone (P23).
        """
        masters = [self._world.nodes[name] for name in self._world.layout.masters]
        left = [one for one in masters if one.member and not self._will_be_far(one)]
        if len(left) != 1 or not any(one.disk.incarnation > 1 for one in masters):
            return
        assert left[0].master is not None
        if not left[0].master.view.preserves({left[0].name}):
            if node.up:
                node.crash()
            node.lose_disk()
            self.go_on_alone(left[0], [node], "founded anew by an operator")

    def _take_votes(self, node: SimulatedNode) -> None:
        """The others cannot decide without a node that is of no use: it gives its votes away."""
        views = self._world.checks.views
        for other in self._world.nodes.values():
            view = None if other.master is None else other.master.view
            if view is None or not other.member or view.epoch != max(views):
                continue
            if other is node or self._is_far(other):
                continue
            gone = {node.name, *self._world.rot.lied}
            if view.elects(seat.node_id for seat in view.roster if seat.node_id not in gone):
                return
            seats = [replace(s, weight=0) if s.node_id == node.name else s for s in view.roster]
            if any(seat.weight for seat in seats):
                self._world.marks.hit("votes taken by an operator")
                self.ask(other, tuple(seats))
                return

    def _gives_way(self, node: SimulatedNode) -> bool:
        """Whether another node believes nothing of it, as it is, for it had another queue (I1)."""
        masters = [other.master for other in self._world.nodes.values() if other.master]
        doubted = [m._doubted.get(node.name, (0, "")) for m in masters if node.name in m._differing]
        return any(incarnation >= node.disk.incarnation for incarnation, _ in doubted)

    def _is_far(self, node: SimulatedNode) -> bool:
        """Whether a node promised, or holds, what others take for stamped too late."""
        log, lead_us = self._world.checks.log, node.config.max_counter_lead_us
        # A log that is ahead since it had one member is what it is.
        latest = max(FOUNDED_US + self._world.now, log[-1].header.ts if log else 0) + lead_us
        stamps = (header.ts for header in node.disk.incoming.values())
        return max(node.disk.reserved, *stamps, 0) > latest

    def _will_be_far(self, node: SimulatedNode) -> bool:
        """Whether a node stamps, or promised, what others take for too late."""
        return self._is_far(node) or abs(node.skew_us) > node.config.max_counter_lead_us

    def is_wrong(self, node: SimulatedNode) -> bool:
        """Whether the others may soon have to do without what a node holds."""
        return node.name in self._world.rot.lied or self._will_be_far(node)

    # -- runs that nobody can deliver --------------------------------------------------------------

    def void(self, node: SimulatedNode, header: RunHeader) -> None:
        """Have a run voided whose only copy is lost; ask again until it is (P32)."""
        world, key = self._world, key_of(header)
        waits = node.disk.incoming.get(key)
        queues = [other.disk.ordered.get(key) for other in world.nodes.values()]
        # The place of the run in a queue, which may be void already: another node's view.
        if waits is None or any(run and run.digest == header.digest for run in queues):
            # It was ordered all the same, or is gone: somebody puts a good copy in its place.
            world.damaged.discard((node.name, header.digest))
            return
        world.after(self._world.seconds(5, 20), self.void, node, header)
        if node.member and not node.paused:
            assert node.master is not None
            self._tickets += 1
            view = node.master.view
            gone = [
                seat.node_id
                for seat in view.roster
                if self._is_given_up(world.nodes[seat.node_id], seat, waits)
            ]
            void = replace(self._voided(waits), without=tuple(gone))
            event = ChangeRequested(ticket=self._tickets, roster=view.roster, void=void)
            node.handle([event])

    def _is_given_up(self, node: SimulatedNode, seat: Seat, header: RunHeader) -> bool:
        """Whether the operator names a node with `--without`: he knows whose disk is lost.

        If a node holds what cannot be right, or contradicted itself, nobody believes what it says
        of a run: he looks himself whether its disk has it.
        """
        if node.disk.incarnation > seat.incarnation:
            return True
        doubted = self._is_far(node) or node.name in self._world.rot.lied
        return doubted and not self._world.is_whole(node, header)

    def _voided(self, header: RunHeader) -> Voided:
        lost = self._world.facts[header.digest]
        facts = RunFacts(n=lost.n, ids=lost.ids, acceptance=lost.acceptance, voided=True)
        digest = hashlib.sha256(header.digest + header.ts.to_bytes(8, "big")).digest()
        self._world.facts[digest] = facts
        void = replace(header, digest=digest, staged_bytes=0)
        return Voided(header=void, facts=facts, digest=header.digest)

    # -- what the others can do without ------------------------------------------------------------

    def may_lose(self, node: SimulatedNode) -> bool:
        """Whether the others can do without a node's memory, whatever is decided already."""
        return self.may_lose_all({node.name}) and self.can_decide({node.name})

    def may_lose_all(self, lost: set[str]) -> bool:
        """Whether the other members hold all that was acquired, and their memories count.

        So it is as long as fewer members are lost than holders are promised (P12).
        """
        nodes, others = self._world.nodes, set(self._world.nodes) - lost
        # What a lost node is by now counts for nobody: it may be lost again before it is admitted.
        # Who stamped too far ahead votes, and what it holds is of no use to the others (C3).
        use = {name for name in others if not self._will_be_far(nodes[name])}
        return all(self.settled(nodes[name]) for name in others) and all(
            view.preserves(use) for view in self.views()
        )

    def can_decide(self, lost: set[str]) -> bool:
        """Whether the others have a majority of the votes, or lose none of them.

        Who lied may have to come back as another at any time, and has no vote then.
        """
        others = set(self._world.nodes) - lost - self._world.rot.lied
        return all(
            view.elects(others) or not any(s.weight for s in view.roster if s.node_id in lost)
            for view in self.views()
        )

    def views(self) -> list[View]:
        """Return the newest view, and what was voted for, or may be before a node is asked."""
        nodes, views = self._world.nodes.values(), self._world.checks.views
        view = views[max(views)] if views else first_view(next(iter(nodes)).config)
        votes = [node.disk.ballot.accepted for node in nodes if node.disk.ballot is not None]
        proposers = [node.master._succession.proposer for node in nodes if node.master]
        later = [vote.view for vote in votes if vote is not None]
        later += [one.candidate for one in proposers if one is not None and one.candidate]
        return [view, *(one for one in later if one.epoch >= view.epoch)]

    def settled(self, node: SimulatedNode) -> bool:
        """Whether a node's memory is known under its present incarnation.

        One that has written nothing yet may be taken for one that lost its disk (P29).
        """
        seats = [view.seat(node.name) for view in self.views()]
        # One without a place has a memory that nobody needs; a witness keeps no queue.
        return all(
            seat is None
            or (
                node.disk.incarnation == seat.incarnation
                and (seat.witness or not node.disk.is_empty)
            )
            for seat in seats
        )
