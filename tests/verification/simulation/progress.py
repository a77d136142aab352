"""I12: progress during faults.

Members that hear each other both ways, whose clocks and disks are right, and that hold a vote
quorum and a data quorum (P12) order something within a bound, while transactions wait at one of
them; whatever happens to the others meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from tests.verification.model.invariants import violated
from tests.verification.simulation.network import Weather

from sparktxlog.protocol.messages.recovery import MasterConfig, first_view
from sparktxlog.protocol.messages.view import View

if TYPE_CHECKING:
    from tests.verification.simulation.node import SimulatedNode
    from tests.verification.simulation.world import World

#: How often it is looked, microseconds.
_PACE_US = 1_000_000
#: A clock may be so far off: nobody minds it (C3).
_SKEW_US = 30_000_000
#: The longest write of a disk that is not slow.
_WRITE_US = 2_000


def bound_us(config: MasterConfig) -> int:
    """Return how long nothing may be ordered at most, microseconds.

    Until a missing member is overdue that another one still hears, or that was not heard since a
    start; and then for two attempts to decide an epoch, with pauses: see docs/epochs.md.
    """
    patience_us = config.suspect_timeout_us
    return max(6 * patience_us, config.start_timeout_us) + 8 * patience_us


class Progress:
    """Watches one world.

    Args:
        until: All is healed then, microseconds.
    """

    def __init__(self, world: World, until: int) -> None:
        self._world = world
        self._until = until
        self._bound_us = bound_us(next(iter(world.nodes.values())).config)
        self._ordered = 0
        #: Nodes with their lives, since when they could go on and did not.
        self._since: dict[tuple[tuple[str, int], ...], int] = {}
        world.after(_PACE_US, self._look)

    def _look(self) -> None:
        world = self._world
        if world.now < self._until:
            world.after(_PACE_US, self._look)
        ordered = len(world.checks.log)
        waits = any(map(self._waits, world.nodes.values()))
        # What nobody can deliver waits for an operator (P32).
        if ordered != self._ordered or not waits or any(map(self._is_stuck, world.nodes.values())):
            self._ordered = ordered
            self._since.clear()
            return
        able = {tuple((n.name, n.life) for n in nodes): nodes for nodes in self._able()}
        self._since = {names: self._since.get(names, world.now) for names in able}
        for names, since in self._since.items():
            world.checks.still_us = max(world.checks.still_us, world.now - since)
            if world.now - since > self._bound_us:
                violated(
                    f"I12: {', '.join(name for name, _ in names)} hear each other, have both "
                    f"quorums, and ordered nothing of what waits since {since / 1e6:.6f} s"
                )

    def _able(self) -> Iterator[tuple[SimulatedNode, ...]]:
        """Return all sets of nodes that can go on by themselves, and have something to order."""
        well = [node for node in self._world.nodes.values() if self._is_well(node)]
        if self._world.network.weather != Weather():
            return
        for size in range(1, len(well) + 1):
            for nodes in combinations(well, size):
                if any(map(self._waits, nodes)) and self._can_decide(nodes):
                    yield nodes

    def _is_well(self, node: SimulatedNode) -> bool:
        ahead = node.disk.reserved - node.wall()
        return (
            node.master is not None
            and not node.paused
            and node.kept is None
            and node.slow_us <= _WRITE_US
            and not node.full
            and abs(node.skew_us) <= _SKEW_US
            and ahead <= node.config.max_counter_lead_us
        )

    def _is_stuck(self, node: SimulatedNode) -> bool:
        """Return whether a node that is up has a run that it cannot deliver.

        One that it ordered, too: with a quorum of one nobody else need have it.
        """
        lost = {digest for name, digest in self._world.damaged if name == node.name}
        if not (lost and node.up):
            return False
        held = (*node.disk.incoming.values(), *node.disk.ordered.values())
        return any(header.digest in lost for header in held)

    @staticmethod
    def _waits(node: SimulatedNode) -> bool:
        """Return whether something that a member accepted waits to be ordered."""
        if node.master is None or not node.member:
            return False
        own, members = (node.name, node.disk.incarnation), len(node.master.view.members)
        # A synchronous run waits for members, and one of a group for its sites, not to be ordered
        # (P34, P41).
        return any(
            submit.facts.holders <= members and not submit.facts.copies
            for submit in node.disk.announcements.values()
        ) or any(key[:2] == own for key in node.disk.incoming)

    def _can_decide(self, nodes: tuple[SimulatedNode, ...]) -> bool:
        network = self._world.network
        pairs = [(a.name, b.name) for a in nodes for b in nodes if a is not b]
        if any(not network.passes(*pair) or pair in network.slow_us for pair in pairs):
            return False
        if nodes[0].config.keeps_heard and self._hear_more(nodes):
            return False
        return all(self._holds(view, nodes) for view in self._views(nodes))

    def _hear_more(self, nodes: tuple[SimulatedNode, ...]) -> bool:
        """Return whether one of the nodes hears another one that is up: it is kept (P39)."""
        names, network = {node.name for node in nodes}, self._world.network
        others = [n for n in self._world.nodes.values() if n.name not in names and n.up]
        return any(network.passes(one.name, name) for one in others for name in names)

    def _views(self, nodes: tuple[SimulatedNode, ...]) -> list[View]:
        """Return the newest view, where the nodes are, and what they may have decided."""
        views = self._world.checks.views
        found = [views[max(views)] if views else first_view(nodes[0].config)]
        for node in nodes:
            assert node.master is not None
            found.append(node.master.view)
            if node.master.accepted is not None:
                found.append(node.master.accepted)
        return found

    @staticmethod
    def _holds(view: View, nodes: tuple[SimulatedNode, ...]) -> bool:
        current = {n.name for n in nodes if view.is_current(n.name, n.disk.incarnation)}
        if len(current) < len(nodes):
            return False
        seats = (view.seat(name) for name in current)
        inside = all(s is not None and (s.witness or s.node_id in view.members) for s in seats)
        guard = nodes[0].config.guard
        whole = not guard or any(one <= current for one in guard)
        return inside and whole and view.elects(current) and view.preserves(current)
