"""The small parts of the core: counter, chain, streams, peers, fetching, staging, posting."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import RunFacts
from sparktxlog.protocol.order.addition import head_of, holders, least_promise, may_add
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.origin_queues import Run, Stream, same_run
from sparktxlog.protocol.order.peers import Peer, distance_from_median
from sparktxlog.protocol.order.posting import OwnHeaders, Rounds
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.order.unstamped import Prefetching, Staging
from sparktxlog.protocol.words.events import RunSubmitted
from sparktxlog.protocol.words.messages import Announcement, MergeBase, RunHeader, chain_hash
from sparktxlog.protocol.words.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.words.view import View

FACTS = RunFacts(n=1, ids=bytes(16))


def header(seq: int, ts: int, n: int = 1, origin: str = "a", digest: bytes = b"") -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=ts,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=n,
        digest=digest or seq.to_bytes(32, "big"),
        size_bytes=10,
    )


def test_chain_hash_covers_the_documented_bytes() -> None:
    previous = b"p" * 32
    data = previous
    for number, width in ((1, 8), (77, 8), (1, 8), (5, 8), (3, 4), (1, 2)):
        data += number.to_bytes(width, "big")
    data += b"a" + (5).to_bytes(32, "big")
    assert chain_hash(previous, header(5, 77, n=3)) == hashlib.sha256(data).digest()


class TestStream:
    def test_acquired_advances_without_gaps(self) -> None:
        stream = Stream("a", 10)
        first, second = (stream.register(header(11, 1, n=2), 0), stream.register(header(13, 2), 0))
        stream.acquire(second, FACTS)
        assert (stream.known, stream.acquired) == (13, 10)
        stream.acquire(first, FACTS)
        assert stream.acquired == 13
        assert stream.pop() is first and stream.watermark == 12

    def test_early_runs_join_when_the_gap_closes(self) -> None:
        stream = Stream("a", 0)
        assert stream.keep_early(header(2, 5), FACTS, 0)
        assert not stream.keep_early(header(2, 5), FACTS, 0)
        stream.acquire(stream.register(header(1, 4), 0), FACTS)
        assert stream.register(header(2, 5), 0).facts is FACTS
        assert stream.acquired == 2

    def test_timestamps_rise_along_a_stream(self) -> None:
        stream = Stream("a", 0)
        stream.register(header(1, 4), 0)
        with pytest.raises(InvariantViolation):
            stream.register(header(2, 4), 0)

    def test_one_number_names_one_run(self) -> None:
        same_run(header(1, 4), header(1, 4))
        with pytest.raises(InvariantViolation):
            same_run(header(1, 4), header(1, 5))

    def test_broken_promises_are_found(self) -> None:
        stream = Stream("a", 0)
        stream.register(header(1, 4), 0)
        stream.register(header(2, 9), 0)
        stream.keep_early(header(7, 30), FACTS, 0)
        assert stream.breaks_promise(8, 1) is None
        assert stream.breaks_promise(9, 1) == header(2, 9)
        assert stream.breaks_promise(29, 2) is None
        assert stream.breaks_promise(30, 2) == header(7, 30)


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


class TestFetching:
    def test_bounded_in_flight_and_retried_with_backoff(self) -> None:
        fetching = Fetching(limit=2, retry_us=10)
        runs = [Run(header(seq, seq), 0) for seq in (1, 2, 3)]
        for run in runs:
            fetching.want(run, 5)
        assert fetching.start(4) == [] and fetching.next_deadline() == 5
        assert fetching.start(5) == runs[:2] and fetching.next_deadline() is None
        assert fetching.failed(runs[0].header.digest, 6)
        assert fetching.start(6) == runs[2:]
        fetching.arrived(runs[1].header)
        assert fetching.next_deadline() == 16
        assert fetching.start(16) == runs[:1]
        fetching.failed(runs[0].header.digest, 20)
        assert fetching.next_deadline() == 40

    def test_what_was_pushed_meanwhile_is_not_fetched(self) -> None:
        fetching, run = Fetching(limit=2, retry_us=10), Run(header(1, 1), 0)
        fetching.want(run, 5)
        run.facts = FACTS
        assert fetching.next_deadline() is None and fetching.start(9) == []

    def test_what_comes_for_another_run_with_the_same_manifest_ends_no_fetch(self) -> None:
        """Seed 9934: a payload with an older stamp, then the fetch failed: never asked again."""
        fetching, run = Fetching(limit=2, retry_us=10), Run(header(1, 7), 0)
        fetching.want(run, 5)
        assert fetching.start(5) == [run]
        fetching.arrived(replace(run.header, ts=3, epoch=run.header.epoch - 1))
        assert fetching.failed(run.header.digest, 6)
        assert fetching.start(16) == [run]
        fetching.arrived(run.header)
        assert not fetching.failed(run.header.digest, 17)

    def test_a_failure_of_something_else_is_not_ours(self) -> None:
        assert not Fetching(limit=1, retry_us=1).failed(b"other", 0)


def submitted(ticket: int, staged: int = 0, session: str | None = None) -> RunSubmitted:
    return RunSubmitted(
        ticket=ticket,
        digest=ticket.to_bytes(32, "big"),
        size_bytes=10,
        staged_bytes=staged,
        facts=FACTS,
        session=session,
    )


class TestStaging:
    def test_first_in_first_out_per_session(self) -> None:
        staging = Staging(100)
        staging.add(submitted(1, 9, "s"), 0, late=True)
        staging.add(submitted(2, 0, "s"), 0, late=False)
        staging.add(submitted(3, 9, "t"), 0, late=True)
        assert staging.must_wait("s") and not staging.must_wait("u") and not staging.must_wait(None)
        assert staging.take_ready() == []
        staging.runs[3].ready = True
        assert [s.ticket for s in staging.take_ready()] == [3]
        staging.runs[1].ready = True
        assert [s.ticket for s in staging.take_ready()] == [1, 2]
        assert staging.payload_bytes == 0 and not staging.must_wait("s")

    def test_after_the_stage_timeout_a_run_is_stamped_once_its_files_were_seen(self) -> None:
        staging = Staging(100)
        staging.add(submitted(1, 9), 7, late=True)
        digest = staging.runs[1].submit.digest
        assert not staging.found_whole(digest), "nobody asked"
        assert staging.take_overdue(106) == staging.take_ready() == []
        staging.runs[1].next_at = 1_000
        assert staging.next_deadline() == 107
        assert staging.take_overdue(107) == [digest]
        assert staging.take_overdue(206) == staging.take_ready() == [], "asked once"
        assert staging.take_overdue(207) == [digest], "an answer may be lost"
        assert staging.next_deadline() == 307
        assert staging.found_whole(digest)
        assert [s.ticket for s in staging.take_ready()] == [1]

    def test_announcements_are_repeated_ever_more_seldom(self) -> None:
        staging = Staging(10_000)
        staging.add(submitted(1, 9), 0, late=True)
        times = []
        for now in range(100):
            if staging.take_unannounced(now, 10, 30):
                times.append(now)
        assert times == [0, 10, 30, 60, 90]


class TestPrefetching:
    def _announce(self, number: int) -> Announcement:
        return Announcement(
            lineage="l",
            epoch=1,
            origin=NodeId("b"),
            digest=number.to_bytes(32, "big"),
            size_bytes=1,
            staged_bytes=9,
        )

    def test_prefetch_hold_forget(self) -> None:
        prefetching = Prefetching(limit=1, retry_us=10, keep_us=1_000)
        one, two = self._announce(1), self._announce(2)
        prefetching.announce(one, 0)
        prefetching.announce(two, 0)
        assert prefetching.start(0) == [one] and prefetching.start(0) == []
        prefetching.failed(one.digest, 5)
        assert prefetching.start(5) == [two]
        assert prefetching.holds(two.digest, 6) and not prefetching.holds(two.digest, 6)
        assert prefetching.held == (two.digest,)
        assert prefetching.next_deadline() == 15
        prefetching.forget(two.digest)
        assert prefetching.held == ()

    def test_held_files_of_nobody_are_forgotten(self) -> None:
        prefetching = Prefetching(limit=1, retry_us=10, keep_us=1_000)
        prefetching.announce(self._announce(1), 0)
        prefetching.holds(self._announce(1).digest, 0)
        prefetching.start(1_000)
        assert prefetching.held == ()


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
        config = MasterConfig(node_id=NodeId("a"), members=(NodeId("a"),), quorum=1, lineage="l")
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


@pytest.mark.parametrize(
    ("epoch", "end", "continues"),
    [
        (1, 9, True),
        (1, 12, True),
        # What stands behind the end was stamped before: the decided log goes on from there.
        (1, 8, False),
        # It was fetched from members that are in the view's epoch already.
        (2, 8, True),
    ],
)
def test_runs_of_earlier_epochs_behind_a_final_queue_are_another_history(
    epoch: int, end: int, continues: bool
) -> None:
    base = MergeBase(position=9, chain_hash=b"h" * 32, origin="a", seq=9)
    config = MasterConfig(node_id=NodeId("b"), members=(NodeId("b"),), quorum=1, lineage="l")
    queue = SynchronizedQueue(config, RecoveredState(base=base, base_key=(epoch, 5, "a", 9)))
    view = View(
        lineage="forced", epoch=2, roster=(), members=(NodeId("a"),), end=MergeBase(position=end)
    )
    if continues:
        queue.check_final(view)
        return
    with pytest.raises(InvariantViolation, match="went on from 8 as epoch 2") as caught:
        queue.check_final(view)
    assert "sparktxlog peer quarantine" in str(caught.value)
