"""Restores an image into a bucket: row tables into a lake, commit tables below their prefix.

    <lake>/_sparktxlog/restoring.json   a restore is not finished: no worker starts here

Each file is compared with its digests before it is put; from images in the same bucket it is copied
there.  A bucket has no renames, so files get their places one after the other: those of a lake
under its lock and the marker, commits of commit tables after what they name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparktxlog.errors import InvalidRequestError, StorageError
from sparktxlog.files.fetch import Progress
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.store import Created, Found, Store
from sparktxlog.model.ids import check_relative_path, check_table_name
from sparktxlog.model.tables.commit_table import UUID_NAME, commit_file_name
from sparktxlog.storage.commit_tables.table_places import GIVEN
from sparktxlog.worker.backup.image import Image, ImageFile
from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.backup.originals import StoredOriginal, VersionGoneError, digests_of
from sparktxlog.worker.lakes.bucket_lake import OWN
from sparktxlog.worker.lakes.lake_places import bucket_at
from sparktxlog.worker.replica.bucket_replica import LOCK, MARKER, BucketReplica
from sparktxlog.worker.replica.state import RESTORING, ReplicaState
from sparktxlog.worker.tables.places_of_tables import store_of_job

#: Files that are put at the same time.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Put:
    """A file of an image, and where it goes."""

    store: Store
    key: str
    #: A name, or the UUID of a commit table.
    table: str
    file: ImageFile

    def refused(self) -> InvalidRequestError:
        """Return the error that another object has its place, before anything was put."""
        url = self.store.url_of(self.key)
        return InvalidRequestError(
            f"{url} is another object than the image has",
            hint="Nothing is overwritten: restore elsewhere, or move the table's objects away.",
            path=url,
        )

    def lost(self) -> StorageError:
        """Return the error that somebody else was faster to put an object there."""
        url = self.store.url_of(self.key)
        return StorageError(
            f"somebody put another object than the image has to {url} during the restore",
            hint="Nothing was overwritten, and other files of the image may be in place: move "
            "that object away, and restore again.",
            path=url,
        )


def restore_lake(
    store: ImageStore,
    image: Image,
    lake: str,
    state: ReplicaState,
    *,
    force_clean: bool,
    tell: Progress,
) -> None:
    """Write an image into a new lake in a bucket, as `restore_replica` does.

    Args:
        state: Of the new replica.

    Raises:
        InvalidNameError: The image names a file outside of its tables (definite).
        InvalidRequestError: The lake is not empty (definite: it was not touched).
        LockedError: A worker, or another restore, has the lake (definite).
        CorruptLogError: A file of the image is missing or damaged; the marker stays.
        StorageError: As `Store`; the marker stays.
    """
    files = [
        (check_table_name(name), check_relative_path(file.path), file)
        for name, table in sorted(image.tables.items())
        for file in table.files
    ]
    check_room_in_bucket(lake, force_clean=force_clean)
    with (
        tempfile.TemporaryDirectory(prefix="sparktxlog-restore-") as here,
        closing(BucketReplica(lake, Path(here))) as replica,
    ):
        # Again: now no other process can enter.
        left = check_room_in_bucket(lake, force_clean=force_clean)
        own = replica.place.table(OWN)
        own.replace(RESTORING, msgspec.json.encode({"image": image.name}))
        for directory in sorted({key.partition("/")[0] for key in left}):
            below = f"{directory}/"
            keys = [key.removeprefix(below) for key in left if key.startswith(below)]
            replica.place.table(directory).remove(keys)
        wanted = [_Put(replica.place.table(name), path, name, file) for name, path, file in files]
        _put_all(store, image, wanted, _AT_ONCE, tell)
        replica.save(state)
        own.remove([RESTORING])


def check_room_in_bucket(lake: str, *, force_clean: bool) -> list[str]:
    """Refuse a lake in a bucket that is not empty; return the keys that a restore left.

    Args:
        force_clean: What an interrupted restore left would be removed.

    Raises:
        InvalidRequestError: It has an object, or what another restore left (definite).
    """
    store = bucket_at(lake)
    is_left = store.find(MARKER) is not None
    if is_left and not force_clean:
        raise InvalidRequestError(
            f"a restore was broken off in {store.url}",
            hint="Remove what it left with --force-clean.",
            path=store.url,
        )
    ours = (LOCK, MARKER, f"{INCOMING}/")
    found = [one.key for one in store.list() if not one.key.startswith(ours)]
    for key in found:
        if not is_left or "/" not in key:
            raise InvalidRequestError(
                f"{store.url} is not empty: it has {key}",
                hint="Restore into a new prefix; nothing is ever overwritten.",
                path=store.url,
            )
    return found


def restore_below(store: ImageStore, image: Image, root: str) -> tuple[int, int]:
    """Write the commit tables of an image below a URL; the node there takes them up.

    All files of the image are read and compared first.  It may be repeated, and a node may run.

    Returns:
        Files that were written, and files that were there already.

    Args:
        root: `commit-table-url` of the node.

    Raises:
        InvalidNameError, InvalidRequestError: The image names a file outside of its tables, or
            another object has the place of one (definite: nothing was changed).
        CorruptLogError: A file of the image is missing or damaged; nothing was changed, unless it
            became so after all were compared.
        StorageError: As `Store`, or somebody put another object into the place of one meanwhile;
            some files may be there, so repeat it.
    """
    place, data, commits = store_of_job(root), list[_Put](), list[_Put]()
    for uuid, table in sorted(image.commit_tables.items()):
        if not UUID_NAME.fullmatch(uuid):
            raise InvalidRequestError(
                f"{uuid[:80]!r} is no UUID of a commit table", value=uuid[:80]
            )
        names = {commit_file_name(version) for version in range(table.version + 1)}
        for file in sorted(table.files, key=lambda one: one.path):
            put = _Put(place, f"{uuid}/{check_relative_path(file.path)}", uuid, file)
            (commits if file.path in names else data).append(put)
    there = {one.key: one for uuid in image.commit_tables for one in place.list(uuid)}

    def is_there(one: _Put) -> bool:
        found = there.get(one.key)
        if found is None:
            store.checked(image, one.table, one.file)
        elif not _is_same(place, found, one.file, image.chunk_bytes):
            raise one.refused()
        return found is not None

    with ThreadPoolExecutor(_AT_ONCE, "restore") as threads:
        present = list(threads.map(is_there, data + commits))
    for uuid in image.commit_tables:
        place.create(f"{GIVEN}/{uuid}", b"")
    missing = [one for one, is_here in zip(data + commits, present, strict=True) if not is_here]
    later, written = set(commits), 0
    for wanted, at_once in (
        ([one for one in missing if one not in later], _AT_ONCE),
        ([one for one in missing if one in later], 1),  # in the order of versions
    ):
        written += _put_all(store, image, wanted, at_once, lambda done, total: None)
    return written, len(present) - written


def _is_same(place: Store, found: Found, file: ImageFile, chunk_bytes: int) -> bool:
    original = StoredOriginal(place, place, found)
    return found.size_bytes == file.size_bytes and digests_of(original, chunk_bytes) == file.digests


def _put_all(
    store: ImageStore, image: Image, wanted: Sequence[_Put], at_once: int, tell: Progress
) -> int:
    """Put files of an image; return how many were not there.

    With `at_once` 1 they are put in their order, and none after one that failed.

    Raises:
        StorageError: As `Store`, or somebody was faster to put another object.
        CorruptLogError: As `restore_lake`.
    """
    total, done, written = sum(one.file.size_bytes for one in wanted), 0, 0

    def put(one: _Put) -> Created:
        original = store.checked(image, one.table, one.file)
        try:
            made = original.give(one.store, one.key)
            is_other = original.is_other()
        except (FileNotFoundError, VersionGoneError):
            is_other = True
        if is_other:
            raise store.damaged(image, one.table, one.file)
        if made is Created.OTHER:
            raise one.lost()
        return made

    with ThreadPoolExecutor(at_once, "restore") as threads:
        # A thread would go on with the next one before anybody sees that one failed.
        results = map(put, wanted) if at_once == 1 else threads.map(put, wanted)
        for one, made in zip(wanted, results, strict=True):
            done += one.file.size_bytes
            written += made is Created.NEW
            tell(done, total)
    return written
