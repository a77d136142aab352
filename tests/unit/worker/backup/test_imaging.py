"""Backup images without Spark: incremental, resumable, verified, never overwritten, restorable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.image_lake import Lake, rows, stored_files

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import (
    CorruptLogError,
    DivergedError,
    InvalidNameError,
    InvalidRequestError,
    LockedError,
    NotAppliedError,
    NotFoundError,
    StorageError,
)
from sparktxlog.worker.backup import imaging, restoring
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica, image_name, version_files
from sparktxlog.worker.backup.restoring import choose_image, damaged_files, restore_replica
from sparktxlog.worker.replica.state import (
    PendingCopy,
    ReplicaDirectory,
    read_state,
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.append((1, "a b/%=é"), (2, "x"))
    made.append((3, "x"))
    return made


@pytest.fixture
def store(tmp_path: Path) -> DiskImages:
    return DiskImages(tmp_path / "backups")


def test_a_restored_image_is_the_replica_at_its_position(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    before = read_state(lake.path)
    assert before is not None
    log = lake.path / "t" / "_delta_log"
    for number in (0, 1):
        os.utime(log / f"{number:020}.json", (1_600_000_000 + number, 1_600_000_000 + number))
    wanted = rows(lake.path)
    done = back_up_replica(lake.path, store, name="one", site="A")
    assert done.repeated == 0 and done.new_files == done.image.files == 5
    lake.append((4, "x"))
    told: list[tuple[int, int]] = []
    state = restore_replica(
        store, store.image("one"), tmp_path / "new", tell=lambda *said: told.append(said)
    )
    assert rows(tmp_path / "new") == wanted
    assert (state.position, state.chain_hash, state.log_id, state.epoch) == (
        before.position,
        before.chain_hash,
        before.log_id,
        before.epoch,
    )
    assert state.tables == before.tables and state.worker_id != before.worker_id
    assert read_state(tmp_path / "new") == state
    commits = [p.stat().st_mtime for p in sorted((tmp_path / "new/t/_delta_log").glob("*.json"))]
    assert commits == [1_600_000_000, 1_600_000_001]
    assert told[-1] == (done.image.size_bytes, done.image.size_bytes)
    # The table goes on where it was.
    Lake(tmp_path / "new").append((9, "y"))
    assert len(rows(tmp_path / "new")) == len(wanted) + 1


def test_a_second_backup_stores_and_reads_only_what_is_new(
    lake: Lake, store: DiskImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_replica(lake.path, store, name="one")
    before = stored_files(store)
    again = back_up_replica(lake.path, store, name="two")
    assert (again.new_files, again.added_bytes) == (0, 0)
    assert stored_files(store).keys() == before.keys()
    lake.append((4, "x"))
    third = back_up_replica(lake.path, store, name="three")
    # One data file and one commit.
    assert third.new_files == 2
    after = stored_files(store)
    added = [after[inode] for inode in after.keys() - before.keys()]
    assert sum(path.stat().st_size for path in added) == third.added_bytes
    # Where files can have one name only, all of them are copied.
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("one name only")))
    apart = back_up_replica(lake.path, store, name="four")
    assert apart.new_files == apart.image.files
    assert all(damaged_files(store, image) == [] for image in store.images())
    assert [image.name for image in store.images()] == ["one", "two", "three", "four"]


def test_a_file_of_another_time_or_cut_in_the_image_before_is_stored_again(
    lake: Lake, store: DiskImages
) -> None:
    image = back_up_replica(lake.path, store, name="one").image
    touched, cut = (file for file in image.tables["t"].files[:2])
    os.utime(lake.path / "t" / touched.path)
    os.truncate(store.root / "one" / "t" / cut.path, 5)
    done = back_up_replica(lake.path, store, name="two")
    assert done.new_files == 2 and damaged_files(store, done.image) == []


def test_digests_of_chunks_of_another_size_are_not_taken_over(
    lake: Lake, store: DiskImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_replica(lake.path, store, name="one")
    monkeypatch.setattr(imaging, "CHUNK_BYTES", 512)
    image = back_up_replica(lake.path, store, name="two").image
    assert image.chunk_bytes == 512 and damaged_files(store, store.image("two")) == []


def test_an_image_is_a_directory_of_tables(lake: Lake, store: DiskImages) -> None:
    back_up_replica(lake.path, store, name="one")
    assert rows(store.root / "one") == rows(lake.path)
    (store.root / "one").rename(store.root / "kept")
    assert store.image("kept").name == "kept" and store.names() == ["kept"]


def test_a_directory_of_an_earlier_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "known.jsonl").touch()
    with pytest.raises(InvalidRequestError, match="earlier commit"):
        DiskImages(tmp_path)


def test_names_are_checked_and_images_never_overwritten(lake: Lake, store: DiskImages) -> None:
    for name in ("default", "Default", "lock", "", "../x", ".hidden", "a/b", "x" * 101):
        with pytest.raises(InvalidNameError, match="cannot name"):
            back_up_replica(lake.path, store, name=name)
    back_up_replica(lake.path, store, name="one")
    content = (store.root / "one" / "_image.json").read_bytes()
    with pytest.raises(InvalidRequestError, match="already"):
        back_up_replica(lake.path, store, name="one")
    assert (store.root / "one" / "_image.json").read_bytes() == content
    with pytest.raises(NotFoundError, match=r"no image 'two'"):
        store.image("two")
    assert image_name(1_700_000_000_000_000) == "20231114T221320Z"


def test_what_must_not_be_backed_up(lake: Lake, store: DiskImages, tmp_path: Path) -> None:
    with pytest.raises(NotAppliedError, match="nothing was applied"):
        back_up_replica(tmp_path / "nowhere", store, name="x")
    lake.record(copying=PendingCopy(copy_id="c", started_at=1))
    with pytest.raises(NotAppliedError, match="being copied"):
        back_up_replica(lake.path, store, name="x")
    state = lake.record(copying=None)
    with closing(ReplicaDirectory(lake.path)) as directory:
        still = replace(state.tables["t"], diverged="somebody wrote")
        directory.save(replace(state, tables={"t": still}))
    with pytest.raises(DivergedError, match="somebody wrote"):
        back_up_replica(lake.path, store, name="x")
    assert store.names() == []


def test_one_backup_writes_at_a_time(lake: Lake, store: DiskImages) -> None:
    with store.writing(), pytest.raises(LockedError, match="is in use by"):
        back_up_replica(lake.path, DiskImages(store.root), name="x")


def test_a_killed_backup_goes_on_behind_what_is_stored(lake: Lake, store: DiskImages) -> None:
    for number in range(10, 20):
        lake.append((number, "x"))
    script = f"""
import os, signal
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
files = []
def tell(done, total):
    files.append(done)
    if len(files) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
back_up_replica({str(lake.path)!r}, DiskImages({str(store.root)!r}), name="one", tell=tell)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert store.names() == [] and len(stored_files(store)) == 9
    left = next(path for path in stored_files(store).values())
    left.with_name("half.part").write_bytes(b"half of a file")
    done = back_up_replica(lake.path, store, name="one")
    assert done.new_files == done.image.files - 9 and damaged_files(store, done.image) == []
    assert len(stored_files(store)) == done.image.files
    assert sorted(path.name for path in store.root.iterdir()) == ["lock", "one"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_found_before_the_worker_can_start(
    lake: Lake, store: DiskImages, tmp_path: Path, damage: str
) -> None:
    image = back_up_replica(lake.path, store, name="one").image
    victim = next(file for file in image.tables["t"].files if file.path.endswith(".parquet"))
    path = store.root / "one" / "t" / victim.path
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        case "cut":
            path.write_bytes(content[:-10])
        case "remove":
            path.unlink()
    with pytest.raises(CorruptLogError, match="damaged"):
        restore_replica(store, image, tmp_path / "new")
    with (
        closing(ReplicaDirectory(tmp_path / "new")) as directory,
        pytest.raises(CorruptLogError, match="broken off"),
    ):
        directory.load()
    (found,) = damaged_files(store, image)
    assert found == {"table": "t", "path": victim.path, "stored": str(path)}
    # The site is still there: the next backup gives its file to all images.
    done = back_up_replica(lake.path, store, name="two")
    assert (done.new_files, done.mended_files) == (1, 1)
    with pytest.raises(InvalidRequestError, match="broken off"):
        restore_replica(store, image, tmp_path / "new")
    restore_replica(store, image, tmp_path / "new", force_clean=True)
    assert rows(tmp_path / "new") == rows(lake.path)


def test_all_images_with_a_damaged_file_are_mended(lake: Lake, store: DiskImages) -> None:
    images = [back_up_replica(lake.path, store, name=name).image for name in ("one", "two")]
    victim = next(file for file in images[0].tables["t"].files if file.path.endswith(".parquet"))
    path = store.root / "one" / "t" / victim.path
    path.write_bytes(b"?" * victim.size_bytes)
    assert all(len(damaged_files(store, image)) == 1 for image in images)
    done = back_up_replica(lake.path, store, name="three")
    assert (done.new_files, done.mended_files) == (1, 1)
    assert all(damaged_files(store, image) == [] for image in store.images())
    # They share it again.
    assert path.samefile(store.root / "three" / "t" / victim.path)


def test_a_disk_that_keeps_whole_seconds_is_not_read_each_time(
    lake: Lake, store: DiskImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_replica(lake.path, store, name="one")
    for path in stored_files(store).values():
        os.utime(path, (int(path.stat().st_mtime),) * 2)
    monkeypatch.setattr(DiskImages, "whole", lambda *_: pytest.fail("it was read"))
    assert back_up_replica(lake.path, store, name="two").new_files == 0


def test_a_damaged_manifest_is_found(lake: Lake, store: DiskImages) -> None:
    back_up_replica(lake.path, store, name="one")
    path = store.root / "one" / "_image.json"
    content = path.read_text()
    path.write_text(content.replace('"position":2', '"position":3'))
    with pytest.raises(CorruptLogError, match="digest"):
        store.image("one")
    path.write_text(content[:50])
    with pytest.raises(CorruptLogError):
        store.images()


def test_a_lake_that_is_not_empty_is_refused_and_untouched(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    image = back_up_replica(lake.path, store, name="one").image
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("mine")
    for force_clean in (False, True):
        with pytest.raises(InvalidRequestError, match="not empty"):
            restore_replica(store, image, lake.path, force_clean=force_clean)
        with pytest.raises(InvalidRequestError, match="not empty"):
            restore_replica(store, image, other, force_clean=force_clean)
    assert [path.name for path in other.iterdir()] == ["precious"]
    empty = tmp_path / "empty"
    empty.mkdir()
    restore_replica(store, image, empty)


def test_a_broken_off_restore_is_removed_only_by_force(
    lake: Lake, store: DiskImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = back_up_replica(lake.path, store, name="one").image
    new = tmp_path / "new"
    full = lambda *_: (_ for _ in ()).throw(OSError("full"))
    monkeypatch.setattr(restoring, "remove_workspaces", full)
    with pytest.raises(StorageError, match="full"):
        restore_replica(store, image, new)
    monkeypatch.undo()
    (new / "t").mkdir(exist_ok=True)
    (new / "t" / "half.parquet").write_bytes(b"half")
    with pytest.raises(InvalidRequestError, match="--force-clean"):
        restore_replica(store, image, new)
    restore_replica(store, image, new, force_clean=True)
    assert rows(new) == rows(lake.path) and not (new / "t" / "half.parquet").exists()
    # Whole now: force does not remove it.
    with pytest.raises(InvalidRequestError, match="not empty"):
        restore_replica(store, image, new, force_clean=True)


def test_a_killed_restore_leaves_nothing_a_worker_would_take(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    image = back_up_replica(lake.path, store, name="one").image
    new = tmp_path / "new"
    # After the first file, after the last one, and when the first table is in its place.
    for renames in (1, image.files, image.files + 1):
        script = f"""
import os, signal
from pathlib import Path
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.restoring import restore_replica
store = DiskImages({str(store.root)!r})
renamed = []
def dying(rename):
    def act(path, target):
        rename(path, target)
        renamed.append(path)
        if len([path for path in renamed if "copies" in path.parts]) == {renames}:
            os.kill(os.getpid(), signal.SIGKILL)
    return act
Path.replace, Path.rename = dying(Path.replace), dying(Path.rename)
restore_replica(store, store.image("one"), {str(new)!r}, force_clean=True)
"""
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert read_state(new) is None
        with (
            closing(ReplicaDirectory(new)) as directory,
            pytest.raises(CorruptLogError, match="broken off"),
        ):
            directory.load()
    restore_replica(store, image, new, force_clean=True)
    assert rows(new) == rows(lake.path)


def test_an_image_of_a_replica_with_a_set_says_so(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    """A worker that took it for one of all tables would miss rows of the others for ever."""
    back_up_replica(lake.path, store, name="all")
    lake.record(only=("default.t",))
    image = back_up_replica(lake.path, store, name="set").image
    assert store.image("set").only == image.only == ("default.t",)
    assert restore_replica(store, image, tmp_path / "new").only == ("default.t",)
    assert choose_image(store, None, None).name == "all", "the newest one with all tables"
    assert choose_image(store, "set", None) == image


def test_the_image_nearest_to_a_position_is_chosen(lake: Lake, store: DiskImages) -> None:
    back_up_replica(lake.path, store, name="two")
    lake.append((4, "x"))
    back_up_replica(lake.path, store, name="three")
    assert choose_image(store, None, None).name == "three"
    assert choose_image(store, None, 2).name == "two"
    assert choose_image(store, "two", 9).name == "two"
    with pytest.raises(InvalidRequestError, match="beyond 2"):
        choose_image(store, "three", 2)
    with pytest.raises(NotFoundError, match="before position 1"):
        choose_image(store, None, 1)


def vacuum_at(files: int, act: Callable[[], None]) -> Callable[[int, int], None]:
    """Return what acts, once, when so many files are stored."""
    told: list[int] = []

    def tell(done: int, total: int) -> None:
        told.append(done)
        if len(told) == files:
            act()

    return tell


def test_a_vacuum_meanwhile_makes_it_take_a_newer_batch(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    def compact_and_vacuum() -> None:
        lake.append((4, "x"))
        opened = DeltaTable(lake.path / "t")
        opened.optimize.compact()
        opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        lake.record()

    tell = vacuum_at(1, compact_and_vacuum)
    done = back_up_replica(lake.path, store, name="one", tell=tell)
    assert done.repeated == 1 and done.image.position == 4
    restore_replica(store, done.image, tmp_path / "new")
    assert rows(tmp_path / "new") == rows(lake.path)


def drop_table(lake: Lake, position: int) -> None:
    """Put a directory into the attic, as if it were that of the table."""
    (directory := lake.path / "gone").mkdir()
    said: dict[str, Any] = {"table": "t", "mark": str(position), "why": "dropped"}
    Attic.of_lake(lake.path).put(directory, kind=Kind.DROPPED, **said)


def test_a_drop_meanwhile_makes_it_take_a_newer_batch(lake: Lake, store: DiskImages) -> None:
    """The next table of that name may have a version of the same number, with other files."""
    drop_table(lake, 1)
    position = lake.append((4, "x")).position

    def drop() -> None:
        lake.append((5, "y"))
        drop_table(lake, position + 1)

    done = back_up_replica(lake.path, store, name="x", tell=vacuum_at(1, drop))
    assert (done.repeated, done.image.position) == (1, position + 1)


def test_a_file_that_is_gone_for_good_is_an_error(lake: Lake, store: DiskImages) -> None:
    (file,) = (lake.path / "t" / "p=x").glob(
        DeltaTable(lake.path / "t").file_uris()[0].split("/")[-1]
    )
    file.unlink()
    with pytest.raises(StorageError, match="cannot be backed up"):
        back_up_replica(lake.path, store, name="one")
    assert store.names() == []


def test_a_file_of_another_size_is_an_error(lake: Lake, store: DiskImages) -> None:
    file = next((lake.path / "t" / "p=x").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match="recorded"):
        back_up_replica(lake.path, store, name="one")


def test_only_the_version_and_its_log_are_taken(lake: Lake, tmp_path: Path) -> None:
    path = lake.path / "t"
    DeltaTable(path).create_checkpoint()
    lake.append((4, "new"))
    (path / "orphan.parquet").write_bytes(b"x")
    (path / "_delta_log" / ".tmp.json").write_bytes(b"x")
    files = version_files(path, 1)
    assert not any("p=new" in name or "orphan" in name or ".tmp" in name for name in files)
    log = sorted(name for name in files if name.startswith("_delta_log"))
    assert log == [
        "_delta_log/00000000000000000000.json",
        "_delta_log/00000000000000000001.checkpoint.parquet",
        "_delta_log/00000000000000000001.json",
    ]
    # Old commits may be cleaned up behind a checkpoint.
    (path / "_delta_log" / f"{0:020}.json").unlink()
    assert len(version_files(path, 1)) == len(files) - 1


def test_deletion_vectors_of_the_version_are_taken(tmp_path: Path) -> None:
    """The vector's name is that of the example in Delta's protocol."""
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"id": [1, 2]}))
    commit = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    actions = [{"protocol": protocol} if "protocol" in a else a for a in actions]
    commit.write_text("\n".join(json.dumps(action) for action in actions))
    (add,) = (action["add"] for action in actions if "add" in action)
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": 1,
    }
    removed = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    changed = [{"add": add | {"deletionVector": vector}}, {"remove": removed}]
    (path / "_delta_log" / f"{1:020}.json").write_text("\n".join(map(json.dumps, changed)))
    name = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert name not in version_files(path, 0)
    assert name in version_files(path, 1) and add["path"] in version_files(path, 1)
    # The same from a checkpoint; and gone again once the file is.
    DeltaTable(path).create_checkpoint()
    for number in (0, 1):
        (path / "_delta_log" / f"{number:020}.json").unlink()
    assert name in version_files(path, 1)
    gone = path / "_delta_log" / f"{2:020}.json"
    gone.write_text(json.dumps({"remove": removed | {"deletionVector": vector}}))
    assert set(version_files(path, 2)).isdisjoint({name, add["path"]})
