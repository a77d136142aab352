"""Restores a replica from an image; the log after the image then brings it to any position.

A restored replica is a new worker: it reports the image's position and chain hash, its node finds
both in its queue (IN_SYNC), and the worker replays the rest.  While files are written, the lake
contains the marker `_sparktxlog/restoring.json`: no worker starts there (`state.py` refuses it),
and only `force_clean` removes the files.  Digests are verified while writing; only a recount by
Spark shows whether the rows match their signatures.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from sparktxlog.delta.log_files import is_in_log
from sparktxlog.errors import CorruptLogError, InvalidRequestError, NotFoundError, StorageError
from sparktxlog.model.ids import check_table_name
from sparktxlog.storage.durability import sync_directory, write_durably
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.backup.image_store import Image, ImageFile, ImageStore
from sparktxlog.worker.backup.imaging import ImageProgress
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
        name: None = the newest position that `at_most` allows.
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
            f"there is no image{limit} in {store.root}",
            hint="`sparktxlog backup list` shows what is there.",
        )
    return max(found, key=lambda image: (image.position, image.created_at))


def restore_replica(
    store: ImageStore,
    image: Image,
    lake: str | Path,
    *,
    force_clean: bool = False,
    tell: Callable[[ImageProgress], None] = lambda _: None,
) -> ReplicaState:
    """Write an image into a new lake; return the new replica's state.

    Args:
        force_clean: Remove what an interrupted restore left.
        tell: Called after each file.

    Raises:
        InvalidRequestError: The lake is not empty (definite: it was not touched).
        CorruptLogError: A file of the image is missing or damaged; the marker stays.
        StorageError: A file could not be written; the marker stays.
    """
    lake = Path(lake).absolute()
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
            _write_tables(store, image, lake, tell)
            state = _state_of(image)
            directory.record_snapshot(state.position, state.tables)
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
    store: ImageStore, image: Image, *, tell: Callable[[ImageProgress], None] = lambda _: None
) -> list[dict[str, str]]:
    """Read all files of an image; return table, path and stored name of the damaged ones."""
    damaged = []
    files = done = 0
    total = image.size_bytes
    for name, file in image.all_files:
        try:
            for _ in store.blocks(file, f"file {file.path} of table {name!r}"):
                pass
        except CorruptLogError:
            damaged.append({"table": name, "path": file.path, "stored": file.digest})
        files, done = files + 1, done + file.size_bytes
        tell(ImageProgress(table=name, files=files, size_bytes=done, total_bytes=total))
    return damaged


def check_room(lake: Path, *, force_clean: bool) -> None:
    """Refuse a lake that is not empty.

    Args:
        lake: Where an image would be restored.
        force_clean: What an interrupted restore left would be removed.

    Raises:
        InvalidRequestError: It has a table, or what another restore left (definite).
    """
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


def _write_tables(
    store: ImageStore, image: Image, lake: Path, tell: Callable[[ImageProgress], None]
) -> None:
    files = done = 0
    for name, table in sorted(image.tables.items()):
        root = lake / check_table_name(name)
        # The log comes last: without it a directory is no table.
        for file in sorted(table.files, key=lambda file: (is_in_log(file.path), file.path)):
            target = _inside(root, file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_file(store, file, target, f"file {file.path} of table {name!r}")
            files, done = files + 1, done + file.size_bytes
            total = image.size_bytes
            tell(ImageProgress(table=name, files=files, size_bytes=done, total_bytes=total))
        for folder, _, _ in os.walk(root):
            sync_directory(folder)
    sync_directory(lake)


def _write_file(store: ImageStore, file: ImageFile, target: Path, where: str) -> None:
    with open(target, "xb") as written:
        written.writelines(store.blocks(file, where))
        written.flush()
        if is_in_log(file.path):
            # Delta dates commits by the time of their files.  Data files keep the restore's time.
            os.utime(written.fileno(), ns=(file.modified_at * 1000, file.modified_at * 1000))
        os.fsync(written.fileno())


def _inside(root: Path, path: str) -> Path:
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequestError(
            f"the image names a file outside of its table: {path[:120]!r}",
            hint="It was not written by `sparktxlog backup`.",
            path=path[:120],
        )
    return root.joinpath(*parts)


def _state_of(image: Image) -> ReplicaState:
    return ReplicaState(
        worker_id=uuid.uuid4().hex[:12],
        log_id=image.log_id,
        epoch=image.epoch,
        position=image.position,
        chain_hash=image.chain_hash,
        tables={
            name: ReplicaTable(
                definition=table.definition, version=table.version, signature=table.signature
            )
            for name, table in image.tables.items()
        },
        cut=Cut(position=image.position, chain_hash=image.chain_hash, epoch=image.epoch),
    )
