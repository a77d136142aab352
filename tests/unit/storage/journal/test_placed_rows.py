"""Ordered commits in the journal: their files, what is placed, and what a summary leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.segments import segment
from tests.support.storage_samples import entries_of, run_of, staged_of

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import (
    CommitKind,
    CommitOperation,
    CommitTable,
    commit_file_name,
    commit_file_prefix,
)
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropPlaced,
    ExpireLog,
    MarkPublished,
    OrderedCommit,
    PutPlaced,
    PutVersionFiles,
    ResetJournal,
)
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.placed_rows import version_files_of
from sparktxlog.storage.payloads.payload_expiry import named_files

T = "00000000-0000-4000-8000-000000000001"


def _id(version: int) -> bytes:
    return bytes([version + 1]) * 16


def _files(version: int) -> tuple[StagedFile, ...]:
    prefix = commit_file_prefix(_id(version), T)
    names = ("x.parquet", commit_file_name(version))
    return tuple(staged_of(prefix + name, name.encode(), rows=0) for name in names)


def _operation(version: int) -> CommitOperation:
    kind, name = (CommitKind.COMMIT, "") if version else (CommitKind.CREATE, "s.t")
    return CommitOperation(kind=kind, uuid=T, name=name, version=version, timestamp=version + 5)


#: Version 0 at position 1, and so on.
RUNS = [
    run_of(seq=v + 1, ids=_id(v), commits=((0, _operation(v)),), commit_files=_files(v))
    for v in range(3)
]
ENTRIES = entries_of(RUNS)
TABLES = [
    CommitTable(
        uuid=T, name="s.t", version=v, timestamp=v + 5, transaction_id=_id(v), position=v + 1
    )
    for v in range(3)
]


def _commit(version: int, files: tuple[StagedFile, ...] | None = None) -> OrderedCommit:
    return OrderedCommit(
        uuid=T,
        version=version,
        timestamp=version + 5,
        position=version + 1,
        transaction_id=_id(version),
        files=_files(version) if files is None else files,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal in which version 0 to 2 are ordered and published."""
    found = Journal(tmp_path)
    for run, entry, table in zip(RUNS, ENTRIES, TABLES, strict=True):
        found.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=(table,))])
    hashes: dict[str, Any] = {"from_hash": bytes(32).hex(), "to_hash": ENTRIES[1].chain_hash.hex()}
    found.write([MarkPublished(position=2, version=1, segment=replace(segment(1, 2), **hashes))])
    yield found
    found.close()


def test_versions_wait_with_their_files_until_they_are_placed(journal: Journal) -> None:
    assert journal.read_ordered_commits(T, -1) == [_commit(0), _commit(1), _commit(2)]
    assert journal.read_commits_at(2) == [_commit(1)]
    assert (journal.read_unplaced(0), journal.read_unplaced(3)) == ([(T, 2)], [])
    assert journal.read_placed(T) is None
    journal.write([PutPlaced(uuid=T, version=1, state=b"state")])
    assert journal.read_placed(T) == b"state"
    assert journal.read_unplaced(0) == [(T, 2)]
    journal.write([PutPlaced(uuid=T, version=2, state=b"later")])
    assert (journal.read_placed(T), journal.read_unplaced(0)) == (b"later", [])


@pytest.mark.parametrize("placed", [-1, 0, 2])
def test_files_go_once_they_are_placed_and_the_log_is_shortened(
    journal: Journal, placed: int
) -> None:
    if placed >= 0:
        journal.write([PutPlaced(uuid=T, version=placed, state=b"state")])
    assert journal.read_done_commits() == [], "a peer may ask for them"
    journal.write([DropPlaced(position=3)])
    assert len(journal.read_kept_commits()) == 3
    journal.write([ExpireLog(position=2, chain_hash=ENTRIES[1].chain_hash)])
    done = [_commit(version) for version in range(3) if version <= min(placed, 1)]
    assert journal.read_done_commits() == done
    journal.write([DropPlaced(position=2)])
    kept = [version for version in range(3) if version > min(placed, 1)]
    assert journal.read_kept_commits() == [_commit(version) for version in kept]
    paths = {file.path for version in kept for file in _files(version)}
    assert named_files(journal, 2) == paths
    # What versions consist of is known for ever.
    assert journal.read_version_files(T, -1, 9) == [version_files_of(_commit(v)) for v in range(3)]
    assert journal.read_version_files(T, 0, 1) == [version_files_of(_commit(1))]


def test_what_a_version_consists_of() -> None:
    found = version_files_of(_commit(1))
    assert [file.path for file in found.brought] == ["x.parquet"]
    assert found.commit_file == replace(_files(1)[1], path=commit_file_name(1))
    assert found.digest == replace(found, files=found.files[::-1]).digest
    other = replace(found.files[0], digest="0" * 64)
    assert found.digest != replace(found, files=(other, found.files[1])).digest


def test_a_drop_leaves_what_waits(journal: Journal) -> None:
    run = run_of(seq=4, commits=((0, CommitOperation(kind=CommitKind.DROP, uuid=T)),))
    (entry,) = entries_of([run], after=3, previous=ENTRIES[2].chain_hash)
    dropped = replace(TABLES[2], is_dropped=True, position=4)
    journal.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=(dropped,))])
    assert journal.read_ordered_commits(T, 1) == [_commit(2)]


def test_a_commit_without_files_says_that_there_are_none(journal: Journal) -> None:
    run = run_of(seq=4, commits=((0, _operation(3)),))
    (entry,) = entries_of([run], after=3, previous=ENTRIES[2].chain_hash)
    table = replace(TABLES[2], version=3, timestamp=8, position=4, transaction_id=_id(3))
    journal.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=(table,))])
    assert journal.read_ordered_commits(T, 2) == [_commit(3, files=())]


def test_carried_files_are_kept_until_their_version_is_placed(journal: Journal) -> None:
    names = ("x.parquet", commit_file_name(3))
    run = run_of(
        seq=4,
        ids=_id(3),
        commits=((0, _operation(3)),),
        carried_files=_files(3),
        sections=[name.encode() for name in names],
    )
    (entry,) = entries_of([run], after=3, previous=ENTRIES[2].chain_hash)
    table = replace(TABLES[2], version=3, timestamp=8, position=4, transaction_id=_id(3))
    journal.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=(table,))])
    waiting = replace(_commit(3), is_carried=True)
    assert journal.read_ordered_commits(T, 2) == [waiting]
    assert journal.read_carried(T, 3) == tuple(name.encode() for name in names)
    (to_place, beside) = journal.read_to_place({T: (2, -1)}, 9)[T]
    assert to_place == [(waiting, tuple(name.encode() for name in names))]
    assert not beside
    assert journal.read_to_place({T: (1, -1)}, 9) == {T: ([], False)}, "version 2 was not carried"
    journal.write([PutPlaced(uuid=T, version=2, state=b"state")])
    assert journal.read_carried(T, 3)
    journal.write([PutPlaced(uuid=T, version=3, state=b"state")])
    # If its directory is lost now, a peer has to give it.
    assert journal.read_carried(T, 3) == ()
    assert journal.read_ordered_commits(T, 2) == [replace(waiting, files=())]
    assert journal.read_version_files(T, 2, 9) == [version_files_of(_commit(3))]


def test_commits_of_one_transaction_have_each_its_own_files(journal: Journal) -> None:
    other = T[:-1] + "2"
    prefix = commit_file_prefix(_id(3), other)
    more = tuple(staged_of(prefix + name, b"", rows=0) for name in ("y", commit_file_name(0)))
    create = CommitOperation(kind=CommitKind.CREATE, uuid=other, name="s.u", timestamp=9)
    run = run_of(
        seq=4,
        ids=_id(3),
        commits=((0, _operation(3)), (0, create)),
        commit_files=(*_files(3), *more),
    )
    (entry,) = entries_of([run], after=3, previous=ENTRIES[2].chain_hash)
    tables = (
        replace(TABLES[2], version=3, timestamp=8, position=4, transaction_id=_id(3)),
        CommitTable(
            uuid=other, name="s.u", version=0, timestamp=9, transaction_id=_id(3), position=4
        ),
    )
    journal.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=tables)])
    (mine,), (theirs,) = journal.read_ordered_commits(T, 2), journal.read_ordered_commits(other, -1)
    assert (mine.files, theirs.files) == (_files(3), more)
    assert journal.read_commits_at(4) == [mine, theirs]
    # Each is shown with the other one, and the files of neither go before both are placed.
    assert journal.read_unplaced_of_others(T, 2, 3) == [(other, 0)]
    assert journal.read_to_place({T: (3, 2), other: (0, 0)}, 9) == {
        T: ([], True),
        other: ([], False),
    }
    assert journal.read_unplaced_of_others(other, -1, 0) == [(T, 3)]
    assert (
        journal.read_unplaced_of_others(T, -1, 2) == journal.read_unplaced_of_others(T, 3, 9) == []
    )
    journal.write([PutPlaced(uuid=T, version=3, state=b"state")])
    assert journal.read_unplaced_of_others(other, -1, 0) == []
    hashes: dict[str, Any] = {
        "from_hash": ENTRIES[1].chain_hash.hex(),
        "to_hash": entry.chain_hash.hex(),
    }
    of = replace(segment(3, 4), **hashes)
    expired = ExpireLog(position=4, chain_hash=entry.chain_hash)
    journal.write([MarkPublished(position=4, version=2, segment=of), expired])
    assert [commit.position for commit in journal.read_done_commits()] == [1, 2, 3]
    journal.write([PutPlaced(uuid=other, version=0, state=b"state")])
    assert [commit.position for commit in journal.read_done_commits()] == [1, 2, 3, 4, 4]


def test_a_joiner_knows_which_version_it_lacks(tmp_path: Path, journal: Journal) -> None:
    summary = journal.read_summary()
    reset = ResetJournal(summary=summary, node_id=NodeId("b"))
    fresh = Journal(tmp_path / "fresh")
    fresh.write([reset])
    assert fresh.read_ordered_commits(T, -1) == [_commit(1, files=())]
    assert fresh.read_unplaced(0) == [(T, 1)]
    fresh.close()
    gone = replace(summary, commit_tables=(replace(TABLES[1], is_dropped=True),))
    fresh = Journal(tmp_path / "dropped")
    fresh.write([replace(reset, summary=gone)])
    assert fresh.read_unplaced(0) == []
    fresh.close()


def test_a_node_that_lagged_keeps_what_it_has_of_the_same_history(
    tmp_path: Path, journal: Journal
) -> None:
    reset = ResetJournal(summary=journal.read_summary(), node_id=NodeId("b"))
    lagging = Journal(tmp_path / "lagging")
    for run, entry, table in zip(RUNS[:2], ENTRIES, TABLES, strict=False):
        lagging.write([run, AppendQueue(entries=(entry,), ordered_at=1, commit_tables=(table,))])
    lagging.write([PutPlaced(uuid=T, version=0, state=b"state"), reset])
    assert lagging.read_placed(T) == b"state"
    assert lagging.read_ordered_commits(T, 0) == [_commit(1)]
    lagging.close()


@pytest.mark.parametrize("problem", ["another commit", "later"])
def test_what_is_of_another_history_is_forgotten(
    tmp_path: Path, journal: Journal, problem: str
) -> None:
    summary = journal.read_summary()
    other = replace(TABLES[1], transaction_id=_id(9))
    if problem == "later":
        other = TABLES[0]
    journal.write([PutPlaced(uuid=T, version=1, state=b"state")])
    journal.write([PutVersionFiles(uuid=T, versions=(version_files_of(_commit(0)),))])
    journal.write(
        [ResetJournal(summary=replace(summary, commit_tables=(other,)), node_id=NodeId("b"))]
    )
    assert journal.read_placed(T) is None
    (kept,) = journal.read_ordered_commits(T, -1)
    assert (kept.version, kept.transaction_id) == (other.version, other.transaction_id)
    assert kept.files == ()
    assert journal.read_version_files(T, -1, 9) == []


def test_commits_of_one_run_keep_their_own_files(tmp_path: Path) -> None:
    """Of two tables, behind a commit that took no effect; the runs around it have others."""
    other = f"{T[:-1]}2"
    operations = [
        replace(_operation(2), version=9),
        _operation(1),
        replace(_operation(1), uuid=other),
    ]
    ids = b"".join(bytes([number]) * 16 for number in (20, 21, 22))
    files = tuple(
        staged_of(
            commit_file_prefix(ids[16 * at : 16 * at + 16], one.uuid)
            + commit_file_name(one.version),
            b"x",
            rows=0,
        )
        for at, one in enumerate(operations)
    )
    operations[0] = replace(operations[0], uuid=f"{T[:-1]}3")
    shared = run_of(
        seq=2, n=3, ids=ids, commits=tuple(enumerate(operations)), commit_files=files[1:]
    )
    runs = [RUNS[0], shared, replace(RUNS[2], header=replace(RUNS[2].header, seq=3))]
    entries = entries_of(runs)
    tables = [
        TABLES[0],
        replace(TABLES[1], transaction_id=ids[16:32], position=3),
        replace(TABLES[1], uuid=other, name="s.o", transaction_id=ids[32:], position=4),
        replace(TABLES[2], position=5),
    ]
    journal = Journal(tmp_path)
    journal.write([*runs, AppendQueue(entries=entries, ordered_at=1, commit_tables=tuple(tables))])
    found = [commit for uuid in (T, other) for commit in journal.read_ordered_commits(uuid, -1)]
    assert [(one.version, one.position, one.files) for one in found] == [
        (0, 1, _files(0)),
        (1, 3, files[1:2]),
        (2, 5, _files(2)),
        (1, 4, files[2:]),
    ]
    journal.close()
