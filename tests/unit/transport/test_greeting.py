"""Greetings: who is refused, and two nodes under one id."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.greetings import make_greeter

from sparktxlog.codec.wire import Hello
from sparktxlog.config import SETTINGS
from sparktxlog.errors import BusyError, ForbiddenPeerError, WireVersionError
from sparktxlog.protocol.messages.balloting import Standing
from sparktxlog.transport.greeting import Greeter, Place

A = Hello(node_id="A", url="http://a", instance="ia", boot="1", log_id="l", config_hash="c")
B = replace(A, node_id="B", url="http://b", instance="ib", boot="2")


def speaking(hello: Hello, newest: int, in_force: int) -> Hello:
    return replace(hello, oldest=in_force, newest=newest)


def greeter(**instances: str) -> tuple[Greeter, list[tuple[str, str]]]:
    kept: list[tuple[str, str]] = []
    made = make_greeter(A, {"B": "http://b"}, instances, lambda node, i: kept.append((node, i)))
    return made, kept


def test_the_right_peer_is_remembered_once() -> None:
    judge, kept = greeter()
    judge.check(B, "B")
    judge.check(replace(B, boot="3", url="http://b/"), "B")
    assert kept == [("B", "ib")]
    assert judge.known("B")
    assert not judge.known("X")


@pytest.mark.parametrize(
    ("hello", "expected", "part"),
    [
        (replace(B, node_id="X"), "B", "answers where 'B' is configured"),
        (replace(B, node_id="X"), "X", "is configured"),
        (replace(B, url="http://c"), "B", "URL of node 'B'"),
        (replace(B, log_id="other"), "B", "log_id"),
        (replace(B, config_hash="d"), "B", "configuration"),
        (speaking(B, 9, 9), "B", "wire version"),
        (replace(A, instance="other"), "A", "two nodes with one id"),
    ],
)
def test_who_is_not_who_it_should_be(hello: Hello, expected: str, part: str) -> None:
    judge, kept = greeter()
    with pytest.raises(ForbiddenPeerError, match=part):
        judge.check(hello, expected)
    assert kept == []


def test_a_differing_configuration_is_told_with_all_settings_that_may_differ() -> None:
    judge, _ = greeter()
    with pytest.raises(ForbiddenPeerError) as caught:
        judge.check(replace(B, config_hash="d"), "B")
    shared = [setting.key for setting in SETTINGS if setting.shared]
    assert {"signature-interval", "id-window"} < set(shared)
    assert f"{', '.join(shared)} must be the same" in caught.value.hint


def test_another_data_directory_under_a_known_id() -> None:
    judge, kept = greeter(B="ib")
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.check(replace(B, instance="new"), "B")
    judge.check(B, "B")
    assert kept == []


def test_places_follow_the_view_and_log_ids_their_ancestors() -> None:
    judge, _ = greeter(B="ib")
    judge.enter({"C": Place(urls=("http://c", "http://c2"))}, "forked", ["l"])
    assert judge.known("C")
    assert not judge.known("B")
    assert (judge.own.log_id, judge.own.ancestors) == ("forked", ("l",))
    c = replace(B, node_id="C", url="http://c2", instance="ic")
    judge.check(c, "C")  # it has yet to learn of the fork
    judge.check(replace(c, log_id="forked"), "C")
    judge.check(replace(c, log_id="again", ancestors=("l", "forked")), "C")
    with pytest.raises(ForbiddenPeerError, match=r"forked: .* 'other'.* peer quarantine"):
        judge.check(replace(c, log_id="other", ancestors=("l",)), "C")


def test_a_node_that_went_on_in_an_epoch_unknown_to_a_forced_one_is_a_fork() -> None:
    """The forced node was cut off from a majority that lived: neither can follow the other."""
    judge, _ = greeter(B="ib")
    judge.enter({"B": "http://b"}, "forced", ["l"], epoch=4, ancestor_epochs=[3])
    for epoch in (1, 2, 3):
        judge.check(replace(B, epoch=epoch), "B")
    with pytest.raises(ForbiddenPeerError, match=r"forked: .* 'l'.* peer quarantine"):
        judge.check(replace(B, epoch=4), "B")
    # The same seen from the other side.
    other, _ = greeter(B="ib")
    other.enter({"B": "http://b"}, "l", [], epoch=4)
    forced = replace(B, log_id="forced", ancestors=("l",), epoch=9, ancestor_epochs=(3,))
    with pytest.raises(ForbiddenPeerError, match="forked"):
        other.check(forced, "B")
    other.check(replace(forced, ancestor_epochs=(4,)), "B")
    # One that keeps nothing of any log joins.
    judge.check(replace(B, epoch=4, fresh=True), "B")


def test_an_older_disk_is_seen_beyond_a_force_too() -> None:
    """It was away when a member was let go on alone, or learned of that before it was judged."""
    judge = make_greeter(
        A,
        {"B": "http://b"},
        {"B": "ib"},
        lambda node, instance: None,
        shortfall=lambda node, standing: "it shows less",
    )
    shown = replace(B, standing=Standing(start=1))
    assert judge.judge(shown, "B") == 2
    judge.enter({"B": "http://b"}, "forced", ["l"], epoch=4, ancestor_epochs=[3])
    assert judge.judge(shown, "B") == 2
    # It was forced itself, as it was.
    assert judge.judge(replace(shown, log_id="again", ancestors=("l", "forced")), "B") == 0


def test_who_joins_in_the_place_of_an_empty_disk_is_noted_as_a_joiner() -> None:
    """Else its second greeting, over the link that the first one made, is a second node's."""
    linked = False
    judge = make_greeter(
        A,
        {"B": "http://b"},
        {"B": "ib"},
        lambda node, instance: None,
        is_linked=lambda node: linked,
        is_blank=lambda node: True,
    )
    other = replace(B, instance="other", incarnation=2)
    assert judge.judge(other, "B") == 0
    linked = True
    assert judge.judge(other, "B") == 0 and judge.is_joiner("B")


def test_founders_of_other_places_do_not_begin_a_log_together() -> None:
    own = replace(A, founding_hash="f")
    judge = make_greeter(own, {"B": "http://b"}, {}, lambda node, instance: None)
    with pytest.raises(ForbiddenPeerError, match="configuration"):
        judge.check(replace(B, founding_hash="g"), "B")
    judge.check(replace(B, founding_hash="f"), "B")
    judge.check(replace(B, founding_hash=""), "B")  # it knows a decided view


class Doorkeeper:
    """A greeter that knows B under an instance; the old B can be there or not."""

    def __init__(self) -> None:
        self.linked = False
        self.kept: list[tuple[str, str]] = []
        self.greeter = make_greeter(
            A,
            {"B": Place(urls=("http://b",), incarnation=2)},
            {"B": "ib"},
            lambda node, instance: self.kept.append((node, instance)),
            is_linked=lambda node: self.linked,
        )


def test_a_lost_disk_is_told_its_next_incarnation_and_joins_under_it() -> None:
    door = Doorkeeper()
    judge = door.greeter
    fresh = replace(B, instance="new", fresh=True)
    assert judge.judge(fresh, "B") == 3
    with pytest.raises(ForbiddenPeerError, match="has to join"):
        judge.check(fresh, "B")
    joiner = replace(fresh, incarnation=3)
    assert judge.judge(joiner, "B") == 0
    assert judge.is_joiner("B")
    assert door.kept == []

    judge.enter({"B": Place(urls=("http://b",), incarnation=2)}, "l", [])
    assert judge.is_joiner("B")
    judge.enter({"B": Place(urls=("http://b",), incarnation=3)}, "l", [])
    assert not judge.is_joiner("B")
    assert door.kept == [("B", "new@3")]
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.judge(B, "B")


def test_a_node_that_was_admitted_elsewhere_is_taken_under_its_new_incarnation() -> None:
    """Seed 1 of `verification.nodes`: a witness knew the admission before the node reached it."""
    door = Doorkeeper()
    judge = door.greeter
    new = replace(B, instance="new", incarnation=2)
    door.linked = True  # as far as is known here
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.judge(new, "B")
    door.linked = False
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.judge(replace(new, incarnation=1), "B")
    assert judge.judge(new, "B") == 0
    assert door.kept == [("B", "new@2")]
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.judge(replace(B, instance="third", incarnation=2), "B")
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.judge(B, "B")
    # After a start as well, whenever the view came.
    again = make_greeter(
        A,
        {"B": Place(urls=("http://b",), incarnation=3)},
        {"B": "new@2"},
        lambda node, i: None,
        is_linked=lambda node: False,
    )
    assert again.judge(replace(B, instance="newest", incarnation=3), "B") == 0


def test_nobody_takes_the_place_of_a_node_that_is_there() -> None:
    door = Doorkeeper()
    door.linked = True
    for incarnation in (1, 3):
        hello = replace(B, instance="new", fresh=True, incarnation=incarnation)
        with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
            door.greeter.judge(hello, "B")
    assert door.greeter.judge(B, "B") == 0


def test_another_disk_with_data_of_its_own_is_refused() -> None:
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        Doorkeeper().greeter.judge(replace(B, instance="new"), "B")


def test_an_empty_node_that_is_not_known_here_gets_no_vote_of_before() -> None:
    """It greets a node first that joined while it was dead: nobody there knows its old disk."""
    judge, kept = greeter()
    fresh = replace(B, fresh=True, founding_hash="f")
    assert judge.judge(fresh, "B") == 2
    assert kept == []
    assert judge.judge(replace(fresh, founding_hash="", incarnation=2), "B") == 0


def test_a_node_that_joins_itself_takes_no_votes_of_others() -> None:
    """Its disk was lost, so it does not know them; a member does, and needs their votes."""
    judge = make_greeter(A, {"B": "http://b"}, {}, lambda *_: None, is_joining=lambda _: True)
    fresh = replace(B, fresh=True, founding_hash="f")
    with pytest.raises(BusyError, match="this node joins the log and does not know node 'B'"):
        judge.judge(fresh, "B")
    assert judge.judge(replace(fresh, fresh=False, founding_hash=""), "B") == 0


def test_a_new_node_is_told_the_log_id_to_join() -> None:
    judge, kept = greeter()
    fresh = replace(B, log_id="its own idea", fresh=True)
    assert judge.judge(fresh, "B") == 1
    assert kept == []
    assert judge.judge(replace(fresh, log_id="l"), "B") == 0
    assert kept == [("B", "ib")]


def test_who_shows_less_than_before_joins_under_the_next_incarnation() -> None:
    """P30: whoever it is, as long as it is the node known here."""
    kept: list[tuple[str, str]] = []
    judge = make_greeter(
        A,
        {"B": Place(urls=("http://b",), incarnation=2)},
        {"B": "ib@2"},
        lambda node, shown: kept.append((node, shown)),
        shortfall=lambda node, standing: "counter" if standing.counter < 7 else "",
    )
    shown = replace(B, incarnation=2, standing=Standing(incarnation=2, start=3, counter=7))
    assert judge.judge(shown, "B") == 0
    older = replace(shown, standing=Standing(incarnation=2, start=3, counter=6))
    assert judge.judge(older, "B") == 3
    with pytest.raises(ForbiddenPeerError, match="has to join the log first"):
        judge.check(older, "B")
    with pytest.raises(ForbiddenPeerError, match="another data directory"):
        judge.judge(replace(older, instance="stranger"), "B")
    assert judge.judge(replace(older, standing=None), "B") == 0


def test_an_admitted_disk_that_was_not_noted_is_told_to_join_again() -> None:
    """The node stopped between the decision that admitted it and the note of its disk."""
    judge = make_greeter(
        A,
        {"B": Place(urls=("http://b",), incarnation=3)},
        {"B": "first"},
        lambda *_: None,
        is_linked=lambda node: False,
        shortfall=lambda *_: "epoch 1, before 7",
    )
    standing = Standing(incarnation=3, start=2, epoch=1)
    copied = replace(B, instance="third", incarnation=3, fresh=True, standing=standing)
    assert judge.judge(copied, "B") == 4


def test_an_image_of_before_a_node_came_back_joins_once_the_other_is_gone() -> None:
    linked = [True]
    judge = make_greeter(
        A,
        {"B": Place(urls=("http://b",), incarnation=2)},
        {"B": "second@2"},
        lambda *_: None,
        is_linked=lambda node: linked[0],
    )
    image = replace(B, instance="first", standing=Standing(start=9))
    with pytest.raises(ForbiddenPeerError, match="another data directory"):
        judge.judge(image, "B")
    linked[0] = False
    assert judge.judge(image, "B") == 3


def test_a_greeting_shows_what_is_so_now() -> None:
    now = ["d1", 4, "ab"]
    judge = make_greeter(A, {}, {}, lambda *_: None, shown=lambda *_: tuple(now))
    assert (judge.own.decision, judge.own.position, judge.own.chain_hash) == ("d1", 4, "ab")
    now[1] = 5
    assert judge.own.position == 5


# -- wire versions (P31) ---------------------------------------------------------------------------


def test_a_greeting_shows_the_decision_on_the_epoch_that_it_names() -> None:
    """The core may be in the next one already: that digest would look like a fork (I5)."""
    judge = make_greeter(
        A, {}, {}, lambda *_: None, shown=lambda log_id, epoch: (f"{epoch}", 0, "")
    )
    judge.enter({}, A.log_id, (), epoch=6)
    assert (judge.own.epoch, judge.own.decision) == (6, "6")


def versions_of(own: Hello, peer: Hello) -> tuple[int, int]:
    """Return the versions that two nodes choose for their link, each for itself."""
    found = []
    for here, there in ((own, peer), (peer, own)):
        place = {there.node_id: there.url}
        judge = make_greeter(here, place, {}, lambda node, i: None, is_fresh=lambda f=here.fresh: f)
        judge.check(there, there.node_id)
        found.append(judge.version(there.node_id))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("own", "peer", "chosen"),
    [
        ((3, 2), (3, 2), 3),
        ((3, 2), (2, 2), 2),
        ((4, 3), (3, 3), 3),
        ((5, 2), (4, 3), 4),
    ],
)
def test_both_ends_choose_the_newest_common_version(
    own: tuple[int, int], peer: tuple[int, int], chosen: int
) -> None:
    assert versions_of(speaking(A, *own), speaking(B, *peer)) == (chosen, chosen)


@pytest.mark.parametrize("peer", [B, speaking(B, 2, 2), speaking(B, 3, 3)])
def test_who_does_not_speak_the_version_in_force_is_refused_with_the_way_out(peer: Hello) -> None:
    """The log works by version 4: what older releases make of it would differ."""
    judge = make_greeter(speaking(A, 5, 4), {"B": "http://b"}, {}, lambda node, i: None)
    with pytest.raises(WireVersionError) as caught:
        judge.check(peer, "B")
    least, most = peer.oldest, peer.newest
    assert f"speaks wire versions {least} to {most}, this one () 4 to 5" in caught.value.message
    assert "Install the newer release at node 'B'" in caught.value.message
    other = make_greeter(peer, {"A": "http://a"}, {}, lambda node, i: None)
    with pytest.raises(WireVersionError, match="Install the newer release at this node"):
        other.check(speaking(A, 5, 4), "A")


def test_an_empty_node_of_a_newer_release_may_join_a_log_of_an_older_one() -> None:
    """It would found a log of its own version; in this one it learns which is in force."""
    new, old = replace(speaking(B, 3, 3), fresh=True, founding_hash="f"), speaking(A, 3, 2)
    judge = make_greeter(old, {"B": "http://b"}, {}, lambda node, i: None)
    assert judge.judge(new, "B") == 2, "it was not told to join"
    fresh = make_greeter(
        speaking(B, 3, 3), {"A": "http://a"}, {}, lambda n, i: None, is_fresh=lambda: True
    )
    fresh.check_identity(A, "A")
    with pytest.raises(WireVersionError):  # they would found one log by two rules
        fresh.check_identity(replace(A, fresh=True), "A")


def test_a_view_may_raise_what_a_node_must_speak() -> None:
    judge = make_greeter(speaking(A, 3, 1), {"B": "http://b"}, {}, lambda node, i: None)
    judge.check(B, "B")
    judge.enter({"B": "http://b"}, "l", (), epoch=2, version=3)
    assert (judge.own.oldest, judge.own.newest) == (3, 3)
    with pytest.raises(WireVersionError):
        judge.check(B, "B")


def test_a_greeting_says_that_the_log_went_on_to_a_later_epoch() -> None:
    """Who was down meanwhile learns it by that first; a node without a place says nothing."""
    judge, _ = greeter(B="ib")
    judge.enter({"B": "http://b"}, "l", (), epoch=2)
    assert judge.ahead() is None
    for epoch, ahead in ((2, None), (3, ("B", 3)), (1, None), (4, ("B", 4))):
        judge.check(replace(B, epoch=epoch), "B")
        assert judge.ahead() == ahead
    judge.enter({"B": "http://b"}, "l", (), epoch=4)
    assert judge.ahead() is None
    judge.check(replace(B, epoch=5), "B")
    judge.enter({}, "l", (), epoch=4)
    assert judge.ahead() is None
