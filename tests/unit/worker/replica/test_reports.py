"""Reports: in order, none lost while the node is away, and a heartbeat that repeats the last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.worker_log import LogBuilder, MemoryLog

from sparktxlog.errors import LockedError, TransportError
from sparktxlog.model.report import BatchProgress
from sparktxlog.worker.replica.reports import Reporter
from sparktxlog.worker.replica.state import ReplicaState

STATE = ReplicaState(worker_id="w", log_id="test", position=1, chain_hash="h")


def test_reports_wait_for_an_absent_node_in_order(tmp_path: Path) -> None:
    source = MemoryLog(LogBuilder(tmp_path), tmp_path)
    reporter = Reporter(source, "a")
    source.reachable = False
    for position in (1, 2):
        with pytest.raises(TransportError):
            reporter.report(replace(STATE, position=position))
    with pytest.raises(TransportError):
        reporter.beat()
    source.reachable = True
    reporter.beat()
    assert [report.position for report in source.reports] == [1, 2]
    reporter.beat()
    first, again = source.reports[1:]
    assert again.position == 2 and again.reported_at >= first.reported_at
    assert "pyspark 4" in again.engine and again.node_id == "a"


def test_a_heartbeat_says_how_far_the_batch_is(tmp_path: Path) -> None:
    source = MemoryLog(LogBuilder(tmp_path), tmp_path)
    progress = BatchProgress(
        first=2, last=9, table="t", act="merge", stage=1, stages=2, seconds=3.5, left_s=None
    )
    batches: list[BatchProgress | None] = [progress, None]
    reporter = Reporter(source, "a", lambda: batches.pop(0))
    reporter.report(STATE)
    reporter.beat()
    reporter.beat()
    assert [report.batch for report in source.reports] == [None, progress, None]


def test_nothing_is_sent_before_the_first_report(tmp_path: Path) -> None:
    source = MemoryLog(LogBuilder(tmp_path), tmp_path)
    Reporter(source, "a").beat()
    assert source.reports == []


def test_reports_say_who_follows_why_it_stands_still_and_that_it_ends(tmp_path: Path) -> None:
    source = MemoryLog(LogBuilder(tmp_path), tmp_path)
    reporter = Reporter(source, "a")
    reporter.end("failed before anything was reported")
    assert source.reports == []
    reporter.fail("")
    reporter.follow()
    reporter.report(STATE)
    reporter.fail("the disk is full")
    reporter.beat()
    reporter.fail("")
    reporter.beat()
    reporter.end()
    told = [(report.follows, report.error) for report in source.reports]
    assert told == [(True, ""), (True, "the disk is full"), (True, ""), (False, "")]
    # Who ends by an error is still expected: somebody has to start it again.
    failed = Reporter(source, "a")
    failed.follow()
    failed.report(STATE)
    failed.end("no such file " + "x" * 5_000)
    assert source.reports[-1].follows
    assert (
        source.reports[-1].error.startswith("no such file")
        and len(source.reports[-1].error) < 2_000
    )
    # Of a run that was to end nobody expects a word about it, but of its failure.
    once = Reporter(source, "a")
    once.report(STATE)
    before = len(source.reports)
    once.end()
    assert len(source.reports) == before
    source.reachable = False
    once.end("the node is away, too")


def test_a_worker_that_was_overtaken_says_nothing_more(tmp_path: Path) -> None:
    """The other one has the same id: its news would be mixed up with these."""
    source, owns = MemoryLog(LogBuilder(tmp_path), tmp_path), [True]

    def check_owner() -> None:
        if not owns[0]:
            raise LockedError("taken over")

    reporter = Reporter(source, "a", check_owner=check_owner)
    reporter.report(STATE)
    owns[0] = False
    with pytest.raises(LockedError):
        reporter.report(replace(STATE, position=2))
    with pytest.raises(LockedError):
        reporter.beat()
    reporter.end("failed")
    assert [report.position for report in source.reports] == [1]
