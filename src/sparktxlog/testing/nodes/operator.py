"""An operator who changes votes and precedence while everything else goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparktxlog.errors import TxLogError
from sparktxlog.protocol.view import Seat
from sparktxlog.testing.nodes.clients import LostError

if TYPE_CHECKING:
    from sparktxlog.testing.nodes.node import SimulatedNode
    from sparktxlog.testing.nodes.world import World

_VOTES = (1, 2, 3)
#: The operator waits so long for an answer, at least and at most, seconds.
_PATIENCE_S = (0.5, 20.0)


class Operator:
    """Asks nodes drawn by lot for other places; each answer must be true."""

    def __init__(self, world: World) -> None:
        self._world = world

    def change_places(self) -> None:
        """Ask some node for a master's new number of votes, or for another precedence."""
        takers = [node for node in self._world.nodes.values() if node.takes]
        if takers:
            work = self._ask(self._world.random.choice(takers))
            task = self._world.loop.create_task(work, context=self._world.context)
            task.add_done_callback(self._world.report)

    async def _ask(self, node: SimulatedNode) -> None:
        world = self._world
        wanted: list[tuple[Seat, ...]] = []

        def edit(roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
            wanted.append(self._another(roster))
            return wanted[-1]

        patience = world.random.uniform(*_PATIENCE_S)
        try:
            found = await world.clients.ask(
                node, lambda asked: asked.epochs().change(edit, patience)
            )
        except LostError:
            world.checks.happened("change of places lost with its node")
        except TxLogError as error:
            world.checks.note("places", node.name, error.message)
            how = "refused" if error.definite else "unknown"
            world.checks.happened(f"change of places {how}")
        else:
            world.checks.happened("places changed")
            world.checks.places_changed(node, found["epoch"], wanted[-1])

    def _another(self, roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
        """Return a roster with other votes of a master, or with a node in front."""
        random = self._world.random
        if random.random() < 0.3:
            at = random.randrange(1, len(roster))
            return (roster[at], *roster[:at], *roster[at + 1 :])
        chosen = random.choice([seat for seat in roster if not seat.witness])
        votes = random.choice([number for number in _VOTES if number != chosen.weight])
        return tuple(replace(seat, weight=votes) if seat is chosen else seat for seat in roster)
