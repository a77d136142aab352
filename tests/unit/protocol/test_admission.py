"""Who is near enough to be admitted, and how a joiner gets there (P9, P21, V36, V38, V41)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.actions import Action, SendTail
from sparktxlog.protocol.balloting import JoinRequest, TailRequest
from sparktxlog.protocol.following import Following
from sparktxlog.protocol.joining import Admission
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages import MergeBase
from sparktxlog.protocol.recovery import MasterConfig
from sparktxlog.protocol.view import Seat, View
from sparktxlog.testing.mutation.lone import LINEAGE, SECOND_US, Lone

PATIENCE_US = SECOND_US
VIEW = View(
    lineage=LINEAGE,
    epoch=1,
    roster=tuple(Seat(node_id=NodeId(name)) for name in "abc"),
    members=(NodeId("a"), NodeId("b")),
)
END = MergeBase(position=50_000)
TS = 100 * SECOND_US


def asks(position: int, ts: int, incarnation: int = 1, epoch: int = 1) -> JoinRequest:
    return JoinRequest(
        lineage=LINEAGE, epoch=epoch, sender=NodeId("c"), incarnation=incarnation,
        base=MergeBase(position=position), ts=ts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lacks_us", "admitted"), [(0, True), (100_000, True), (100_001, False), (TS, False)]
)
def test_a_joiner_is_near_when_what_it_lacks_is_young(lacks_us: int, admitted: bool) -> None:
    """And behind all that was stamped before members began to push to it."""
    admission, later = Admission(PATIENCE_US), TS + 500_000
    admission.requested(asks(1, TS), END, TS, TS, now=0)
    admission.requested(asks(2, later - lacks_us), END, later, later, now=1)
    assert admission.ready(VIEW, 1) == ({"c": 1} if admitted else {})


@pytest.mark.parametrize(("lacks_us", "pushed"), [(1_000_000, ("c",)), (1_000_001, ())])
def test_members_push_to_one_that_is_near(lacks_us: int, pushed: tuple[str, ...]) -> None:
    admission = Admission(PATIENCE_US)
    admission.requested(asks(1, TS - lacks_us), END, TS, TS, now=0)
    assert admission.pushed(VIEW, 0) == pushed
    assert admission.pushed(VIEW, 2 * PATIENCE_US + 1) == (), "it asks no more"
    members = replace(VIEW, members=(NodeId("a"), NodeId("b"), NodeId("c")))
    assert admission.pushed(members, 0) == (), "members are pushed to anyway"


def test_what_was_stamped_before_the_pushes_must_be_in_its_queue() -> None:
    """Else the final queue may hold runs that nobody has sent it."""
    admission, stamp = Admission(PATIENCE_US), TS + 40_000
    admission.requested(asks(1, TS - 10_000), END, TS, stamp, now=0)
    assert admission.pushed(VIEW, 0) == ("c",)
    for ts, admitted in ((TS, {}), (stamp - 1, {}), (stamp, {"c": 1})):
        admission.requested(asks(2, ts), END, stamp, stamp + 9, now=1)
        assert admission.ready(VIEW, 1) == admitted


def test_one_that_has_all_is_near_at_once() -> None:
    admission = Admission(PATIENCE_US)
    admission.requested(asks(END.position, TS), END, TS, TS + 9, now=0)
    assert admission.ready(VIEW, 0) == {"c": 1}


@pytest.mark.parametrize(
    ("lacks", "pause_us", "admitted"),
    [(16_384, PATIENCE_US, True), (16_385, PATIENCE_US, False), (16_384, 3 * PATIENCE_US, False)],
)
def test_one_that_cannot_keep_up_is_waited_for(lacks: int, pause_us: int, admitted: bool) -> None:
    """Asking all the time counts; a pause begins the count anew."""
    admission = Admission(PATIENCE_US)
    for now in range(0, 10 * PATIENCE_US, pause_us):
        admission.requested(asks(1, 0), END, TS, TS, now)
        assert admission.ready(VIEW, now) == {}
    now = 10 * PATIENCE_US
    admission.requested(asks(END.position - lacks, 0), END, TS, TS, now)
    assert admission.ready(VIEW, now) == ({"c": 1} if admitted else {})


def test_one_that_stands_still_is_not_waited_for() -> None:
    """What nobody can send it now it would not get in a flush either, and all would stand still."""
    admission, lacks = Admission(PATIENCE_US), 10

    def ask(now: int, position: int) -> dict[NodeId, int]:
        admission.requested(asks(position, 0), END, TS, TS, now)
        return admission.ready(VIEW, now)

    seconds = range(0, 30 * PATIENCE_US, PATIENCE_US)
    assert [ask(now, END.position - lacks) for now in seconds] == [{}] * 30
    # As soon as it comes nearer it counts, for as long as it goes on.
    assert ask(30 * PATIENCE_US, END.position - lacks + 1) == {"c": 1}
    late = range(31 * PATIENCE_US, 40 * PATIENCE_US, PATIENCE_US)
    assert [ask(now, END.position - lacks + 1) for now in late] == [{"c": 1}] * 9
    assert ask(40 * PATIENCE_US, END.position - lacks + 1) == {}


def test_old_requests_and_those_of_other_epochs_do_not_count() -> None:
    admission = Admission(PATIENCE_US)
    admission.requested(asks(50_000, TS), END, TS, TS, now=0)
    assert admission.ready(VIEW, 2 * PATIENCE_US) == {"c": 1}
    assert admission.ready(VIEW, 2 * PATIENCE_US + 1) == {}
    admission.requested(asks(50_000, TS, epoch=2), END, TS, TS, now=0)
    assert admission.ready(VIEW, 0) == {}


def tails(actions: list[Action]) -> list[tuple[str, int]]:
    return [(action.peer, action.position) for action in actions if isinstance(action, SendTail)]


def test_a_request_from_the_end_is_answered_when_the_queue_grows() -> None:
    node = Lone(Master, votes={"a": 1})

    def request(position: int) -> TailRequest:
        return TailRequest(
            lineage=LINEAGE, epoch=1, sender=NodeId("b"), incarnation=1, position=position,
            chain_hash=node.master.base.chain_hash,
        )  # fmt: skip

    node.submit()
    assert node.master.base.position == 1
    assert tails(node.hear(request(0))) == [("b", 0)]
    assert tails(node.hear(request(1))) == []
    assert tails(node.submit()) == [("b", 1)]
    assert tails(node.submit()) == [], "each request is answered once"
    node.hear(request(3))
    node.wait(3 * PATIENCE_US)
    assert tails(node.submit()) == [], "who asked so long ago has asked somebody else"


def test_progress_is_told_soon() -> None:
    sent: list[object] = []
    members = (NodeId("a"), NodeId("b"))
    config = MasterConfig(node_id=NodeId("c"), members=members, quorum=2, lineage=LINEAGE)
    following = Following(config, lambda _, message: sent.append(message), PATIENCE_US, 0)

    def wishes(position: int, now: int) -> list[int]:
        sent.clear()
        base = MergeBase(position=position)
        following.work(VIEW, None, base, 9, now, joining=True, witness=False)
        return [message.base.position for message in sent if isinstance(message, JoinRequest)]

    soon = config.retry_us // 8
    assert wishes(1, 0) == [1, 1]
    assert wishes(2, soon - 1) == []
    assert wishes(3, soon) == [3, 3]
    assert wishes(3, 2 * soon) == [], "there is nothing new to tell"
    assert wishes(3, soon + config.retry_us) == [3, 3]
