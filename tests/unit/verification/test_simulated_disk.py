"""Simulated disks: what a kill, a power loss and a full disk leave."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from random import Random

import pytest
from tests.support.storage_samples import run_of
from tests.verification.nodes.disk import Disks, Failure, SimulatedDisk, die_inside, tear

from sparktxlog.errors import CorruptLogError, DiskFullError, StorageError
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.storage.interfaces import PutValue
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.storage.payload_log import PAYLOAD_LOG, PayloadLog


def sync(disk: SimulatedDisk, path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    disk.fsynced(str(path), descriptor)
    os.close(descriptor)


def opened(disk: SimulatedDisk) -> Journal:
    journal = Journal(disk.path)
    disk.opened(journal)
    return journal


def put(disk: SimulatedDisk, journal: Journal, name: str, size: int = 1) -> None:
    journal.write([PutValue(name=name, value=b"x" * size)])
    disk.committed()


def names(journal: Journal) -> set[str]:
    return set(journal.load(1_000).values)


def test_a_kill_leaves_all_that_was_written(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    (disk.path / "file").write_bytes(b"never synced")
    disk.crash(power=False)
    assert (disk.path / "file").read_bytes() == b"never synced"


def test_a_copy_is_what_the_disk_holds_while_its_node_writes_on(tmp_path: Path) -> None:
    disks = Disks(tmp_path, Random(1))
    disk, other = disks.make("a"), disks.make("a-copy")
    journal = opened(disk)
    put(disk, journal, "before")
    other.copy(disk)
    put(disk, journal, "after")
    copied = opened(other)
    put(other, copied, "there")
    assert (names(journal), names(copied)) == ({"before", "after"}, {"before", "there"})
    journal.close()
    copied.close()


def test_a_process_that_ended_locks_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    partial = disk.path / "payloads" / INCOMING / "file"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"the first bytes")
    with partial.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        disk.unlock()
        with partial.open() as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert again.read() == "the first bytes"


def test_a_power_loss_takes_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    left = set()
    for seed in range(40):
        disk = SimulatedDisk(tmp_path / str(seed), "a", Random(seed))
        for name in ("kept", "torn", "nameless"):
            (disk.path / name).write_bytes(b"0123456789")
        sync(disk, disk.path / "kept")
        sync(disk, disk.path / "nameless")
        (disk.path / "nameless").rename(disk.path / "hidden")
        sync(disk, disk.path)
        (disk.path / "hidden").rename(disk.path / "renamed")
        disk.crash(power=True)
        assert (disk.path / "kept").read_bytes() == b"0123456789"
        found = {path.name: path.read_bytes() for path in disk.path.iterdir()}
        left.add((found["torn"], "hidden" in found, "renamed" in found))
        assert found.get("renamed", b"0123456789") == b"0123456789"
        # Under one of both names, or both, but never nowhere: the old one was synced.
        assert "hidden" in found or "renamed" in found
    assert len({torn for torn, _, _ in left}) > 5
    assert {b"", b"0123456789"} < {torn for torn, _, _ in left}


def test_what_a_killed_process_still_holds_reaches_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    old = opened(disk)
    put(disk, old, "before")
    disk.crash(power=False)
    old.write([PutValue(name="after", value=b"")])
    new = opened(disk)  # no lock is left either
    assert names(new) == {"before"}
    new.close()
    old.close()


@pytest.mark.parametrize("power", [False, True])
def test_a_commit_of_the_journal_is_durable_and_an_open_transaction_is_not(
    tmp_path: Path, power: bool
) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    for number in range(5):
        journal = opened(disk)
        put(disk, journal, f"{number}", size=100_000)
        die_inside(journal, [PutValue(name=f"open {number}", value=b"y" * 50_000)])
        disk.crash(power=power)
    journal = opened(disk)
    assert names(journal) == {"0", "1", "2", "3", "4"}
    journal.close()


def test_a_journal_that_does_not_sync_loses_commits_with_the_power(tmp_path: Path) -> None:
    lost = 0
    for seed in range(10):
        disk = SimulatedDisk(tmp_path / str(seed), "a", Random(seed))
        journal = opened(disk)
        journal._db.execute("PRAGMA synchronous=NORMAL")
        for number in range(10):
            put(disk, journal, str(number), size=10_000)
        disk.crash(power=True)
        again = opened(disk)
        lost += 10 - len(names(again))
        again.close()
        journal.close()
    assert lost > 10


@pytest.mark.parametrize("synced", [True, False])
def test_the_payload_log_keeps_what_it_synced_and_may_lose_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    """Rows outlive the power, and so do the containers that they name, if these were synced."""
    monkeypatch.setattr(journal_module, "LEAST_BYTES", 0)
    disks, refused = Disks(tmp_path, Random(1)), 0
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, disks._fsync)
    if not synced:
        monkeypatch.setattr(PayloadLog, "sync", lambda log: None)
    for number in range(12):
        disk = disks.make(str(number))
        runs = [run_of(seq=1 + i, padding=500) for i in range(6)]
        journal = opened(disk)
        for run in runs[:4]:
            journal.write([run])
            disk.committed()
        if number % 2:
            die_inside(journal, runs[4:], unsynced=number % 4 == 1)
        else:
            tear(journal, runs[4:])
        disk.crash(power=True)
        journal.close()
        try:
            again = opened(disk)
        except CorruptLogError as error:
            refused += PAYLOAD_LOG in error.message
            continue
        held = [run.header.seq for run in again.load(10).core.incoming]
        assert held[:4] == [1, 2, 3, 4] and len(held) in (4, 6)
        for seq in held:
            assert again.read_payload("a", 1, seq) == runs[seq - 1].payload
        again.close()
    assert refused == 0 if synced else refused > 3


def test_a_full_disk_writes_a_part_of_a_container_and_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LEAST_BYTES", 0)
    disks = Disks(tmp_path, Random(1))
    disk = disks.make("a")
    monkeypatch.setattr(os, "pwrite", disks._pwrite)
    runs = [run_of(seq=1 + i, padding=500) for i in range(2)]
    journal = opened(disk)
    journal.write(runs[:1])
    disk.full = True
    with pytest.raises(DiskFullError):
        journal.write(runs[1:])
    disk.full = False
    assert [run.header.seq for run in journal.load(10).core.incoming] == [1]
    journal.write(runs[1:])
    assert journal.read_payload("a", 1, 2) == runs[1].payload
    journal.close()


def test_a_full_disk_refuses_a_write_and_takes_it_once_it_has_room(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    journal = opened(disk)
    disk.fill(True)
    with pytest.raises(DiskFullError):
        put(disk, journal, "large", size=1 << 20)
    disk.fill(False)
    put(disk, journal, "large", size=1 << 20)
    assert names(journal) == {"large"}
    journal.close()


def test_a_lost_disk_is_empty_and_another_one(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    put(disk, journal := opened(disk), "kept")
    disk.lose()
    assert disk.generation == 2
    assert list(disk.path.iterdir()) == []
    assert (tmp_path / "aside").exists() and JOURNAL_NAME not in os.listdir(disk.path)
    journal.close()


@pytest.mark.parametrize(("failure", "kept"), [(Failure.LOST, False), (Failure.KEPT, True)])
def test_a_commit_that_fails_is_kept_or_not_and_is_the_last_one(
    tmp_path: Path, failure: Failure, kept: bool
) -> None:
    disk = SimulatedDisk(tmp_path, "a", Random(1))
    journal = opened(disk)
    put(disk, journal, "before")
    disk.failing = failure
    for name in ("failed", "behind"):
        with pytest.raises(StorageError):
            journal.write([PutValue(name=name, value=b"")])
    assert disk.failed and disk.failing is None
    journal.close()
    again = opened(disk)
    assert names(again) == ({"before", "failed"} if kept else {"before"})
    assert not disk.failed
    again.close()


def test_a_power_loss_tears_the_last_commit(tmp_path: Path) -> None:
    """What was committed before is there; of the last one all or nothing, and both happen."""
    left = set()
    for seed in range(8):
        disk = SimulatedDisk(tmp_path / str(seed), "a", Random(seed))
        journal = opened(disk)
        put(disk, journal, "before")
        tear(journal, [PutValue(name="torn", value=b"x" * 40_000)])
        disk.crash(power=True)
        again = opened(disk)
        left.add(frozenset(names(again)))
        again.close()
        journal.close()
    assert left == {frozenset({"before"}), frozenset({"before", "torn"})}


def test_after_a_failed_fsync_only_what_is_written_again_is_durable(tmp_path: Path) -> None:
    found = set()
    for seed in range(10):
        disk = SimulatedDisk(tmp_path / str(seed), "a", Random(seed))
        for name in ("synced again", "written again"):
            (disk.path / name).write_bytes(b"0123456789")
        sync(disk, disk.path)
        disk.sync_error = errno.EIO
        for name in ("synced again", "written again"):
            with pytest.raises(OSError, match="Input/output"):
                sync(disk, disk.path / name)
        disk.mend()
        (disk.path / "written again").write_bytes(b"0123456789")
        for name in ("synced again", "written again"):
            sync(disk, disk.path / name)
        disk.crash(power=True)
        assert (disk.path / "written again").read_bytes() == b"0123456789"
        found.add((disk.path / "synced again").read_bytes())
    assert len(found) > 2


def test_a_journal_is_not_opened_on_a_disk_that_fails(tmp_path: Path) -> None:
    disks = Disks(tmp_path, Random(1))
    disk = disks.make("a")
    disk.sync_error = errno.ENOSPC
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disks._fsync)
        with pytest.raises(DiskFullError):
            Journal(disk.path)
        disk.mend()
        Journal(disk.path).close()  # its lock is free
