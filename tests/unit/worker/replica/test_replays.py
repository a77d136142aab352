"""Records of catch-ups by replay: which count, with which estimate, and how they end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import time_ns

import pytest
from tests.support.worker_log import LogBuilder, MemoryLog

from sparktxlog.model.copying import CatchUpKind, Decision, Estimate, Transfer
from sparktxlog.runtime.replicas.transfers import check_transfer
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.replica.replays import BEHIND_S, ReplayRecords
from sparktxlog.worker.replica.source import LogTail


class Node(MemoryLog):
    """A node that has an estimate, and keeps what it is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(LogBuilder(root), root)
        self.told: list[Transfer] = []
        self.asked = 0
        estimate = Estimate(kind=CatchUpKind.REPLAY, seconds=12.5, basis="")
        self.decision = Decision(worker_id="w", plan="replay", reason="behind", replay=estimate)

    def plan(self, worker_id: str) -> Decision:
        self._check()
        self.asked += 1
        return self.decision

    def record_transfer(self, transfer: Transfer) -> None:
        self._check()
        self.told.append(transfer)


def tail(age_s: float | None, position: int = 40) -> LogTail:
    """Return a tail whose first segment was ordered so long ago; None = nobody knows."""
    ordered_at = 0 if age_s is None else time_ns() // 1000 - int(age_s * 1e6)
    segment = Segment(
        first=11,
        last=20,
        from_hash="",
        to_hash="",
        epoch=1,
        transactions=10,
        rejected=0,
        ordered_at=ordered_at,
    )
    return LogTail(position=position, log_id="test", epoch=1, segments=(segment,))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_lag_is_recorded_once_it_is_made_up(node: Node) -> None:
    records = ReplayRecords(node, "a")
    records.begin(tail(BEHIND_S + 5), "w", 10, 3)
    records.applied(20, 13)
    # Still the same catch-up, though the next batch is young.
    records.begin(tail(BEHIND_S + 5, position=60), "w", 20, 13)
    assert node.told == [] and node.asked == 1
    records.applied(40, 33)
    (transfer,) = node.told
    assert (transfer.kind, transfer.donors) == (CatchUpKind.REPLAY, ())
    assert (transfer.from_position, transfer.to_position, transfer.transactions) == (10, 40, 30)
    assert (transfer.estimated_s, transfer.reason, transfer.outcome) == (12.5, "behind", "done")
    assert transfer.actual_s >= 0 and transfer.finished_at >= transfer.started_at
    check_transfer(transfer, "a")
    records.end("ended before", 40, 33)
    assert len(node.told) == 1


@pytest.mark.parametrize("age_s", [None, 0.0, BEHIND_S - 5])
def test_a_worker_that_keeps_up_leaves_none(node: Node, age_s: float | None) -> None:
    records = ReplayRecords(node, "a")
    records.begin(tail(age_s), "w", 10, 0)
    records.applied(40, 30)
    assert (node.told, node.asked) == ([], 0)


def test_one_that_does_not_reach_its_end_says_why(node: Node) -> None:
    records = ReplayRecords(node, "a")
    records.begin(tail(BEHIND_S * 2), "w", 10, 0)
    records.end("given up for a copy" + "x" * 9_999, 20, 10)
    (transfer,) = node.told
    assert (transfer.to_position, transfer.transactions) == (20, 10)
    assert transfer.outcome.startswith("given up") and len(transfer.outcome) == 500
    check_transfer(transfer, "a")


def test_what_the_node_would_copy_is_no_replay(node: Node) -> None:
    node.decision = replace(node.decision, plan="copy")
    records = ReplayRecords(node, "a")
    records.begin(tail(BEHIND_S * 2), "w", 10, 0)
    records.applied(20, 10)
    records.begin(tail(BEHIND_S * 2), "w", 20, 10)
    assert node.asked == 1, "the same answer for every batch on the way"
    records.applied(40, 30)
    assert node.told == []
    records.begin(tail(BEHIND_S * 2, position=50), "w", 40, 30)
    assert node.asked == 2


def test_without_an_answer_it_counts_without_an_estimate(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    records = ReplayRecords(node, "a")
    node.reachable = False
    records.begin(tail(BEHIND_S * 2), "w", 10, 0)
    records.applied(20, 10)
    node.reachable = True
    records.applied(40, 30)
    assert [transfer.estimated_s for transfer in node.told] == [None]
    records.begin(tail(BEHIND_S * 2, position=50), "w", 40, 30)
    node.reachable = False
    records.applied(50, 40)
    assert len(node.told) == 1 and "did not take the record" in caplog.text
