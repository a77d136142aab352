"""Runs of groups in a simulated hour (P41).

They are drawn beside everything else, so that the draws of all else are those without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.verification.model.invariants import violated

from sparktxlog.model.tables.groups import CopiesNeeded
from sparktxlog.protocol.messages.actions import PersistOwnRun, PersistWithdrawal

if TYPE_CHECKING:
    from tests.verification.simulation.node import SimulatedNode
    from tests.verification.simulation.world import World

#: Part of the runs that write to a group, and of those to two.
_RUNS, _TWO = 0.1, 0.3


class Groups:
    """Clients that write to tables of groups.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:groups")

    def draw(self, sites: Sequence[str], *, plain: bool) -> tuple[CopiesNeeded, ...]:
        """Return what a run needs of groups, which have one to three of the sites.

        Args:
            plain: Whether the run may have rows for groups.
        """
        random = self._random
        drawn = random.random()
        if drawn >= _RUNS or not plain:
            return ()
        found = []
        for number in range(2 if drawn < _TWO * _RUNS else 1):
            own = random.sample(sorted(sites), random.randint(1, min(3, len(sites))))
            copies = random.randint(1, len(own))
            found.append(CopiesNeeded(group=f"g{number}", sites=tuple(sorted(own)), copies=copies))
        return tuple(found)


class GroupChecks:
    """P41: what holds of runs of groups; watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Digest → nodes that have had its files on their disk.
        self._files: dict[bytes, set[str]] = {}

    def fetched(self, node: SimulatedNode, digest: bytes) -> None:
        """See a node get the files of an announced run, if they are for it."""
        facts = self._world.facts[digest]
        if any(node.name in one.sites for one in facts.copies):
            self._files.setdefault(digest, set()).add(node.name)

    def stamped(self, node: SimulatedNode, action: PersistOwnRun) -> None:
        """As many sites of each group as it needs have the files of what is stamped.

        So a run that is ordered waits for no group, and is on a disk when all but one of these
        sites are gone.
        """
        copies = self._world.facts[action.header.digest].copies
        if not copies:
            return
        self._world.marks.hit("run of a group stamped")
        if len(copies) > 1:
            self._world.marks.hit("run of two groups stamped")
        if self._world.facts[action.header.digest].participants:
            self._world.marks.hit("prepared run of a group stamped")
        there = {node.name, *self._files.get(action.header.digest, ())}
        for one in copies:
            if len(there.intersection(one.sites)) < one.copies:
                violated(f"P41: {node.name} stamps {action.header}: {one}, {sorted(there)} hold it")

    def refused(self, node: SimulatedNode, ticket: int) -> None:
        """See a client told that a group is away."""
        if not node.submits[ticket].facts.copies:
            violated(f"P41: {node.name} refuses run {ticket}, which is of no group, as of one")

    def withdrawn(self, node: SimulatedNode, action: PersistWithdrawal) -> None:
        """Only a run of a group is withdrawn because one is away."""
        for run in action.runs:
            if run.code != "group-away":
                continue
            self._world.marks.hit("run of a group withdrawn")
            if not self._world.facts[run.digest].copies:
                violated(f"P41: {node.name} withdraws {run.ticket}, which is of no group")
