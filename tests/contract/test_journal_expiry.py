"""What every `Journal` promises about a log that is shortened, for SQLite and for memory."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_journal import Bench, bench
from tests.support.storage_samples import entries_of, ids_in, run_of

from sparktxlog.errors import ExpiredError, InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import Block, OperationKind, StagedFile
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropExpired,
    ExpireLog,
    ForgetPayloads,
    MarkPublished,
    PutAnnouncement,
    PutRun,
    ResetJournal,
    Segment,
    ShrinkJournal,
    TableEffect,
    Write,
)
from sparktxlog.storage.journal.journal import Journal

__all__ = ["bench"]

RUNS = [run_of(seq=1 + 2 * i, n=2) for i in range(5)]
ENTRIES = entries_of(RUNS)


def segment(number: int, size_bytes: int = 100) -> Segment:
    """Return the segment of one run of two transactions, with one file."""
    entry = ENTRIES[number]
    file = StagedFile(path=f"inline/{number}", size_bytes=size_bytes, digest="", rows=2)
    return Segment(
        first=entry.position,
        last=entry.end,
        from_hash=entry.previous_hash.hex(),
        to_hash=entry.chain_hash.hex(),
        epoch=1,
        transactions=2,
        rejected=0,
        ordered_at=10 * number + 10,
        effects=(
            TableEffect(
                table="t",
                kind="append",
                first=entry.position,
                last=entry.end,
                files=(file,),
                inline=True,
            ),
        ),
    )


def expire(number: int) -> ExpireLog:
    return ExpireLog(position=ENTRIES[number].end, chain_hash=ENTRIES[number].chain_hash)


@pytest.fixture
def full(bench: Bench) -> Bench:
    """Five runs, ordered at 10, 20 … and published as a segment each."""
    bench.journal.load(1_000)
    writes: list[Write] = [*RUNS]
    for number, entry in enumerate(ENTRIES):
        writes.append(AppendQueue(entries=(entry,), ordered_at=10 * number + 10))
        writes.append(MarkPublished(position=entry.end, version=1, segment=segment(number)))
    bench.journal.write([*writes, ForgetPayloads(position=10)])
    return bench


def test_a_log_that_was_never_shortened_is_kept_from_its_beginning(full: Bench) -> None:
    extent = full.journal.read_extent()
    assert (extent.kept_after, extent.files_bytes) == (0, 500)
    assert full.journal.read_expired(9) == []
    cuts = full.journal.read_cuts(0, 9)
    assert [(c.last, c.ordered_at, c.files_bytes) for c in cuts] == [
        (2, 10, 100),
        (4, 20, 100),
        (6, 30, 100),
        (8, 40, 100),
        (10, 50, 100),
    ]
    assert cuts[1].chain_hash == ENTRIES[1].chain_hash
    assert [cut.last for cut in full.journal.read_cuts(2, 2)] == [4, 6]


def test_expired_positions_can_be_read_no_more_and_all_others_can(full: Bench) -> None:
    full.journal.write([expire(2)])
    for _ in range(2):
        journal = full.reopen()
        assert journal.load(1_000).kept_after == 6
        for after in (0, 4, 5):
            with pytest.raises(ExpiredError) as caught:
                journal.read_queue(after, 9, payloads=False)
            assert caught.value.definite
            assert caught.value.fields["kept_after"] == 6
            with pytest.raises(ExpiredError):
                journal.read_segments(after, 9)
        assert [e.entry for e in journal.read_queue(6, 9, payloads=False)] == list(ENTRIES[3:])
        assert journal.read_segments(6, 9) == [segment(3), segment(4)]
        assert journal.read_segments(7, 9) == [segment(3), segment(4)]
        assert [cut.last for cut in journal.read_cuts(6, 9)] == [8, 10]
        assert journal.read_hash_at(6) == ENTRIES[2].chain_hash


def test_behind_the_id_window_only_ends_of_segments_keep_their_hash(bench: Bench) -> None:
    """A worker that is further back must not be called diverged for it (S2)."""
    bench.journal.load(2)
    bench.journal.write([*RUNS, AppendQueue(entries=tuple(ENTRIES), ordered_at=1)])
    longer = replace(segment(1), first=1, from_hash=segment(0).from_hash)  # two runs
    for one in (longer, segment(2), segment(3), segment(4)):
        bench.journal.write([MarkPublished(position=one.last, version=1, segment=one)])
    bench.journal.write([ForgetPayloads(position=10)])
    for _ in range(2):
        journal = bench.reopen()
        assert journal.read_entry_at(6) is None  # its row is gone
        assert journal.read_hash_at(4) == ENTRIES[1].chain_hash
        assert journal.read_hash_at(6) == ENTRIES[2].chain_hash
        for unknown in (1, 2, 3, 5):
            with pytest.raises(ExpiredError) as caught:
                journal.read_hash_at(unknown)
            assert caught.value.definite
        assert journal.read_hash_at(9) is None  # its row is there, and no run ends in it
        assert journal.read_hash_at(11) is None
    # The segment behind a place says its hash, too, when the one before is forgotten.
    bench.journal.write([expire(1), DropExpired(position=4)])
    assert bench.reopen().read_hash_at(4) == ENTRIES[1].chain_hash


def test_expired_segments_are_listed_until_their_files_are_gone(full: Bench) -> None:
    full.journal.write([expire(2)])
    assert full.reopen().read_expired(2) == [segment(0), segment(1)]
    full.journal.write([DropExpired(position=4)])
    assert full.reopen().read_expired(9) == [segment(2)]
    assert full.journal.read_extent().files_bytes == 300
    full.journal.write([DropExpired(position=4), DropExpired(position=6)])
    assert full.reopen().read_expired(9) == []
    assert full.journal.read_extent().files_bytes == 200


def test_what_is_kept_is_never_dropped(full: Bench) -> None:
    full.journal.write([expire(0), DropExpired(position=10)])
    assert full.journal.read_segments(2, 9) == [segment(number) for number in range(1, 5)]


def test_the_log_is_shortened_at_ends_of_segments_only(full: Bench) -> None:
    for wrong in (
        replace(expire(1), position=3),
        replace(expire(1), position=12),
        replace(expire(1), chain_hash=bytes(32)),
    ):
        with pytest.raises(InvariantViolation):
            full.journal.write([wrong])
    assert full.journal.read_extent().kept_after == 0
    full.journal.write([expire(3), expire(1)])  # it never grows back
    assert full.journal.read_extent().kept_after == 8


def test_the_core_starts_from_a_log_that_is_gone_as_a_whole(full: Bench) -> None:
    """Catalog, watermarks, chain hash and the id window outlive what expires (P25b)."""
    before = full.journal.load(1_000).core
    full.journal.write([expire(4), DropExpired(position=10), ShrinkJournal(least_free_bytes=0)])
    after = full.reopen().load(1_000).core
    assert (after.base, after.base_key, after.watermarks) == (
        before.base,
        before.base_key,
        before.watermarks,
    )
    assert b"".join(ids for _, ids in after.recent_ids) == b"".join(ids_in(run) for run in RUNS)
    config = MasterConfig(node_id="a", members=("a",), quorum=1, log_id="l", id_window=1_000)
    master = Master(config, after, 0)
    assert master.locate(ids_in(RUNS[0])[:16]) == 1
    assert full.journal.read_queue(10, 9, payloads=False) == []
    # A repeated submit still gets its first receipt.
    held = full.journal.read_entry_at(1)
    assert held is not None
    assert held.entry == ENTRIES[0]
    # And the queue goes on where it ended.
    late = run_of(seq=11, n=2)
    more = entries_of([late], after=10, previous=ENTRIES[-1].chain_hash)
    full.journal.write([late, AppendQueue(entries=more, ordered_at=2)])
    assert [e.entry for e in full.journal.read_queue(10, 9, payloads=False)] == list(more)


def test_a_segments_age_outlives_the_rows_of_its_runs(full: Bench) -> None:
    full.journal.load(4)
    full.journal.write([ForgetPayloads(position=10)])
    assert full.journal.read_entry_at(1) is None
    assert [cut.ordered_at for cut in full.journal.read_cuts(0, 9)] == [10, 20, 30, 40, 50]


def test_payloads_that_may_name_files_are_found_until_they_are_published(bench: Bench) -> None:
    file = StagedFile(path="x/t/part-0", size_bytes=7, digest="", rows=1)
    block = Block(table="t", kind=OperationKind.APPEND, txs=(0,), files=(file,))
    staged = [run_of(seq=1 + i, blocks=[block]) for i in range(3)]
    plain = run_of(seq=4)
    other = run_of(origin="c", seq=9)
    bench.journal.load(100)
    bench.journal.write(
        [
            *staged,
            plain,
            PutAnnouncement(ticket=1, digest=other.header.digest, payload=other.payload),
        ]
    )
    entries = entries_of(staged[:2])
    bench.journal.write([AppendQueue(entries=entries, ordered_at=1)])
    named = {other.payload, *(run.payload for run in staged)}
    assert set(bench.journal.read_waiting_payloads()) == named
    first = Segment(
        first=1,
        last=1,
        from_hash="",
        to_hash=entries[0].chain_hash.hex(),
        epoch=1,
        transactions=1,
        rejected=0,
    )
    bench.journal.write([MarkPublished(position=1, version=1, segment=first)])
    assert set(bench.journal.read_waiting_payloads()) == named - {staged[0].payload}


def test_the_file_shrinks(tmp_path: Path) -> None:
    journal: Journal = Journal(tmp_path)
    runs = [run_of(seq=1 + i, padding=200_000) for i in range(40)]
    entries = entries_of(runs)
    journal.write([*runs, AppendQueue(entries=entries, ordered_at=1)])
    last = Segment(
        first=1,
        last=40,
        from_hash="",
        to_hash=entries[-1].chain_hash.hex(),
        epoch=1,
        transactions=40,
        rejected=0,
    )
    journal.write(
        [MarkPublished(position=40, version=1, segment=last), ForgetPayloads(position=40)]
    )
    before = journal.size_bytes()
    journal.write([ShrinkJournal(least_free_bytes=100 << 20)])
    assert journal.read_extent().live_bytes < 1 << 20
    journal.write([ShrinkJournal(least_free_bytes=64 << 10)])
    assert journal.size_bytes() < before / 8
    assert len(journal.read_queue(0, 99, payloads=True)) == 40
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def _long_log(directory: Path) -> tuple[Journal, list[PutRun]]:
    """Return a journal of 50 runs of two, one appended after the other."""
    runs = [run_of(seq=1 + 2 * i, n=2) for i in range(50)]
    journal = Journal(directory, id_window=40)
    for run, entry in zip(runs, entries_of(runs), strict=True):
        journal.write([run, AppendQueue(entries=(entry,), ordered_at=1)])
    return journal, runs


def test_ids_are_filed_before_the_core_forgets_them(tmp_path: Path) -> None:
    journal, runs = _long_log(tmp_path)
    assert 100 - 40 < journal.filed_ids < 100
    ids = b"".join(ids_in(run) for run in runs)
    end = journal.filed_ids
    for _ in range(2):
        found = journal.older_ids(ids)
        assert found.end == end
        assert found.found == {index: (index + 1, False) for index in range(end)}
        # The core asks of all that is durable.
        assert journal.find(ids, 10) == [(index, index + 1) for index in range(10, 100)]
        journal.close()
        journal = Journal(tmp_path, id_window=40)
    journal.close()


def test_a_summary_brings_the_ids_that_are_filed(tmp_path: Path) -> None:
    journal, runs = _long_log(tmp_path)
    last = entries_of(runs)[-1]
    seen = replace(segment(0), first=1, last=100, to_hash=last.chain_hash.hex())
    journal.write([MarkPublished(position=100, version=1, segment=seen)])
    summary = journal.read_summary()
    journal.close()
    assert b"".join(ids for _, ids in summary.recent_ids) == b"".join(map(ids_in, runs[:-1]))
    (tmp_path / "joiner").mkdir()
    joiner, _ = _long_log(tmp_path / "joiner")
    joiner.write([ResetJournal(summary=summary, node_id=NodeId("d"), incarnation=2)])
    assert joiner.filed_ids == 0
    assert joiner.find(ids_in(runs[3]), 0) == [(0, 7), (1, 8)]
    # It files them later, and says that it does not know what became of them.
    later = [run_of(seq=101 + i) for i in range(60)]
    for run, entry in zip(
        later, entries_of(later, after=100, previous=last.chain_hash), strict=True
    ):
        joiner.write([run, AppendQueue(entries=(entry,), ordered_at=1)])
    assert joiner.filed_ids > 101
    for _ in range(2):
        found = joiner.older_ids(ids_in(runs[3]) + ids_in(later[0]))
        assert found.found == {0: (7, None), 1: (8, None), 2: (101, False)}
        joiner.close()
        joiner = Journal(tmp_path / "joiner", id_window=40)
    joiner.close()
