"""Which payload is fetched when: bounds and retries (P3a, P3b)."""

from __future__ import annotations

from dataclasses import replace

from tests.support.run_headers import header

from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.origin_queues import Run

FACTS = RunFacts(n=1, ids=bytes(16))


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

    def test_a_few_runs_with_files_are_fetched_at_once_and_small_ones_pass_them(self) -> None:
        fetching = Fetching(limit=100, retry_us=10)
        heads = [replace(header(seq, seq), staged_bytes=seq % 41) for seq in range(1, 42)]
        runs = [Run(head, 0) for head in heads]
        for run in runs:
            fetching.want(run, 5)
        assert fetching.start(5) == [runs[40], *runs[:32]]
        assert fetching.start(5) == [] and fetching.next_deadline() is None
        fetching.forget(runs[32])
        fetching.arrived(runs[0].header)
        assert fetching.next_deadline() == 5
        assert fetching.start(5) == [runs[33]]

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
