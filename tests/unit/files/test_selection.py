"""What travels and what is here; room on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.stand_in_donor import StandInDonor
from tests.unit.files.conftest import (
    CHUNK,
    FILES,
    assert_staged,
    fetch_all,
    select_all,
    tasks_of,
)

from sparktxlog.errors import DiskFullError, TransportError
from sparktxlog.files.fetch import fetch_files
from sparktxlog.files.selection import require_space, select_files
from sparktxlog.files.tasks import FileWork
from sparktxlog.files.workspace import CopyWorkspace

SIZE = sum(size for size, _ in FILES.values())


def test_unchanged_files_are_linked(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """No byte of them travels."""
    lease = donor.lease()
    own = workspace.lake / "t"
    shutil.copytree(donor.lake / "t", own)
    selection = select_all(workspace, lease)
    assert (selection.works, selection.size_bytes) == ((), SIZE)
    assert workspace.staged("t", "big.parquet").samefile(own / "big.parquet")
    stats = fetch_files(workspace, lease, selection)
    assert (stats.reused_bytes, stats.fetched_bytes, stats.wire_bytes) == (SIZE, 0, 0)
    assert donor.chunks == []
    assert_staged(workspace, donor.lake)


def test_parts_of_files_that_are_here_go(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The staged directory becomes the table's: nothing but its files may be in it."""
    lease = donor.lease()
    donor.fault = lambda path, offset: "500 x" if offset >= 5 * CHUNK else ""
    with pytest.raises(TransportError):
        fetch_all(workspace, lease, streams=1)
    assert list(workspace.root.rglob("*.part"))
    own = workspace.lake / "t"
    shutil.copytree(donor.lake / "t", own)
    donor.fault = lambda path, offset: ""
    selection = select_all(workspace, lease)
    fetch_files(workspace, lease, selection)
    assert_staged(workspace, donor.lake)


def test_files_that_only_look_alike_are_fetched(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    lease = donor.lease()
    own = workspace.lake / "t"
    shutil.copytree(donor.lake / "t", own)
    with open(own / "big.parquet", "r+b") as file:
        file.write(b"damage")
    (own / "a" / "exact.parquet").write_bytes(b"shorter")
    (own / "b=1" / "text.parquet").unlink()
    selection = select_all(workspace, lease)
    assert [work.task.path for work in selection.works] == [
        "a/exact.parquet",
        "b=1/text.parquet",
        "big.parquet",
    ]
    missing = sum(work.task.size_bytes for work in selection.works)
    assert (selection.missing_bytes, selection.size_bytes) == (missing, SIZE)
    stats = fetch_files(workspace, lease, selection)
    assert (stats.fetched_bytes, stats.reused_bytes) == (missing, SIZE - missing)
    assert_staged(workspace, donor.lake)
    assert (own / "big.parquet").read_bytes()[:6] == b"damage"


def test_no_table_of_its_own(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The directory was deleted."""
    lease = donor.lease()
    assert len(select_all(workspace, lease).works) == len(FILES)
    assert donor.asked == []


def test_no_room(
    donor: StandInDonor, workspace: CopyWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names both figures, and nothing was written."""
    works = [FileWork.whole(task, CHUNK) for task in tasks_of(donor.lease())]
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=10, f_frsize=4096))
    with pytest.raises(DiskFullError, match=rf"needs {SIZE:,} bytes .* 40,960 bytes are free") as e:
        require_space(workspace, works)
    assert e.value.definite
    assert (e.value.fields["needed_bytes"], e.value.fields["free_bytes"]) == (SIZE, 40_960)
    assert list(workspace.lake.iterdir()) == []


def test_what_is_here_needs_no_room(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    assert require_space(workspace, select_all(workspace, lease).works) == SIZE
    small = [task for task in tasks_of(lease) if task.path != "big.parquet"]
    fetch_files(workspace, lease, select_files(workspace, lease, small))
    left = require_space(workspace, select_all(workspace, lease).works)
    assert left == FILES["big.parquet"][0]


def test_the_disk_fills_up_meanwhile(
    donor: StandInDonor, workspace: CopyWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = os.pwrite
    written: list[int] = []

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        written.append(real(descriptor, data, offset))
        if len(written) > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written[-1]

    lease = donor.lease()
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(DiskFullError, match="no space left"):
            fetch_all(workspace, lease, streams=2)
    stats = fetch_all(workspace, lease, streams=2)
    assert stats.reused_bytes >= 5 * CHUNK
    assert_staged(workspace, donor.lake)


def test_a_link_into_nowhere_is_no_file(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    own = workspace.lake / "t"
    own.mkdir()
    target = donor.lake / "t" / "big.parquet"
    (own / "big.parquet").symlink_to(Path(target))
    lease = donor.lease()
    assert len(select_all(workspace, lease).works) == len(FILES)
