"""What the SQLite journal does beyond the interface: crashes, locks, damage, full disks."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from tests.support.storage_samples import entries_of, run_of

from sparktxlog.errors import (
    CorruptLogError,
    DiskFullError,
    LockedError,
    NewerReleaseError,
    StorageError,
)
from sparktxlog.files.durability import rewrite_file
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Mark, RunFacts
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ForgetPayloads,
    MarkPublished,
    ResetJournal,
    Segment,
)
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.storage.journal.sqlite_schema import encode_facts, facts_of
from sparktxlog.storage.journal.summary_files import open_summary, write_summary
from sparktxlog.storage.lock import DirectoryLock


def segment(first: int, last: int) -> Segment:
    return Segment(
        first=first, last=last, from_hash="", to_hash="", epoch=1, transactions=1, rejected=0
    )


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    runs = [run_of(seq=1 + 5 * i, n=5) for i in range(20)]
    entries = entries_of(runs)
    journal = Journal(tmp_path / "data")
    for i, run in enumerate(runs):
        journal.write([run])
        if i % 3 == 2:
            journal.write([AppendQueue(entries=entries[i - 2 : i + 1], ordered_at=i)])
        # A kill leaves the file and its log as they stand, nothing closed.
        copy = tmp_path / f"copy-{i}"
        copy.mkdir()
        for name in (JOURNAL_NAME, f"{JOURNAL_NAME}-wal"):
            shutil.copy(tmp_path / "data" / name, copy / name)
        revived = Journal(copy)
        state = revived.load(1000).core
        ordered = 3 * ((i + 1) // 3)
        assert state.base.position == 5 * ordered
        assert len(list(state.incoming)) == i + 1 - ordered
        revived.close()
    journal.close()


def test_a_torn_write_ahead_log_loses_only_the_unfinished_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "data")
    journal.write([run_of(seq=1)])
    kept = (tmp_path / "data" / f"{JOURNAL_NAME}-wal").read_bytes()
    journal.write([run_of(seq=2, padding=50_000)])
    whole = (tmp_path / "data" / f"{JOURNAL_NAME}-wal").read_bytes()
    for cut in (len(kept), len(kept) + 100, (len(kept) + len(whole)) // 2, len(whole) - 1):
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir()
        shutil.copy(tmp_path / "data" / JOURNAL_NAME, copy / JOURNAL_NAME)
        (copy / f"{JOURNAL_NAME}-wal").write_bytes(whole[:cut])
        revived = Journal(copy)
        assert [run.header.seq for run in revived.load(10).core.incoming] == [1]
        revived.close()
    journal.close()


def test_nothing_is_told_from_a_log_that_may_not_be_on_the_disk(tmp_path: Path) -> None:
    """After a failed fsync the page cache may show what no disk holds."""
    with closing(Journal(tmp_path / "data")) as journal:
        journal.write([run_of(seq=1)])
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    log = tmp_path / "copy" / f"{JOURNAL_NAME}-wal"
    assert log.stat().st_size
    with closing(Journal(tmp_path / "copy")):
        assert log.stat().st_size == 0
        (tmp_path / "file").mkdir()
        shutil.copy(tmp_path / "copy" / JOURNAL_NAME, tmp_path / "file" / JOURNAL_NAME)
    with closing(Journal(tmp_path / "file")) as alone:
        assert [run.header.seq for run in alone.load(10).core.incoming] == [1]


def test_a_file_is_written_once_more_as_it_is(tmp_path: Path) -> None:
    content = os.urandom(200_001)
    (tmp_path / "file").write_bytes(content)
    before = (tmp_path / "file").stat()
    rewrite_file(tmp_path / "file")
    after = (tmp_path / "file").stat()
    assert (tmp_path / "file").read_bytes() == content
    assert after.st_ino == before.st_ino and after.st_mtime_ns > before.st_mtime_ns


def test_a_log_that_another_program_keeps_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite would wait five seconds for the other program.
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.1))
    with closing(Journal(tmp_path / "data")) as journal:
        journal.write([run_of(seq=1)])
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    path = tmp_path / "copy" / JOURNAL_NAME
    with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(path)) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM incoming").fetchone()
        writer.execute("INSERT INTO meta VALUES('x', 1)")
        writer.commit()
        with pytest.raises(StorageError, match="cannot be merged") as caught:
            Journal(tmp_path / "copy")
        assert "close it" in caught.value.hint
    Journal(tmp_path / "copy").close()


def test_a_second_process_is_told_who_owns_the_directory(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "data")
    program = (
        "import sys; from pathlib import Path\n"
        "from sparktxlog.errors import LockedError\n"
        "from sparktxlog.storage.journal.journal import Journal\n"
        "try: Journal(Path(sys.argv[1]))\n"
        "except LockedError as error: print(error.fields['pid'], error); sys.exit(7)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode == 7, refused.stderr
    assert refused.stdout.startswith(f"{os.getpid()} [locked]")
    assert str(tmp_path / "data") in refused.stdout
    journal.close()
    taken = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert taken.returncode == 0, taken.stderr


def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys, signal; from pathlib import Path\n"
        "from sparktxlog.storage.journal.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr
    Journal(tmp_path).close()


def test_the_lock_is_free_after_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"this is no database" * 100)
    for _ in range(2):
        with pytest.raises(CorruptLogError) as caught:
            Journal(tmp_path)
        assert str(tmp_path / JOURNAL_NAME) in str(caught.value)
    DirectoryLock(tmp_path).release()


def test_damaged_ids_leave_nothing_open(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    damaged = tmp_path / "ids" / "1.ids"
    damaged.parent.mkdir()
    damaged.write_bytes(b"torn")
    with pytest.raises(CorruptLogError, match="is damaged"):
        Journal(tmp_path)
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(str(tmp_path / JOURNAL_NAME))] == []
    damaged.unlink()
    Journal(tmp_path).close()


def test_one_process_cannot_take_a_directory_twice(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(LockedError):
        DirectoryLock(tmp_path)
    lock.release()
    lock.release()
    DirectoryLock(tmp_path).release()


def test_a_data_directory_that_is_made_is_its_users_alone(tmp_path: Path) -> None:
    Journal(tmp_path / "new" / "data").close()
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    # What somebody made before has the permissions that he gave it.
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o750)
    Journal(tmp_path / "old").close()
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o750


def test_a_deleted_lock_file_lets_no_second_owner_in(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)):
        (tmp_path / "lock").unlink()
        with pytest.raises(LockedError):
            Journal(tmp_path)
    Journal(tmp_path).close()


def test_who_knows_only_the_lock_file_is_kept_out(tmp_path: Path) -> None:
    """A version before this one locks the file alone."""
    lock = DirectoryLock(tmp_path)
    with open(lock.path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    with open(lock.path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(LockedError, match=str(os.getpid())):
            DirectoryLock(tmp_path)


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(StorageError, match="data"):
        Journal(tmp_path / "data")


def test_a_torn_file_is_corrupt(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write([run_of(seq=1 + i, padding=20_000) for i in range(50)])
    journal.close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CorruptLogError):
        Journal(tmp_path).load(10)


def test_another_format_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    other = sqlite3.connect(tmp_path / JOURNAL_NAME)
    other.execute("PRAGMA user_version=99")
    other.close()
    with pytest.raises(NewerReleaseError, match=r"format 99 .* reads format 2 of"):
        Journal(tmp_path)


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / JOURNAL_NAME)
    other.execute("CREATE TABLE t(x)")
    other.close()
    with pytest.raises(CorruptLogError):
        Journal(tmp_path)


@contextmanager
def full_disk(directory: Path) -> Iterator[Path]:
    """A file system of 4 MB; without the right to mount, a directory."""
    directory.mkdir()
    mounted = (
        os.geteuid() == 0
        and shutil.which("mount") is not None
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    try:
        yield directory
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk_keeps_nothing_of_the_write_and_recovers(tmp_path: Path) -> None:
    with full_disk(tmp_path / "small") as directory:
        journal = Journal(directory)
        if not os.path.ismount(directory):
            # Without the right to mount, SQLite itself stops at 4 MB, with the same error.
            journal._db.execute("PRAGMA max_page_count=512")
        journal.write([run_of(seq=1, padding=100_000)])
        with pytest.raises(DiskFullError) as caught:
            journal.write([run_of(seq=2), run_of(seq=3, padding=6_000_000)])
        assert caught.value.definite
        assert caught.value.retryable
        assert [run.header.seq for run in journal.load(10).core.incoming] == [1]
        assert journal.find_transaction(bytes(16)) is None
        # It goes on by itself.
        journal.write([run_of(seq=2, padding=10_000)])
        assert len(list(journal.load(10).core.incoming)) == 2
        journal.close()
        # Also while its log finds no room in the database.
        revived = Journal(directory)
        assert len(list(revived.load(10).core.incoming)) == 2
        revived.close()


def test_a_start_after_an_orderly_stop_says_that_the_disk_is_full(tmp_path: Path) -> None:
    with full_disk(tmp_path / "small") as directory:
        if not os.path.ismount(directory):
            pytest.skip("mounting a file system needs root")
        journal = Journal(directory)
        journal.write([run_of(seq=1)])
        journal.close()
        filler = directory / "filler"
        with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(DiskFullError) as caught:
            Journal(directory)
        assert caught.value.definite
        filler.unlink()
        revived = Journal(directory)
        assert len(list(revived.load(10).core.incoming)) == 1
        revived.close()


def test_a_write_of_unknown_outcome_stops_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write([run_of(seq=1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            journal.write([run_of(seq=2, padding=1_000_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not caught.value.definite
    with pytest.raises(StorageError):
        journal.write([run_of(seq=2)])
    journal.close()
    revived = Journal(tmp_path)
    assert [run.header.seq for run in revived.load(10).core.incoming] == [1]
    revived.close()


def test_other_threads_read_while_one_writes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    runs = [run_of(seq=1 + i, padding=1_000) for i in range(300)]
    entries = entries_of(runs)
    seen: list[int] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            position = 0
            while position < 300:
                found = journal.read_queue(position, 50, payloads=True)
                assert all(item.payload is not None for item in found)
                if found:
                    assert found[0].entry.position == position + 1
                    position = found[-1].entry.end
            seen.append(position)
        except BaseException as error:
            failures.append(error)

    readers = [Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(0, 300, 10):
        journal.write([*runs[i : i + 10], AppendQueue(entries=entries[i : i + 10], ordered_at=1)])
    for reader in readers:
        reader.join(30)
    journal.close()
    assert not failures
    assert seen == [300] * 3


def test_forgetting_is_bounded_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparktxlog.storage.journal.row_pruning._FORGET_RUNS", 3)
    monkeypatch.setattr("sparktxlog.storage.journal.row_pruning._PRUNE_RUNS", 2)
    journal = Journal(tmp_path)
    journal.load(1)
    runs = [run_of(seq=1 + i) for i in range(10)]
    journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    journal.write([MarkPublished(position=10, version=1, segment=segment(1, 10))])
    gone, kept = [], []
    for _ in range(6):
        journal.write([ForgetPayloads(position=10)])
        gone.append(sum(journal.read_payload("a", 1, 1 + i) is None for i in range(10)))
        kept.append(sum(journal.read_entry_at(1 + i) is not None for i in range(10)))
    assert gone == [3, 6, 9, 10, 10, 10]
    assert kept == [8, 6, 4, 2, 1, 1]
    journal.close()


def test_freed_space_is_used_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.load(10)
    previous, after, sizes = bytes(32), 0, []
    for step in range(12):
        runs = [run_of(seq=1 + 20 * step + i, padding=500_000) for i in range(20)]
        entries = entries_of(runs, after=after, previous=previous)
        previous, after = entries[-1].chain_hash, entries[-1].end
        journal.write([*runs, AppendQueue(entries=entries, ordered_at=1)])
        published = segment(entries[0].position, after)
        journal.write(
            [
                MarkPublished(position=after, version=step, segment=published),
                ForgetPayloads(position=after),
            ]
        )
        sizes.append(journal.size_bytes())
    journal.close()
    assert sizes[-1] < 120_000_000
    assert (tmp_path / JOURNAL_NAME).stat().st_size < 40_000_000


def test_writes_to_tables_come_back_as_of_the_end_and_as_of_what_is_published(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    runs = [run_of(seq=1 + i) for i in range(6)]
    entries = entries_of(runs)
    for index, (run, entry) in enumerate(zip(runs, entries, strict=True), start=1):
        writes = [("t", TableWrites(version=index, position=index))]
        if index == 2:
            writes.append(("u", TableWrites(version=1, position=2)))
        journal.write([run, AppendQueue(entries=(entry,), ordered_at=1, writes=(*writes,))])
        if index == 4:
            journal.write([MarkPublished(position=3, version=1, segment=segment(1, 3))])
    u = TableWrites(version=1, position=2)
    assert journal.load(10).core.writes == {"t": TableWrites(version=6, position=6), "u": u}
    summary = journal.read_summary()
    assert (summary.position, summary.writes["t"].version, summary.writes["u"]) == (3, 3, u)
    kept = journal._db.execute("SELECT position FROM table_writes WHERE name = 't'").fetchall()
    assert kept == [(3,), (4,), (5,), (6,)], "what no summary needs is gone"
    journal.close()
    assert Journal(tmp_path).load(10).core.writes["t"] == TableWrites(version=6, position=6)


def test_conditions_of_waiting_runs_come_back(tmp_path: Path) -> None:
    condition = Condition(read_position=3, reads=("t",), versions=(("u", 2),))
    facts = RunFacts(n=1, ids=bytes(16), conditions=((0, condition),))
    assert facts_of(1, bytes(16), encode_facts(facts)) == facts
    mark = Mark(transaction_id=b"x" * 16, participant="a", yes=True)
    for more in ({"participants": ("a", "b")}, {"marks": ((0, mark),)}, {"voided": True}):
        facts = RunFacts(n=1, ids=bytes(16), **more)
        assert facts_of(1, bytes(16), encode_facts(facts)) == facts


def test_what_is_held_is_counted_the_same_after_a_start(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.load(1_000)
    runs = [run_of(seq=1 + i, padding=1_000 * i) for i in range(20)]
    journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    journal.write([MarkPublished(position=20, version=1, segment=segment(1, 20))])
    journal.write([ForgetPayloads(position=15, spare_after=4, spare_bytes=1 << 30)])
    journal.write([ForgetPayloads(position=15, spare_after=4, spare_bytes=150_000)])
    counted = journal._ends
    journal.close()
    journal = Journal(tmp_path)
    assert journal._ends == counted
    assert counted.held_bytes <= 150_000
    held = sum(
        len(payload) + 512
        for i in range(1, 21)
        if (payload := journal.read_payload("a", 1, i)) is not None
    )
    assert counted.held_bytes == held
    journal.close()


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(StorageError, match="closed"):
        journal.read_payload("a", 1, 1)


def test_what_contents_are_known_by_is_kept_with_their_ids(tmp_path: Path) -> None:
    """Also through a summary."""
    count, window = 60, 16
    digests = [bytes([at]) * 8 for at in range(1, 2 * count + 1)]
    runs = [
        run_of(seq=1 + 2 * at, n=2, content_digests=b"".join(digests[2 * at : 2 * at + 2]))
        for at in range(count)
    ]
    entries = entries_of(runs)
    journal = Journal(tmp_path / "a", id_window=window)
    journal.write(runs[:-1])
    journal.close()
    journal = Journal(tmp_path / "a", id_window=window)
    journal.write([AppendQueue(entries=entries[:10], ordered_at=1)])
    assert journal.content_digests(1, 24) == b"".join(digests[:20]) + bytes(32)
    for at in range(10, count - 1):
        journal.write([AppendQueue(entries=entries[at : at + 1], ordered_at=1)])
    end = 2 * count - 2
    journal.write([MarkPublished(position=end, version=1, segment=segment(1, end))])
    journal.write([ForgetPayloads(position=end)])
    assert journal.read_entry_at(3) is None and journal.filed_ids > 3
    assert journal.content_digests(3, end - 2) == b"".join(digests[2:end])
    summary = journal.read_summary()
    write_summary(summary, tmp_path / "summary")
    summary = open_summary(tmp_path / "summary")
    journal.close()

    taker = Journal(tmp_path / "b", id_window=window)
    taker.write([ResetJournal(summary=summary, node_id=NodeId("b"))])
    known = taker.content_digests(1, end)
    assert known[8 * (end - window) :] == b"".join(digests[end - window : end])
    assert not any(known[: 8 * (end - window)])
    taker.write([runs[-1], AppendQueue(entries=entries[-1:], ordered_at=1)])
    assert taker.content_digests(end, 3) == b"".join(digests[end - 1 :])
    taker.close()
