"""What a node keeps of a history that nobody can compare, before a summary replaces it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.parted_queues import Node, append_run, parted, rows_of

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import QueueEntry
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.leaving_fork.unverified_history import (
    Uncompared,
    keep_dropped_runs,
    keep_uncompared,
    uncompared,
)
from sparktxlog.storage.interfaces import (
    PutAnnouncement,
    PutRun,
    QueueSummary,
    ResetJournal,
    StoredEntry,
)
from sparktxlog.storage.journal.journal import Journal

VIEW = View(log_id="l", epoch=1, roster=(), members=(NodeId("A"), NodeId("B")))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """B, six published transactions."""
    found, _ = parted(tmp_path)
    found.publish()
    return found


def summary_at(position: int, watermark: int, last: PutRun) -> QueueSummary:
    """A summary of A, with so many transactions of B."""
    entry = QueueEntry(
        position=position, header=last.header, previous_hash=b"p" * 32, chain_hash=b"c" * 32
    )
    return QueueSummary(
        last=StoredEntry(entry=entry, ids=last.payload[-16:], ordered_at=1),
        watermarks={"B": watermark, "A": position - watermark},
    )


def keep(node: Node, summary: QueueSummary) -> Uncompared:
    journal = Journal(node.data_dir, id_window=node.config.id_window)
    try:
        state = journal.load(node.config.id_window)
        base: Any = SimpleNamespace(
            config=node.config,
            journal=journal,
            payloads=node.payloads,
            state=state,
            master=SimpleNamespace(view=VIEW),
        )
        return keep_dropped_runs(base, summary, state.incarnation, "A", 17)
    finally:
        journal.close()


def test_what_the_summary_drops_is_kept_and_what_stays_is_not(node: Node) -> None:
    announced = append_run(1_000)
    node.order([append_run(4)])
    node.write(
        append_run(5, ts=70),
        append_run(6, ts=80),
        append_run(9, 2, origin="C", ts=90),
        PutAnnouncement(ticket=1, digest=announced.header.digest, payload=announced.payload),
    )
    summary = summary_at(100, 5, append_run(95, origin="A"))
    found = keep(node, summary)
    assert (found.position, found.summary_position, found.peer, found.at) == (7, 100, "A", 17)
    rows = node.kept()
    assert {row["quarantine_id"] for row in rows} == {found.quarantine_id}
    # Not published, of a number that the summary has, and another origin's.
    assert [(row["why"], row["origin"], row["sequence"]) for row in rows] == [
        ("ordered", "B", 4),
        ("accepted", "B", 5),
        ("acquired", "C", 9),
        ("acquired", "C", 10),
    ]
    assert [row["position"] for row in rows] == [7, 8, 9, 10]
    assert [rows_of(row) for row in rows] == [[4], [5], [9], [10]]
    assert [row["remark"] for row in rows] == [None] * 4
    assert found.kept == 4
    # A kill before the summary is in force: the same is kept once.
    assert keep(node, summary) == found
    assert len(node.kept()) == 4

    node.write(ResetJournal(summary=summary, node_id=NodeId("B")), keep_uncompared(found))
    journal = Journal(node.data_dir, id_window=node.config.id_window)
    state = journal.load(node.config.id_window)
    journal.close()
    assert uncompared(state.values) == found
    assert [run.header.seq for run in state.core.incoming] == [6]
    assert [one.digest for one in state.core.announcements] == [announced.header.digest]


def test_a_published_queue_alone_leaves_nothing_to_keep(node: Node) -> None:
    found = keep(node, summary_at(100, 5, append_run(95, origin="A")))
    assert (found.position, found.quarantine_id, found.kept) == (6, "", 0)
    assert not (node.data_dir / "log" / "quarantine").exists()
    assert uncompared({}) is None


def test_what_the_summary_is_known_to_have_survives(node: Node) -> None:
    run = append_run(7, origin="A", ts=70)
    node.write(run)
    summary = summary_at(100, 3, run)
    ids = waiting_ids(node)[0]
    known = QueueSummary(last=summary.last, watermarks=summary.watermarks, recent_ids=((40, ids),))
    keep(node, known)
    assert [(row["why"], row["survives"]) for row in node.kept()] == [("acquired", True)]


def waiting_ids(node: Node) -> list[bytes]:
    """Return the ids of what waits in a journal."""
    journal = Journal(node.data_dir, id_window=node.config.id_window)
    try:
        return [run.facts.ids for run in journal.load(10).core.incoming]
    finally:
        journal.close()
