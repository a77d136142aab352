"""The journal and its payload log: neither names what the other has not."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.support.storage_samples import entries_of, run_of
from tests.unit.storage.journal.test_journal import full_disk, segment

from sparktxlog.errors import CorruptLogError, DiskFullError, InvariantViolation, StorageError
from sparktxlog.storage import payload_log
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ForgetPayloads,
    MarkPublished,
    PutRun,
    ShrinkJournal,
)
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.storage.payload_log import LEAST_BYTES, PAYLOAD_LOG, ContainerPlace, PayloadLog

#: Runs of 12 KB, and what is known of them.
RUNS = [run_of(seq=1 + i, padding=12_000) for i in range(8)]
ENTRIES = entries_of(RUNS)


@pytest.fixture
def all_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "LEAST_BYTES", 0)


@pytest.fixture
def small_files(all_in_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_log, "FILE_BYTES", 15_000)


@pytest.fixture
def journal(all_in_files: None, tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "data")) as made:
        yield made


def files(directory: Path) -> list[Path]:
    return sorted((directory / PAYLOAD_LOG).glob("*.payloads"))


def held(journal: Journal) -> list[int]:
    """Return the sequence numbers of the runs that wait, with their containers."""
    waiting = [run.header for run in journal.load(10).core.incoming]
    for header in waiting:
        payload = journal.read_payload(header.origin, header.incarnation, header.seq)
        assert payload == RUNS[header.seq - 1].payload
    return sorted(header.seq for header in waiting)


def copy_of(source: Path, target: Path) -> Path:
    """Return what a kill leaves."""
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm", "lock")))


def ordered(journal: Journal, first: int, last: int) -> None:
    """Order and publish the runs of some numbers, from 0."""
    entries = ENTRIES[first : last + 1]
    seen = segment(entries[0].position, entries[-1].end)
    published = MarkPublished(position=entries[-1].end, version=1, segment=seen)
    journal.write([AppendQueue(entries=entries, ordered_at=1), published])


def test_only_large_writes_have_their_containers_in_files(tmp_path: Path) -> None:
    """A second sync costs more than a few bytes that are written twice."""
    with closing(Journal(tmp_path)) as journal:
        journal.write(RUNS[:2])
        assert not (tmp_path / PAYLOAD_LOG).exists()
        journal.write(RUNS[2:])  # together they have enough
        (file,) = files(tmp_path)
        assert file.stat().st_size > LEAST_BYTES
        assert held(journal) == [*range(1, 9)]
        whole = sum(path.stat().st_size for path in tmp_path.glob(f"{JOURNAL_NAME}*"))
        assert journal.size_bytes() == whole + file.stat().st_size
        assert journal.read_extent().live_bytes > file.stat().st_size
    with closing(Journal(tmp_path)) as again:
        assert held(again) == [*range(1, 9)]


def test_bytes_are_on_the_disk_before_a_row_names_them(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    journal._db.set_trace_callback(lambda statement: seen.append(statement.split("(")[0]))
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        seen.append("sync")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    journal.write(RUNS[:3])
    assert seen.count("sync") == seen.count("COMMIT") == 1  # one for all
    assert seen.index("sync") < seen.index("COMMIT")
    assert seen.index("sync") > max(
        at for at, statement in enumerate(seen) if statement.startswith("INSERT INTO payloads")
    )


def test_a_kill_between_sync_and_commit_keeps_nothing_of_the_write(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write(RUNS[:1])
    real = PayloadLog.sync

    def sync(log: PayloadLog) -> None:
        real(log)
        copy_of(tmp_path / "data", tmp_path / "killed")

    monkeypatch.setattr(PayloadLog, "sync", sync)
    journal.write(RUNS[1:3])
    monkeypatch.undo()
    monkeypatch.setattr(journal_module, "LEAST_BYTES", 0)
    (file,) = files(tmp_path / "killed")
    assert file.stat().st_size > 30_000  # the bytes are there, and nothing names them
    with closing(Journal(tmp_path / "killed")) as again:
        assert held(again) == [1]
        again.write(RUNS[1:4])
        assert held(again) == [1, 2, 3, 4]
        assert len(files(tmp_path / "killed")) == 2


def test_a_torn_end_that_no_row_names_is_no_damage(journal: Journal, tmp_path: Path) -> None:
    journal.write(RUNS[:1])
    (file,) = files(tmp_path / "data")
    named = file.stat().st_size
    older = copy_of(tmp_path / "data", tmp_path / "older")
    journal.write(RUNS[1:2])
    whole = file.read_bytes()
    for size in (named, named + 1, (named + len(whole)) // 2, len(whole)):
        torn = copy_of(older, tmp_path / f"torn-{size}")
        files(torn)[0].write_bytes(whole[:size])
        with closing(Journal(torn)) as again:
            assert held(again) == [1]


@pytest.mark.parametrize("cut", [0, 15, 16, 5_000, -1])
def test_a_row_that_names_what_is_not_there_keeps_the_journal_shut(
    journal: Journal, tmp_path: Path, cut: int
) -> None:
    journal.write(RUNS[:2])
    copy = copy_of(tmp_path / "data", tmp_path / "copy")
    (file,) = files(copy)
    file.write_bytes(file.read_bytes()[:cut])
    for _ in range(2):  # its lock is free
        with pytest.raises(CorruptLogError, match=f"{file.name} is damaged"):
            Journal(copy)
    file.unlink()
    with pytest.raises(CorruptLogError, match="it is missing"):
        Journal(copy)


def test_changed_bytes_of_the_last_writes_are_found_at_the_start(
    journal: Journal, tmp_path: Path
) -> None:
    """A disk that said too early that it is done loses what was written last."""
    journal.write(RUNS[:2])
    copy = copy_of(tmp_path / "data", tmp_path / "copy")
    (file,) = files(copy)
    content = bytearray(file.read_bytes())
    content[9_000] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptLogError, match=f"{file.name} is damaged"):
        Journal(copy)


def test_older_bytes_are_compared_whenever_they_are_read(
    small_files: None, journal: Journal, tmp_path: Path
) -> None:
    journal.write(RUNS[:2])
    journal.write(RUNS[2:3])
    first, _ = files(tmp_path / "data")
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    ordered(journal, 0, 2)
    assert journal.read_payload("a", 1, 1) == RUNS[0].payload
    for read in (
        lambda: journal.read_payload("a", 1, 2),
        lambda: journal.read_queue(0, 9, payloads=True),
    ):
        with pytest.raises(CorruptLogError, match=first.name):
            read()
    assert len(journal.read_queue(0, 9, payloads=False)) == 3


def test_an_error_before_the_commit_takes_the_bytes_back(journal: Journal, tmp_path: Path) -> None:
    journal.write(RUNS[:1])
    before = journal.size_bytes() - (tmp_path / "data" / f"{JOURNAL_NAME}-wal").stat().st_size
    with pytest.raises(InvariantViolation):
        journal.write([*RUNS[1:3], AppendQueue(entries=ENTRIES[1:2], ordered_at=1)])
    after = journal.size_bytes() - (tmp_path / "data" / f"{JOURNAL_NAME}-wal").stat().st_size
    assert (held(journal), after) == ([1], before)
    journal.write(RUNS[1:3])
    assert held(journal) == [1, 2, 3]


def test_a_run_that_comes_again_is_not_appended_again(journal: Journal, tmp_path: Path) -> None:
    journal.write(RUNS[:2])
    size = files(tmp_path / "data")[0].stat().st_size
    journal.write(RUNS[:2])
    assert [path.stat().st_size for path in files(tmp_path / "data")] == [size]


def test_files_go_when_their_containers_are_forgotten(
    small_files: None, journal: Journal, tmp_path: Path
) -> None:
    for run in RUNS:
        journal.write([run])
    assert len(files(tmp_path / "data")) == 4
    ordered(journal, 0, 7)
    held_bytes = journal.read_extent().live_bytes
    journal.write([ForgetPayloads(position=3)])  # the second file has the fourth run, too
    journal.write([ShrinkJournal(least_free_bytes=1 << 30)])
    # What a limit of the log counts is what the rows name.
    assert journal.read_extent().live_bytes <= held_bytes - 3 * 12_000
    kept = journal.read_queue(0, 9, payloads=True)
    assert [item.payload is None for item in kept] == [True] * 3 + [False] * 5
    assert [int(path.stem) for path in files(tmp_path / "data")] == [2, 3, 4]
    journal.write([ForgetPayloads(position=8)])
    assert len(files(tmp_path / "data")) == 3  # spares
    late = run_of(seq=9, padding=10_000)
    journal.write([late])
    assert max(int(path.stem) for path in files(tmp_path / "data")) == 5
    assert len(files(tmp_path / "data")) == 3
    journal.write([ShrinkJournal(least_free_bytes=1 << 30)])
    assert [int(path.stem) for path in files(tmp_path / "data")] == [5]
    assert journal.read_payload("a", 1, 9) == late.payload


def test_files_that_a_former_process_left_go_later(
    small_files: None, journal: Journal, tmp_path: Path
) -> None:
    """Not at the start: a journal that is not the newest one is refused, and changes nothing."""
    journal.write(RUNS[:2])
    older = copy_of(tmp_path / "data", tmp_path / "older")
    for run in RUNS[2:]:
        journal.write([run])
    shutil.copytree(tmp_path / "data" / PAYLOAD_LOG, older / PAYLOAD_LOG, dirs_exist_ok=True)
    with closing(Journal(older)) as again:
        assert held(again) == [1, 2]
        assert len(files(older)) == 4
        again.write([ShrinkJournal(least_free_bytes=1 << 30)])
        assert len(files(older)) == 1


@pytest.mark.parametrize("found", ["removed", "written over"])
def test_a_reader_that_comes_late_looks_again(
    small_files: None, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The row that it saw is forgotten, and its file is gone, before it reads the file."""
    journal.write(RUNS[:2])
    ordered(journal, 0, 1)
    real, calls = PayloadLog.read, list[ContainerPlace]()

    def read(log: PayloadLog, place: ContainerPlace) -> bytes:
        calls.append(place)
        if len(calls) == 1:
            journal.write([ForgetPayloads(position=2)])
            journal.write(RUNS[2:4])
            if found == "written over":
                place = place._replace(file=place.file + 1)
        return real(log, place)

    monkeypatch.setattr(PayloadLog, "read", read)
    assert journal.read_payload("a", 1, 1) is None
    assert len(calls) == 1
    assert [int(path.stem) for path in files(tmp_path / "data")] == [2]


def test_a_full_disk_keeps_nothing_of_a_large_write(tmp_path: Path, all_in_files: None) -> None:
    with full_disk(tmp_path / "small") as directory:
        if not os.path.ismount(directory):
            pytest.skip("mounting a file system needs root")
        with closing(Journal(directory)) as journal:
            journal.write(RUNS[:1])
            for _ in range(3):
                with pytest.raises(DiskFullError) as caught:
                    journal.write([RUNS[1], run_of(seq=3, padding=6_000_000)])
                assert caught.value.definite and caught.value.retryable
                assert held(journal) == [1]
            assert sum(path.stat().st_size for path in files(directory)) < 20_000
            journal.write(RUNS[1:2])
            assert held(journal) == [1, 2]
        with closing(Journal(directory)) as again:
            assert held(again) == [1, 2]


def test_a_full_disk_of_the_database_takes_the_bytes_back(journal: Journal, tmp_path: Path) -> None:
    journal.write(RUNS[:1])
    journal._db.execute("PRAGMA max_page_count=1")  # the present size
    size = files(tmp_path / "data")[0].stat().st_size
    many = [run_of(seq=2 + i, n=500, padding=10) for i in range(40)]
    with pytest.raises(DiskFullError):
        journal.write(many)
    assert [path.stat().st_size for path in files(tmp_path / "data")] == [size]
    journal._db.execute("PRAGMA max_page_count=100000")
    journal.write(many)
    assert journal.read_payload("a", 1, 2) == many[0].payload


@pytest.mark.parametrize("how", ["sync", "append"])
def test_a_failed_write_stops_the_journal(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    journal.write(RUNS[:1])

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync" if how == "sync" else "pwrite", fail)
        with pytest.raises(StorageError) as caught:
            journal.write(RUNS[1:2])
    assert not caught.value.definite
    with pytest.raises(StorageError):
        journal.write(RUNS[1:2])
    journal.close()
    with closing(Journal(tmp_path / "data")) as again:
        assert held(again) == [1]


def test_a_file_that_may_not_grow_stops_the_journal(journal: Journal, tmp_path: Path) -> None:
    journal.write(RUNS[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            journal.write([run_of(seq=2, padding=1_000_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not caught.value.definite
    journal.close()
    with closing(Journal(tmp_path / "data")) as again:
        assert held(again) == [1]


def test_the_journal_that_is_set_aside_keeps_every_container(
    journal: Journal, tmp_path: Path
) -> None:
    journal.write(RUNS[:3])
    aside, fresh = tmp_path / "aside", tmp_path / "fresh"
    for directory in (aside, fresh):
        directory.mkdir()
    Journal(fresh).close()
    journal.replace_by(fresh / JOURNAL_NAME, aside / JOURNAL_NAME)
    assert files(tmp_path / "data") == []
    with closing(Journal(aside)) as kept:
        assert held(kept) == [1, 2, 3]
    with closing(Journal(tmp_path / "data")) as new:
        assert held(new) == []
        new.write(RUNS[:1])
        assert held(new) == [1]


def test_what_is_removed_while_a_file_is_named_is_named_by_the_reader(
    journal: Journal, tmp_path: Path
) -> None:
    journal.write(RUNS[:1])
    files(tmp_path / "data")[0].unlink()
    with pytest.raises(CorruptLogError, match="it is missing"):
        journal.read_payload("a", 1, 1)


def _write_until_killed(directory: Path, runs: Sequence[PutRun], told: int) -> None:
    """Write runs one by one, tell of each, order and forget some; in a process of its own."""
    entries = entries_of(runs)
    journal = Journal(directory)
    state = journal.load(1_000)
    done = state.core.base.position
    for at in range(done + len(list(state.core.incoming)), len(runs)):
        journal.write([runs[at]])
        os.write(told, b".")
        if at % 4 == 3:
            part = entries[done : at + 1]
            seen = segment(part[0].position, part[-1].end)
            published = MarkPublished(position=part[-1].end, version=1, segment=seen)
            journal.write([AppendQueue(entries=part, ordered_at=1), published])
            journal.write([ForgetPayloads(position=done)])
            done = at + 1
    signal.pause()


def test_a_kill_at_any_moment_loses_nothing_that_was_told(
    small_files: None, tmp_path: Path
) -> None:
    runs = [run_of(seq=1 + i, padding=4_000 + 100 * i) for i in range(60)]
    known, random = 0, Random(1)
    while known < len(runs):
        reading, told = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                _write_until_killed(tmp_path, runs, told)
            finally:
                os._exit(1)
        os.close(told)
        for _ in range(min(random.randint(1, 9), len(runs) - known)):
            assert os.read(reading, 1), "it ended by itself"
            known += 1
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        while os.read(reading, 1):
            known += 1
        os.close(reading)
        with closing(Journal(tmp_path)) as journal:
            state = journal.load(1_000)
            ordered = journal.read_queue(0, 99, payloads=True)
            assert [item.payload for item in ordered if item.payload is not None] == [
                runs[item.entry.position - 1].payload
                for item in ordered
                if item.payload is not None
            ]
            waiting = [run.header for run in state.core.incoming]
            for header in waiting:
                payload = journal.read_payload(header.origin, header.incarnation, header.seq)
                assert payload == runs[header.seq - 1].payload
            assert state.core.base.position + len(waiting) >= known
            known = state.core.base.position + len(waiting)
