"""Prepared transactions in the journal: at its end, in a summary, and once they are decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.segments import segment
from tests.support.storage_samples import TemporaryJournal, entries_of, run_of

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Block, Mark, OperationKind, StagedFile
from sparktxlog.protocol.messages.posts import QueueEntry, Verdict
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ForgetPayloads,
    MarkPublished,
    PutRun,
    QueueSummary,
    ResetJournal,
)
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.prepared_rows import put_verdicts
from sparktxlog.storage.journal.summary_files import open_summary, write_summary

X = b"x" * 16
ONE = Undecided(
    transaction_id=X, position=2, participants=("p", "q"), valid_until=9, size_bytes=3, origin="a"
)
HALF = ONE.after_yes("q")
VERDICT = Verdict(transaction_id=X, position=2, index=0)
HOUR_US = 3_600_000_000


def _runs() -> list[PutRun]:
    """Return a plain run, a prepared one, and two with a mark."""
    file = StagedFile(path="x/t/1.parquet", size_bytes=9, rows=1, digest="d")
    append = Block(table="t", kind=OperationKind.APPEND, txs=(0,), files=(file,))
    prepared = run_of(seq=2, ids=X, blocks=[append], valid_until=((0, 9),), participants=("p", "q"))
    said = [Mark(transaction_id=X, participant=name, yes=True) for name in "qp"]
    marks = [run_of(seq=3 + at, marks=((0, mark),)) for at, mark in enumerate(said)]
    return [run_of(seq=1), prepared, *marks]


RUNS = _runs()
ENTRIES = (*entries_of(RUNS)[:3], replace(entries_of(RUNS)[3], verdicts=(VERDICT,)))
CHANGES = {2: ONE, 3: HALF, 4: None}


def _append(journal: Journal, *positions: int, at: int = HOUR_US) -> None:
    for position in positions:
        entry = ENTRIES[position - 1]
        changes = ((position, X, CHANGES[position]),) if position in CHANGES else ()
        append = AppendQueue(entries=(entry,), ordered_at=at, undecided=changes)
        journal.write([RUNS[position - 1], append])


def _publish(journal: Journal, position: int) -> None:
    first = journal.load(10).published + 1
    journal.write(
        [MarkPublished(position=position, version=position, segment=segment(first, position))]
    )


def _counts(journal: Journal) -> list[int]:
    tables = ("undecided", "prepared")
    return [journal._db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables]


def test_what_is_undecided_comes_back_as_of_the_end_and_as_of_what_is_published(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    _append(journal, 1, 2, 3)
    assert journal.load(10).core.undecided == [HALF]
    _publish(journal, 2)
    (kept,) = journal.read_summary().prepared
    assert (kept.undecided, kept.payload) == (ONE, RUNS[1].payload)
    _append(journal, 4)
    journal.close()
    journal = Journal(tmp_path)
    assert journal.load(10).core.undecided == []
    assert [item.undecided for item in journal.read_summary().prepared] == [ONE]
    _publish(journal, 3)
    assert [item.undecided for item in journal.read_summary().prepared] == [HALF]
    _publish(journal, 4)
    assert journal.read_summary().prepared == ()
    assert _counts(journal) == [0, 0]
    journal.close()


def test_its_container_stays_until_its_decision_is_published() -> None:
    journal = TemporaryJournal()
    _append(journal, 1, 2, 3)
    _publish(journal, 3)
    journal.write([ForgetPayloads(position=3)])
    assert journal.read_payload("a", 1, 2) is None, "the queue needs it no more"
    assert journal.read_prepared(X) == RUNS[1].payload
    assert RUNS[1].payload in journal.read_waiting_payloads(), "its files are named"
    _append(journal, 4)
    assert journal.read_prepared(X) == RUNS[1].payload
    _publish(journal, 4)
    assert journal.read_prepared(X) is None


def test_decisions_are_told_with_the_queue_and_by_id_for_a_time() -> None:
    journal = TemporaryJournal()
    _append(journal, 1, 2, 3)
    assert journal.find_verdict(X) is None
    _append(journal, 4)
    found = [item.entry for item in journal.read_queue(0, 9, payloads=False)]
    assert found == list(ENTRIES)
    assert journal.find_verdict(X) == (4, VERDICT)
    _publish(journal, 4)
    assert journal.find_verdict(X) == (4, VERDICT), "also when it is published"
    other = run_of(seq=5)
    entry = QueueEntry(
        position=5,
        header=other.header,
        previous_hash=ENTRIES[-1].chain_hash,
        chain_hash=bytes(32),
        verdicts=(replace(VERDICT, transaction_id=b"y" * 16),),
    )
    late = 26 * HOUR_US
    journal.write([other, AppendQueue(entries=(entry,), ordered_at=late)])
    assert journal.find_verdict(X) == (4, VERDICT), "its id is known still"


@pytest.mark.parametrize("filed", [False, True])
def test_a_decision_is_forgotten_after_its_id(filed: bool) -> None:
    """Else it would look like a transaction that was rejected."""
    journal = TemporaryJournal()
    _append(journal, 1, 2, 3, 4)
    for run, known in enumerate((filed, False), start=10):
        rows = {0: (2, True)} if known else {}
        files: Any = SimpleNamespace(
            first_of=lambda one, rows=rows: rows, close=lambda: None, end=9
        )
        journal._ends = replace(journal._ends, pruned=4)
        journal._id_files = files
        verdict = replace(VERDICT, transaction_id=b"y" * 16)
        entry = replace(ENTRIES[0], position=run, verdicts=(verdict,))
        put_verdicts(journal._db, [entry], 26 * HOUR_US, 2 * HOUR_US, journal._is_id_known)
        assert (journal.find_verdict(X) is not None) == known


def test_several_are_told_in_the_order_of_the_queue() -> None:
    journal = TemporaryJournal()
    _append(journal, 1, 2)
    first = replace(ONE, transaction_id=b"z" * 16, position=1)
    append = AppendQueue(
        entries=(ENTRIES[2],), ordered_at=1, undecided=((3, first.transaction_id, first),)
    )
    journal.write([RUNS[2], append])
    assert journal.load(10).core.undecided == [first, ONE]


def test_a_node_goes_on_from_a_summary(tmp_path: Path) -> None:
    giver, taker = TemporaryJournal(), TemporaryJournal()
    _append(giver, 1, 2, 3)
    _publish(giver, 3)
    write_summary(giver.read_summary(), tmp_path / "given")
    summary = open_summary(tmp_path / "given")
    taker.load(10)
    taker.write([ResetJournal(summary=summary, node_id=NodeId("b"))])
    assert taker.load(10).core.undecided == [HALF]
    assert taker.read_waiting_payloads() == [RUNS[1].payload], "its files are named"
    _append(taker, 4)
    assert taker.load(10).core.undecided == []
    assert taker.read_prepared(X) == RUNS[1].payload
    _publish(taker, 4)
    assert _counts(taker) == [0, 0]


def test_a_summary_replaces_all_that_was_known() -> None:
    journal = TemporaryJournal()
    _append(journal, 1, 2, 3, 4)
    empty = QueueSummary()
    journal.write([ResetJournal(summary=empty, node_id=NodeId("b"), incarnation=2)])
    assert journal.load(10).core.undecided == [] and journal.find_verdict(X) is None
    assert _counts(journal) == [0, 0]


def test_a_summary_that_contradicts_itself_is_refused() -> None:
    giver, taker = TemporaryJournal(), TemporaryJournal()
    _append(giver, 1, 2, 3)
    _publish(giver, 3)
    sound = giver.read_summary()
    (kept,) = sound.prepared
    for broken in (
        replace(kept, undecided=ONE.after_yes("p").after_yes("q")),
        replace(kept, undecided=replace(ONE, position=4)),
        replace(kept, undecided=replace(ONE, transaction_id=b"y" * 16)),
        replace(kept, undecided=replace(ONE, participants=("p",))),
        replace(kept, payload=RUNS[0].payload),
    ):
        write = ResetJournal(summary=replace(sound, prepared=(broken,)), node_id=NodeId("b"))
        with pytest.raises(InvariantViolation, match="contradicts itself"):
            taker.write([write])
    assert _counts(taker) == [0, 0]
