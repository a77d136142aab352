"""The worker's loop around a replica without tables: reports, batches, recounts, and plans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.errors import ExpiredError, InvalidRequestError, TransportError
from sparktxlog.model.report import OwnReport, Recount
from sparktxlog.worker.apply.batches import Batch, plan_batch
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica import applier, replica_driver
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.local_replica import Replica
from sparktxlog.worker.replica.source import Answer, LogTail, NodeInfo
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState

END = 3


class Positions(Replica):
    """Applies a batch by taking its end for the position."""

    def apply_batch(self, tail: LogTail) -> Batch:
        state = self.state
        segments = [s for s in tail.segments if s.last > state.position][:1]
        batch = plan_batch(segments, Mock(), position=state.position, chain_hash=state.chain_hash)
        self.state = state.finish(batch, tail.log_id, {})
        return batch


class Node(MemoryLog):
    """A node that may be away at a call, and ends its worker where nothing is left."""

    def __init__(self, log: LogBuilder, lake: Path) -> None:
        super().__init__(log, lake)
        self.stop = threading.Event()
        self.away_at: set[int] = set()
        self.calls = 0

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> LogTail:
        self.calls += 1
        if self.calls in self.away_at:
            raise TransportError("away")
        tail = super().segments(after, wait_s=0.0, limit=1)
        if not tail.segments:
            self.stop.set()
        return tail


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    log = LogBuilder(tmp_path, interval=1)
    log.transaction().create(table("t", "id bigint"))
    log.publish()
    for number in range(1, END):
        log.transaction().inline("append", "t", [(number,)])
        log.publish()
    monkeypatch.setattr(applier, "applier_session", lambda spark: spark)
    monkeypatch.setattr(applier, "lock_by_driver", lambda *_: lambda: None)
    monkeypatch.setattr(applier, "Replica", Positions)
    for name in ("RETRY_S", "IDLE_S", "PAUSE_S"):
        monkeypatch.setattr(replica_driver, name, 0.01)
    return Node(log, tmp_path / "lake")


@pytest.fixture
def directory(node: Node) -> Iterator[ReplicaDirectory]:
    with closing(ReplicaDirectory(node.lake)) as found:
        yield found


def worker(node: Node, directory: ReplicaDirectory, **options: Any) -> Applier:
    spark: Any = Mock()
    spark.sparkContext._jsc.sc().isStopped.return_value = False
    return Applier(spark, node, directory, **options)  # type: ignore[arg-type]


def test_a_run_reports_then_applies_batch_by_batch(node: Node, directory: ReplicaDirectory) -> None:
    outcome = worker(node, directory).run_once()
    assert (outcome.position, outcome.published, outcome.batches) == (END, END, END)
    assert (outcome.verdict, outcome.stopped) == ("IN_SYNC", "")
    assert [report.position for report in node.reports] == [0, 1, 2, END]
    assert not any(report.follows for report in node.reports)


@pytest.mark.parametrize("plan", ["copy", "stop"])
def test_a_node_that_says_stop_or_copy_has_nothing_applied(
    node: Node, directory: ReplicaDirectory, plan: str
) -> None:
    node.answer = Answer(verdict="DIVERGED", plan=plan, reason="other rows")
    outcome = worker(node, directory).run_once()
    assert (outcome.position, outcome.batches, outcome.verdict) == (0, 0, "DIVERGED")
    assert outcome.stopped.startswith("the node says DIVERGED: other rows.")


def test_a_log_that_begins_later_is_refused_with_the_node_s_reason(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a node that joined later, before any other worker applied."""
    node.answer = Answer(verdict="EMPTY", plan="stop", reason="no copy: all replicas are empty")
    expired = ExpiredError("the log after position 0 is expired")
    monkeypatch.setattr(node, "segments", Mock(side_effect=expired))
    with pytest.raises(ExpiredError, match="the node says EMPTY: no copy: all replicas") as caught:
        worker(node, directory).run_once()
    assert caught.value.definite and caught.value.fields["position"] == 0
    assert "sparktxlog plan" in caught.value.hint
    node.answer = Answer(verdict="IN_SYNC", plan="replay")  # the log was shortened just now
    with pytest.raises(ExpiredError, match="is expired"):
        worker(node, directory).run_once()


def test_tables_that_stand_still_hold_up_nobody_where_no_copy_is_possible(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither without leave to copy, nor if the copy fails, which is not tried again at once."""
    node.answer = Answer(verdict="DIVERGED", plan="copy", reason="table 't': x", of_tables=True)
    outcome = worker(node, directory).run_once()
    assert (outcome.position, outcome.stopped) == (END, "")
    tried = Mock(side_effect=TransportError("no donor is reached"))
    copy = Mock(request=tried, state=directory.load(), in_place=False)
    monkeypatch.setattr(applier, "ReplicaCopy", lambda *_, **__: copy)
    outcome = worker(node, directory, copies=CopyOptions()).run_once()
    assert (outcome.position, outcome.stopped) == (END, "")
    assert tried.call_count == replica_driver.RETRIES + 1


def test_a_lake_is_that_of_one_site(node: Node, directory: ReplicaDirectory) -> None:
    """Unless it was moved to another one on purpose, where it has a worker of its own."""
    directory.save(replace(directory.load(), node_id="B"))
    former = directory.load().worker_id
    with pytest.raises(InvalidRequestError, match="is that of site 'B'") as caught:
        worker(node, directory)
    assert caught.value.definite and "--take-lake" in caught.value.hint
    assert directory.load().worker_id == former and node.reports == []
    assert worker(node, directory, takes_lake=True).run_once().position == END
    report = node.reports[-1]
    assert isinstance(report, OwnReport)
    assert report.worker_id != former and report.lake == str(node.lake)
    assert (directory.load().node_id, directory.load().worker_id) == ("a", report.worker_id)
    # From then on it is.
    assert worker(node, directory).state.worker_id == report.worker_id


def test_a_replay_that_was_asked_for_ignores_a_faster_copy(
    node: Node, directory: ReplicaDirectory
) -> None:
    node.answer = Answer(verdict="IN_SYNC", plan="copy", reason="faster")
    assert worker(node, directory, replays_anyway=True).run_once().position == END


def test_a_worker_that_follows_outlives_an_absent_node_and_says_its_end(
    node: Node, directory: ReplicaDirectory
) -> None:
    node.away_at = {1, 3}
    outcome = worker(node, directory).follow(node.stop)
    assert (outcome.position, outcome.batches) == (END, END)
    assert [*dict.fromkeys(report.position for report in node.reports)] == [0, 1, 2, END]
    assert all(report.follows for report in node.reports[:-1])
    assert not node.reports[-1].follows and not node.reports[-1].error


@pytest.mark.parametrize("follows", [True, False])
def test_tables_that_the_node_asks_for_are_recounted_once_for_a_position(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    def recounted(_: Any, lake: Path, state: ReplicaState, node_id: str, names: Any) -> Recount:
        asked.append((state.position, tuple(names)))
        return state.recount(node_id, {})

    asked: list[tuple[int, tuple[str, ...]]] = []
    monkeypatch.setattr(applier, "recount", recounted)
    node.answer = Answer(verdict="IN_SYNC", plan="replay", recount=("t",))
    if follows:
        node.away_at = {2}
        worker(node, directory).follow(node.stop)
    else:
        worker(node, directory).run_once()
    assert asked == [(position, ("t",)) for position in range(END + 1)]
    assert len(node.recounts) == END + 1


def test_what_is_asked_for_again_is_recounted_again(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an operator: the node asks no more once it has the result."""
    counts = Mock(side_effect=lambda _, __, state, node_id, names: state.recount(node_id, {}))
    monkeypatch.setattr(applier, "recount", counts)
    one = worker(node, directory)
    for recount, called in ((("t",), 1), (("t",), 1), ((), 1), (("t",), 2)):
        one._reporter.answer = Answer(verdict="IN_SYNC", plan="replay", recount=recount)
        one._recount()
        assert counts.call_count == called


def test_a_forced_copy_without_a_donor_ends_with_the_node_s_reason(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Mock(side_effect=TransportError("no donor is reached"))
    copy = Mock(request=refused, state=ReplicaState(worker_id="w"), in_place=False)
    monkeypatch.setattr(applier, "ReplicaCopy", lambda *_, **__: copy)
    with pytest.raises(TransportError, match="no donor is reached"):
        worker(node, directory, copies=CopyOptions(forced=True)).catch_up()
    assert (copy.back_up.call_count, refused.call_count, copy.close.call_count) == (1, 4, 1)
    assert "no donor is reached" in node.reports[-1].error


def test_the_node_is_told_what_ended_the_worker(
    node: Node, directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Positions, "apply_batch", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        worker(node, directory).run_once()
    assert node.reports[-1].error == "a bug"


def test_a_heartbeat_repeats_the_report_on_its_own_connection(
    node: Node, directory: ReplicaDirectory, tmp_path: Path
) -> None:
    class Quick(Node):
        def info(self) -> NodeInfo:
            return replace(super().info(), worker_heartbeat=0.001)

        def segments(self, after: int, **options: Any) -> LogTail:
            if after == END:
                assert beaten.wait(30)
            return super().segments(after, **options)

    class Reporting(MemoryLog):
        def report(self, report: Any) -> Answer:
            if [r.position for r in self.reports].count(END) > 2:
                beaten.set()
            return super().report(report)

    beaten = threading.Event()
    reporting, quick = Reporting(node.log, node.lake), Quick(node.log, node.lake)
    worker(quick, directory, reporting=reporting).follow(quick.stop)
    assert beaten.is_set() and quick.reports == []
