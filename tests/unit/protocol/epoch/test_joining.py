"""Who is near enough to be admitted, and how a joiner gets there (P9, P21)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.verification.mutation.lone import LOG_ID, SECOND_US, Lone, sent

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.following import Following
from sparktxlog.protocol.epoch.joining import Admission
from sparktxlog.protocol.epoch.outcomes import CurrentEpoch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, SendEpochMessage, SendTail
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Decide,
    EpochMessage,
    Flush,
    JoinRequest,
    Prepare,
    Probe,
    TailRequest,
)
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import Ballot, Phase, Seat, View
from sparktxlog.protocol.order.synchronized import SynchronizedQueue

PATIENCE_US = SECOND_US
VIEW = View(
    log_id=LOG_ID,
    epoch=1,
    roster=tuple(Seat(node_id=NodeId(name)) for name in "abc"),
    members=(NodeId("a"), NodeId("b")),
)
END = MergeBase(position=50_000)
TS = 100 * SECOND_US


def asks(position: int, ts: int, incarnation: int = 1, epoch: int = 1) -> JoinRequest:
    return JoinRequest(
        log_id=LOG_ID,
        epoch=epoch,
        sender=NodeId("c"),
        incarnation=incarnation,
        base=MergeBase(position=position),
        ts=ts,
    )


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


def follows(admission: Admission, now: int, lacks: int) -> bool:
    """Let `c` ask, which fetches 100 transactions in a patience; return whether it is near."""
    moved = 100 * now // PATIENCE_US
    end = MergeBase(position=END.position + moved + lacks)
    admission.requested(asks(END.position + moved, 0), end, TS, TS, now)
    return admission.ready(VIEW, now) == {"c": 1}


@pytest.mark.parametrize(
    ("lacks", "after"), [(30, 3), (40, 4), (1_000, 4), (16_384, 4), (16_385, None)]
)
def test_one_that_comes_no_nearer_is_waited_for_sooner(lacks: int, after: int | None) -> None:
    """As soon as the members would stand still for an eighth of the time that it has asked."""
    admission = Admission(PATIENCE_US)
    near = [follows(admission, now * PATIENCE_US, lacks) for now in range(30)]
    assert near == [after is not None and now >= after for now in range(30)]


def test_one_that_comes_nearer_by_itself_has_time() -> None:
    admission = Admission(PATIENCE_US)
    lacks = [16_000 // 2**now for now in range(11)]
    near = [follows(admission, now * PATIENCE_US, one) for now, one in enumerate(lacks)]
    assert near == [False] * 10 + [True]


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
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId("b"),
            incarnation=1,
            position=position,
            chain_hash=node.master.base.chain_hash,
        )

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
    members = (NodeId("a"), NodeId("b"))
    config = MasterConfig(node_id=NodeId("c"), members=members, quorum=2, log_id=LOG_ID)
    current, outbox = CurrentEpoch(config, VIEW, Ballot()), Outbox()
    queue = SynchronizedQueue(config, RecoveredState())
    following = Following(current, config, outbox, queue, PATIENCE_US, 0)

    def wishes(position: int, now: int) -> list[int]:
        queue.base = MergeBase(position=position)
        following.work(None, 9, now)
        return [request.base.position for request in sent(outbox.take(), JoinRequest)]

    soon = config.retry_us // 8
    assert wishes(1, 0) == [1, 1]
    assert wishes(2, soon - 1) == []
    assert wishes(3, soon) == [3, 3]
    assert wishes(3, 2 * soon) == [], "there is nothing new to tell"
    assert wishes(3, soon + config.retry_us) == [3, 3]


# -- those that failed -----------------------------------------------------------------------------


def admitted(admission: Admission, now: int, view: View = VIEW) -> bool:
    """Return whether `c`, which has all and asks all the time, is admitted."""
    admission.requested(asks(END.position, TS), END, TS, TS, now)
    return admission.ready(view, now) == {"c": 1}


def test_who_failed_to_flush_is_left_alone_for_ever_longer() -> None:
    """All stand still for each attempt: 2, 4, … 64 times the patience, and no longer."""
    admission, now = Admission(PATIENCE_US), 0
    for times in (2, 4, 8, 16, 32, 64, 64, 64):
        assert admitted(admission, now)
        admission.bar("c", now)
        assert not admitted(admission, now)
        now += times * PATIENCE_US
        assert not admitted(admission, now - 1), times
    assert admitted(admission, now)


def fails(admission: Admission, now: int, lacks: int, gained: int) -> int:
    """Let `c` fail in an attempt of half a patience; return until when it is barred after that."""
    follows(admission, now, lacks)
    admission.trying((NodeId("c"),))
    now += PATIENCE_US // 2
    follows(admission, now, lacks - gained)
    admission.bar("c", now)
    begin = now
    while not follows(admission, now, lacks - gained):
        now += PATIENCE_US // 2
    return (now - begin) * 2 // PATIENCE_US


def test_who_gains_by_an_attempt_is_tried_again_soon() -> None:
    """After half of the patience, if one of 32 parts of what it lacked is gone."""
    admission = Admission(PATIENCE_US)
    for now in range(0, 5 * PATIENCE_US, PATIENCE_US):
        follows(admission, now, 3_200)
    gains = (100, 300, 99, 0, 100)
    found = [fails(admission, (5 + n) * PATIENCE_US, 3_200, one) for n, one in enumerate(gains)]
    assert found == [1, 1, 4, 8, 1], "in halves of the patience"


def test_nobody_is_tried_again_soon_for_ever() -> None:
    admission = Admission(PATIENCE_US)
    for now in range(0, 5 * PATIENCE_US, PATIENCE_US):
        follows(admission, now, 3_200)
    found = [fails(admission, (5 + n) * PATIENCE_US, 3_200, 100) for n in range(34)]
    assert found == [1] * 32 + [4, 8]


def test_who_failed_for_another_member_is_left_alone_too() -> None:
    admission = Admission(PATIENCE_US)
    assert admitted(admission, 0)
    admission.trying((NodeId("c"),))
    admission.entered(VIEW, 0)
    assert not admitted(admission, 2 * PATIENCE_US - 1)
    assert admitted(admission, 2 * PATIENCE_US)
    admission.entered(VIEW, 2 * PATIENCE_US)
    assert admitted(admission, 2 * PATIENCE_US), "it is barred once for an attempt"


def test_only_the_node_that_failed_is_left_alone() -> None:
    admission = Admission(PATIENCE_US)
    admission.bar("d", 0)
    assert admitted(admission, 0)


def test_a_member_has_failed_in_nothing() -> None:
    """If it is evicted later, its next failure is the first one."""
    admission = Admission(PATIENCE_US)
    for _ in range(5):
        admission.bar("c", 0)
    admission.entered(VIEW, 0)
    assert not admitted(admission, 2 * PATIENCE_US), "not yet a member"
    admission.entered(replace(VIEW, members=(NodeId("a"), NodeId("b"), NodeId("c"))), 0)
    assert admitted(admission, 2 * PATIENCE_US)
    admission.bar("c", 2 * PATIENCE_US)
    assert not admitted(admission, 4 * PATIENCE_US - 1)
    assert admitted(admission, 4 * PATIENCE_US)


class Joining:
    """`a` and `b` are members; `c` asks `a` to be admitted and never answers a flush."""

    def __init__(self) -> None:
        self.node = Lone(Master, suspect_us=PATIENCE_US)
        self.node.hear(Decide(sender=NodeId("b"), view=replace(VIEW, epoch=2)))
        self.node.view = self.node.master.view
        #: When an attempt began that has `c` among the members-to-be, and who flushed it.
        self.tried: list[int] = []

    def let_pass(self, until: int) -> None:
        """Play `b`, which does what it is asked for, and `c`."""
        node = self.node
        while node.now < until:
            node.now += PATIENCE_US // 20
            epoch = node.master.view.epoch
            self.play(node.hear(asks(0, 0, epoch=epoch)))

    def play(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendEpochMessage) and action.peer == "b":
                self.play(self.node.hear(*self.reply(action.message)))

    def reply(self, message: EpochMessage) -> list[EpochMessage]:
        node, view = self.node, self.node.master.view
        match message:
            case Probe():
                said: EpochMessage = node.answer("b", message.number, ("a", "c"))
            case Prepare():
                said = node.promise("b", message.ballot)
            case Accept():
                said = node.accepted("b", message.ballot)
            case Flush():
                if "c" in message.candidate.members:
                    self.tried.append(node.now)
                said = node.flushed("b", message.ballot, 0)
            case _:
                return []
        return [replace(said, epoch=view.epoch)]  # type: ignore[arg-type]


def test_the_members_go_on_without_a_joiner_that_does_not_flush() -> None:
    joining = Joining()
    joining.let_pass(joining.node.now + 40 * PATIENCE_US)
    pauses = [(later - at) // PATIENCE_US for at, later in pairwise(joining.tried)]
    assert pauses == [2, 4, 8, 16]
    view = joining.node.master.view
    assert view.members == ("a", "b")
    assert view.epoch == 2 + len(joining.tried), "each attempt ended in an epoch without it"
    assert joining.node.master.phase is Phase.NORMAL
