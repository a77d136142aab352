"""A donor on a disk: the same fetch as from a node, and no damaged byte gets through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.files.conftest import CHUNK, FILES, assert_staged, write_table

from sparktxlog.errors import CorruptLogError, InvalidNameError
from sparktxlog.files.fetch import fetch_files
from sparktxlog.files.file_donors import StoredFiles
from sparktxlog.files.selection import select_files
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.tasks import FileTask, hash_chunks
from sparktxlog.files.workspace import CopyWorkspace

TASKS = [
    FileTask(table="t", path=path, size_bytes=size, modified_at=1_600_000_000_000_001)
    for path, (size, _) in FILES.items()
]


@pytest.fixture
def stored(tmp_path: Path) -> StoredFiles:
    root = tmp_path / "stored"
    write_table(root / "t")
    known = {
        task.key: "".join(hash_chunks(root / "t" / task.path, task.size_bytes, CHUNK))
        for task in TASKS
    }
    keys = {(table, path): f"{table}/{path}" for table, path in known}
    return StoredFiles(store=DiskStore(root), keys=keys, chunk_bytes=CHUNK, known=known)


def test_files_of_a_disk_are_staged_as_those_of_a_node(
    stored: StoredFiles, workspace: CopyWorkspace
) -> None:
    wanted = select_files(workspace, stored, TASKS)
    done = fetch_files(workspace, stored, wanted, streams=2)
    assert_staged(workspace, Path(stored.store.url))
    assert (done.fetched_bytes, done.wire_bytes) == (wanted.size_bytes, 0)
    times = {workspace.staged(*task.key).stat().st_mtime_ns for task in TASKS}
    assert times == {1_600_000_000_000_001_000}
    # Everything is here now: the next fetch moves nothing.
    assert select_files(workspace, stored, TASKS).missing_bytes == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_file_is_refused_and_its_whole_chunks_are_kept(
    stored: StoredFiles, workspace: CopyWorkspace, damage: str
) -> None:
    file = Path(stored.store.url) / "t" / "big.parquet"
    whole = file.read_bytes()
    at = 7 * CHUNK + 5
    match damage:
        case "flip":
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        case "cut":
            os.truncate(file, at)
        case "gone":
            file.unlink()
    with pytest.raises(CorruptLogError, match=r"big\.parquet is damaged"):
        fetch_files(workspace, stored, select_files(workspace, stored, TASKS), streams=1)
    assert not workspace.staged("t", "big.parquet").exists()
    file.write_bytes(whole)
    again = select_files(workspace, stored, TASKS)
    left = {work.task.path: len(work.missing) for work in again.works}
    assert left["big.parquet"] == (21 if damage == "gone" else 14)
    fetch_files(workspace, stored, again)
    assert_staged(workspace, Path(stored.store.url))


def test_a_table_has_a_name_or_a_uuid(workspace: CopyWorkspace) -> None:
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    assert workspace.table_dir(uuid) == workspace.root / uuid
    for name in ("../t", "a/b", uuid[:-1], f"{uuid}/x"):
        with pytest.raises(InvalidNameError):
            workspace.table_dir(name)
