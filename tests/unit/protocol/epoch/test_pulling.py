"""Which node a follower asks, and when (P38)."""

from __future__ import annotations

import pytest
from tests.verification.mutation.lone import SECOND_US, Lone

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.pulling import PACE_US, Pulling, circle_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.events import LinkChanged

VOTES = {"a": 1, "b": 1, "w": 1, "f": 0, "g": 0}


def follower(*follow: str) -> Lone:
    return Lone(Master, "f", VOTES, suspect_us=SECOND_US, follow=follow)


def pulling(node: Lone) -> Pulling:
    found = node.master.pulling
    assert found is not None
    return found


def link(node: Lone, peer: str, *, up: bool = True) -> None:
    node.feed(LinkChanged(peer=NodeId(peer), up=up, newest=1))


@pytest.mark.parametrize(
    ("follow", "linked", "sources"),
    [
        ((), "", ("a", "b")),
        ((), "b", ("b",)),
        # Those that are named, in their order, and no others; itself, a witness and strangers not.
        (("g", "b"), "abg", ("g", "b")),
        (("g", "b"), "ab", ("b",)),
        (("g",), "ab", ("g",)),
        (("f", "w", "x", "b"), "abw", ("b",)),
        (("x", "w"), "ab", ("a", "b")),
    ],
)
def test_where_a_follower_asks(
    follow: tuple[str, ...], linked: str, sources: tuple[str, ...]
) -> None:
    node = follower(*follow)
    for peer in linked:
        link(node, peer)
    assert pulling(node).sources() == sources


def test_a_node_that_is_none_pulls_nothing() -> None:
    member = Lone(Master, "a", VOTES)
    assert member.master.pulling is None
    assert member.master._pulling.next_deadline() is None


def test_it_says_what_it_follows_and_how_far_it_is() -> None:
    node = follower("g")
    shown = pulling(node).upstream(node.now)
    assert (shown.node, shown.linked, shown.heard_us, shown.lacks) == ("g", False, None, 0)
    link(node, "g")
    node.hear(node.answer("g", 0))
    node.now += SECOND_US
    shown = pulling(node).upstream(node.now)
    assert (shown.linked, shown.heard_us) == (True, SECOND_US)
    pulling(node).heard(NodeId("g"), node.now, end=5)
    node.wait(SECOND_US)
    shown = pulling(node).upstream(node.now)
    assert shown.lacks == 5 and 0 < shown.lags_us <= SECOND_US


def test_it_looks_again_in_time() -> None:
    """Soon at first, then at pauses that grow up to the patience, but never past it."""
    node = follower()
    link(node, "a")
    pauses = []
    for _ in range(5):
        deadline = node.master._pulling.next_deadline()
        assert deadline is not None
        pauses.append(deadline - node.now)
        node.now = deadline
        node.hear(node.answer("a", 0))
    assert pauses[0] == PACE_US and max(pauses) <= SECOND_US and pauses[-1] == SECOND_US


#: Node → what it is set to follow; None = it has not greeted.
_Follow = dict[str, tuple[str, ...] | None]


@pytest.mark.parametrize(
    ("follow", "circle"),
    [
        ({"f": ("g",), "g": ("f",)}, "f g"),
        ({"f": ("g",), "g": ("g2",), "g2": ("g", "f")}, "f g g2"),
        # A circle into which it leads, though it is no part of it.
        ({"f": ("g",), "g": ("g2",), "g2": ("g",)}, "f g g2"),
        # The members are asked by default, also where none of those that are named has a place.
        ({"f": ("g",), "g": ()}, ""),
        ({"f": ("g",), "g": ("x", "w")}, ""),
        ({"f": ("g", "g2"), "g": ("f",), "g2": ("f", "b")}, ""),
        ({"f": ("g", "a"), "g": ("f",)}, ""),
        # One that has not greeted may lead to a member.
        ({"f": ("g", "g2"), "g": ("f",), "g2": None}, ""),
    ],
)
def test_followers_that_follow_each_other_are_found(follow: _Follow, circle: str) -> None:
    node = Lone(Master, "f", VOTES | {"g2": 0}, suspect_us=SECOND_US)
    found = circle_of(NodeId("f"), node.master.view, lambda one: follow.get(str(one)))
    assert found == circle.split()
