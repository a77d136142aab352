"""Own headers for each receiver, and the pauses between posts."""

from __future__ import annotations

from tests.support.run_headers import header

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.order.posting import OwnHeaders, Rounds


class TestPosting:
    def test_headers_after_what_the_receiver_reported(self) -> None:
        own = OwnHeaders(2, keep=1)
        for seq in (3, 4, 5):
            own.append(header(seq, seq))
        assert own.after(3, 10) == ((header(4, 4), header(5, 5)), None)
        assert own.after(2, 2) == ((header(3, 3), header(4, 4)), header(5, 5))
        assert own.after(5, 2) == ((), None)

    def test_trim_keeps_what_is_incoming_or_not_reported(self) -> None:
        own = OwnHeaders(0, keep=2)
        for seq in (1, 2, 3, 4):
            own.append(header(seq, seq))
        own.trim(watermark=3, reported=1)
        assert own.floor == 2
        own.trim(watermark=3, reported=4)
        assert own.floor == 3

    def test_heartbeats_double_while_idle_and_not_beyond_a_second_while_busy(self) -> None:
        config = MasterConfig(node_id=NodeId("a"), members=(NodeId("a"),), quorum=1, log_id="l")
        rounds, pauses = Rounds(config, 0), []
        for _ in range(9):
            rounds.plan(0, news=False, busy=False)
            pauses.append(rounds.heartbeat_at // 1_000_000)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        rounds.plan(0, news=False, busy=True)
        assert rounds.heartbeat_at == 1_000_000
        rounds.plan(0, news=True, busy=True)
        assert rounds.heartbeat_at == 500_000
        rounds.plan(0, news=False, busy=False)
        rounds.wake(0)
        assert rounds.heartbeat_at == 500_000
