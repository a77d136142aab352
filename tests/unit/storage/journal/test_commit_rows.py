"""Commit tables in the journal: as of its end, as of what is published, and in a summary."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.segments import segment
from tests.support.storage_samples import entries_of, run_of

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.storage.interfaces import AppendQueue, MarkPublished, QueueSummary, ResetJournal
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.summary_files import open_summary, write_summary

T1, T2 = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
COMMIT = CommitOperation(kind=CommitKind.COMMIT, uuid=T1, version=1, timestamp=5)
RUNS = [run_of(seq=at, commits=((0, COMMIT),)) for at in range(1, 6)]
ENTRIES = entries_of(RUNS)


def table(position: int, version: int = 0, uuid: str = T1) -> CommitTable:
    return CommitTable(
        uuid=uuid,
        name=f"s.t{uuid[-1]}",
        version=version,
        timestamp=version + 5,
        transaction_id=bytes([position]) * 16,
        position=position,
    )


#: What each of five runs leaves: `T1` is created and committed to, `T2` created and dropped.
LEFT = [
    table(1),
    table(2, 1),
    table(3, uuid=T2),
    table(4, 2),
    replace(table(5, uuid=T2), is_dropped=True),
]


def _append(journal: Journal, *positions: int) -> None:
    for at in positions:
        append = AppendQueue(
            entries=(ENTRIES[at - 1],), ordered_at=1, commit_tables=(LEFT[at - 1],)
        )
        journal.write([RUNS[at - 1], append])


def _publish(journal: Journal, position: int) -> None:
    first = journal.load(10).published + 1
    journal.write(
        [MarkPublished(position=position, version=position, segment=segment(first, position))]
    )


def _rows(journal: Journal) -> list[tuple[str, int]]:
    statement = "SELECT uuid, position FROM commit_tables ORDER BY position"
    return journal._db.execute(statement).fetchall()


def _loaded(journal: Journal) -> tuple[CommitTable, ...]:
    return tuple(journal.load(10).core.commit_tables)


def test_they_come_back_as_of_the_end_after_every_run(tmp_path: Path) -> None:
    expected = [(0,), (1,), (1, 2), (3, 2), (3, 4)]
    for at, left in enumerate(expected, start=1):
        with_one = Journal(tmp_path)
        _append(with_one, at)
        with_one.close()
        again = Journal(tmp_path)
        assert _loaded(again) == tuple(LEFT[index] for index in left), at
        again.close()


def test_what_waits_keeps_what_it_commits(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.write([RUNS[0]])
        assert journal.load(10).core.incoming[0].facts.commits == ((0, COMMIT),)


def test_a_summary_has_them_as_of_what_is_published(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        _append(journal, 1, 2, 3)
        _publish(journal, 1)
        assert journal.read_summary().commit_tables == (LEFT[0],)
        _publish(journal, 3)
        _append(journal, 4, 5)
        assert journal.read_summary().commit_tables == (LEFT[1], LEFT[2])
        assert _loaded(journal) == (LEFT[3], LEFT[4])


def test_rows_that_no_summary_needs_are_removed(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        _append(journal, 1, 2)
        assert _rows(journal) == [(T1, 1), (T1, 2)], "nothing is published"
        _publish(journal, 2)
        _append(journal, 3, 4)
        assert _rows(journal) == [(T1, 2), (T2, 3), (T1, 4)]


def test_a_renamed_table_has_the_name_from_there_on(tmp_path: Path) -> None:
    renamed = replace(LEFT[1], name="s.new", renamed=3)
    with closing(Journal(tmp_path)) as journal:
        _append(journal, 1, 2)
        version = journal.read_ordered_commits(T1, 0)
        append = AppendQueue(entries=(ENTRIES[2],), ordered_at=1, commit_tables=(renamed,))
        journal.write([RUNS[2], append])
        assert journal.read_ordered_commits(T1, 0) == version, "it brings no version"
        _publish(journal, 2)
        assert journal.read_summary().commit_tables == (LEFT[1],)
        _publish(journal, 3)
        assert journal.read_summary().commit_tables == (renamed,) == _loaded(journal)


def test_a_joiner_takes_them_over(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "a")) as journal:
        _append(journal, 1, 2, 3, 4, 5)
        _publish(journal, 5)
        write_summary(journal.read_summary(), tmp_path / "file")
    with closing(Journal(tmp_path / "b")) as journal:
        _append(journal, 1)
        reset = ResetJournal(summary=open_summary(tmp_path / "file"), node_id=NodeId("b"))
        journal.write([reset])
        assert _loaded(journal) == (LEFT[3], LEFT[4])
        assert journal.read_summary().commit_tables == (LEFT[3], LEFT[4])
        journal.write([replace(reset, summary=replace(reset.summary, commit_tables=()))])
        assert _loaded(journal) == (), "nothing of the former queue is left"


@pytest.mark.parametrize(
    "tables",
    [
        (table(6),),
        (table(0),),
        (table(1), table(2, 1)),
        (replace(table(1), renamed=6),),
        (table(1), replace(table(2, uuid=T2), name="S.T1")),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(
    tmp_path: Path, tables: tuple[CommitTable, ...]
) -> None:
    with closing(Journal(tmp_path)) as journal:
        _append(journal, 1, 2, 3, 4, 5)
        _publish(journal, 5)
        summary = journal.read_summary()
        for wrong in (
            replace(summary, commit_tables=tables),
            QueueSummary(commit_tables=(table(1),)),
        ):
            with pytest.raises(InvariantViolation, match="contradicts itself"):
                journal.write([ResetJournal(summary=wrong, node_id=NodeId("c"))])
        assert _loaded(journal) == (LEFT[3], LEFT[4])


def test_a_dropped_name_may_stand_twice_in_a_summary(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        _append(journal, 1, 2, 3, 4, 5)
        _publish(journal, 5)
        tables = (replace(table(1), name="s.t2"), LEFT[4])
        summary = replace(journal.read_summary(), commit_tables=tables)
        journal.write([ResetJournal(summary=summary, node_id=NodeId("c"))])
        assert _loaded(journal) == tables
