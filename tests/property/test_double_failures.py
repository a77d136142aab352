"""Two of three nodes fail, and an operator lets the last one go on alone (P23, V47).

Each has a copy of everything, so whichever one is left has what clients were told of: always with
`acquisition-quorum = all`; with the default if the second one fails after the others went on
without the first one.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.world import Layout, World

from sparktxlog.protocol.messages.actions import Action, TellAcquired
from sparktxlog.protocol.messages.events import ForceRequested

_S = 1_000_000
_NODES = "abc"


def _three(quorum_rule: str) -> World:
    layout = Layout(name="three", masters=dict.fromkeys(_NODES, 1), quorum_rule=quorum_rule)
    world = World(1, layout)
    for node in world.nodes.values():
        node.start()
    world.relink()
    world.run_until(3 * _S)
    return world


def _commit(world: World, names: str) -> None:
    for name in names:
        world.submit(world.nodes[name], 2)


def _fail(world: World, name: str) -> None:
    world.nodes[name].crash()
    world.relink()


def _goes_on_alone(world: World, survivor: str, told: set[bytes]) -> None:
    """Let the last one go on, and then the others come back."""
    last = world.nodes[survivor]
    world.run_until(world.now + 30 * _S)
    ordered = len(last.disk.queue)
    _commit(world, survivor)
    world.run_until(world.now + 30 * _S)
    assert len(last.disk.queue) == ordered, "it waits until an operator says so"
    last.handle([ForceRequested(ticket=1_000, log_id="forced")])
    world.run_until(world.now + 10 * _S)
    assert len(last.disk.queue) > ordered
    assert told <= {entry.header.digest for entry in last.disk.queue}
    for node in world.nodes.values():
        if not node.up:
            node.start()
    world.relink()
    world.run_until(world.now + 60 * _S)
    queues = [[entry.header for entry in node.disk.queue] for node in world.nodes.values()]
    assert queues[0] == queues[1] == queues[2]
    assert all(node.member for node in world.nodes.values())


def _told(world: World, patched: pytest.MonkeyPatch) -> set[bytes]:
    """Return what clients are told of as acquired, from now on."""
    told, tell = set[bytes](), world.checks.told

    def noting(node: SimulatedNode, action: Action) -> None:
        if isinstance(action, TellAcquired):
            told.add(action.header.digest)
        tell(node, action)

    patched.setattr(world.checks, "told", noting)
    return told


@pytest.mark.parametrize("survivor", _NODES)
@pytest.mark.parametrize("moment_us", [0, 20_000, 200_000, 5 * _S])
def test_two_fail_at_once_and_whichever_one_is_left_has_all(
    survivor: str, moment_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _three("all")
    told = _told(world, monkeypatch)
    for _ in range(3):
        _commit(world, _NODES)
        world.run_until(world.now + 5 * _S)
    _commit(world, _NODES)
    world.run_until(world.now + moment_us)
    for name in _NODES:
        if name != survivor:
            _fail(world, name)
    assert len(told) >= 9
    _goes_on_alone(world, survivor, told)


@pytest.mark.parametrize("order", list(permutations(_NODES)))
def test_one_fails_after_the_other_and_the_last_one_has_all(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default two of three hold what is told; once two are left, both do."""
    first, second, survivor = order
    world = _three("default")
    told = _told(world, monkeypatch)
    _commit(world, _NODES)
    world.run_until(world.now + _S // 50)
    _fail(world, first)
    world.run_until(world.now + 20 * _S)
    assert {*world.checks.views[2].members} == {second, survivor}
    _commit(world, second + survivor)
    world.run_until(world.now + _S // 50)
    _fail(world, second)
    _goes_on_alone(world, survivor, told)
