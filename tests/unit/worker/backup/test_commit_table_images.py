"""Commit tables in images: only new files are stored, nothing is overwritten, files come first."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from tests.support.delta_writer import StagedTable
from tests.support.image_lake import Lake, files_of, publish, stored_files, three_versions

from sparktxlog.errors import (
    CorruptLogError,
    InvalidNameError,
    InvalidRequestError,
    LockedError,
    StorageError,
)
from sparktxlog.files import durability, fetch
from sparktxlog.files.part_writer import write_chunk
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.worker.backup import imaging
from sparktxlog.worker.backup.commit_table_images import (
    KeptCommitTable,
    commit_table_files,
    commit_tables_below,
    restore_commit_tables,
)
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import damaged_files


@pytest.fixture
def site(tmp_path: Path) -> tuple[Lake, StagedTable]:
    """A replica, and a commit table of versions 0 to 2; version 2 removes what version 1 adds."""
    lake = Lake(tmp_path / "lake")
    lake.append((1, "x"))
    return lake, three_versions(tmp_path / "tables")


def below(table: StagedTable) -> list[KeptCommitTable]:
    """Return the tables of the site, without a node."""
    return commit_tables_below(table.directory.parent)


def backed_up(site: tuple[Lake, StagedTable], store: DiskImages, name: str) -> Image:
    """Back the site up."""
    lake, table = site
    return back_up_replica(lake.path, store, name=name, commit_tables=below(table)).image


def test_a_restored_table_is_the_one_that_was_backed_up(
    site: tuple[Lake, StagedTable], tmp_path: Path
) -> None:
    _, table = site
    store = DiskImages(tmp_path / "images")
    image = backed_up(site, store, "one")
    (kept,) = image.commit_tables.values()
    assert (kept.version, len(kept.files)) == (2, 6)
    before = stored_files(store)
    publish(table, 3, table.add(b"three"))
    assert backed_up(site, store, "two").commit_tables[table.table_id].version == 3
    assert len(stored_files(store).keys() - before.keys()) == 2, "a commit and its file"
    root = tmp_path / "restored"
    assert restore_commit_tables(store, store.image("two"), root) == (8, 0)
    assert files_of(root / table.table_id) == files_of(table.directory)
    (root / table.table_id / kept.files[0].path).unlink()
    assert restore_commit_tables(store, store.image("two"), root) == (1, 7)
    foreign = root / table.table_id / kept.files[-1].path
    foreign.write_bytes(b"else")
    (gone := root / table.table_id / kept.files[0].path).unlink()
    with pytest.raises(InvalidRequestError, match="another file than the image has"):
        restore_commit_tables(store, image, root)
    # Nothing is overwritten, and nothing else is written.
    assert foreign.read_bytes() == b"else" and not gone.exists()
    assert list((root / "_sparktxlog" / "copies").glob("*/")) == []


def test_files_that_came_after_a_restore_was_broken_off_are_kept(
    site: tuple[Lake, StagedTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table = site
    store, root = DiskImages(tmp_path / "images"), tmp_path / "restored"
    image = backed_up(site, store, "one")
    monkeypatch.setattr(durability, "sync_parents", Mock(side_effect=OSError("killed")))
    with pytest.raises(StorageError, match="killed"):
        restore_commit_tables(store, image, root)
    monkeypatch.undo()
    # Its node fetches them, while what was staged is still there.
    shutil.copytree(table.directory, root / table.table_id, dirs_exist_ok=True)
    assert restore_commit_tables(store, image, root) == (0, 6)
    assert files_of(root / table.table_id) == files_of(table.directory)


def test_one_restore_stages_at_a_time(
    site: tuple[Lake, StagedTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that another one completed, and so renamed, would begin again with a gap."""
    monkeypatch.setattr(imaging, "CHUNK_BYTES", 64)
    store, root = DiskImages(tmp_path / "images"), tmp_path / "restored"
    image = backed_up(site, store, "one")
    written: list[int] = []

    def overtaken(part: Path, data: memoryview, offset: int) -> None:
        written.append(offset)
        if len(written) == 4:
            monkeypatch.setattr(fetch, "write_chunk", write_chunk)
            with pytest.raises(LockedError):
                restore_commit_tables(store, image, root)
        write_chunk(part, data, offset)

    monkeypatch.setattr(fetch, "write_chunk", overtaken)
    restore_commit_tables(store, image, root)
    assert files_of(root / site[1].table_id) == files_of(site[1].directory)


def test_their_files_are_verified_and_kept(site: tuple[Lake, StagedTable], tmp_path: Path) -> None:
    _, table = site
    store = DiskImages(tmp_path / "images")
    image = backed_up(site, store, "one")
    with store.writing() as writer:
        assert writer.remove(dry_run=True) == (0, 0)
    assert damaged_files(store, image) == []
    file = image.commit_tables[table.table_id].files[-1]
    (store.root / "one" / table.table_id / file.path).write_bytes(b"damaged")
    (damaged,) = damaged_files(store, image)
    assert (damaged["table"], damaged["path"]) == (table.table_id, file.path)
    with pytest.raises(CorruptLogError):
        restore_commit_tables(store, image, tmp_path / "restored")


def test_an_image_of_a_later_format_is_refused(
    site: tuple[Lake, StagedTable], tmp_path: Path
) -> None:
    store = DiskImages(tmp_path / "images")
    back_up_replica(site[0].path, store, name="one")
    with (
        store.writing() as writer,
        pytest.raises(CorruptLogError, match="format 2 is not known here"),
    ):
        writer.add(replace(store.image("one"), name="later", format_version=2))
        store.image("later")


def test_which_tables_and_versions_are_taken(site: tuple[Lake, StagedTable]) -> None:
    _, table = site
    root = table.directory.parent
    (root / "notes").mkdir()
    (root / str(uuid.uuid4()) / "_delta_log").mkdir(parents=True)  # its creation failed
    publish(table, 4)
    (found,) = below(table)
    assert (found.uuid, found.name, found.version) == (table.table_id, "", 2)
    (shown,) = commit_tables_below(root, {table.table_id: ("s.t", 1)})
    assert (shown.name, shown.version) == ("s.t", 1)


def test_commits_that_delta_cleaned_up_are_taken_by_their_second_name(
    site: tuple[Lake, StagedTable], tmp_path: Path
) -> None:
    _, table = site
    before = files_of(table.directory)
    TablePlaces(table.directory.parent).keep_commits(table.table_id, None)
    for version in (0, 1):
        table.published(version).unlink()
    store = DiskImages(tmp_path / "images")
    image = backed_up(site, store, "one")
    assert [kept.version for kept in image.commit_tables.values()] == [2]
    restore_commit_tables(store, image, tmp_path / "restored")
    assert files_of(tmp_path / "restored" / table.table_id) == before
    # Neither is one left out that has no second name of them.
    shutil.rmtree(table.directory.parent / ".commits")
    with pytest.raises(StorageError):
        backed_up(site, store, "two")


def test_a_damaged_table_is_refused(site: tuple[Lake, StagedTable], tmp_path: Path) -> None:
    _, table = site
    (found,) = below(table)
    needed, gone = (
        next(path for path in table.directory.glob("*.parquet") if path.read_bytes() == content)
        for content in (b"two", b"one")
    )
    gone.unlink()
    assert gone.name not in commit_table_files(found, found.files())[0]
    needed.unlink()
    with pytest.raises(StorageError, match=f"'{needed.name}' is missing"):
        commit_table_files(found, found.files())
    needed.write_bytes(b"two")
    table.published(1).write_bytes(b"{}")
    with pytest.raises(StorageError, match="version 1 cannot be read"):
        commit_table_files(found, found.files())
    needed.write_bytes(b"longer")
    publish(table, 1)
    with pytest.raises(CorruptLogError, match="has 6 bytes"):
        backed_up(site, DiskImages(tmp_path / "images"), "one")


def test_an_image_of_a_stranger_writes_nowhere_else(
    site: tuple[Lake, StagedTable], tmp_path: Path
) -> None:
    store = DiskImages(tmp_path / "images")
    image = backed_up(site, store, "one")
    (table,) = image.commit_tables.values()
    outside = replace(table, files=(replace(table.files[0], path="../../x"),))
    for tables in ({"../x": table}, {str(uuid.uuid4()): outside}):
        with pytest.raises((InvalidRequestError, InvalidNameError)):
            restore_commit_tables(store, replace(image, commit_tables=tables), tmp_path / "r" / "s")
    assert not (tmp_path / "r" / "x").exists()
    assert msgspec.json.decode(msgspec.json.encode(image), type=Image) == image


def test_a_file_that_upkeep_removes_during_a_backup_is_left_out(
    site: tuple[Lake, StagedTable], tmp_path: Path
) -> None:
    lake, table = site
    store = DiskImages(tmp_path / "images")
    named = [
        file.path for file in backed_up(site, store, "before").commit_tables.popitem()[1].files
    ]
    (gone,) = [path for path in named if (table.directory / path).read_bytes() == b"one"]
    (last,) = [path for path in named if (table.directory / path).read_bytes() == b"two"]

    def backed_up_without(path: str) -> Image:
        """Remove a file when the first one is stored, after all were listed."""
        return back_up_replica(
            lake.path,
            DiskImages(tmp_path / path),
            name="one",
            commit_tables=below(table),
            tell=lambda *_: (table.directory / path).unlink(missing_ok=True),
        ).image

    (kept,) = backed_up_without(gone).commit_tables.values()
    assert [file.path for file in kept.files] == [path for path in named if path != gone]
    with pytest.raises(StorageError, match=last):
        backed_up_without(last)
