"""ADD: which run comes next, and what it needs (P7)."""

from __future__ import annotations

from tests.support.run_headers import header

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.order.addition import (
    head_of,
    holders,
    holders_needed,
    least_promise,
    may_add,
)
from sparktxlog.protocol.order.origin_queues import Stream
from sparktxlog.protocol.order.peers import Peer

FACTS = RunFacts(n=1, ids=bytes(16))


class TestAddition:
    def _stream(self, origin: str, *runs: tuple[int, int], acquired: bool = True) -> Stream:
        stream = Stream(origin, 0)
        for seq, ts in runs:
            run = stream.register(header(seq, ts, origin=origin), 0)
            if acquired:
                stream.acquire(run, FACTS)
        return stream

    def test_the_order_key_breaks_ties_by_origin(self) -> None:
        streams = [self._stream("b", (1, 5)), self._stream("a", (1, 5))]
        head = head_of(streams)
        assert head is not None and head.header.origin == "a"

    def test_least_promise_is_over_all_members(self) -> None:
        peers = [Peer(NodeId("b")), Peer(NodeId("c"))]
        assert least_promise(peers, 9) == -1
        for peer, counter in zip(peers, (7, 8), strict=True):
            peer.record_promise(counter, 0, 0)
        assert least_promise(peers, 9) == 7
        assert least_promise([], 9) == 9

    def test_a_run_needs_promise_payload_and_quorum(self) -> None:
        b, c = Peer(NodeId("b")), Peer(NodeId("c"))
        run = self._stream("b", (1, 5)).runs[0]
        assert holders(run, [b, c]) == 2
        assert may_add(run, [b, c], 5, 2)
        assert not may_add(run, [b, c], 4, 2)
        assert not may_add(run, [b, c], 5, 3)
        c.record_acquired({"b": 1})
        assert may_add(run, [b, c], 5, 3)
        assert not may_add(self._stream("b", (1, 5), acquired=False).runs[0], [b, c], 5, 2)

    def test_a_synchronous_run_needs_its_holders(self) -> None:
        b, c = Peer(NodeId("b")), Peer(NodeId("c"))
        runs = self._stream("b", (1, 5)).runs
        for wanted, quorum, needed in ((0, 2, 2), (2, 2, 2), (3, 2, 3), (5, 2, 3), (1, 2, 2)):
            runs[0].facts = RunFacts(n=1, ids=bytes(16), holders=wanted)
            assert holders_needed(runs[0], [b, c], quorum) == needed
            assert may_add(runs[0], [b, c], 5, quorum) is (needed == 2)
