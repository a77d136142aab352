"""What a status shows of synchronous runs (P34), what a run waits for, and of vectors."""

from __future__ import annotations

import pytest
from tests.support.run_headers import header

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.events import RunSubmitted
from sparktxlog.protocol.order.origin_queues import Stream
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.status import (
    SynchronousStatus,
    awaited_by,
    compared,
    synchronous_status,
)
from sparktxlog.protocol.order.unstamped import Staging


def _submitted(ticket: int, n: int, holders: int) -> RunSubmitted:
    facts = RunFacts(n=n, ids=bytes(16 * n), holders=holders)
    digest = ticket.to_bytes(32, "big")
    return RunSubmitted(ticket=ticket, digest=digest, size_bytes=10, staged_bytes=0, facts=facts)


def test_ordinary_runs_are_not_counted_and_the_oldest_counts() -> None:
    staging, stream = Staging(100, 100), Stream("a", 0)
    for ticket, (n, holders) in enumerate(((4, 0), (2, 3), (3, 3)), start=1):
        staging.add(_submitted(ticket, n, holders), 10 * ticket, 0, late=False)
    for seq, holders in ((1, 0), (2, 2), (3, 2)):
        run = stream.register(header(seq, seq, origin="a"), 100 * seq)
        stream.acquire(run, RunFacts(n=1, ids=bytes(16), holders=holders))
    peers = [Peer(NodeId("b")), Peer(NodeId("c"))]
    peers[0].record_acquired({"a": 2})
    assert synchronous_status(staging, stream.runs, peers, 1) == SynchronousStatus(
        waiting_runs=2,
        waiting=5,
        size_bytes=20,
        oldest_since=20,
        needs=3,
        unconfirmed_runs=1,
        unconfirmed=1,
        unconfirmed_since=300,
        unconfirmed_by=(NodeId("b"), NodeId("c")),
    )
    run = stream.register(header(4, 4, origin="a"), 400)
    stream.acquire(run, RunFacts(n=1, ids=bytes(16), holders=3))
    peers[0].record_acquired({"a": 4})
    slow = synchronous_status(staging, stream.runs, peers, 1)
    assert (slow.unconfirmed, slow.unconfirmed_by) == (1, (NodeId("c"),))
    assert synchronous_status(Staging(1, 1), (), peers, 1) == SynchronousStatus()


def test_a_run_waits_for_promises_holders_and_its_own_data() -> None:
    stream = Stream("a", 0)
    run = stream.register(header(1, 50, origin="a"), 7)
    peers = [Peer(NodeId("b")), Peer(NodeId("c"))]
    peers[0].record_acquired({"a": 1})

    def waits(quorum: int) -> list[tuple[str, str]]:
        found = awaited_by(run, peers=peers, self_id=NodeId("d"), quorum=quorum, since=9)
        assert {(one.since, one.key) for one in found} <= {(9, run.key)}
        return [(one.peer, one.why.value) for one in found]

    promises = [("b", "promise"), ("c", "promise")]
    assert waits(4) == [*promises, ("d", "self-payload"), ("c", "acquired")]
    stream.acquire(run, RunFacts(n=1, ids=bytes(16)))
    for peer in peers:
        peer.counter = 50
    assert waits(3) == [("c", "acquired")]
    assert waits(2) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        ({}, {}, "equal"),
        ({"A": 2, "B": 1}, {"A": 2, "B": 1}, "equal"),
        ({"A": 2, "B": 0}, {"A": 2}, "equal"),
        ({"A": 2, "B": 1}, {"A": 1, "B": 1}, "ahead"),
        ({"A": 2}, {"A": 2, "C": 7}, "behind"),
        ({"A": 2, "B": 1}, {"A": 1, "B": 2}, "apart"),
        ({"A": 2}, {"B": 2}, "apart"),
    ],
)
def test_t63_two_vectors_may_be_such_that_neither_is_later(
    mine: dict[str, int], theirs: dict[str, int], says: str
) -> None:
    opposite = {"ahead": "behind", "behind": "ahead"}.get(says, says)
    assert (compared(mine, theirs), compared(theirs, mine)) == (says, opposite)
