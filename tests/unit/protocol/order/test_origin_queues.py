"""The queue of one origin: what is known of it, and what is acquired without gaps."""

from __future__ import annotations

import pytest
from tests.support.run_headers import header

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.order.origin_queues import Stream, same_run

FACTS = RunFacts(n=1, ids=bytes(16))


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
