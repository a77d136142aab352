"""Restores a replica from an image; the log after the image then brings it to any position.

It is a copy from a donor that is a store: staged in a workspace below the lake, each chunk compared
with its digest, then swapped in by a rename of each table.

A restored replica is a new worker: it reports the image's position and chain hash, its node finds
both in its queue (IN_SYNC), and the worker replays the rest.  While files are written, the lake
contains the marker `_sparktxlog/restoring.json`: no worker starts there (`state.py` refuses it),
and only `force_clean` removes the files.  Only a recount by Spark shows whether the rows match
their signatures.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import time_ns

import msgspec

from sparktxlog.delta.log_files import is_in_log
from sparktxlog.errors import CorruptLogError, InvalidRequestError, NotFoundError, StorageError
from sparktxlog.files.durability import move_durably, sync_directory, write_durably
from sparktxlog.files.fetch import Progress
from sparktxlog.files.part_writer import chunk_buffer
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import CopyWorkspace, remove_workspaces
from sparktxlog.model.ids import check_relative_path, check_table_name
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.lakes.lake_places import is_in_bucket
from sparktxlog.worker.replica.state import (
    RESTORING,
    STATE_DIRECTORY,
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
)
from sparktxlog.worker.verify.lake_lock import LOCK_NAMES

_LOCKS = ("lock", "lock.driver", *LOCK_NAMES)


def choose_image(store: ImageStore, name: str | None, at_most: int | None) -> Image:
    """Return the image of a name, or the newest one up to a position.

    Args:
        name: None = the newest position that `at_most` allows, of a replica with all tables if
            there is one.
        at_most: Highest position wanted, None = any.

    Raises:
        NotFoundError: There is none (definite).
        InvalidRequestError: The named one is after `at_most`: a replica cannot go back (definite).
    """
    if name is not None:
        image = store.image(name)
        if at_most is not None and image.position > at_most:
            raise InvalidRequestError(
                f"image {name!r} stands at position {image.position}, beyond {at_most}",
                hint="Name an older image, or none: the default is the nearest one.",
                position=image.position,
            )
        return image
    found = [i for i in store.images() if at_most is None or i.position <= at_most]
    if not found:
        limit = "" if at_most is None else f" at or before position {at_most}"
        raise NotFoundError(
            f"there is no image{limit} in {store.url}",
            hint="`sparktxlog backup list` shows what is there.",
        )
    return max(found, key=lambda image: (not image.only, image.position, image.created_at))


def restore_replica(
    store: ImageStore,
    image: Image,
    lake: str | Path,
    *,
    force_clean: bool = False,
    tell: Progress = lambda done, total: None,
) -> ReplicaState:
    """Write an image into a new lake; return the new replica's state.

    Args:
        force_clean: Remove what an interrupted restore left.
        tell: Called with present and total bytes, twice a second and at the end.

    Raises:
        InvalidNameError: The image names a file outside of its tables (definite).
        InvalidRequestError: The lake is not empty (definite: it was not touched).
        CorruptLogError: A file of the image is missing or damaged; the marker stays.
        DiskFullError, StorageError: A file could not be written; the marker stays.
    """
    if is_in_bucket(lake):
        from sparktxlog.worker.backup.bucket_restoring import restore_lake

        state = _state_of(image)
        restore_lake(store, image, str(lake), state, force_clean=force_clean, tell=tell)
        return state
    lake, tasks = Path(lake).absolute(), _tasks(image)
    try:
        check_room(lake, force_clean=force_clean)
        with closing(ReplicaDirectory(lake)) as directory:
            # Again: now no other process can enter.
            check_room(lake, force_clean=force_clean)
            marker = directory.own / RESTORING
            write_durably(marker, msgspec.json.encode({"image": image.name}))
            for parent in (lake, lake.parent):
                sync_directory(parent)
            _clean(directory)
            workspace = CopyWorkspace(lake, image.name)
            store.fetch(image, workspace, tasks, tell)
            for name in image.tables:
                move_durably(workspace.table_dir(name), lake / name)
            remove_workspaces(lake)
            state = _state_of(image)
            directory.save(state)
            marker.unlink()
            sync_directory(directory.own)
    except OSError as error:
        raise StorageError(
            f"restoring {image.name!r} to {lake} failed: {error}",
            hint="Make room or choose another lake, then repeat it with --force-clean.",
            path=str(error.filename or lake),
        ) from error
    return state


def damaged_files(
    store: ImageStore, image: Image, *, tell: Progress = lambda done, total: None
) -> list[dict[str, str]]:
    """Read all files of an image; return table, path and place of the damaged ones.

    Raises:
        StorageError: They cannot be read: a bucket does not answer, or refuses it.
    """
    damaged, done, total = list[dict[str, str]](), 0, image.size_bytes
    donor, buffer = store.donor(image), chunk_buffer(image.chunk_bytes)
    sizes = store.sizes(image)
    for name, file in image.all_files:
        key, size = donor.keys[name, file.path], file.size_bytes
        try:
            found = sizes.get(key) == size
            for offset in range(0, size if found else 0, donor.chunk_bytes):
                donor.fetch(name, file.path, offset, buffer[: size - offset])
        except CorruptLogError:
            found = False
        if not found:
            stored = store.store.url_of(key)
            damaged.append({"table": name, "path": file.path, "stored": stored})
        done += size
        tell(done, total)
    return damaged


def check_room(lake: str | Path, *, force_clean: bool) -> None:
    """Refuse a lake that is not empty.

    Args:
        lake: Where an image would be restored.
        force_clean: What an interrupted restore left would be removed.

    Raises:
        InvalidRequestError: It has a table, or what another restore left (definite).
    """
    if is_in_bucket(lake):
        from sparktxlog.worker.backup.bucket_restoring import check_room_in_bucket

        check_room_in_bucket(str(lake), force_clean=force_clean)
        return
    lake = Path(lake)
    own = lake / STATE_DIRECTORY
    if (own / RESTORING).exists():
        if force_clean:
            return
        raise InvalidRequestError(
            f"a restore was broken off in {lake}",
            hint="Remove what it left with --force-clean.",
            path=str(lake),
        )
    if lake.exists() and (not lake.is_dir() or _content(lake) or _content(own)):
        raise InvalidRequestError(
            f"{lake} is not empty",
            hint="Restore into a new directory; nothing is ever overwritten.",
            path=str(lake),
        )


def _content(directory: Path) -> list[Path]:
    """Return the entries of a lake or its state directory, without locks."""
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if path.name not in (STATE_DIRECTORY, *_LOCKS)]


def _clean(directory: ReplicaDirectory) -> None:
    for path in (*_content(directory.lake), *_content(directory.own)):
        if path.name != RESTORING:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _tasks(image: Image) -> list[FileTask]:
    """Return what is fetched for all tables; InvalidNameError for a name that leads elsewhere."""
    tasks, now = list[FileTask](), time_ns() // 1000
    for name, table in sorted(image.tables.items()):
        check_table_name(name)
        for file in table.files:
            check_relative_path(file.path)
            task = FileTask.of(name, file)
            # Delta dates commits by the time of their files.  Data files get the restore's time.
            tasks.append(task if is_in_log(file.path) else replace(task, modified_at=now))
    return tasks


def tables_of(image: Image) -> dict[str, ReplicaTable]:
    """Return the tables of an image as the state of its replica records them."""
    return {
        name: ReplicaTable(
            definition=table.definition, version=table.version, signature=table.signature
        )
        for name, table in image.tables.items()
    }


def _state_of(image: Image) -> ReplicaState:
    return ReplicaState(
        worker_id=uuid.uuid4().hex[:12],
        log_id=image.log_id,
        epoch=image.epoch,
        position=image.position,
        chain_hash=image.chain_hash,
        tables=tables_of(image),
        cut=Cut(position=image.position, chain_hash=image.chain_hash, epoch=image.epoch),
        only=image.only,
    )
