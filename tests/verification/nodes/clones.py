"""Copies of a data directory that run beside their original, with its id and incarnation (P30).

A copy has the configuration of its node, so it shows the node's address in its greetings.  It runs
elsewhere on the same network, or has taken over that address while the original goes on.  Then the
original reaches nobody: the answers go to the copy.

While the original runs at its address the copy must be refused.  If the original is down, or is
not found at its address, nobody can tell the two apart: the copy may come into its place, and the
original joins anew.  That is the loss of a memory, so the others must be able to do without it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.verification.nodes.node import SimulatedNode

if TYPE_CHECKING:
    from tests.verification.nodes.faults import Faults
    from tests.verification.nodes.virtual import Life
    from tests.verification.nodes.world import World

#: Copies of one history, and for how long one runs; seconds.
_COPIES, _RUNS_S = 4, (8.0, 25.0)
#: Time from the copy to its start at most, and chance that it gets the address; seconds.
_WAITS_S, _MOVED = 12.0, 0.3
#: Chance that the original is paused as long as its copy runs.
_PAUSED = 0.5
#: A copy is made, and its end comes, when the others can do without; asked so often, seconds.
_AGAIN_S = 0.5


class Clones:
    """Let copies of nodes run for a while, one at a time.

    Args:
        world: Where.
        faults: Knows which memories the cluster can do without.
        from_s: No copy is made before this time, seconds.
        until_s: None is made after it.
    """

    def __init__(self, world: World, faults: Faults, from_s: float, until_s: float) -> None:
        self._world = world
        self._faults = faults
        self._random = Random(f"clones:{world.seed}")  # other faults keep their history
        self._count = 0
        #: No copy begins later.
        self._last_s = until_s - _RUNS_S[1]
        latest = until_s - _WAITS_S - _RUNS_S[1]
        for _ in range(_COPIES):
            world.after(self._random.uniform(from_s, latest), self._copy, until_s)

    def _copy(self, until_s: float) -> None:
        world = self._world
        node = world.nodes[self._random.choice(list(world.nodes))]
        if world.loop.time() > until_s:
            return
        faults = self._faults
        if world.clones or not (faults.remembers(node) and faults.spares(node)):
            world.after(_AGAIN_S, self._copy, until_s)
            return
        self._count += 1
        clone = node.clone(f"{node.name}-copy{self._count}")
        world.clones[clone.name] = clone
        world.after(self._random.uniform(0.0, _WAITS_S), self._begin, node, clone)

    def _begin(self, node: SimulatedNode, clone: SimulatedNode) -> None:
        world = self._world
        if not self._faults.spares(node):  # it got votes since, which the others cannot do without
            if world.loop.time() < self._last_s:
                world.after(_AGAIN_S, self._begin, node, clone)
            else:
                del world.clones[clone.name]
            return
        moved = self._random.random() < _MOVED
        world.checks.happened("copy runs beside its node")
        clone.start()
        life, runs_s = node.life, self._random.uniform(*_RUNS_S)
        if moved and life is not None:
            world.checks.happened("copy has its node's address")
            world.network.servers[node.name] = clone
            world.network.changed()
        if self._random.random() < _PAUSED and life is not None and not life.paused:
            self._faults.pause(life, runs_s)
        world.after(runs_s, self._end, node, clone, None if moved else life)

    def _end(self, node: SimulatedNode, clone: SimulatedNode, alone: Life | None) -> None:
        """End a copy, once the others can do without what it may hold by now.

        Args:
            alone: Life of the original when the copy began, None if it was not at its address.
        """
        world, checks = self._world, self._world.checks
        refusals = [] if clone.running is None else clone.running.base.links.values()
        if any("two processes are node" in link.reason for link in refusals):
            checks.marks["copy refused beside its node"] += 1
        known = self._known(node, clone)
        if any(known):
            checks.marks["copy taken for its node"] += 1
            if alone is not None and node.life is alone:
                checks.fail(f"P30: {node.name} runs at its address, and its copy was let in")
        # Who does not run cannot tell.
        unsure = clone.running is None or len(known) < len(world.nodes) - 1
        if (any(known) or unsure) and not self._faults.spares(node):
            world.after(_AGAIN_S, self._end, node, clone, alone)
            return
        clone.kill()
        world.network.servers[node.name] = node
        world.network.changed()
        self._forget(node, clone)

    def _known(self, node: SimulatedNode, process: SimulatedNode) -> list[bool]:
        """Return for each other node whether it was this process that spoke last as the node."""
        boot = "" if process.running is None else process.running.membership.greeter.own.boot
        others = [other.running for other in self._world.nodes.values() if other is not node]
        return [one.base.master.knows_process(node.name, boot) for one in others if one]

    def _forget(self, node: SimulatedNode, clone: SimulatedNode) -> None:
        """Let other memories be lost again once it is the original that the others know."""
        if all(self._known(node, node)) and self._faults.remembers(node):
            del self._world.clones[clone.name]
        else:
            self._world.after(_AGAIN_S, self._forget, node, clone)
