"""What goes wrong in a simulated hour; all drawn from the seed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tests.verification.simulation.clients import Clients
from tests.verification.simulation.disk import SimulatedDisk, key_of
from tests.verification.simulation.network import Weather
from tests.verification.simulation.node import FOUNDED_US, SimulatedNode
from tests.verification.simulation.world import World

from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.master import first_view
from sparktxlog.protocol.words.actions import PERSISTS, Action, PersistOwnRun
from sparktxlog.protocol.words.events import ChangeRequested, ForceRequested
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.protocol.words.versions import VOIDS
from sparktxlog.protocol.words.view import Phase, Seat, View, Voided

_SECOND = 1_000_000
_YEAR_S = 365 * 86_400
#: Part of the histories that begin with a wrong clock.
_FOUNDED_WRONG = 0.2
#: Chance that the files of an own run are damaged as soon as it has its stamp, and that an
#: operator voids one that is not.
_DAMAGED, _MISTAKEN = 0.2, 0.05
_COPY = "copied disk"
#: Chance of a crash where the writes of a new epoch are torn apart.
_TORN = 0.05
#: Part of the operator's changes that are of the acquisition quorum, and what it can be.
_OF_QUORUM, _RULES = 0.3, ("default", "all", "majority", "1", "2")


def found_with_wrong_clock(world: World) -> SimulatedNode | None:
    """Let, now and then, a member's very first start be with a clock a year off (C3)."""
    view = first_view(next(iter(world.nodes.values())).config)
    names = {seat.node_id for seat in view.roster}
    spared = [name for name in view.members if view.elects(names - {name})]
    if not spared or len(view.members) < 2 or world.random.random() >= _FOUNDED_WRONG:
        return None
    world.marks.hit("founded with a clock a year off")
    node = world.nodes[world.random.choice(spared)]
    node.skew_us = int(world.random.uniform(-_YEAR_S, _YEAR_S) * _SECOND)
    return node


class Faults:
    """Breaks things now and then, and repairs most of them.

    Args:
        world: Where.
        clients: Commit right when something breaks.
        until: No fault begins after this time, microseconds.
        pause_us: Mean time between two faults.
        founded_wrong: A node that begins with a wrong clock; somebody sets it right.
    """

    def __init__(
        self,
        world: World,
        clients: Clients,
        until: int,
        pause_us: int,
        founded_wrong: SimulatedNode | None = None,
    ) -> None:
        self._world = world
        self._clients = clients
        self._until = until
        self._pause_us = pause_us
        self._tickets = 1_000_000
        #: Kind of `Persist…` whose next write a crash strikes.
        self._struck: type | None = None
        kinds = (
            (self._crash, 30),
            (self._partition, 14),
            (self._one_way, 8),
            (self._pause, 14),
            (self._bad_weather, 10),
            (self._slow_link, 8),
            (self._slow_disk, 6),
            (self._full_disk, 4),
            (self._failing_disk, 6),
            (self._clock, 6),
            (self._set_running_clock, 4),
            (self._sleep, 4),
            (self._lose_disk, 5),
            (self._lose_two_disks, 4),
            (self._older_disk, 5),
            (self._copied_disk, 3),
            (self._wrong_disks, 3),
            (self._change_roster, 9),
            (self._rolling_restart, 2),
            (self._crash_all, 2),
            (self._rivals, 3),
            (self._stale, 4),
            (self._lie, 8),
            (self._crash_writing, 20),
        )
        other = world.layout.faults
        self._kinds = tuple((kind, other.get(kind.__name__, weight)) for kind, weight in kinds)
        #: Node whose next write fails, and whether all do for a while.
        self._failing: SimulatedNode | None = None
        self._fails_on = False
        #: Node → an image of its disk.
        self._images: dict[str, SimulatedDisk] = {}
        self._take_images()
        # So that every history has epochs: one member after the other is away for long.
        if founded_wrong is not None:
            world.after(self._seconds(20, 90), setattr, founded_wrong, "skew_us", 0)
        for node in world.nodes.values():
            self._look_after(node)
        for part in (2, 5, 8):
            world.at(until * part // 10, self._away)
        if world.layout.forced:
            self._give_votes()
            self._force_for_joiners()
        world.rot.spares = lambda name: self._may_lose(world.nodes[name])
        for node in world.nodes.values():
            node.on_torn_epoch = self._tear
            node.on_write = self._strike_write
        self._next()

    def _next(self) -> None:
        random = self._world.random
        delay = int(random.expovariate(1 / self._pause_us))
        if self._world.now + delay < self._until:
            self._world.after(delay, self._strike)

    def _away(self) -> None:
        members = [node for node in self._world.nodes.values() if node.member]
        spared = [node for node in members if self._can_spare(node)] or members
        if spared:
            self._clients.burst()
            node = self._world.random.choice(spared)
            self._world.after(self._seconds(0, 0.15), self._down, node, self._seconds(15, 40))
            if self._world.layout.forced:
                self._world.after(self._seconds(4, 12), self._force, node)

    def _can_spare(self, node: SimulatedNode) -> bool:
        """Return whether the others can decide without a node."""
        assert node.master is not None
        view = node.master.view
        return view.elects(seat.node_id for seat in view.roster if seat.node_id != node.name)

    def _force(self, dead: SimulatedNode) -> None:
        """An operator lets the survivor of two equal masters go on alone (P23).

        The other one is down, or only asks to join: it has no vote any more.
        """
        (survivor,) = (node for node in self._world.nodes.values() if node is not dead)
        if survivor.master is None or not survivor.member or survivor.paused:
            return
        if dead.up and survivor.master.view.is_current(dead.name, dead.disk.incarnation):
            return
        view, views = survivor.master.view, self._world.checks.views
        newest = views[max(views)] if views else view
        if newest.lineage != view.lineage:
            return  # it was the other one that was let go on alone: two forks are a mistake
        if newest.epoch > view.epoch and newest.elects({dead.name}):
            return  # the other one went on without it
        if not view.elects({survivor.name}):
            self._world.marks.hit("forced")
            self._tickets += 1
            lineage = f"forced-{self._tickets}"
            survivor.handle([ForceRequested(ticket=self._tickets, lineage=lineage)])

    def _force_for_joiners(self) -> None:
        """He does so too where one asks to come back as another, and the other has half of the
        votes, or none.
        """
        self._world.after(10 * _SECOND, self._force_for_joiners)
        for node in self._world.nodes.values():
            if node.master is not None and node.master.phase is Phase.JOINING:
                self._force(node)

    def _give_votes(self) -> None:
        """After a `force` the operator gives each place a vote again, once its node is back."""
        self._world.after(10 * _SECOND, self._give_votes)
        for node in self._world.nodes.values():
            view = None if node.master is None else node.master.view
            if view is not None and node.member:
                back = [seat.witness or seat.node_id in view.members for seat in view.roster]
                roster = tuple(
                    replace(seat, weight=1) if here and not seat.weight else seat
                    for seat, here in zip(view.roster, back, strict=True)
                )
                if roster != view.roster:
                    self._ask(node, roster)
                return

    def _down(self, node: SimulatedNode, time_us: int) -> None:
        if node.up:
            node.crash()
            self._world.after(time_us, self._start, node)

    def _strike(self) -> None:
        kinds = [kind for kind, _ in self._kinds]
        weights = [weight for _, weight in self._kinds]
        self._clients.burst()
        self._world.after(self._seconds(0, 0.15), self._world.random.choices(kinds, weights)[0])
        self._next()

    def _any(self) -> SimulatedNode:
        return self._world.nodes[self._world.random.choice(list(self._world.nodes))]

    def _seconds(self, least: float, most: float) -> int:
        return int(self._world.random.uniform(least, most) * _SECOND)

    # -- nodes -------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._any()
        if node.up:
            self._world.marks.hit("crash")
            node.crash()
            self._world.after(self._seconds(0.05, 40), self._start, node)

    def _crash_writing(self) -> None:
        """Crash in the next write of some kind, at whatever node."""
        self._struck = self._world.random.choice(PERSISTS)

    def _strike_write(self, node: SimulatedNode, writing: list[Action], delay_us: int) -> None:
        for action in writing:
            if isinstance(action, PersistOwnRun) and action.header.staged_bytes:
                self._damage(node, action.header)
        if node is self._failing and self._world.now < self._until:
            self._world.after(delay_us // 2, self._fail_write, node, node.life)
            return
        if self._struck is None or self._world.now >= self._until:
            return
        if any(isinstance(action, self._struck) for action in writing):
            self._struck = None
            self._world.after(delay_us // 2, self._bounce, node)

    # -- runs that nobody can deliver --------------------------------------------------------------

    def _damage(self, node: SimulatedNode, header: RunHeader) -> None:
        """Now and then lose the only copy of a run; an operator voids it (P32)."""
        chance = self._world.random.random()
        if self._world.now >= self._until or chance >= _DAMAGED + _MISTAKEN:
            return
        if node.master is None or node.master.view.version < VOIDS:
            return  # not all know void runs yet: it could only wait for a good copy
        if chance < _DAMAGED:
            self._world.marks.hit("payload damaged")
            self._world.damaged.add((node.name, header.digest))
        self._world.after(self._seconds(0.1, 30), self._void, node, header)

    def _void(self, node: SimulatedNode, header: RunHeader) -> None:
        world, key = self._world, key_of(header)
        waits = node.disk.incoming.get(key)
        if waits is None or any(key in other.disk.ordered for other in world.nodes.values()):
            # It was ordered all the same, or is gone: somebody puts a good copy in its place.
            world.damaged.discard((node.name, header.digest))
            return
        world.after(self._seconds(5, 20), self._void, node, header)
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

        If a node holds what cannot be right, nobody believes what it says of a run: he looks
        himself whether its disk has it.
        """
        if node.disk.incarnation > seat.incarnation:
            return True
        return self._is_far(node) and not self._world.is_whole(node, header)

    def _voided(self, header: RunHeader) -> Voided:
        lost = self._world.facts[header.digest]
        facts = RunFacts(n=lost.n, ids=lost.ids, acceptance=lost.acceptance, voided=True)
        digest = hashlib.sha256(header.digest + header.ts.to_bytes(8, "big")).digest()
        self._world.facts[digest] = facts
        void = replace(header, digest=digest, staged_bytes=0)
        return Voided(header=void, facts=facts, digest=header.digest)

    def _start(self, node: SimulatedNode) -> None:
        if not node.up:
            node.start()
            self._world.relink()

    def _tear(self, node: SimulatedNode, delay_us: int) -> None:
        """Now and then crash between two writes that take a node into an epoch (P18)."""
        if self._world.now < self._until and self._world.random.random() < _TORN:
            self._world.marks.hit("crash between two writes of an epoch")
            # No write takes less: the next one is on its way then, and kept or lost.
            self._world.after(delay_us + 25, self._bounce, node)

    def _crash_all(self) -> None:
        self._world.marks.hit("all nodes crashed at once")
        for node in self._world.nodes.values():
            if node.up:
                node.crash()
                self._world.after(self._seconds(0.05, 10), self._start, node)

    def _rolling_restart(self) -> None:
        self._world.marks.hit("rolling restart")
        for index, node in enumerate(self._world.nodes.values()):
            self._world.after(self._seconds(0, 1) + 8 * index * _SECOND, self._bounce, node)

    def _bounce(self, node: SimulatedNode) -> None:
        if node.up:
            node.crash()
            self._world.after(self._seconds(0.1, 2), self._start, node)

    def _pause(self) -> None:
        node = self._any()
        if node.up and not node.paused:
            self._world.marks.hit("pause")
            node.paused = True
            self._world.after(self._seconds(0.1, 12), self._resume, node, node.life)

    def _resume(self, node: SimulatedNode, life: int) -> None:
        if node.life == life and node.paused:
            node.resume()

    def _lose_disk(self) -> None:
        """Lose a memory that the others can do without; else only `force` would help (P23)."""
        node = self._any()
        if self._may_lose(node):
            self._forget(node, self._seconds(0.1, 20))

    def _lose_two_disks(self) -> None:
        """Lose two disks at once, where more copies are promised (P12).

        If the others have no majority of the votes, an operator lets the one that is left go on
        alone, and gives the others their votes again once they are back (P23).
        """
        world = self._world
        lost = world.random.sample(list(world.nodes.values()), 2)
        names: set[str] = {node.name for node in lost}
        left = [world.nodes[s.node_id] for s in self._views()[0].roster if s.node_id not in names]
        if not self._may_lose_all(names):
            return
        if self._can_decide(names):
            world.marks.hit("two disks lost")
            for node in lost:
                self._forget(node, self._seconds(0.1, 20))
        elif len(left) == 1 and left[0].name in self._views()[0].members:
            for node in lost:
                if node.up:
                    node.crash()
                node.lose_disk()
            world.after(self._seconds(5, 15), self._go_on_alone, left[0], lost)

    def _go_on_alone(self, survivor: SimulatedNode, dead: list[SimulatedNode]) -> None:
        """Force the survivor until its disk shows it; only then the others start again."""
        world, view = self._world, survivor.disk.view
        if view is None or not view.elects({survivor.name}):
            if survivor.member and not survivor.paused:
                self._tickets += 1
                lineage = f"forced-{self._tickets}"
                survivor.handle([ForceRequested(ticket=self._tickets, lineage=lineage)])
            world.after(2 * _SECOND, self._go_on_alone, survivor, dead)
            return
        world.marks.hit("two disks lost, the survivor forced")
        for node in dead:
            world.after(self._seconds(1, 20), self._start, node)
        if not world.layout.forced:
            self._give_votes()

    def _forget(self, node: SimulatedNode, away_us: int) -> None:
        if node.up:
            node.crash()
        node.lose_disk()
        self._world.after(away_us, self._start, node)

    def _may_lose(self, node: SimulatedNode) -> bool:
        """Whether the others can do without a node's memory, whatever is decided already."""
        return self._may_lose_all({node.name}) and self._can_decide({node.name})

    def _may_lose_all(self, lost: set[str]) -> bool:
        """Whether the other members hold all that was acquired, and their memories count.

        So it is as long as fewer members are lost than copies are promised (P12).
        """
        nodes, others = self._world.nodes, set(self._world.nodes) - lost
        # What a lost node is by now counts for nobody: it may be lost again before it is admitted.
        # Who stamped too far ahead votes, and what it holds is of no use to the others (C3).
        use = {name for name in others if not self._is_far(nodes[name])}
        return all(self._settled(nodes[name]) for name in others) and all(
            view.preserves(use) for view in self._views()
        )

    def _can_decide(self, lost: set[str]) -> bool:
        """Whether the others have a majority of the votes."""
        others = set(self._world.nodes) - lost
        return all(view.elects(others) for view in self._views())

    def _views(self) -> list[View]:
        """Return the newest view, and what was voted for: it may be decided already."""
        nodes, views = self._world.nodes.values(), self._world.checks.views
        view = views[max(views)] if views else first_view(next(iter(nodes)).config)
        voted = [node.disk.ballot.accepted for node in nodes if node.disk.ballot is not None]
        later = [vote.view for vote in voted if vote is not None and vote.view.epoch >= view.epoch]
        return [view, *later]

    def _take_images(self) -> None:
        """Now and then somebody copies a disk."""
        node = self._any()
        self._images[node.name] = node.disk.image()
        self._world.after(self._seconds(1, 240), self._take_images)

    def _older_disk(self) -> None:
        """A node goes down, and somebody brings an older image of its disk back (P30)."""
        node = self._any()
        image = self._images.get(node.name)
        if image is not None and node.kept is None:
            self._bring_back(node, image, 200, "older disk")

    def _copied_disk(self) -> None:
        """A copy of a running node's disk is put in its place, later the original is back (P30)."""
        node = self._any()
        if node.kept is None:
            image = node.disk.image()
            delay_us = self._seconds(0.1, 60)
            self._world.after(delay_us, self._bring_back, node, image, 200, _COPY)

    def _bring_back(self, node: SimulatedNode, image: SimulatedDisk, tries: int, mark: str) -> None:
        """Do it when the others can tell: all are there, and none needs what the image lacks."""
        world = self._world
        if world.now >= self._until or not tries or node.kept is not None:
            return
        if not self._all_but(node):
            world.after(_SECOND // 2, self._bring_back, node, image, tries - 1, mark)
            return
        if node.up:
            node.crash()
        world.marks.hit(mark)
        if mark == _COPY:
            original, delay_us = node.disk.image(), self._seconds(0.1, 120)
            world.after(delay_us, self._bring_back, node, original, 200, "original disk back")
        node.mount(image.image())
        self._start(node)

    def _all_but(self, node: SimulatedNode) -> bool:
        """Whether all other nodes are there and in one epoch, in which they need not this one."""
        world = self._world
        others = [other for other in world.nodes.values() if other is not node]
        names, views = {other.name for other in others}, set()
        if not all(self._settled(other) for other in world.nodes.values()):
            return False
        for other in others:
            if other.master is None or other.paused or other.kept is not None:
                return False
            if not world.network.connected(node.name, other.name):
                return False
            view = other.master.view
            if other.master.phase is Phase.WEDGED or not view.seat(other.name):
                return False
            views.add(view.epoch)
            if not (world.layout.forced or view.elects(names)) or not view.preserves(names):
                return False
        return len(views) == 1 and max(world.checks.views, default=1) in views

    def _wrong_disks(self) -> None:
        """Two nodes come up with empty disks, the others are away; they get theirs later (P29)."""
        world = self._world
        nodes = [world.nodes[name] for name in world.layout.masters]
        others = [node for node in world.nodes.values() if node not in nodes[:2]]
        if len(nodes) < 3 or any(node.kept is not None for node in nodes):
            return
        if not all(self._settled(node) for node in world.nodes.values()):
            return
        world.marks.hit("wrong disks")
        for node in (*nodes[:2], *others):
            if node.up:
                node.crash()
        for node in nodes[:2]:
            node.kept = node.disk
            node.mount(SimulatedDisk(node.name, world.facts))
            world.after(self._seconds(0.1, 5), self._start, node)
        for node in nodes[:2]:
            world.after(self._seconds(20, 40), self._right_disk, node)
        for node in others:
            world.after(self._seconds(15, 45), self._start, node)

    def _right_disk(self, node: SimulatedNode) -> None:
        assert node.kept is not None
        world, views = self._world, self._world.checks.views
        votes = [other.disk.ballot for other in world.nodes.values()]
        deciding = any(n.master and n.master._succession.proposer for n in world.nodes.values())
        voted = any(b and b.accepted and b.epoch >= max(views, default=1) for b in votes)
        if deciding or voted:  # it may be admitted as it is at this moment
            world.after(_SECOND // 5, self._right_disk, node)
            return
        if node.up:
            node.crash()
        disk, node.kept = node.kept, None
        seat = views[max(views)].seat(node.name) if views else None
        if seat is None or seat.incarnation <= disk.incarnation:
            node.mount(disk)  # else the log has gone on with the other one
        self._start(node)

    def _settled(self, node: SimulatedNode) -> bool:
        """Whether a node's memory is known under its present incarnation.

        One that has written nothing yet may be taken for one that lost its disk (P29).
        """
        seats = [view.seat(node.name) for view in self._views()]
        # One without a place has a memory that nobody needs; a witness keeps no queue.
        return all(
            seat is None
            or (
                node.disk.incarnation == seat.incarnation
                and (seat.witness or not node.disk.is_empty)
            )
            for seat in seats
        )

    def _slow_disk(self) -> None:
        node = self._any()
        self._world.marks.hit("slow disk")
        node.slow_us = self._seconds(0.05, 0.8)
        self._world.after(self._seconds(1, 30), setattr, node, "slow_us", 2_000)

    def _full_disk(self) -> None:
        """A disk has no room for a while; what it keeps is kept."""
        node = self._any()
        self._world.marks.hit("disk full")
        node.full = True
        self._world.after(self._seconds(1, 15), setattr, node, "full", False)

    def _failing_disk(self) -> None:
        """The next write of a node fails, or all of them for a while (EIO)."""
        node = self._failing = self._any()
        self._fails_on = self._world.random.random() < 0.5
        if self._fails_on:
            self._world.after(self._seconds(2, 20), self._mend_disk, node)

    def _mend_disk(self, node: SimulatedNode) -> None:
        if self._failing is node:
            self._failing = None

    def _fail_write(self, node: SimulatedNode, life: int) -> None:
        """The node stops, as it cannot know what was kept; somebody starts it again."""
        if node.life == life:
            node.crash(failed=True)
            self._world.after(self._seconds(0.1, 3), self._start, node)
            if not self._fails_on:
                self._mend_disk(node)

    def _sleep(self) -> None:
        """A machine sleeps for up to two minutes: its steady clock stands still meanwhile."""
        node = self._any()
        if node.up and not node.paused:
            self._world.marks.hit("machine slept")
            slept_us = self._seconds(1, 120)
            node.paused = True
            self._world.after(slept_us, self._wake, node, node.life, slept_us)

    def _wake(self, node: SimulatedNode, life: int, slept_us: int) -> None:
        if node.life == life and node.paused:
            node.slept_us += slept_us
            node.resume()

    def _clock(self) -> None:
        """A node comes back with another clock."""
        node, random = self._any(), self._world.random
        if random.random() < 0.5:
            # It takes no transactions until somebody has set it (C3).
            self._set_clock(node, self._far_off(node))
            self._world.after(self._seconds(20, 90), self._set_clock, node, 0)
        else:
            self._set_clock(node, self._seconds(-30, 30))

    def _set_running_clock(self) -> None:
        """Somebody sets the clock of a node that runs, wrongly, and later right again."""
        node = self._any()
        node.skew_us = self._far_off(node)
        self._world.marks.hit("running clock set")
        self._world.after(self._seconds(20, 90), setattr, node, "skew_us", 0)

    def _look_after(self, node: SimulatedNode) -> None:
        """An operator brings a node back that promised too much (`peer quarantine --rejoin`).

        So he does with one of which another says that it has another queue (`--from`).

        If it is a member that the others cannot leave out without its votes, it gives them away
        first (`peer set --weight 0`), and so it does if they cannot decide without it later.
        """
        world = self._world
        world.after(10 * _SECOND, self._look_after, node)
        views = world.checks.views
        far = self._is_far(node)
        if not (far or self._gives_way(node)) or node.skew_us or not views:
            return
        if node.name not in views[max(views)].members and self._may_lose(node):
            world.marks.hit("brought back by an operator")
            self._forget(node, self._seconds(1, 10))
        elif far:
            self._take_votes(node)

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

    def _take_votes(self, node: SimulatedNode) -> None:
        """The others cannot decide without a node that is of no use: it gives its votes away."""
        views = self._world.checks.views
        for other in self._world.nodes.values():
            view = None if other.master is None else other.master.view
            if view is None or not other.member or view.epoch != max(views):
                continue
            if other is node or self._is_far(other):
                continue
            if view.elects(seat.node_id for seat in view.roster if seat.node_id != node.name):
                return
            seats = [replace(s, weight=0) if s.node_id == node.name else s for s in view.roster]
            if any(seat.weight for seat in seats):
                self._world.marks.hit("votes taken by an operator")
                self._ask(other, tuple(seats))
                return

    def _far_off(self, node: SimulatedNode) -> int:
        """Return by how much a clock is wrong: up to an hour, or up to a year.

        With a quorum of one a node may alone hold what was acquired.  Then it is not a year: what
        such a node holds is of no use to the others, and only `force` would help (C3).
        """
        needed = any(
            len(view.members) > 1 and not view.preserves(set(view.members) - {node.name})
            for view in self._views()
        )
        if self._world.random.random() < 0.5 or needed:
            self._world.marks.hit("clock far off")
            return self._seconds(-3_600, 3_600)
        self._world.marks.hit("clock a year off")
        return self._seconds(-_YEAR_S, _YEAR_S)

    def _set_clock(self, node: SimulatedNode, skew_us: int) -> None:
        if node.up:
            node.crash()
        node.skew_us = skew_us
        node.drift_ppm = self._world.random.randint(-200, 200)
        if node.drift_ppm:
            self._world.marks.hit("clock drift")
        self._world.after(self._seconds(0.05, 5), self._start, node)

    # -- network -----------------------------------------------------------------------------------

    def _partition(self) -> None:
        world = self._world
        names = list(world.nodes)
        world.random.shuffle(names)
        at = world.random.randrange(1, len(names))
        world.marks.hit("partition")
        pairs = {(a, b) for a in names[:at] for b in names[at:]}
        self._cut(pairs | {(b, a) for a, b in pairs})

    def _one_way(self) -> None:
        world = self._world
        a, b = world.random.sample(list(world.nodes), 2)
        world.marks.hit("one-way cut")
        self._cut({(a, b)})

    def _cut(self, pairs: set[tuple[str, str]]) -> None:
        world = self._world
        world.network.cut |= pairs
        world.relink()
        world.after(self._seconds(0.2, 40), self._heal, pairs)

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self._world.network.cut -= pairs
        self._world.relink()

    def _bad_weather(self) -> None:
        world, random = self._world, self._world.random
        world.network.weather = Weather(
            lost=random.choice((0.0, 0.02, 0.2)),
            doubled=random.choice((0.0, 0.05, 0.3)),
            late=random.choice((0.02, 0.3)),
            late_us=self._seconds(0.1, 4),
        )
        world.after(self._seconds(1, 40), setattr, world.network, "weather", Weather())

    def _slow_link(self) -> None:
        """All over one link, or one direction of it, comes much later than over the others."""
        world = self._world
        a, b = world.random.sample(list(world.nodes), 2)
        world.marks.hit("slow link")
        pairs = [(a, b), (b, a)] if world.random.random() < 0.5 else [(a, b)]
        slow_us = world.random.choice((_SECOND // 5, _SECOND, 4 * _SECOND))
        world.network.slow_us.update(dict.fromkeys(pairs, slow_us))
        world.after(self._seconds(2, 60), self._quicken, pairs)

    def _quicken(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self._world.network.slow_us.pop(pair, None)

    # -- membership --------------------------------------------------------------------------------

    def _change_roster(self) -> None:
        world = self._world
        members = [n for n in world.nodes.values() if n.member]
        alone = len(world.layout.masters) == 2 and not world.layout.witnesses
        if not members or alone:
            return  # with equal votes two masters could not go on any more
        node = world.random.choice(members)
        assert node.master is not None
        view = node.master.view
        if world.random.random() < _OF_QUORUM:
            rule = world.random.choice([rule for rule in _RULES if rule != view.quorum_rule])
            wrong = {other.name for other in world.nodes.values() if self._is_wrong(other)}
            if replace(view, quorum_rule=rule).preserves(set(view.members) - wrong):
                self._ask(node, view.roster, rule)
            world.after(self._seconds(20, 120), self._usual_quorum)
        else:
            self._ask(node, self._another(view))

    def _is_wrong(self, node: SimulatedNode) -> bool:
        """Whether the others may soon have to do without what a node holds."""
        far_off = abs(node.skew_us) > node.config.max_counter_lead_us
        return node.name in self._world.rot.lied or self._is_far(node) or far_off

    def _ask(self, node: SimulatedNode, roster: tuple[Seat, ...], rule: str = "") -> None:
        """Ask a node for another roster, or another quorum; it may refuse, or go down over it."""
        self._tickets += 1
        request = ChangeRequested(ticket=self._tickets, roster=roster, quorum_rule=rule)
        node.handle([request])

    def _usual_quorum(self) -> None:
        """The operator has the quorum again that the cluster began with, as soon as it can be."""
        world = self._world
        members = [node for node in world.nodes.values() if node.member and not node.paused]
        views = [node.master.view for node in members if node.master is not None]
        if views and all(view.quorum_rule == world.layout.quorum_rule for view in views):
            return
        for node in members[:1]:
            assert node.master is not None
            self._ask(node, node.master.view.roster, world.layout.quorum_rule)
        world.after(10 * _SECOND, self._usual_quorum)

    def _rivals(self) -> None:
        """Several members want another change at one moment, on a bad network."""
        world = self._world
        world.marks.hit("rival changes")
        world.network.weather = Weather(lost=0.15, doubled=0.1, late=0.3, late_us=_SECOND)
        world.after(self._seconds(3, 12), setattr, world.network, "weather", Weather())
        for _ in range(3):
            self._change_roster()
            if world.random.random() < 0.3:
                world.after(self._seconds(0, 2), self._crash)

    def _stale(self) -> None:
        """Messages of any age arrive once more."""
        self._world.marks.hit("stale messages")
        self._world.replay(20)

    def _lie(self) -> None:
        """One field of one message of a member is wrong; it may be the one that is sent next."""
        members = [node for node in self._world.nodes.values() if node.member]
        if members:
            node = self._world.random.choice(members)
            assert node.master is not None
            self._world.rot.strike(node.name, len(node.master.view.members))

    def _another(self, view: View) -> tuple[Seat, ...]:
        random, roster = self._world.random, list(view.roster)
        absent = [name for name in self._world.layout.spares if view.seat(name) is None]
        present = [s for s in roster if s.node_id in self._world.layout.spares]
        choice = random.random()
        if choice < 0.4 and absent:
            roster.append(Seat(node_id=NodeId(absent[0]), weight=random.choice((0, 1))))
        elif choice < 0.6 and present:
            roster.remove(present[0])
        elif choice < 0.8:
            random.shuffle(roster)
        else:
            at = random.randrange(len(roster))
            roster[at] = replace(roster[at], weight=random.choice((1, 1, 2)))
        return tuple(roster)
