"""The master as a whole: order of actions, batches, recovery, views."""

from __future__ import annotations

import pytest
from tests.verification.cluster import Cluster

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    FetchPayload,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    SendPost,
    SendTail,
    TellAcquired,
    TellOrdered,
)
from sparktxlog.protocol.messages.events import PostReceived, RunSubmitted, Tick
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredRun, RecoveredState


def _config(*members: str, quorum: int | None = None) -> MasterConfig:
    return MasterConfig(
        node_id=NodeId(members[0]),
        members=tuple(NodeId(member) for member in members),
        quorum=quorum or len(members),
        log_id="l",
    )


def _submit(ticket: int, n: int = 1) -> RunSubmitted:
    ids = b"".join((ticket * 100 + i).to_bytes(16, "big") for i in range(n))
    return RunSubmitted(
        ticket=ticket,
        digest=ticket.to_bytes(32, "big"),
        size_bytes=10,
        staged_bytes=0,
        facts=RunFacts(n=n, ids=ids),
    )


def test_a_single_member_orders_at_once_and_persists_before_it_speaks() -> None:
    master = Master(_config("a"), RecoveredState(), 100)
    actions = master.handle_all([_submit(1, n=3), _submit(2)], 100)
    kinds = [type(action).__name__ for action in actions]
    assert kinds == [
        "PersistReservation",
        "PersistOwnRun",
        "PersistOwnRun",
        "PersistQueue",
        "TellAccepted",
        "TellAccepted",
        "TellAcquired",
        "TellAcquired",
        "TellOrdered",
    ]
    entries = next(a for a in actions if isinstance(a, PersistQueue)).entries
    assert [(e.position, e.end, e.header.seq) for e in entries] == [(1, 3, 1), (4, 4, 4)]
    assert entries[1].previous_hash == entries[0].chain_hash == bytes(entries[0].chain_hash)
    assert master.status().position == 4
    assert master.locate((202).to_bytes(16, "big")) is None
    assert master.locate((200).to_bytes(16, "big")) == 4


def test_many_events_make_one_round() -> None:
    master = Master(_config("a", "b", "c"), RecoveredState(), 100)
    master.handle(Tick(), 100)
    actions = master.handle_all([_submit(ticket) for ticket in range(1, 50)], 200)
    assert sum(isinstance(a, SendPost) for a in actions) == 2
    assert sum(isinstance(a, PersistOwnRun) for a in actions) == 49
    post = next(a for a in actions if isinstance(a, SendPost)).post
    assert len(post.headers) == post.last_seq == 49
    assert post.counter >= post.headers[-1].ts


def test_the_reservation_leads_the_batch_whose_posts_need_it() -> None:
    master = Master(_config("a", "b"), RecoveredState(), 100)
    actions = master.handle(Tick(), 100)
    assert isinstance(actions[0], PersistReservation)
    post = next(a for a in actions if isinstance(a, SendPost)).post
    assert actions[0].counter >= post.counter
    later = master.handle(Tick(), 10_000_000)
    assert isinstance(later[0], PersistReservation)


def test_nothing_new_posts_nothing_before_the_deadline() -> None:
    master = Master(_config("a", "b"), RecoveredState(), 100)
    assert master.next_deadline() == 100
    assert master.handle(Tick(), 100)
    deadline = master.next_deadline()
    assert deadline is not None and deadline > 100
    assert master.handle(Tick(), deadline - 1) == []
    assert any(isinstance(a, SendPost) for a in master.handle(Tick(), deadline))


def test_a_clock_that_steps_back_changes_nothing() -> None:
    master = Master(_config("a"), RecoveredState(), 100)
    master.handle(_submit(1), 1_000)
    actions = master.handle(_submit(2), 5)
    header = next(a for a in actions if isinstance(a, PersistOwnRun)).header
    assert header.ts == 1_001


def test_recovery_continues_numbers_and_offers_what_waits() -> None:
    header = RunHeader(
        epoch=1,
        ts=500,
        origin=NodeId("a"),
        incarnation=1,
        seq=8,
        n=2,
        digest=b"d" * 32,
        size_bytes=10,
    )
    state = RecoveredState(
        reserved=900,
        watermarks={"a": 7},
        incoming=[RecoveredRun(header=header, facts=RunFacts(n=2, ids=bytes(32)))],
    )
    master = Master(_config("a", "b"), state, 100)
    post = next(a for a in master.handle(Tick(), 100) if isinstance(a, SendPost)).post
    assert (post.counter, post.last_seq, post.headers, post.start) == (901, 9, (header,), 900)
    actions = master.handle(_submit(1), 100)
    again = next(a for a in actions if isinstance(a, PersistOwnRun)).header
    assert (again.seq, again.ts) == (10, 902)


def test_recovery_refuses_a_gap_in_own_runs() -> None:
    header = RunHeader(
        epoch=1, ts=5, origin=NodeId("a"), incarnation=1, seq=3, n=1, digest=b"", size_bytes=1
    )
    run = RecoveredRun(header=header, facts=RunFacts(n=1, ids=bytes(16)))
    with pytest.raises(InvariantViolation):
        Master(_config("a"), RecoveredState(incoming=[run]), 0)


def test_six_messages_for_an_isolated_transaction_of_three_masters() -> None:
    """N(N-1) posts, as the protocol says for a pushed payload."""
    cluster = Cluster("abc", 2)
    cluster.start_all()
    cluster.deliver_all()
    posts: list[SendPost] = []
    cluster.watchers.append(
        lambda name, events, actions, whole: posts.extend(
            a for a in actions if isinstance(a, SendPost)
        )
    )
    cluster.submit("a", [bytes(16)])
    cluster.deliver_all()
    assert [len(node.disk.queue) for node in cluster.nodes.values()] == [1, 1, 1]
    assert len(posts) == 6


def test_posts_to_a_broken_link_wait_for_the_heartbeat() -> None:
    cluster = Cluster("ab", 2)
    cluster.start_all()
    cluster.deliver_all()
    cluster.link("a", "b", up=False)
    cluster.submit("a", [bytes(16)])
    assert cluster.letters == []
    cluster.link("a", "b", up=True)
    assert {letter.kind for letter in cluster.letters} == {"post"}


def test_fetch_names_the_origin_first_then_members_that_hold_it() -> None:
    cluster = Cluster("abc", 2)
    cluster.start_all()
    cluster.deliver_all()
    seen: list[FetchPayload] = []
    cluster.watchers.append(
        lambda name, events, actions, whole: seen.extend(
            a for a in actions if isinstance(a, FetchPayload)
        )
    )
    cluster.submit("a", [bytes(16)])
    for letter in list(cluster.letters):
        if letter.kind == "push" and letter.receiver == "c":
            cluster.drop(letter)
    cluster.deliver_all()
    cluster.now += 500_000
    cluster.tick("c")
    assert [fetch.sources for fetch in seen] == [("a", "b")]


def test_a_halted_master_says_why_and_refuses() -> None:
    cluster = Cluster("ab", 2)
    cluster.start_all()
    cluster.deliver_all()
    cluster.submit("a", [bytes(16)])
    post = next(x for x in cluster.letters if x.kind == "post").event
    assert isinstance(post, PostReceived)
    node = cluster.nodes["b"]
    node.disk.reserved = 0
    cluster.crash("a")
    cluster.nodes["a"].disk.incoming.clear()
    cluster.deliver_all()
    cluster.start("a")
    cluster.deliver_all()
    master = cluster.nodes["a"].master
    assert master is not None
    assert "only up to 0" in master.status().halted
    assert master.next_deadline() is None
    (refused,) = master.handle(_submit(9), 10**9)
    assert refused.code == "protocol-local"  # type: ignore[union-attr]


def test_a_peer_that_is_up_to_date_gets_no_tail() -> None:
    cluster = Cluster("abc", 2)
    cluster.start_all()
    cluster.deliver_all()
    seen: list[object] = []
    cluster.watchers.append(
        lambda name, events, actions, whole: seen.extend(
            a for a in actions if isinstance(a, (SendTail, TellOrdered, TellAcquired))
        )
    )
    for number in range(20):
        cluster.submit("abc"[number % 3], [number.to_bytes(16, "big")])
        cluster.deliver_all()
    assert not [a for a in seen if isinstance(a, SendTail)]
    assert len([a for a in seen if isinstance(a, TellOrdered)]) == 60
    assert len([a for a in seen if isinstance(a, TellAcquired)]) == 20
