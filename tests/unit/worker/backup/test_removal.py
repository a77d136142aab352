"""What may be removed: images that the log has outlived, the attic and old files by their age."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.image_lake import Lake, rows, stored_files

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.removal import (
    Removal,
    SiteLog,
    Unwanted,
    remove_expired,
)
from sparktxlog.worker.backup.restoring import (
    choose_image,
    damaged_files,
    restore_replica,
)
from sparktxlog.worker.replica.state import PendingCopy, ReplicaDirectory

DAY_US = 86_400_000_000
NOW_US = 1_800_000_000_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def store(tmp_path: Path, lake: Lake) -> DiskImages:
    """Five images of site A, at positions 1 to 5."""
    made = DiskImages(tmp_path / "backups")
    for number in range(1, 6):
        lake.append((number, "x"))
        back_up_replica(lake.path, made, name=f"at{number}", site="A")
    return made


def remove(lake: Lake, *, kept_after: int = 0, **unwanted: object) -> Removal:
    site = SiteLog(node_id="A", log_id="l", kept_after=kept_after)
    wanted = Unwanted(**unwanted)  # type: ignore[arg-type]
    (removal,) = remove_expired(lake.path, wanted, site, now_us=NOW_US)
    return removal


def test_nothing_is_removed_that_nobody_named(lake: Lake, store: DiskImages) -> None:
    site = SiteLog(node_id="A", log_id="l", kept_after=99, attics=(Attic(lake.path),))
    assert not Unwanted().anything
    assert remove_expired(lake.path, Unwanted(), site, now_us=NOW_US) == []
    assert len(store.names()) == 5


def test_images_of_some_tables_replace_none_of_all_tables(lake: Lake, store: DiskImages) -> None:
    for number in (6, 7):
        lake.record(only=("default.t",))
        back_up_replica(lake.path, store, name=f"set{number}", site="A")
    found = remove(lake, kept_after=99, images=store.root, keep_images=1)
    assert found.removed == ["at1", "at2", "at3", "at4", "set6"]


@pytest.mark.parametrize(
    ("kept_after", "keep", "gone"),
    [
        # The log can be replayed behind 4: an image at 4 still serves, one at 3 does not.
        (4, 1, ["at1", "at2", "at3"]),
        (4, 3, ["at1", "at2"]),
        (0, 1, []),
        (99, 1, ["at1", "at2", "at3", "at4"]),
        (99, 9, []),
    ],
)
def test_images_go_that_the_log_has_outlived_but_the_newest(
    lake: Lake, store: DiskImages, kept_after: int, keep: int, gone: list[str]
) -> None:
    dry = remove(lake, images=store.root, kept_after=kept_after, keep_images=keep, dry_run=True)
    assert len(store.names()) == 5
    done = remove(lake, images=store.root, kept_after=kept_after, keep_images=keep)
    assert (done.removed, done.kept, done.failed) == (gone, 5 - len(gone), "")
    assert (dry.removed, dry.files, dry.size_bytes) == (done.removed, done.files, done.size_bytes)
    assert store.names() == sorted({"at1", "at2", "at3", "at4", "at5"} - set(gone))
    for image in store.images():
        assert damaged_files(store, image) == []


def test_files_of_no_image_go_and_the_rest_is_restorable(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    data = lake.path / "t"
    # One file takes the place of all, and the older ones are needed by older images only.
    DeltaTable(data).optimize.compact()
    lake.record()
    newest = back_up_replica(lake.path, store, name="at6", site="A").image
    # A backup that was killed before its manifest, and a removal before its end.
    for left in (".w.new", ".old.gone"):
        (store.root / left / "t").mkdir(parents=True)
        (store.root / left / "t" / "orphan.parquet").write_bytes(os.urandom(500))
    before = stored_files(store)
    done = remove(lake, images=store.root, kept_after=99, keep_images=1)
    after = stored_files(store)
    assert len(after) == newest.files and damaged_files(store, newest) == []
    assert after.keys() < before.keys()
    # The manifests of five images, too.
    assert done.files == len(before) - len(after) + 5 and done.size_bytes > 1000
    assert sorted(path.name for path in store.root.iterdir()) == ["at6", "lock"]
    restore_replica(store, choose_image(store, None, None), tmp_path / "new")
    assert rows(tmp_path / "new") == rows(lake.path)
    # The next backup finds everything it still has, and is whole.
    lake.append((6, "x"))
    image = back_up_replica(lake.path, store, name="at7", site="A").image
    assert damaged_files(store, image) == []
    with store.writing() as writer, pytest.raises(NotFoundError):
        writer.remove(["at7", "at1"])
    assert store.names() == ["at6", "at7"]


def test_images_of_others_and_of_another_log_are_left_alone(
    lake: Lake, store: DiskImages, tmp_path: Path
) -> None:
    other = Lake(tmp_path / "other")
    for number in (1, 2):
        other.append((number, "x"))
        back_up_replica(other.path, store, name=f"b{number}", site="B")
        # Made with --lake: whose it is, the worker's id tells.
        back_up_replica(other.path, store, name=f"unknown{number}")
    back_up_replica(lake.path, store, name="own")
    done = remove(lake, images=store.root, kept_after=99, keep_images=1)
    # Of equal positions the younger one is the newest.
    assert done.removed == ["at1", "at2", "at3", "at4", "at5"] and done.kept == 5
    assert store.names() == ["b1", "b2", "own", "unknown1", "unknown2"]
    site = SiteLog(node_id="B", log_id="elsewhere", kept_after=99)
    wanted = Unwanted(images=store.root, keep_images=1)
    (foreign,) = remove_expired(other.path, wanted, site, now_us=NOW_US)
    assert foreign.removed == []


def test_a_damaged_manifest_or_another_backup_keeps_everything(
    lake: Lake, store: DiskImages
) -> None:
    with store.writing():
        busy = remove(lake, images=store.root, kept_after=99)
    assert "is in use by" in busy.skipped and not busy.removed
    (store.root / "at5" / "_image.json").write_bytes(b"{}")
    before = stored_files(store)
    damaged = remove(lake, images=store.root, kept_after=99)
    assert "is damaged" in damaged.failed and "FAILED" in damaged.describe()
    assert len(store.names()) == 5 and stored_files(store) == before


@pytest.mark.parametrize(
    ("unwanted", "field"),
    [
        ({"keep_images": 0}, "keep-images"),
        ({"attic_days": 0}, "empty-attic-older-than"),
        ({"images": Path("/nowhere")}, "images"),
    ],
)
def test_nonsense_is_refused_with_its_field(unwanted: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Unwanted(**unwanted).check()  # type: ignore[arg-type]
    assert caught.value.fields["field"] == field and caught.value.definite


def test_the_attic_is_emptied_by_age_but_for_the_running_copy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, attic = lake.append((1, "x")), Attic.of_lake(lake.path)
    for name, days in (("old", 31), ("young", 29), ("running", 99)):
        (lake.path / name / "_delta_log").mkdir(parents=True)
        (lake.path / name / "_delta_log" / "0.json").write_bytes(b"12345")
        at_ns = (NOW_US - days * DAY_US) * 1000
        monkeypatch.setattr("sparktxlog.attic.attic.time_ns", lambda at_ns=at_ns: at_ns)
        attic.put(lake.path / name, kind=Kind.TABLE, table=name, mark=f"of-{name}", why="replaced")
    copying = PendingCopy(copy_id="of-running", started_at=1)
    with closing(ReplicaDirectory(lake.path)) as directory:
        directory.save(replace(state, copying=copying))
    dry = remove(lake, attic_days=30, dry_run=True)
    assert len(attic.entries()) == 3
    done = remove(lake, attic_days=30)
    assert done.removed == dry.removed == ["table-old-of-old"]
    assert (done.kept, done.files, done.size_bytes) == (2, 1, 5)
    assert [entry.table for entry in attic.entries()] == ["running", "young"]
    assert rows(lake.path) == [(1, "x")]


def test_of_a_shared_directory_only_what_is_of_this_lake_goes(lake: Lake, tmp_path: Path) -> None:
    lake.append((1, "x"))
    other, kept = Lake(tmp_path / "other"), Attic(tmp_path / "kept")
    other.append((1, "x"))
    for made in (lake, other):
        said = {"table": "t", "mark": made.path.name, "why": "a copy replaces its files"}
        kept.keep(made.path / "t", kind=Kind.BACKUP, **said)
    info = {"node_id": "A", "log_id": "l", "kept_after": 0, "lake_root": str(lake.path)}
    info |= {"log_root": str(tmp_path / "log"), "commit_table_root": str(tmp_path / "tables")}
    site = SiteLog.of(info | {"backup_dir": str(kept.root)})
    before = rows(lake.path)
    (done,) = remove_expired(lake.path, Unwanted(attic_days=1), site, now_us=2**60)
    assert (done.removed, done.kept) == (["backup-t-lake"], 1)
    assert [entry.mark for entry in kept.entries()] == ["other"]
    assert rows(lake.path) == before


@pytest.mark.parametrize(
    ("error", "field"), [(PermissionError(13, "no"), "skipped"), (OSError(5, "bad"), "failed")]
)
def test_an_attic_that_cannot_be_emptied_is_told_and_the_others_are(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, field: str
) -> None:
    """A node that another user runs removes what is its own."""
    lake.append((1, "x"))
    locked, attic, iterdir = tmp_path / "locked", Attic.of_lake(lake.path), Path.iterdir
    (lake.path / "old").mkdir()
    attic.put(lake.path / "old", kind=Kind.TABLE, mark="c", why="replaced")

    def refusing(path: Path) -> Iterator[Path]:
        if path == locked:
            raise error
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    site = SiteLog(node_id="A", log_id="l", kept_after=0, attics=(Attic(locked),))
    (done,) = remove_expired(lake.path, Unwanted(attic_days=1), site, now_us=2**60)
    assert done.removed == ["table-c"] and str(locked) in getattr(done, field)
    assert bool(done.skipped) is not bool(done.failed)
