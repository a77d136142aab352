"""Who commits in a simulated hour, and commits again elsewhere; all drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass

from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.world import World

from sparktxlog.protocol.messages.events import RunSubmitted
from sparktxlog.protocol.messages.view import Phase

#: Chance that a client waits for the outcome and goes elsewhere for it, and how often it does.
_STUBBORN, _MOST_ATTEMPTS = 0.3, 4


#: Part of the staged runs of which a file is damaged as soon as they are accepted.
_DAMAGED = 0.15
#: Phases that an epoch change follows soon, and the runs that then come in so long a time.
_NEAR_CHANGE = (Phase.SUSPECT, Phase.JOINING)
_STEADY, _STEADY_RUNS, _STEADY_US = 0.12, 16, 1_500_000


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One submit of an errand."""

    node: SimulatedNode
    #: Of the node, then: its connections end with it.
    life: int
    submit: RunSubmitted


class Clients:
    """Submit runs at random nodes, in bursts.

    Some see to it that their outcome is known: when their node is lost or silent, they submit the
    same transactions at another one, as `api/nodes` does.
    """

    def __init__(self, world: World, until: int, transactions: int) -> None:
        self._world = world
        self._until = until
        #: Mean transactions of a burst are about 30.
        self._pause_us = max(1, 30 * (until - world.now) // transactions)
        world.on_phase = self._phase
        self._next()

    def _next(self) -> None:
        delay = int(self._world.random.expovariate(1 / self._pause_us))
        if self._world.now + delay < self._until:
            self._world.after(delay, self._due)

    def _due(self) -> None:
        self.burst()
        self._next()

    def _phase(self, phase: Phase) -> None:
        """Go on steadily where an epoch change is near, so that it meets runs on their way."""
        world = self._world
        if phase not in _NEAR_CHANGE or world.now >= self._until:
            return
        if world.random.random() < _STEADY:
            for _ in range(_STEADY_RUNS):
                node = world.random.choice(list(world.nodes.values()))
                world.after(world.random.randrange(_STEADY_US), self._submit, node, 0)

    def burst(self) -> None:
        """Submit some runs within the next 200 ms."""
        world, random = self._world, self._world.random
        takers = [node for node in world.nodes.values() if node.member]
        for _ in range(random.randrange(1, 7)):
            if takers:
                staged = 200_000 if random.random() < 0.05 else 0
                node = random.choice(takers)
                world.after(random.randrange(200_000), self._submit, node, staged)

    def _submit(self, node: SimulatedNode, staged: int) -> None:
        world, random = self._world, self._world.random
        if node.member and not node.paused:
            submit = world.submit(node, random.choice((1, 1, 4, 12, 24)), staged)
            if staged and random.random() < _DAMAGED:
                world.lost_files.add(submit.digest)
            if random.random() < _STUBBORN:
                self._wait([_Attempt(node, node.life, submit)])

    # -- again -------------------------------------------------------------------------------------

    def _wait(self, attempts: list[_Attempt]) -> None:
        """Look for the outcome after a third of a second to a quarter of a minute."""
        delay = int(1_000_000 * 10 ** self._world.random.uniform(-0.5, 1.2))
        if self._world.now + delay < self._until:
            self._world.after(delay, self._look, attempts)

    def _look(self, attempts: list[_Attempt]) -> None:
        """Be content with an outcome, or go to another node."""
        world, last = self._world, attempts[-1]
        if self._is_told(last):
            return
        others = [n for n in world.nodes.values() if n.member and not n.paused]
        others = [node for node in others if node is not last.node]
        if others:
            node = world.random.choice(others)
            assert node.master is not None
            asks_first = world.random.random() < 0.5
            if asks_first and node.master.locate(attempts[0].submit.facts.ids[:16]) is not None:
                return
            submit = self._submit_again(node, attempts[0].submit)
            attempts.append(_Attempt(node, node.life, submit))
        if len(attempts) < _MOST_ATTEMPTS:
            self._wait(attempts)

    def _is_told(self, attempt: _Attempt) -> bool:
        """Whether the client has its answer: the node lived on, and has the run in its queue."""
        key = self._world.checks.stamped.get(attempt.submit.ticket)
        return attempt.node.life == attempt.life and key in attempt.node.disk.ordered

    def _submit_again(self, node: SimulatedNode, first: RunSubmitted) -> RunSubmitted:
        """Submit the same run, or its transactions in one with others."""
        world, random = self._world, self._world.random
        if random.random() < 0.5:
            return world.submit_ids(node, first.facts.ids, first.staged_bytes)
        old = first.facts.ids[: 16 * random.randrange(1, first.facts.n + 1)]
        fresh = world.new_ids(random.randrange(4))
        ids = old + fresh if random.random() < 0.5 else fresh + old
        return world.submit_ids(node, ids, first.staged_bytes)
