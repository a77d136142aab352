"""What goes wrong in a simulated history; all drawn from the seed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.verification.nodes.disk import Failure
from tests.verification.nodes.network import Weather
from tests.verification.nodes.operator import Operator

from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.runtime.membership.founding import core_config

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.virtual import Life
    from tests.verification.nodes.world import World

_S = 10**9
#: A disk writes so fast, at most, when nothing is wrong with it; seconds.
_USUAL_S = 0.004
#: Some power losses wait for a write of the queue: so often, and so long each time, seconds.
_TRIES, _PACE_S = 250, 0.002


class Faults:
    """Breaks things now and then, and repairs all of them in the end.

    Args:
        world: Where.
        from_s: No fault begins before this time, seconds.
        until_s: No fault begins after it; by then all is repaired.
        pause_s: Mean time between two faults.
    """

    def __init__(self, world: World, from_s: float, until_s: float, pause_s: float) -> None:
        self._world = world
        self._until_s = until_s
        self._pause_s = pause_s
        self._operator = Operator(world)
        self._kinds = (
            (self._kill, 30),
            (self._power, 10),
            (self._stop, 6),
            (self._partition, 12),
            (self._one_way, 8),
            (self._pause, 12),
            (self._bad_weather, 12),
            (self._slow_disk, 6),
            (self._full_disk, 8),
            (self._clock, 6),
            (self._failing_disk, 8),
            (self._failing_sync, 6),
            (self._lose_disk, 7),
            (self._lose_two_disks, 4),
            (self._all, 3),
            (self._rolling_restart, 2),
            (self._operator.change_places, 10),
            (self._operator.change_quorum, 10),
            (self._operator.change_role, 20 if world.layout.followers else 0),
        )
        for node in world.nodes.values():
            self._usual_clock(node)
        world.after(from_s, self._next)
        # So that every history has epochs: one node is away for long.
        world.after(self._between(from_s, until_s / 2), self._away)

    def repair(self) -> None:
        """End all that is wrong."""
        world = self._world
        world.network.cut.clear()
        world.network.weather = Weather()
        for node in world.nodes.values():
            node.slow_s = _USUAL_S
            node.disk.fill(False)
            node.disk.mend()
        world.clients.staged.repair()
        for node in world.nodes.values():
            if node.life is not None and node.life.paused:
                world.loop.resume(node.life)
            if node.life is not None and node.life.wall_off_ns != node.wall_off_ns:
                node.kill()
            node.start()

    # -- when --------------------------------------------------------------------------------------

    def _next(self) -> None:
        delay = self._world.random.expovariate(1 / self._pause_s)
        if self._world.loop.time() + delay < self._until_s:
            self._world.after(delay, self._strike)

    def _strike(self) -> None:
        kinds = [kind for kind, _ in self._kinds]
        weights = [weight for _, weight in self._kinds]
        self._world.clients.burst()
        self._world.after(self._between(0, 0.4), self._world.random.choices(kinds, weights)[0])
        self._next()

    def _between(self, least: float, most: float) -> float:
        return self._world.random.uniform(least, most)

    def _any(self) -> SimulatedNode:
        return self._world.nodes[self._world.random.choice(list(self._world.nodes))]

    # -- nodes -------------------------------------------------------------------------------------

    def _kill(self) -> None:
        node = self._any()
        if node.life is not None:
            self._world.checks.happened("kill")
            node.kill()
            self._back(node)

    def _back(self, node: SimulatedNode) -> None:
        """Start it again: soon, or once the others have given it up."""
        long = self._world.random.random() < 0.25
        self._world.after(self._between(4, 25) if long else self._between(0.05, 3), node.start)

    def _power(self) -> None:
        self._lose_power(self._any(), self._world.random.choice((0, _TRIES)))

    def _lose_power(self, node: SimulatedNode, tries: int) -> None:
        """Let the power go, once the node writes its queue, unless that takes too long."""
        if tries and node.life is not None and not node.orders:
            self._world.after(_PACE_S, self._lose_power, node, tries - 1)
        elif node.life is not None:
            self._world.checks.happened("power loss")
            node.kill(power=True)
            self._back(node)

    def _stop(self) -> None:
        node = self._any()
        node.stop()
        self._world.after(self._between(1, 5), node.start)

    def _away(self) -> None:
        node = self._any()
        if node.life is not None:
            node.kill()
        self._world.after(self._between(15, 40), node.start)

    def _all(self) -> None:
        for node in self._world.nodes.values():
            if node.life is not None:
                node.kill(power=self._world.random.random() < 0.5)
                self._world.after(self._between(0.05, 8), node.start)

    def _rolling_restart(self) -> None:
        """Restart one node after the other, as for a new version."""
        self._world.checks.happened("rolling restart")
        for number, node in enumerate(self._world.nodes.values()):
            self._world.after(6.0 * number, node.stop)
            self._world.after(6.0 * number + self._between(1, 4), node.start)

    def _pause(self) -> None:
        node = self._any()
        if node.life is not None and not node.life.paused:
            self.pause(node.life, self._between(0.1, 9))

    def pause(self, life: Life, seconds: float) -> None:
        """Stop a process for a while, as SIGSTOP does."""
        self._world.checks.happened("pause")
        life.paused = True
        self._world.after(seconds, self._resume, life)

    def _resume(self, life: Life) -> None:
        if life.paused and life.runs:
            self._world.loop.resume(life)

    def _lose_disk(self) -> None:
        """Lose a memory that the others can do without; else only `force` would help (P23)."""
        if self._lose(self._any()):
            self._world.checks.happened("disk lost")

    def _lose_two_disks(self) -> None:
        """Lose two at once, where more holders are promised and the others have a majority."""
        if self._lose(*self._world.random.sample(list(self._world.nodes.values()), 2)):
            self._world.checks.happened("two disks lost")

    def _lose(self, *nodes: SimulatedNode) -> bool:
        """Lose disks if all memories count, and the others can do without."""
        if self._world.clones or not all(self.remembers(node) for node in nodes):
            return False
        if not self.spares(*nodes):
            return False
        for node in nodes:
            node.kill(disk=True)
            self._back(node)
        return True

    def remembers(self, node: SimulatedNode) -> bool:
        """Return whether a node runs with the disk that has its place in the cluster.

        It has not if that disk is new since, or if a copy of it was admitted in its place.
        """
        running, views = node.running, self._world.checks.views
        if running is None or node.disk.doubtful:
            return False
        view = views[max(views)] if views else first_view(core_config(running.config))
        seat = view.seat(node.name)
        return (
            seat is not None
            and node.disk.generation <= seat.incarnation == running.base.master.incarnation
        )

    def spares(self, *nodes: SimulatedNode) -> bool:
        """Return whether all others remember, and can decide, and have it all."""
        world, views = self._world, self._world.checks.views
        others = {name: node for name, node in world.nodes.items() if node not in nodes}
        if not all(self.remembers(node) for node in others.values()):
            return False
        cores = [node.running.base.master for node in world.nodes.values() if node.running]
        view = views[max(views)] if views else cores[0].view
        # What was voted for may be decided already.
        votes = [core.accepted for core in cores if core.accepted is not None]
        # Fewer members are lost than holders were promised, then (P12).
        preserved = all(one.elects(others) and one.preserves(others) for one in (view, *votes))
        # A node that begins anew takes no commit tables with the queue.
        return preserved and world.tables.spares(nodes)

    # -- disks -------------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        node = self._any()
        self._world.checks.happened("slow disk")
        node.slow_s = self._between(0.05, 1.0)
        self._world.after(self._between(1, 15), setattr, node, "slow_s", _USUAL_S)

    def _full_disk(self) -> None:
        node = self._any()
        if node.running is not None and not node.disk.full:
            self._world.checks.happened("disk full")
            node.disk.fill(True)
            self._world.after(self._between(1, 12), node.disk.fill, False)

    def _failing_disk(self) -> None:
        """The next commit of a node fails, or all of them for a while (EIO)."""
        node, random = self._any(), self._world.random
        node.disk.failing = random.choice(tuple(Failure))
        node.disk.lasting = random.random() < 0.4
        if node.disk.lasting:
            self._world.after(self._between(1, 10), node.disk.mend)
        if random.random() < 0.3:  # a page cache that is not to be trusted is lost as well
            node.on_failure = self._power_fails

    def _power_fails(self, node: SimulatedNode) -> None:
        self._world.checks.happened("power loss after a failed commit")
        node.kill(power=True)
        self._back(node)

    def _failing_sync(self) -> None:
        """No fsync of a file succeeds at a node for a while."""
        node, random = self._any(), self._world.random
        self._world.checks.happened("fsync of files fails")
        node.disk.sync_error = random.choice((errno.EIO, errno.ENOSPC))
        self._world.after(self._between(0.1, 6), setattr, node.disk, "sync_error", 0)

    # -- clocks ------------------------------------------------------------------------------------

    def _usual_clock(self, node: SimulatedNode) -> None:
        node.wall_off_ns = int(self._between(-2, 2) * _S)
        node.drift_ppm = self._world.random.randint(-200, 200)

    def _clock(self) -> None:
        """A node comes back with another clock; it takes no part in stamping until it is set."""
        node = self._any()
        if node.life is not None:
            self._world.checks.happened("clock far off")
            node.kill()
            node.wall_off_ns = int(self._between(-3_600, 3_600) * _S)
            self._world.after(self._between(0.1, 3), node.start)
            self._world.after(self._between(10, 30), self._set_clock, node)

    def _set_clock(self, node: SimulatedNode) -> None:
        node.kill()
        self._usual_clock(node)
        self._world.after(self._between(0.1, 2), node.start)

    # -- network -----------------------------------------------------------------------------------

    def _partition(self) -> None:
        names = list(self._world.nodes)
        self._world.random.shuffle(names)
        at = self._world.random.randrange(1, len(names))
        self._world.checks.happened("partition")
        pairs = {(a, b) for a in names[:at] for b in names[at:]}
        self._cut(pairs | {(b, a) for a, b in pairs})

    def _one_way(self) -> None:
        a, b = self._world.random.sample(list(self._world.nodes), 2)
        self._world.checks.happened("one-way cut")
        self._cut({(a, b)})

    def _cut(self, pairs: set[tuple[str, str]]) -> None:
        self._world.network.cut |= pairs
        self._world.after(self._between(0.2, 20), self._heal, pairs)

    def _heal(self, pairs: set[tuple[str, str]]) -> None:
        self._world.network.cut -= pairs

    def _bad_weather(self) -> None:
        network, random = self._world.network, self._world.random
        self._world.checks.happened("bad weather")
        network.weather = Weather(
            delay_max_s=random.choice((0.02, 0.1)),
            late=random.choice((0.02, 0.3)),
            late_s=self._between(0.1, 3),
            lost=random.choice((0.0, 0.05, 0.3)),
            reset=random.choice((0.0, 0.02, 0.2)),
            repeated=random.choice((0.0, 0.05, 0.2)),
        )
        self._world.after(self._between(1, 20), setattr, network, "weather", Weather())
