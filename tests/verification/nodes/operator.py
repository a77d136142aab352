"""An operator who changes votes, precedence and the quorum while everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.verification.nodes.clients import LostError

from sparktxlog.errors import TxLogError
from sparktxlog.model.answers import EpochView
from sparktxlog.protocol.messages.view import Seat

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.world import World

    from sparktxlog.runtime.node import Node

_VOTES = (1, 2, 3)
_RULES = ("default", "all", "majority", "2")
#: The operator waits so long for an answer, at least and at most, seconds.
_PATIENCE_S = (0.5, 20.0)


class Operator:
    """Asks nodes drawn by lot for other places; each answer must be true."""

    def __init__(self, world: World) -> None:
        self._world = world

    def change_places(self) -> None:
        """Ask some node for a master's new number of votes, or for another precedence."""
        self._begin(self._ask_places)

    def change_quorum(self) -> None:
        """Ask some node for another acquisition quorum."""
        self._begin(self._ask_quorum)

    def change_role(self) -> None:
        """Ask some node to make a follower a member, or such a member a follower again (P38)."""
        if self._world.layout.followers:
            self._begin(self._ask_role)

    def _begin(self, ask: Callable[[SimulatedNode], Coroutine[Any, Any, None]]) -> None:
        takers = [node for node in self._world.nodes.values() if node.takes]
        if takers:
            work = ask(self._world.random.choice(takers))
            task = self._world.loop.create_task(work, context=self._world.context)
            task.add_done_callback(self._world.report)

    async def _ask_places(self, node: SimulatedNode) -> None:
        wanted: list[tuple[Seat, ...]] = []

        def edit(roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
            wanted.append(self._another(roster))
            return wanted[-1]

        patience = self._world.random.uniform(*_PATIENCE_S)
        epoch = await self._answer(
            node, "places", lambda asked: asked.epochs.change(edit, patience)
        )
        if epoch:
            self._world.checks.places_changed(node, epoch, wanted[-1])

    async def _ask_role(self, node: SimulatedNode) -> None:
        name = self._world.random.choice(self._world.layout.followers)
        wanted: list[tuple[Seat, ...]] = []

        def edit(roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
            found = next(seat for seat in roster if seat.node_id == name)
            turned = replace(found, follower=not found.follower, weight=int(found.follower))
            wanted.append(tuple(turned if seat is found else seat for seat in roster))
            return wanted[-1]

        patience = self._world.random.uniform(*_PATIENCE_S)
        epoch = await self._answer(node, "role", lambda asked: asked.epochs.change(edit, patience))
        if epoch:
            self._world.checks.places_changed(node, epoch, wanted[-1])
            again = next(seat for seat in wanted[-1] if seat.node_id == name).follower
            self._world.checks.happened("member follows" if again else "follower promoted")

    async def _ask_quorum(self, node: SimulatedNode) -> None:
        assert node.running is not None
        rules = [one for one in _RULES if one != node.running.base.master.view.quorum_rule]
        rule = self._world.random.choice(rules)
        patience = self._world.random.uniform(*_PATIENCE_S)
        epoch = await self._answer(
            node, "quorum", lambda asked: asked.epochs.set_quorum(rule, "", patience)
        )
        if epoch:
            self._world.checks.quorum_changed(node, epoch, rule)

    async def _answer(
        self,
        node: SimulatedNode,
        what: str,
        question: Callable[[Node], Coroutine[Any, Any, EpochView]],
    ) -> int:
        """Return the epoch that has the change, 0 = none that the operator is told of."""
        checks = self._world.checks
        try:
            found = await self._world.clients.ask(node, question)
        except LostError:
            checks.happened(f"change of {what} lost with its node")
        except TxLogError as error:
            checks.note(what, node.name, error.message)
            checks.happened(f"change of {what} {'refused' if error.definite else 'unknown'}")
        else:
            checks.happened(f"{what} changed")
            return int(found["epoch"])
        return 0

    def _another(self, roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
        """Return a roster with other votes of a master, or with a node in front.

        While a copy of a node runs its votes stay as they are: the copy may come into its place, so
        the others must be able to do without them.
        """
        random = self._world.random
        if random.random() < 0.3 or self._world.clones:
            at = random.randrange(1, len(roster))
            return (roster[at], *roster[:at], *roster[at + 1 :])
        chosen = random.choice([seat for seat in roster if seat.may_be_member])
        votes = random.choice([number for number in _VOTES if number != chosen.weight])
        return tuple(replace(seat, weight=votes) if seat is chosen else seat for seat in roster)
