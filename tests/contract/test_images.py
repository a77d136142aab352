"""What a place of backup images promises: a directory, and a prefix of a bucket."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support import store_servers
from tests.support.command_line import invoke
from tests.support.delta_writer import StagedTable
from tests.support.faulty_way import Fault, by_chance, faulty_way
from tests.support.image_lake import Lake, files_of, rows, three_versions
from tests.support.store_servers import BUCKET, StoreServer

from sparktxlog.errors import (
    ConfigError,
    CorruptLogError,
    InvalidRequestError,
    LockedError,
    LyingStoreError,
    NotFoundError,
    StorageError,
    StoreForbiddenError,
)
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.store import Created
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.worker.backup.bucket_images import BucketImages
from sparktxlog.worker.backup.commit_table_images import commit_tables_below, restore_commit_tables
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.image_places import images_at
from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.originals import DiskOriginal, StoredOriginal
from sparktxlog.worker.backup.removal import SiteLog, Unwanted, remove_expired
from sparktxlog.worker.backup.restoring import choose_image, damaged_files, restore_replica
from sparktxlog.worker.lakes.lake_places import bucket_at
from sparktxlog.worker.replica.bucket_replica import BucketReplica
from sparktxlog.worker.replica.state import read_state


def _reach(server: StoreServer, monkeypatch: pytest.MonkeyPatch, endpoint: str = "") -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)


@pytest.fixture
def url(seaweedfs: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own, which the environment reaches."""
    _reach(seaweedfs, monkeypatch)
    return f"s3://{BUCKET}/images/{os.urandom(8).hex()}"


@pytest.fixture
def bucket(url: str) -> BucketImages:
    return BucketImages(url)


@pytest.fixture(params=["disk", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "images")
    found: str = request.getfixturevalue("url")
    return found


@pytest.fixture
def images(place: str) -> ImageStore:
    return images_at(place)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.append((1, "a b/%=é"), (2, "x"))
    made.append((3, "x"))
    return made


def _named(image: Image, ending: str) -> str:
    return next(file.path for _, file in image.all_files if file.path.endswith(ending))


def _key(images: ImageStore, image: Image, path: str) -> str:
    return images.donor(image).keys["t", path]


def _apart(lake: Lake, tmp_path: Path) -> Image:
    """Return an image of a lake in a place of its own."""
    return back_up_replica(lake.path, DiskImages(tmp_path / "others"), name="apart").image


def _contents(images: BucketImages) -> set[str]:
    return {found.key for found in images.store.list("contents")}


# -- either place ----------------------------------------------------------------------------------


def test_a_restored_image_is_the_replica_at_its_position(
    lake: Lake, images: ImageStore, tmp_path: Path
) -> None:
    before, wanted = read_state(lake.path), rows(lake.path)
    done = back_up_replica(lake.path, images, name="one", site="A")
    assert done.new_files == done.image.files == 5
    lake.append((4, "x"))
    assert images.image("one") == done.image and images.names() == ["one"]
    assert damaged_files(images, done.image) == []
    state = restore_replica(images, images.image("one"), tmp_path / "new")
    assert rows(tmp_path / "new") == wanted and read_state(tmp_path / "new") == state
    assert before is not None and state.tables == before.tables
    with pytest.raises(NotFoundError, match="Images: one"):
        images.image("two")


def test_a_second_backup_stores_only_what_is_new(lake: Lake, images: ImageStore) -> None:
    back_up_replica(lake.path, images, name="one")
    again = back_up_replica(lake.path, images, name="two")
    assert (again.new_files, again.added_bytes) == (0, 0)
    lake.append((4, "x"))
    # One data file and one commit.
    assert back_up_replica(lake.path, images, name="three").new_files == 2
    assert [image.name for image in images.images()] == ["one", "two", "three"]
    assert all(damaged_files(images, image) == [] for image in images.images())


def test_an_image_is_never_overwritten_and_one_backup_writes_at_a_time(
    lake: Lake, images: ImageStore, place: str
) -> None:
    done = back_up_replica(lake.path, images, name="one")
    with pytest.raises(InvalidRequestError, match="already"):
        back_up_replica(lake.path, images, name="one")
    with images.writing() as writer:
        with pytest.raises(LockedError):
            back_up_replica(lake.path, images_at(place), name="two")
        with pytest.raises(InvalidRequestError, match="already"):
            writer.add(done.image)
    assert images.names() == ["one"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_and_not_restored(
    lake: Lake, images: ImageStore, tmp_path: Path, damage: str
) -> None:
    image = back_up_replica(lake.path, images, name="one").image
    victim = _named(image, ".parquet")
    key = _key(images, image, victim)
    content = images.store.read(key)
    if damage == "remove":
        images.store.remove([key])
    else:
        flipped = content[:40] + bytes([content[40] ^ 1]) + content[41:]
        images.store.replace(key, flipped if damage == "flip" else content[:-10])
    (found,) = damaged_files(images, image)
    assert found == {"table": "t", "path": victim, "stored": images.store.url_of(key)}
    with pytest.raises(CorruptLogError, match=re.escape(images.store.url_of(key))):
        restore_replica(images, image, tmp_path / "new")
    # The site is still there.
    done = back_up_replica(lake.path, images, name="two")
    assert (done.new_files, done.mended_files) == (1, 1)
    assert damaged_files(images, done.image) == damaged_files(images, image) == []
    assert back_up_replica(lake.path, images, name="three").new_files == 0


def test_a_site_without_the_bytes_of_before_mends_nothing(lake: Lake, images: ImageStore) -> None:
    image = back_up_replica(lake.path, images, name="one").image
    victim = _named(image, ".parquet")
    for store, key in ((images.store, _key(images, image, victim)), (None, "")):
        path = lake.path / "t" / victim
        content, times = path.read_bytes(), path.stat()
        if store is None:
            path.write_bytes(content[:-1] + b"?")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        else:
            store.replace(key, content[:-1] + b"!")
    with pytest.raises(CorruptLogError, match=r"has other bytes than in image 'one'"):
        back_up_replica(lake.path, images, name="two")
    assert images.names() == ["one"]


def test_what_was_written_again_with_the_same_bytes_is_no_damage(
    lake: Lake, images: ImageStore
) -> None:
    image = back_up_replica(lake.path, images, name="one").image
    key = _key(images, image, _named(image, ".parquet"))
    images.store.replace(key, images.store.read(key))
    done = back_up_replica(lake.path, images, name="two")
    assert (done.new_files, done.mended_files) == (0, 0)


def test_what_the_log_has_outlived_goes_and_the_rest_is_restorable(
    lake: Lake, images: ImageStore, place: str, tmp_path: Path
) -> None:
    for number in range(3, 6):
        back_up_replica(lake.path, images, name=f"at{number}", site="A")
        lake.append((number, "y"))
    before = len(list(images.store.list()))
    site = SiteLog(node_id="A", log_id="l", kept_after=99)
    wanted = Unwanted(images=place, keep_images=1)
    dry = Unwanted(images=place, keep_images=1, dry_run=True)
    (planned,) = remove_expired(lake.path, dry, site, now_us=1)
    assert len(list(images.store.list())) == before
    (done,) = remove_expired(lake.path, wanted, site, now_us=1)
    assert (done.removed, done.kept, done.failed) == (["at3", "at4"], 1, "")
    assert (planned.files, planned.size_bytes) == (done.files, done.size_bytes) and done.files == 2
    image = choose_image(images, None, None)
    restore_replica(images, image, tmp_path / "new")
    assert images.names() == ["at5"] and len(rows(tmp_path / "new")) == 5
    # What a backup that was broken off left, goes by the next removal.
    image_file = _key(images, image, _named(image, ".parquet"))
    with images.writing() as writer, pytest.raises(NotFoundError):
        writer.remove(["at5", "never"])
    assert images.store.find(image_file) is not None


def test_a_damaged_manifest_keeps_everything(lake: Lake, images: ImageStore, place: str) -> None:
    for name in ("one", "two"):
        back_up_replica(lake.path, images, name=name, site="A")
    images.store.replace(images.manifest_key("two"), b"{}")
    before = {found.key for found in images.store.list()}
    site = SiteLog(node_id="A", log_id="l", kept_after=99)
    (done,) = remove_expired(lake.path, Unwanted(images=place), site, now_us=1)
    assert "is damaged" in done.failed and done.removed == []
    assert before == {found.key for found in images.store.list()}
    # The next backup uses the one before.
    assert back_up_replica(lake.path, images, name="three").new_files == 0


def test_the_commands_take_either(
    lake: Lake,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*arguments: object, code: int = 0) -> dict[str, object]:
        assert invoke(monkeypatch, *map(str, arguments), "--json") == code
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    made = said("backup", place, "--lake", lake.path, "--name", "one")
    assert made["new_files"] == made["files"] == 5
    assert said("backup", "verify", place)["damaged"] == []
    new = tmp_path / "new"
    assert said("restore", place, "--lake", new, "--no-verify")["digests"] == "equal"
    assert rows(new) == rows(lake.path)


# -- buckets ---------------------------------------------------------------------------------------


def test_a_bucket_has_each_content_once(lake: Lake, bucket: BucketImages, tmp_path: Path) -> None:
    image = back_up_replica(lake.path, bucket, name="one", site="A").image
    before = _contents(bucket)
    assert len(before) == image.files
    # Another replica of the same files: other times, the same contents.
    restore_replica(bucket, image, tmp_path / "new")
    other = back_up_replica(tmp_path / "new", bucket, name="two", site="B")
    assert (other.new_files, _contents(bucket)) == (0, before)
    # What no image of that replica vouches for is compared, and mended.
    key = _key(bucket, image, _named(image, ".parquet"))
    content = bucket.store.read(key)
    bucket.store.replace(key, content[:-1] + b"?")
    restore_replica(DiskImages(tmp_path / "others"), _apart(lake, tmp_path), tmp_path / "third")
    third = back_up_replica(tmp_path / "third", bucket, name="three", site="C")
    assert (third.new_files, third.mended_files) == (1, 1)
    assert bucket.store.read(key) == content and _contents(bucket) == before


def test_a_backup_that_was_killed_goes_on_after_what_it_sent(
    lake: Lake, bucket: BucketImages
) -> None:
    for number in range(10, 20):
        lake.append((number, "x"))
    script = f"""
import os, signal
from sparktxlog.worker.backup.image_places import images_at
from sparktxlog.worker.backup.imaging import back_up_replica
files = []
def tell(done, total):
    files.append(done)
    if len(files) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
back_up_replica({str(lake.path)!r}, images_at({bucket.url!r}), name="one", tell=tell)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    sent = len(_contents(bucket))
    assert bucket.names() == [] and sent >= 9
    with pytest.raises(LockedError, match=r"One backup or removal writes .* lock ends in \d+ s"):
        back_up_replica(lake.path, bucket, name="one")
    bucket.store.remove(["lock"])  # as if that time were over
    done = back_up_replica(lake.path, bucket, name="one")
    # What was on its way when it was killed may have arrived after it was counted.
    assert done.new_files <= done.image.files - sent and damaged_files(bucket, done.image) == []


def test_contents_of_no_image_go(lake: Lake, bucket: BucketImages) -> None:
    back_up_replica(lake.path, bucket, name="one")
    before = _contents(bucket)
    bucket.store.create(f"contents/{'0' * 64}-27", b"of a backup that was killed")
    with bucket.writing() as writer:
        assert writer.remove(dry_run=True) == writer.remove() == (1, 27)
    assert _contents(bucket) == before


def test_objects_of_others_among_the_contents_stay(lake: Lake, bucket: BucketImages) -> None:
    image = back_up_replica(lake.path, bucket, name="one").image
    other = "contents/orders/part-0.parquet"
    bucket.store.create(other, b"of a table")
    with bucket.writing() as writer:
        assert writer.remove(["one"])[0] == image.files + 1
    assert _contents(bucket) == {other}


def test_a_writer_that_lost_its_lock_removes_nothing(lake: Lake, bucket: BucketImages) -> None:
    back_up_replica(lake.path, bucket, name="one")
    before = _contents(bucket)
    lost = LockedError("taken over")
    with bucket.writing() as writer:
        writer.contents.may_write.__self__._lost = str(lost)  # type: ignore[attr-defined]
        with pytest.raises(LockedError):
            writer.remove(["one"])
    assert _contents(bucket) == before and bucket.names() == ["one"]


def test_lost_answers_and_cut_bodies_make_no_other_image(
    lake: Lake,
    url: str,
    seaweedfs: StoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(10, 20):
        lake.append((number, "x"))
    with faulty_way(seaweedfs.endpoint, by_chance(0.2, 7)) as way:
        _reach(seaweedfs, monkeypatch, way.url)
        images = images_at(url)
        done = back_up_replica(lake.path, images, name="one")
        assert done.new_files == done.image.files == 25
        with pytest.raises(InvalidRequestError, match="already"):
            back_up_replica(lake.path, images, name="one")
        restore_replica(images, images.image("one"), tmp_path / "new")
        assert way.happened[Fault.LOST] and way.happened[Fault.CUT]
    assert rows(tmp_path / "new") == rows(lake.path)
    _reach(seaweedfs, monkeypatch)
    direct = BucketImages(url)
    assert damaged_files(direct, direct.image("one")) == [] and len(_contents(direct)) == 25


def test_a_bucket_that_refuses_is_no_damage(
    lake: Lake, bucket: BucketImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = back_up_replica(lake.path, bucket, name="one").image
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another one")
    with pytest.raises(StoreForbiddenError):
        damaged_files(BucketImages(bucket.url), image)


def test_a_bucket_that_lies_is_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_servers.rclone(tmp_path / "state") as server:
        _reach(server, monkeypatch)
        with pytest.raises(LyingStoreError):
            back_up_replica(lake.path, images_at(f"s3://{BUCKET}/images"), name="one")


def test_places_that_are_none_are_refused(
    bucket: BucketImages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="directory of images is 'ftp://a/b'"):
        images_at("ftp://a/b")
    assert invoke(monkeypatch, "backup", "verify", bucket.url, "--recount") != 0
    assert "not offered for images in a bucket" in capsys.readouterr().err


@pytest.mark.parametrize("act", ["remove", "change"])
def test_a_file_that_goes_while_it_is_sent_is_in_no_image(
    lake: Lake, bucket: BucketImages, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    chunks = DiskOriginal.chunks

    def and_then(original: DiskOriginal, buffer: memoryview) -> Iterator[memoryview]:
        yield from chunks(original, buffer)
        if original.file.suffix == ".parquet" and act == "remove":
            original.file.unlink()
        elif original.file.suffix == ".parquet":
            original.file.write_bytes(b"x" * original.size_bytes)

    monkeypatch.setattr(DiskOriginal, "chunks", and_then)
    with pytest.raises(StorageError, match="cannot be backed up"):
        back_up_replica(lake.path, bucket, name="one")
    assert bucket.names() == [] and not bucket.store.find("images/one.json")


# -- tables in a bucket ----------------------------------------------------------------------------


def _sent(lake: Lake, url: str) -> str:
    """Put a replica into a bucket, as a worker would leave it; return the URL of its lake."""
    store = bucket_at(url)
    for path in lake.path.rglob("*"):
        key = path.relative_to(lake.path).as_posix()
        if key.endswith("state.json"):
            store.replace(key, path.read_bytes())
        elif path.is_file() and not key.endswith("lock"):
            store.create(key, path)
    return store.url


@pytest.fixture
def rows_in_bucket(lake: Lake, url: str) -> str:
    return _sent(lake, f"{url}/rows")


def test_row_tables_in_a_bucket_are_backed_up(
    lake: Lake, rows_in_bucket: str, images: ImageStore, tmp_path: Path
) -> None:
    done = back_up_replica(rows_in_bucket, images, name="one", site="A")
    assert done.new_files == done.image.files == 5 and damaged_files(images, done.image) == []
    assert back_up_replica(rows_in_bucket, images, name="two").new_files == 0
    state = restore_replica(images, done.image, tmp_path / "new")
    before = read_state(lake.path)
    assert before is not None and state.tables == before.tables
    assert rows(tmp_path / "new") == rows(lake.path)
    lake.append((9, "new"))
    _sent(lake, rows_in_bucket)
    assert back_up_replica(rows_in_bucket, images, name="three").new_files == 2


def test_within_a_bucket_files_are_copied_and_not_sent(
    lake: Lake, rows_in_bucket: str, bucket: BucketImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(store: BucketStore, key: str, content: bytes | Path, **said: Any) -> Created:
        assert isinstance(content, bytes), f"{key} is sent"
        return create(store, key, content, **said)

    create = BucketStore.create
    monkeypatch.setattr(BucketStore, "create", put)
    done = back_up_replica(rows_in_bucket, bucket, name="one")
    assert done.new_files == 5 and damaged_files(bucket, done.image) == []
    # One that was cut there is mended by a copy, too.
    key = _key(bucket, done.image, _named(done.image, ".parquet"))
    bucket.store.replace(key, b"cut")
    again = back_up_replica(rows_in_bucket, bucket, name="two")
    assert (again.new_files, damaged_files(bucket, done.image)) == (1, [])


@pytest.mark.parametrize("place", ["seaweedfs"], indirect=True)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_object_that_is_replaced_meanwhile_is_in_no_image(
    rows_in_bucket: str, images: ImageStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store, chunks = bucket_at(rows_in_bucket), StoredOriginal.chunks

    def meanwhile(original: StoredOriginal, buffer: memoryview) -> Iterator[memoryview]:
        key = original.found_as.key
        if moment == "before":
            store.replace(key, b"other")
        yield from chunks(original, buffer)
        if moment == "after":
            store.replace(key, b"other")

    monkeypatch.setattr(StoredOriginal, "chunks", meanwhile)
    with pytest.raises(StorageError, match=r"replaced meanwhile|changed while it was read"):
        back_up_replica(rows_in_bucket, images, name="one")
    assert images.names() == []


def test_an_object_that_is_missing_is_in_no_image(rows_in_bucket: str, images: ImageStore) -> None:
    store = bucket_at(rows_in_bucket)
    (victim, *_) = (one.key for one in store.list("t") if one.key.endswith(".parquet"))
    store.replace(victim, b"x" * 7)
    with pytest.raises(CorruptLogError, match="has 7 bytes"):
        back_up_replica(rows_in_bucket, images, name="one")
    store.remove([victim])
    with pytest.raises(StorageError, match="cannot be backed up"):
        back_up_replica(rows_in_bucket, images, name="one")
    assert images.names() == []


def test_a_drop_in_a_bucket_meanwhile_makes_it_fail(
    lake: Lake, rows_in_bucket: str, images: ImageStore
) -> None:
    store = bucket_at(rows_in_bucket)

    def drop(done: int, total: int) -> None:
        store.replace("_sparktxlog/attic/dropped-t-9/manifest.json", b"{}")

    with pytest.raises(StorageError, match="was dropped meanwhile"):
        back_up_replica(rows_in_bucket, images, name="one", tell=drop)


@pytest.fixture
def commit_table(tmp_path: Path) -> StagedTable:
    """A commit table of versions 0 to 2; version 2 removes what version 1 adds."""
    return three_versions(tmp_path / "tables")


def test_commit_tables_in_a_bucket_are_backed_up_and_restored_to_a_directory(
    lake: Lake, commit_table: StagedTable, url: str, images: ImageStore, tmp_path: Path
) -> None:
    place, uuid = bucket_at(f"{url}/tables"), commit_table.table_id
    root = commit_table.directory.parent
    for path in (path for path in root.rglob("*") if path.is_file()):
        place.replace(path.relative_to(root).as_posix(), path)
    place.create(f".given/{uuid}", b"")
    # Delta cleaned up its log; the node kept a second copy.
    first = f"{uuid}/{commit_file_name(0)}"
    place.copy(first, f".commits/{uuid}/{first.rpartition('/')[2]}")
    place.remove([first])
    tables = commit_tables_below(place.url)
    assert [(one.uuid, one.version) for one in tables] == [(uuid, 2)]
    shown = {uuid: ("s.t", 1)}
    assert [one.version for one in commit_tables_below(place.url, shown)] == [1]
    image = back_up_replica(lake.path, images, name="one", commit_tables=tables).image
    assert damaged_files(images, image) == []
    assert restore_commit_tables(images, image, tmp_path / "back") == (6, 0)
    assert files_of(tmp_path / "back" / uuid) == files_of(commit_table.directory)
    # Versions that only a copy has must be there.
    place.remove([f".commits/{uuid}/{first.rpartition('/')[2]}"])
    with pytest.raises(StorageError):
        back_up_replica(lake.path, images, name="two", commit_tables=tables)


def test_a_site_in_buckets_is_found_in_its_configuration(
    lake: Lake,
    rows_in_bucket: str,
    commit_table: StagedTable,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables = bucket_at(f"{url}/tables")
    for path in (path for path in commit_table.directory.rglob("*") if path.is_file()):
        tables.replace(path.relative_to(commit_table.directory.parent).as_posix(), path)
    tables.create(f".given/{commit_table.table_id}", b"")
    config = tmp_path / "a.toml"
    config.write_text(
        f'node-id = "A"\nmaster-url = "http://127.0.0.1:7070"\ndata-dir = "{tmp_path / "data"}"\n'
        f'lake-url = "{rows_in_bucket}"\ncommit-table-url = "{tables.url}"\n'
        f'payload-url = "{url}/staged"\n'
    )
    given = ("--config", str(config), "--json")
    assert invoke(monkeypatch, "backup", f"{url}/images", *given) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["site"], made["files"]) == ("A", 5 + 6)
    assert list(made["commit_tables"]) == [commit_table.table_id]
    for taken in (tables.url, f"{url}/staged"):
        assert invoke(monkeypatch, "backup", f"{taken}/images", *given) == 2
        assert "where files of the site lie" in capsys.readouterr().out
    alone = ("--lake", rows_in_bucket, "--url", "http://127.0.0.1:9", "--json")
    assert invoke(monkeypatch, "backup", f"{url}/images", "--name", "rows", *alone) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["new_files"] == 0 and "commit tables are left out" in said.err


# -- back into a bucket ----------------------------------------------------------------------------


def _lake_in(url: str, to: Path) -> Path:
    """Bring the objects of a lake here, to be read; return the directory."""
    for one in bucket_at(url).list():
        path = to / one.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket_at(url).read(one.key))
    return to


def test_an_image_is_restored_into_a_lake_in_a_bucket(
    lake: Lake, images: ImageStore, url: str, tmp_path: Path
) -> None:
    image = back_up_replica(lake.path, images, name="one").image
    target, before = f"{url}/restored", read_state(lake.path)
    told: list[tuple[int, int]] = []
    state = restore_replica(images, image, target, tell=lambda *said: told.append(said))
    assert told[-1] == (image.size_bytes, image.size_bytes)
    assert read_state(target) == state and before is not None
    assert (state.position, state.tables) == (before.position, before.tables)
    assert rows(_lake_in(target, tmp_path / "seen")) == rows(lake.path)
    # A worker takes it up, and nobody restores into it.
    with closing(BucketReplica(target, tmp_path / "here")) as replica:
        assert replica.load() == state
        with pytest.raises(InvalidRequestError, match="not empty"):
            restore_replica(images, image, target)
    for force in (False, True):
        with pytest.raises(InvalidRequestError, match="not empty"):
            restore_replica(images, image, target, force_clean=force)
    assert bucket_at(target).find("_sparktxlog/restoring.json") is None


def test_a_restore_into_a_bucket_that_broke_off_is_repeated_by_force(
    lake: Lake, images: ImageStore, url: str, tmp_path: Path
) -> None:
    image, target = back_up_replica(lake.path, images, name="one").image, f"{url}/restored"
    key = _key(images, image, _named(image, ".parquet"))
    content = images.store.read(key)
    images.store.replace(key, content[:-1] + b"?")
    with pytest.raises(CorruptLogError, match=re.escape(images.store.url_of(key))):
        restore_replica(images, image, target)
    with (
        closing(BucketReplica(target, tmp_path / "here")) as replica,
        pytest.raises(CorruptLogError, match="broken off"),
    ):
        replica.load()
    images.store.replace(key, content)
    with pytest.raises(InvalidRequestError, match="--force-clean"):
        restore_replica(images, image, target)
    bucket_at(target).create("t/half.parquet", b"half")
    restore_replica(images, image, target, force_clean=True)
    assert bucket_at(target).find("t/half.parquet") is None
    assert rows(_lake_in(target, tmp_path / "seen")) == rows(lake.path)


def test_a_lake_that_a_worker_has_is_not_restored_into(
    lake: Lake, images: ImageStore, url: str, tmp_path: Path
) -> None:
    image, target = back_up_replica(lake.path, images, name="one").image, f"{url}/restored"
    with (
        closing(BucketReplica(target, tmp_path / "here")),
        pytest.raises(LockedError, match="owned by another worker"),
    ):
        restore_replica(images, image, target)
    assert [one.key for one in bucket_at(target).list()] == ["_sparktxlog/lock"]


def test_a_restore_within_a_bucket_sends_no_file_and_loses_no_answer(
    lake: Lake,
    url: str,
    seaweedfs: StoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = BucketStore.create

    def put(store: BucketStore, key: str, content: bytes | Path, **said: Any) -> Created:
        assert isinstance(content, bytes), f"{key} is sent"
        return create(store, key, content, **said)

    with faulty_way(seaweedfs.endpoint, by_chance(0.15, 3)) as way:
        _reach(seaweedfs, monkeypatch, way.url)
        images = images_at(f"{url}/images")
        image = back_up_replica(lake.path, images, name="one").image
        monkeypatch.setattr(BucketStore, "create", put)
        restore_replica(images, image, f"{url}/restored")
        assert way.happened[Fault.LOST]
    _reach(seaweedfs, monkeypatch)
    assert rows(_lake_in(f"{url}/restored", tmp_path / "seen")) == rows(lake.path)


def test_commit_tables_are_restored_into_a_bucket_and_nothing_is_overwritten(
    lake: Lake, commit_table: StagedTable, images: ImageStore, url: str, tmp_path: Path
) -> None:
    uuid, target = commit_table.table_id, f"{url}/tables"
    tables = commit_tables_below(commit_table.directory.parent)
    image = back_up_replica(lake.path, images, name="one", commit_tables=tables).image
    assert restore_commit_tables(images, image, target) == (6, 0)
    place = bucket_at(target)
    assert [(one.uuid, one.version) for one in commit_tables_below(target)] == [(uuid, 2)]
    seen = _lake_in(f"{target}/{uuid}", tmp_path / "seen")
    assert files_of(seen) == files_of(commit_table.directory)
    first, last = (f"{uuid}/{image.commit_tables[uuid].files[at].path}" for at in (0, -1))
    place.remove([first])
    assert restore_commit_tables(images, image, target) == (1, 5)
    place.remove([first])
    place.replace(last, b"else")
    with pytest.raises(InvalidRequestError, match="another object than the image has"):
        restore_commit_tables(images, image, target)
    assert place.read(last) == b"else" and place.find(first) is None


def test_no_commit_is_restored_after_one_that_is_not_there(
    lake: Lake, commit_table: StagedTable, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process puts version 1, or the bucket refuses it, while a restore goes on."""
    uuid, images = commit_table.table_id, images_at(str(tmp_path / "images"))
    tables = commit_tables_below(commit_table.directory.parent)
    image = back_up_replica(lake.path, images, name="one", commit_tables=tables).image
    first, second, third = (f"{uuid}/{commit_file_name(version)}" for version in range(3))
    create = BucketStore.create
    for taken in (True, False):
        place = bucket_at(f"{url}/{taken}")

        def put(
            store: BucketStore, key: str, content: Any, *, taken: bool = taken, **said: Any
        ) -> Created:
            if key == second and taken:
                create(store, key, b"of another process")
            elif key == second:
                raise StorageError("refused")
            return create(store, key, content, **said)

        monkeypatch.setattr(BucketStore, "create", put)
        with pytest.raises(StorageError) as caught:
            restore_commit_tables(images, image, place.url)
        # Some files are in place already.
        assert not caught.value.definite
        assert ("somebody put another object" in caught.value.message) == taken
        assert place.find(first) is not None and place.find(third) is None


def test_a_damaged_image_of_commit_tables_changes_nothing_in_a_bucket(
    lake: Lake, commit_table: StagedTable, images: ImageStore, url: str
) -> None:
    tables = commit_tables_below(commit_table.directory.parent)
    image = back_up_replica(lake.path, images, name="one", commit_tables=tables).image
    (file, *_) = image.commit_tables[commit_table.table_id].files
    images.store.remove([images.file_key("one", commit_table.table_id, file)])
    with pytest.raises(CorruptLogError, match="is damaged"):
        restore_commit_tables(images, image, f"{url}/tables")
    assert list(bucket_at(f"{url}/tables").list()) == []


def test_the_command_restores_a_site_into_its_bucket(
    lake: Lake,
    place: str,
    commit_table: StagedTable,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables = commit_tables_below(commit_table.directory.parent)
    image = back_up_replica(lake.path, images_at(place), name="one", commit_tables=tables).image
    given = ("restore", place, "--lake", f"{url}/rows", "--commit-tables", f"{url}/tables")
    assert invoke(monkeypatch, *given, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["free_bytes"], plan["size_bytes"]) == (None, image.size_bytes)
    assert list(bucket_at(f"{url}/rows").list()) == []
    bucket_at(f"{url}/rows").create("t/of-another-worker", b"")
    assert invoke(monkeypatch, *given, "--no-verify", "--json") == 2
    assert "is not empty" in capsys.readouterr().out
    assert list(bucket_at(f"{url}/tables").list()) == []
    bucket_at(f"{url}/rows").remove(["t/of-another-worker"])
    assert invoke(monkeypatch, *given, "--no-verify", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["lake"], done["restored_commit_tables"]) == (f"{url}/rows", 1)
    assert read_state(f"{url}/rows") is not None
