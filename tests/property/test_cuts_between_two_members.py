"""Cuts between members: who is left out, with and without the options (P13, P39, P40).

Two of three members do not hear each other, and the third one hears both: by default one of the
two is left out after a while.  With `keeps_heard` nobody is: the third one
orders what all promise to it, and the two get its queue, so what they commit is still ordered.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.verification.simulation.world import Layout, World

from sparktxlog.model.ids import NodeId

_S = 1_000_000
_PATIENCE_US = 2 * _S


def _world(seed: int, *, keeps_heard: bool) -> World:
    settings = {"suspect_timeout_us": _PATIENCE_US, "keeps_heard": keeps_heard}
    votes = {"a": 1, "b": 1, "c": 1}
    world = World(seed, Layout(name="three", masters=votes, settings=settings))
    for node in world.nodes.values():
        node.start()
    world.relink()
    world.run_until(2 * _S)
    return world


def _cut(world: World, pairs: Iterable[tuple[str, str]]) -> None:
    world.network.cut |= set(pairs)
    world.relink()


def _ordered_everywhere(world: World, within_us: int) -> bool:
    """Let each member commit once, and return whether all queues have it in time.

    What is for a group with sites at both sides of a cut may be withdrawn: it does not count (P41).
    """
    submits = [world.submit(node, 1) for node in world.nodes.values()]
    world.run_until(world.now + within_us)
    nodes = world.nodes.values()
    return all(
        world.was_ordered(node, submit)
        for node in nodes
        for submit in submits
        if not submit.facts.copies
    )


@pytest.mark.parametrize(
    "pairs", [[("a", "c")], [("c", "a")], [("a", "c"), ("c", "a")]], ids=["to", "from", "both"]
)
def test_nobody_that_another_member_hears_is_left_out(pairs: list[tuple[str, str]]) -> None:
    world = _world(1, keeps_heard=True)
    _cut(world, pairs)
    for _ in range(10):
        assert _ordered_everywhere(world, 6 * _S)
    assert not world.checks.views, "no epoch was decided"
    assert all(node.member for node in world.nodes.values())


@pytest.mark.parametrize(
    ("guard", "members"),
    [
        ((), ("a", "b", "c")),
        (("abc",), ("a", "b", "c")),
        (("de", "ca"), ("a", "b", "c")),
        (("de",), None),
        (("ad", "be"), None),
    ],
)
def test_a_side_without_a_whole_set_waits(
    guard: tuple[str, ...], members: tuple[str, ...] | None
) -> None:
    """V60: a, b and c, a majority, are cut off from d and e; where no set is whole nobody goes on.

    Later the cut is repaired, and all are members again.
    """
    sets = tuple(frozenset(map(NodeId, one)) for one in guard)
    settings = {"suspect_timeout_us": _PATIENCE_US, "guard": sets}
    world = World(1, Layout(name="five", masters=dict.fromkeys("abcde", 1), settings=settings))
    for node in world.nodes.values():
        node.start()
    world.relink()
    world.run_until(2 * _S)
    _cut(world, ((x, y) for x in "abc" for y in "de"))
    _cut(world, ((y, x) for x in "abc" for y in "de"))
    world.run_until(world.now + 30 * _S)
    found = [view.members for view in world.checks.views.values()]
    assert found == ([] if members is None else [members])
    world.network.cut.clear()
    world.relink()
    world.run_until(world.now + 60 * _S)
    assert _ordered_everywhere(world, 10 * _S)
    assert all(node.member for node in world.nodes.values())


def test_otherwise_one_is_left_out_after_a_while() -> None:
    world = _world(1, keeps_heard=False)
    _cut(world, [("a", "c"), ("c", "a")])
    for _ in range(10):
        _ordered_everywhere(world, 6 * _S)
    assert world.checks.views


def test_a_member_that_nobody_hears_is_left_out_all_the_same() -> None:
    world = _world(1, keeps_heard=True)
    _cut(world, [("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")])
    world.run_until(world.now + 20 * _S)
    assert [view.members for view in world.checks.views.values()] == [("a", "b")]
