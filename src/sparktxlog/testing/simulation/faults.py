"""What goes wrong in a simulated hour; all drawn from the seed."""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.actions import PERSISTS, Action
from sparktxlog.protocol.events import ChangeRequested, ForceRequested
from sparktxlog.protocol.master import first_view
from sparktxlog.protocol.view import Seat, View
from sparktxlog.testing.simulation.clients import Clients
from sparktxlog.testing.simulation.network import Weather
from sparktxlog.testing.simulation.node import SimulatedNode
from sparktxlog.testing.simulation.world import World

_SECOND = 1_000_000
#: Chance of a crash where the writes of a new epoch are torn apart.
_TORN = 0.05


class Faults:
    """Breaks things now and then, and repairs most of them.

    Args:
        world: Where.
        clients: Commit right when something breaks.
        until: No fault begins after this time, microseconds.
        pause_us: Mean time between two faults.
    """

    def __init__(self, world: World, clients: Clients, until: int, pause_us: int) -> None:
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
            (self._clock, 6),
            (self._lose_disk, 5),
            (self._change_roster, 9),
            (self._rolling_restart, 2),
            (self._crash_all, 2),
            (self._rivals, 3),
            (self._stale, 4),
            (self._crash_writing, 20),
        )
        other = world.layout.faults
        self._kinds = tuple((kind, other.get(kind.__name__, weight)) for kind, weight in kinds)
        # So that every history has epochs: one member after the other is away for long.
        for part in (2, 5, 8):
            world.at(until * part // 10, self._away)
        if world.layout.forced:
            self._equal_weights()
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
        """An operator lets the survivor of two equal masters go on alone (P23)."""
        (survivor,) = (node for node in self._world.nodes.values() if node is not dead)
        if dead.up or not survivor.member or survivor.paused:
            return
        assert survivor.master is not None
        view, views = survivor.master.view, self._world.checks.views
        if views and views[max(views)].lineage != view.lineage:
            return  # it was the other one that was let go on alone: two forks are a mistake
        weights = {seat.weight for seat in view.roster}
        if len(weights) == 1 and len(view.members) == 2:
            self._world.marks.hit("forced")
            self._tickets += 1
            lineage = f"forced-{self._tickets}"
            survivor.handle([ForceRequested(ticket=self._tickets, lineage=lineage)])

    def _equal_weights(self) -> None:
        """The operator gives both masters a vote again, once both are back."""
        self._world.after(10 * _SECOND, self._equal_weights)
        for node in self._world.nodes.values():
            view = None if node.master is None else node.master.view
            if view is not None and node.member and len(view.members) == 2:
                roster = tuple(replace(seat, weight=1) for seat in view.roster)
                if roster != view.roster:
                    self._tickets += 1
                    node.handle([ChangeRequested(ticket=self._tickets, roster=roster)])
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
        if self._struck is None or self._world.now >= self._until:
            return
        if any(isinstance(action, self._struck) for action in writing):
            self._struck = None
            self._world.after(delay_us // 2, self._bounce, node)

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
        world, node = self._world, self._any()
        if not all(self._settled(other) for other in world.nodes.values()):
            return
        views = world.checks.views
        view = views[max(views)] if views else first_view(node.config)
        others = set(world.nodes) - {node.name}
        # What was voted for may be decided already, though nobody has learned of it.
        voted = [v.disk.ballot.accepted for v in world.nodes.values() if v.disk.ballot is not None]
        for each in (view, *(vote.view for vote in voted if vote is not None)):
            if each.epoch >= view.epoch and not (each.elects(others) and each.preserves(others)):
                return
        if node.up:
            node.crash()
        node.lose_disk()
        world.after(self._seconds(0.1, 20), self._start, node)

    def _settled(self, node: SimulatedNode) -> bool:
        """Whether a node's memory is known under its present incarnation."""
        views = self._world.checks.views
        seat = views[max(views)].seat(node.name) if views else None
        incarnation = 1 if seat is None else seat.incarnation
        return node.disk.incarnation == incarnation

    def _slow_disk(self) -> None:
        node = self._any()
        self._world.marks.hit("slow disk")
        node.slow_us = self._seconds(0.05, 0.8)
        self._world.after(self._seconds(1, 30), setattr, node, "slow_us", 2_000)

    def _clock(self) -> None:
        """A node comes back with another clock; running clocks drift and never jump."""
        node, random = self._any(), self._world.random
        if random.random() < 0.3:
            self._world.marks.hit("clock far off")
            # It takes no transactions until somebody has set it (C3).
            self._set_clock(node, self._seconds(-3_600, 3_600))
            self._world.after(self._seconds(20, 90), self._set_clock, node, 0)
        else:
            self._set_clock(node, self._seconds(-30, 30))

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
        roster = self._another(node.master.view)
        self._tickets += 1
        node.handle([ChangeRequested(ticket=self._tickets, roster=roster)])

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
