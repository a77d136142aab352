"""What goes wrong in a simulated hour; all drawn from the seed."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.model.disk import CoreDisk
from tests.verification.simulation.clients import Clients
from tests.verification.simulation.network import Weather
from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.operator import Operator
from tests.verification.simulation.world import World

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.actions import PERSISTS, Action, PersistOwnRun
from sparktxlog.protocol.messages.events import StoodAside
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.protocol.messages.view import Phase, Seat, View

_SECOND = 1_000_000
_YEAR_S = 365 * 86_400
#: Part of the histories that begin with a wrong clock.
_FOUNDED_WRONG = 0.2
#: Chance that the files of an own run are damaged as soon as it has its stamp, and that an
#: operator voids one that is not.
_DAMAGED, _MISTAKEN = 0.2, 0.05
_COPY = "copied disk"
#: Longest write of a disk that is not slow, and the chance that a node hears at once which are.
_QUICK_US, _HEARS = 2_000, 0.7
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
        self._operator = Operator(world)
        world.synchronous.operate(world, self._operator, until)
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
            *(((self._turn_follower, 9),) if world.layout.followers else ()),
        )
        other = world.layout.faults
        self._kinds = tuple((kind, other.get(kind.__name__, weight)) for kind, weight in kinds)
        #: Node whose next write fails, and whether all do for a while.
        self._failing: SimulatedNode | None = None
        self._fails_on = False
        #: Node → an image of its disk.
        self._images: dict[str, CoreDisk] = {}
        self._take_images()
        # So that every history has epochs: one member after the other is away for long.
        if founded_wrong is not None:
            world.after(self._world.seconds(20, 90), setattr, founded_wrong, "skew_us", 0)
        for node in world.nodes.values():
            self._operator.look_after(node)
        for part in (2, 5, 8):
            world.at(until * part // 10, self._away)
        if world.layout.forced:
            self._operator.give_votes()
            self._operator.force_for_joiners()
        world.rot.spares = lambda name: self._operator.may_lose(world.nodes[name])
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
            self._world.after(
                self._world.seconds(0, 0.15), self._down, node, self._world.seconds(15, 40)
            )
            if self._world.layout.forced:
                self._world.after(self._world.seconds(4, 12), self._operator.force, node)

    def _can_spare(self, node: SimulatedNode) -> bool:
        """Return whether the others can decide without a node."""
        assert node.master is not None
        view = node.master.view
        return view.elects(seat.node_id for seat in view.roster if seat.node_id != node.name)

    def _down(self, node: SimulatedNode, time_us: int) -> None:
        if node.up:
            node.crash()
            self._world.after(time_us, self._operator.start, node)

    def _strike(self) -> None:
        kinds = [kind for kind, _ in self._kinds]
        weights = [weight for _, weight in self._kinds]
        self._clients.burst()
        self._world.after(
            self._world.seconds(0, 0.15), self._world.random.choices(kinds, weights)[0]
        )
        self._next()

    def _any(self) -> SimulatedNode:
        return self._world.nodes[self._world.random.choice(list(self._world.nodes))]

    # -- nodes -------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._any()
        if node.up:
            self._world.marks.hit("crash")
            node.crash()
            self._world.after(self._world.seconds(0.05, 40), self._operator.start, node)

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
        if node.master is None:
            return  # not all know void runs yet: it could only wait for a good copy
        if chance < _DAMAGED:
            self._world.marks.hit("payload damaged")
            self._world.damaged.add((node.name, header.digest))
        self._world.after(self._world.seconds(0.1, 30), self._operator.void, node, header)

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
                self._world.after(self._world.seconds(0.05, 10), self._operator.start, node)

    def _rolling_restart(self) -> None:
        self._world.marks.hit("rolling restart")
        for index, node in enumerate(self._world.nodes.values()):
            self._world.after(self._world.seconds(0, 1) + 8 * index * _SECOND, self._bounce, node)

    def _bounce(self, node: SimulatedNode) -> None:
        if node.up:
            node.crash()
            self._world.after(self._world.seconds(0.1, 2), self._operator.start, node)

    def _pause(self) -> None:
        node = self._any()
        if node.up and not node.paused:
            self._world.marks.hit("pause")
            node.paused = True
            self._world.after(self._world.seconds(0.1, 12), self._resume, node, node.life)

    def _resume(self, node: SimulatedNode, life: int) -> None:
        if node.life == life and node.paused:
            node.resume()

    def _lose_disk(self) -> None:
        """Lose a memory that the others can do without; else only `force` would help (P23)."""
        node = self._any()
        if self._operator.may_lose(node):
            self._operator.forget(node, self._world.seconds(0.1, 20))

    def _lose_two_disks(self) -> None:
        """Lose two disks at once, where more holders are promised (P12).

        If the others have no majority of the votes, an operator lets the one that is left go on
        alone, and gives the others their votes again once they are back (P23).
        """
        world = self._world
        lost = world.random.sample(list(world.nodes.values()), 2)
        names: set[str] = {node.name for node in lost}
        view = self._operator.views()[0]
        left = [
            world.nodes[s.node_id] for s in view.roster if s.node_id not in names and not s.follower
        ]
        if not self._operator.may_lose_all(names):
            return
        if self._operator.can_decide(names):
            world.marks.hit("two disks lost")
            for node in lost:
                self._operator.forget(node, self._world.seconds(0.1, 20))
        elif len(left) == 1 and left[0].name in view.members:
            for node in lost:
                if node.up:
                    node.crash()
                node.lose_disk()
            mark = "two disks lost, the survivor forced"
            delay_us = world.seconds(5, 15)
            world.after(delay_us, self._operator.go_on_alone, left[0], lost, mark)

    def _take_images(self) -> None:
        """Now and then somebody copies a disk."""
        node = self._any()
        self._images[node.name] = node.disk.image()
        self._world.after(self._world.seconds(1, 240), self._take_images)

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
            delay_us = self._world.seconds(0.1, 60)
            self._world.after(delay_us, self._bring_back, node, image, 200, _COPY)

    def _bring_back(self, node: SimulatedNode, image: CoreDisk, tries: int, mark: str) -> None:
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
            original, delay_us = node.disk.image(), self._world.seconds(0.1, 120)
            world.after(delay_us, self._bring_back, node, original, 200, "original disk back")
        node.mount(image.image())
        self._operator.start(node)

    def _all_but(self, node: SimulatedNode) -> bool:
        """Whether all other nodes are there and in one epoch, in which they need not this one."""
        world = self._world
        others = [other for other in world.nodes.values() if other is not node]
        names, views = {other.name for other in others}, set()
        if not all(self._operator.settled(other) for other in world.nodes.values()):
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
        if not all(self._operator.settled(node) for node in world.nodes.values()):
            return
        world.marks.hit("wrong disks")
        for node in (*nodes[:2], *others):
            if node.up:
                node.crash()
        for node in nodes[:2]:
            node.kept = node.disk
            node.mount(CoreDisk(node.name, world.facts))
            world.after(self._world.seconds(0.1, 5), self._operator.start, node)
        for node in nodes[:2]:
            world.after(self._world.seconds(20, 40), self._right_disk, node)
        for node in others:
            world.after(self._world.seconds(15, 45), self._operator.start, node)

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
        self._operator.start(node)

    def _slow_disk(self) -> None:
        node = self._any()
        self._world.marks.hit("slow disk")
        node.slow_us = self._world.seconds(0.05, 0.8)
        self._world.after(self._world.seconds(1, 30), setattr, node, "slow_us", 2_000)
        if self._world.layout.aside:
            for _ in range(4):
                self._world.after(self._world.seconds(0, 40), self._tell_who_is_slow)

    def _tell_who_is_slow(self) -> None:
        """Tell some nodes, as posts do that may be lost, which disks are slow now."""
        nodes = self._world.nodes.values()
        slow = frozenset(NodeId(node.name) for node in nodes if node.slow_us > _QUICK_US)
        for node in nodes:
            if node.up and self._world.random.random() < _HEARS:
                self._world.marks.hit("told who stands aside")
                node.handle([StoodAside(nodes=slow)])

    def _full_disk(self) -> None:
        """A disk has no room for a while; what it keeps is kept."""
        node = self._any()
        self._world.marks.hit("disk full")
        node.full = True
        self._world.after(self._world.seconds(1, 15), setattr, node, "full", False)

    def _failing_disk(self) -> None:
        """The next write of a node fails, or all of them for a while (EIO)."""
        node = self._failing = self._any()
        self._fails_on = self._world.random.random() < 0.5
        if self._fails_on:
            self._world.after(self._world.seconds(2, 20), self._mend_disk, node)

    def _mend_disk(self, node: SimulatedNode) -> None:
        if self._failing is node:
            self._failing = None

    def _fail_write(self, node: SimulatedNode, life: int) -> None:
        """The node stops, as it cannot know what was kept; somebody starts it again."""
        if node.life == life:
            node.crash(failed=True)
            self._world.after(self._world.seconds(0.1, 3), self._operator.start, node)
            if not self._fails_on:
                self._mend_disk(node)

    def _sleep(self) -> None:
        """A machine sleeps for up to two minutes: its steady clock stands still meanwhile."""
        node = self._any()
        if node.up and not node.paused:
            self._world.marks.hit("machine slept")
            slept_us = self._world.seconds(1, 120)
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
            self._world.after(self._world.seconds(20, 90), self._set_clock, node, 0)
        else:
            self._set_clock(node, self._world.seconds(-30, 30))

    def _set_running_clock(self) -> None:
        """Somebody sets the clock of a node that runs, wrongly, and later right again."""
        node = self._any()
        node.skew_us = self._far_off(node)
        self._world.marks.hit("running clock set")
        self._world.after(self._world.seconds(20, 90), setattr, node, "skew_us", 0)

    def _far_off(self, node: SimulatedNode) -> int:
        """Return by how much a clock is wrong: up to an hour, or up to a year.

        With a quorum of one a node may alone hold what was acquired.  Then it is not a year: what
        such a node holds is of no use to the others, and only `force` would help (C3).
        """
        needed = any(
            len(view.members) > 1 and not view.preserves(set(view.members) - {node.name})
            for view in self._operator.views()
        )
        if self._world.random.random() < 0.5 or needed:
            self._world.marks.hit("clock far off")
            return self._world.seconds(-3_600, 3_600)
        self._world.marks.hit("clock a year off")
        return self._world.seconds(-_YEAR_S, _YEAR_S)

    def _set_clock(self, node: SimulatedNode, skew_us: int) -> None:
        if node.up:
            node.crash()
        node.skew_us = skew_us
        node.drift_ppm = self._world.random.randint(-200, 200)
        if node.drift_ppm:
            self._world.marks.hit("clock drift")
        self._world.after(self._world.seconds(0.05, 5), self._operator.start, node)

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
        world.after(self._world.seconds(0.2, 40), self._heal, pairs)

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self._world.network.cut -= pairs
        self._world.relink()

    def _bad_weather(self) -> None:
        world, random = self._world, self._world.random
        world.network.weather = Weather(
            lost=random.choice((0.0, 0.02, 0.2)),
            doubled=random.choice((0.0, 0.05, 0.3)),
            late=random.choice((0.02, 0.3)),
            late_us=self._world.seconds(0.1, 4),
        )
        world.after(self._world.seconds(1, 40), setattr, world.network, "weather", Weather())

    def _slow_link(self) -> None:
        """All over one link, or one direction of it, comes much later than over the others."""
        world = self._world
        a, b = world.random.sample(list(world.nodes), 2)
        world.marks.hit("slow link")
        pairs = [(a, b), (b, a)] if world.random.random() < 0.5 else [(a, b)]
        slow_us = world.random.choice((_SECOND // 5, _SECOND, 4 * _SECOND))
        world.network.slow_us.update(dict.fromkeys(pairs, slow_us))
        world.after(self._world.seconds(2, 60), self._quicken, pairs)

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
            wrong = {other.name for other in world.nodes.values() if self._operator.is_wrong(other)}
            if replace(view, quorum_rule=rule).preserves(set(view.members) - wrong):
                self._operator.ask(node, view.roster, rule)
            world.after(self._world.seconds(20, 120), self._operator.usual_quorum)
        else:
            self._operator.ask(node, self._another(view))

    def _turn_follower(self) -> None:
        """An operator makes a follower a member, or a member that was one a follower (P38)."""
        world = self._world
        members = [node for node in world.nodes.values() if node.member]
        if not members:
            return
        node, name = world.random.choice(members), world.random.choice([*world.layout.followers])
        assert node.master is not None
        view = node.master.view
        seat = view.seat(name)
        if seat is None or not (seat.follower or self._operator.may_lose(world.nodes[name])):
            return
        world.marks.hit("follower promoted" if seat.follower else "member made a follower")
        turned = replace(seat, follower=not seat.follower, weight=int(seat.follower))
        self._operator.ask(node, tuple(turned if s is seat else s for s in view.roster))

    def _rivals(self) -> None:
        """Several members want another change at one moment, on a bad network."""
        world = self._world
        world.marks.hit("rival changes")
        world.network.weather = Weather(lost=0.15, doubled=0.1, late=0.3, late_us=_SECOND)
        world.after(self._world.seconds(3, 12), setattr, world.network, "weather", Weather())
        for _ in range(3):
            self._change_roster()
            if world.random.random() < 0.3:
                world.after(self._world.seconds(0, 2), self._crash)

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
            at = random.randrange(len(roster) - len(self._world.layout.followers))
            roster[at] = replace(roster[at], weight=random.choice((1, 1, 2)))
        return tuple(roster)
