"""Commits torn by a power cut are undone down to the recorded version; each step is synced."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.support.segments import segment

from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import DivergedError, StorageError
from sparktxlog.files.durability import rewrite_file
from sparktxlog.files.stores import disk
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.worker.apply import settling
from sparktxlog.worker.apply.batches import Batch, Step, StepKind, TableStage, plan_batch
from sparktxlog.worker.apply.settling import settle, undo_torn
from sparktxlog.worker.apply.tables import OwnCommit

Tear = Callable[[Path], object]
BATCH: Batch = plan_batch([segment(1, 5)], lambda _: pytest.fail("no rows here"))
EARLIER: Batch = plan_batch([segment(1, 3)], lambda _: pytest.fail("no rows here"))


def commit(table: Path, step: int, batch: Batch | None = BATCH) -> None:
    """Append rows as the worker does in a step; batch None = as somebody else does."""
    number = Step(number=step, kind=StepKind.PLACE, stage=TableStage(index=0), last=False)
    carried: dict[str, Any] = {}
    if batch is not None:
        own = OwnCommit.of(batch, "l", "t", number, EMPTY_SIGNATURE)
        carried = {"custom_metadata": {"userMetadata": own.to_text()}}
    write_deltalake(
        table,
        pa.table({"n": [step] * 10}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("a", step)], **carried),
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose version 1 is recorded, with three steps of a batch behind it."""
    found = tmp_path / "t"
    for step in range(2):
        commit(found, step, EARLIER)
    for step in range(2, 5):
        commit(found, step)
    return found


def rows(table: Path) -> list[int]:
    return sorted({row["n"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()})


def undo(table: Path, batch: Batch | None = BATCH) -> list[int]:
    return undo_torn(table, 1, "l", batch, "t")


def added(table: Path, version: int) -> Path:
    """Return the data file that a version added."""
    at = DeltaTable(table, version=version).file_uris()
    before = DeltaTable(table, version=version - 1).file_uris()
    (name,) = set(at) - set(before)
    return Path(name.removeprefix("file://"))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def blank(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("tear", [cut, blank, empty, Path.unlink])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_torn_commit_takes_all_unsettled_ones_with_it(
    table: Path, version: int, tear: Tear
) -> None:
    tear(commit_path(table, version))
    whole = version == 4 and tear is Path.unlink  # then it never came about
    assert undo(table) == ([] if whole else [v for v in (2, 3, 4) if commit_gone(v, version, tear)])
    assert rows(table) == ([0, 1, 2, 3] if whole else [0, 1])
    assert undo(table) == []


def commit_gone(version: int, torn: int, tear: Tear) -> bool:
    """Return whether a version's file was there to be removed."""
    return version != torn or tear is not Path.unlink


def test_what_a_killed_writer_left_without_a_name_goes(table: Path) -> None:
    log = commit_path(table, 0).parent
    ours, others = log / f".{'0a' * 8}.new", log / f".{commit_path(table, 1).name}.1b2c.tmp"
    for left in (ours, others):
        left.write_text("{")
    assert undo(table) == []
    assert not ours.exists() and others.exists(), "Spark looks after its own"
    assert rows(table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("tear", [cut, blank, empty, Path.unlink])
@pytest.mark.parametrize("version", [2, 4])
def test_a_torn_data_file_does_so_as_well(table: Path, version: int, tear: Tear) -> None:
    tear(added(table, version))
    assert undo(table) == [2, 3, 4]
    assert rows(table) == [0, 1]
    commit(table, 7)
    assert rows(table) == [0, 1, 7]


@pytest.mark.parametrize("reader", [(disk, "read_open"), (builtins, "open")])
def test_what_a_disk_cannot_read_now_is_not_torn(
    table: Path, monkeypatch: pytest.MonkeyPatch, reader: tuple[Any, str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    cannot = pytest.raises((OSError, StorageError), match="Input/output error")
    with monkeypatch.context() as patched, cannot:
        patched.setattr(*reader, fail)
        undo(table)
    assert undo(table) == []
    assert rows(table) == [0, 1, 2, 3, 4]


def test_whole_versions_stay(table: Path) -> None:
    assert undo(table) == []
    assert rows(table) == [0, 1, 2, 3, 4]


def test_the_recorded_version_is_never_undone(table: Path) -> None:
    """Its loss is no torn batch: it was settled."""
    cut(commit_path(table, 1))
    assert undo(table) == []
    assert commit_path(table, 1).exists()


def test_a_torn_creation_is_undone(tmp_path: Path) -> None:
    commit(tmp_path / "t", 0)
    empty(commit_path(tmp_path / "t", 0))
    assert undo_torn(tmp_path / "t", -1, "l", BATCH, "t") == [0]
    assert undo_torn(tmp_path / "never", -1, "l", BATCH, "t") == []


@pytest.mark.parametrize("last", [None, EARLIER], ids=["foreign", "of another batch"])
def test_nothing_of_others_is_removed(table: Path, last: Batch | None) -> None:
    commit(table, 5, last)
    empty(commit_path(table, 3))
    with pytest.raises(DivergedError, match="version 5"):
        undo(table)
    assert commit_path(table, 2).exists() and commit_path(table, 5).exists()


def test_checkpoints_and_checksums_go_with_their_versions(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    (log / f".{4:020}.json.crc").write_bytes(b"torn")
    (log / f"{1:020}.{3:020}.compacted.json").write_bytes(b"torn")
    empty(commit_path(table, 3))
    assert undo(table) == [2, 3, 4]
    assert sorted(path.name for path in log.iterdir() if path.is_file()) == [
        f"{version:020}.json" for version in (0, 1)
    ]
    assert rows(table) == [0, 1]


@pytest.mark.parametrize("torn", ["checkpoint", "_last_checkpoint"])
def test_a_torn_checkpoint_goes_alone(table: Path, torn: str) -> None:
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    cut(checkpoint if torn == "checkpoint" else log / torn)
    checksum = log / f".{3:020}.json.crc"
    checksum.write_bytes(b"torn")
    assert undo(table) == []
    assert rows(table) == [0, 1, 2, 3, 4]
    assert not (log / "_last_checkpoint").exists() and not checksum.exists()
    assert checkpoint.exists() == (torn == "_last_checkpoint")


def test_all_that_a_step_wrote_is_synced(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    checksum = log / f".{4:020}.json.crc"
    checksum.write_bytes(b"sum")
    # A copy may have pinned it: that a file has two names does not tell that it is on the disk.
    os.link(added(table, 3), table.parent / "pinned")
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    settle(table, 2, 4)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    wanted = {
        *(commit_path(table, version) for version in (2, 3, 4)),
        *(added(table, version) for version in (2, 3, 4)),
        checkpoint,
        log / "_last_checkpoint",
        checksum,
        log,
        table,
    }
    assert synced == {str(path) for path in wanted}
    synced.clear()
    settle(table, 2, 3)  # of an earlier version no checkpoint is left
    assert str(checkpoint) not in synced and str(commit_path(table, 4)) not in synced


def test_what_is_found_after_a_failure_is_written_once_more(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync that failed once says nothing the second time."""
    os.link(added(table, 3), table.parent / "payload")
    write_deltalake(table, pa.table({"n": [9]}), mode="append")  # no step of ours
    written: list[Path] = []

    def rewrite(path: Path) -> None:
        written.append(path)
        rewrite_file(path)

    monkeypatch.setattr(settling, "rewrite_file", rewrite)
    settle(table, 2, 5)
    assert written == []
    settle(table, 2, 5, found=True)
    assert set(written) == {
        *(commit_path(table, version) for version in (2, 3, 4)),
        added(table, 2),
        added(table, 4),
    }
    assert rows(table) == [0, 1, 2, 3, 4, 9]
