"""A site that fetches files more slowly than the others commit comes back, and commits again (P21).

Three simulated nodes; clients at each of them commit one run with a file after the other.  A node
fetches only a few runs each second.  That is enough for a member, which has its own runs, and not
for one that comes back: it needs those of all.
"""

from __future__ import annotations

import heapq
from collections import Counter
from types import SimpleNamespace
from typing import Any

from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.world import Layout, World

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.events import RunSubmitted
from sparktxlog.protocol.messages.posts import RunHeader

_S = 1_000_000
#: Clients at each node, and runs that a node fetches at once, each in so long a time.
_CLIENTS, _LANES, _FETCH_US = 2, 2, 200_000
_PATIENCE_US, _STAGED = 2 * _S, 5_000
_LAYOUT = Layout(
    name="three",
    masters={"a": 1, "b": 1, "c": 1},
    settings={
        "suspect_timeout_us": _PATIENCE_US,
        "start_timeout_us": 2 * _PATIENCE_US,
        "id_window": 100_000,
    },
)


class _Busy(World):
    """Clients that never rest, and nodes that fetch slowly."""

    def __init__(self, seed: int) -> None:
        #: Node and its life → when each of its lanes is free.
        self._lanes: dict[tuple[str, int], list[int]] = {}
        self._flying: set[tuple[str, int, bytes]] = set()
        super().__init__(seed, _LAYOUT)
        nothing: Any = SimpleNamespace(
            touches=(), changes=(), participants=(), valid_until=(), marks=(), conditions=()
        )
        parts: Any = self
        parts._committers = SimpleNamespace(draw=lambda *drawn: ())
        parts._readers = SimpleNamespace(draw=lambda *drawn: ((), ()))
        parts._participants = SimpleNamespace(draw=lambda *drawn, plain: nothing)
        parts._alterers = SimpleNamespace(draw=lambda *drawn: nothing)
        parts.synchronous = SimpleNamespace(draw=lambda *drawn: 0, stands_alone=lambda: False)
        #: Node → its runs that were ordered there in the last second.
        self.ordered = Counter[str]()

    def begin(self) -> None:
        """Start the nodes and their clients."""
        for node in self.nodes.values():
            node.start()
        self.relink()
        for node in self.nodes.values():
            for _ in range(_CLIENTS):
                self.after(_S, self._commit, node)

    def _commit(self, node: SimulatedNode) -> None:
        if node.member:
            self._look(node, self.submit(node, 1, _STAGED), node.life)
        else:
            self.after(_S // 5, self._commit, node)

    def _look(self, node: SimulatedNode, submit: RunSubmitted, life: int) -> None:
        if node.life != life:
            self.after(_S // 5, self._commit, node)
        elif self.checks.stamped.get(submit.ticket) in node.disk.ordered:
            self.ordered[node.name] += 1
            self._commit(node)
        else:
            self.after(_S // 100, self._look, node, submit, life)

    def _fetch(
        self, node: SimulatedNode, header: RunHeader, sources: list[NodeId], life: int
    ) -> None:
        """Fetch in turn, each run once at a time, as the shell does."""
        key = (node.name, life, header.digest)
        if key not in self._flying:
            lanes = self._lanes.setdefault(key[:2], [0] * _LANES)
            end = max(self.now, lanes[0]) + _FETCH_US
            heapq.heapreplace(lanes, end)
            self._flying.add(key)
            self.after(end - self.now, self._in_turn, key, node, header, sources)

    def _in_turn(
        self,
        key: tuple[str, int, bytes],
        node: SimulatedNode,
        header: RunHeader,
        sources: list[NodeId],
    ) -> None:
        self._flying.discard(key)
        super()._fetch(node, header, sources, key[1])


def test_a_site_that_fetches_slowly_comes_back_under_load() -> None:
    world = _Busy(1)
    world.begin()
    world.run_until(6 * _S)
    world.nodes["c"].crash()
    world.run_until(12 * _S)
    assert world.checks.views, "the others go on without it"
    world.nodes["c"].start()
    world.relink()
    back, stood, before = 0, 0, 0
    while world.now < 70 * _S and not back:
        world.run_until(world.now + _S)
        total = world.ordered["a"] + world.ordered["b"]
        stood, before = (0 if total > before else stood + 1), total
        assert stood <= 7, "the members stand still for more than three times the patience"
        back = world.now if world.nodes["c"].member else 0
    assert back, "it never came back"
    world.ordered.clear()
    world.run_until(back + 5 * _S)
    assert world.ordered["c"] > 5, world.ordered
