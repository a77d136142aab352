"""What is held of one other member: promises, acquired vector, distance of clocks."""

from __future__ import annotations

import pytest

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.order.peers import Peer, distance_from_median


class TestPeer:
    def test_a_promise_counts_once_its_headers_are_held(self) -> None:
        peer = Peer(NodeId("b"))
        peer.record_promise(100, 5, known=3)
        peer.record_promise(50, 4, known=3)
        assert peer.counter == -1
        peer.settle_promise(4)
        assert (peer.counter, peer.last_seq) == (50, 4)
        peer.settle_promise(5)
        assert (peer.counter, peer.last_seq) == (100, 5)
        peer.record_promise(60, 5, known=5)
        assert peer.counter == 100

    def test_the_acquired_vector_never_shrinks(self) -> None:
        peer = Peer(NodeId("b"))
        peer.record_acquired({"a": 5, "b": 1})
        peer.record_acquired({"a": 3, "b": 2})
        assert peer.acquired == {"a": 5, "b": 2}

    @pytest.mark.parametrize(
        ("offsets", "distance"),
        [([120], 120), ([0, 120], 0), ([120, 120], 120), ([-5, 3], 0), ([0, 0, 9], 0)],
    )
    def test_distance_from_the_median(self, offsets: list[int], distance: int) -> None:
        assert distance_from_median(offsets) == distance
