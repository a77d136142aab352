"""Pins of a replica in a bucket: a list of names for each lease, on the disk of the node.

    lake-dir/_sparktxlog/leases/<lease_id>   JSON: table → paths of its objects
    lake-dir/_sparktxlog/lakes/<digest>/…    the same, of each replica with a name

A bucket has no links.  Nobody changes or removes an object of a table but `maintain`, which leaves
alone what these lists name.  Whoever else does is found: each range is read on the condition that
the object still has the mark that it had when it was pinned.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparktxlog.errors import CorruptLogError, FileChangedError, NotFoundError, ObjectMissingError
from sparktxlog.files.durability import storing, write_durably
from sparktxlog.files.pins import changed
from sparktxlog.files.stores.store import Found
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.copying import OfferedFile

if TYPE_CHECKING:
    # Sites on disks have no library for buckets.
    from sparktxlog.files.stores.bucket import BucketStore

#: Below the directory of the lake.
LEASES = Path("_sparktxlog", "leases")
_OTHER_LAKES = Path("_sparktxlog", "lakes")


def disk_of(lake: str, lake_dir: Path, lake_url: str | None) -> Path:
    """Return the directory for pins and locks of a lake in a bucket; it may be missing.

    Args:
        lake: URL of the lake of some replica of a site.
        lake_dir: Of the site's node; it is the directory of the main replica's lake.
        lake_url: The main replica's lake; None = it is on a disk.

    Raises:
        ConfigError: That is no URL of a bucket (definite).
    """
    place = bucket_url(lake, "lake")
    main = None if lake_url is None else bucket_url(lake_url, "lake-url")
    if place is None or place == main:
        return lake_dir
    return lake_dir / _OTHER_LAKES / sha256(place.url.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class PinnedObject:
    """An object of a table.  Methods are those of `Pinned`."""

    store: BucketStore
    #: Below the table.
    path: str
    #: As it was when it was pinned.
    found: Found

    @property
    def identity(self) -> tuple[str, int, str]:
        """As `Pinned.identity`."""
        return self.found.key, self.found.size_bytes, self.found.mark

    @property
    def size_bytes(self) -> int:
        """As `Pinned.size_bytes`."""
        return self.found.size_bytes

    def offered(self) -> OfferedFile:
        """As `Pinned.offered`."""
        return OfferedFile(
            path=self.path,
            size_bytes=self.found.size_bytes,
            modified_at=int(self.found.changed_s * 1_000_000),
        )

    def check(self) -> None:
        """As `Pinned.check`."""
        there = self.store.find(self.found.key)
        if there is None or there.mark != self.found.mark:
            raise changed(self.path)

    def fill(self, offset: int, into: memoryview) -> None:
        """As `Pinned.fill`."""
        if not into:
            self.check()
            return
        key, mark = self.found.key, self.found.mark
        try:
            content = self.store.read(key, offset=offset, size=len(into), mark=mark)
        except (FileChangedError, ObjectMissingError) as error:
            raise changed(self.path) from error
        if len(content) != len(into):
            raise changed(self.path)
        into[:] = content


class ObjectPins:
    """Pins of one lake in a bucket.  Methods are those of `Pinning`.

    Args:
        store: Its root is the lake.
        directory: Of the node's disk, as `disk_of` returns it.
    """

    def __init__(self, store: BucketStore, directory: Path) -> None:
        self._store, self._root = store, directory / LEASES

    def pin(self, lease_id: str, tables: Iterable[str]) -> dict[str, tuple[PinnedObject, ...]]:
        """As `Pinning.pin`: all objects of the tables are listed."""
        pinned = {table: self._objects_of(table) for table in sorted(set(tables))}
        names = {table: [one.path for one in objects] for table, objects in pinned.items()}
        path = self._root / lease_id
        with storing(path):
            self._root.mkdir(parents=True, exist_ok=True)
            write_durably(path, msgspec.json.encode(names))
        return pinned

    def _objects_of(self, table: str) -> tuple[PinnedObject, ...]:
        found = sorted(self._store.list(table), key=lambda one: one.key)
        if not found:
            raise NotFoundError(
                f"the replica has no table {table!r}: nothing is below {self._store.url_of(table)}",
                hint="Run a worker: sparktxlog apply.",
                table=table,
            )
        return tuple(PinnedObject(self._store, one.key[len(table) + 1 :], one) for one in found)

    def release(self, lease_id: str) -> bool:
        """As `Pinning.release`."""
        try:
            (self._root / lease_id).unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def release_others(self, live: Collection[str] = ()) -> list[str]:
        """As `Pinning.release_others`; the directory says later that a node has its leases here."""
        with storing(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
        return [one for one in _leases(self._root) if one not in live and self.release(one)]


def pinned_paths(directory: Path) -> Mapping[str, set[str]]:
    """Return what the leases of a node pin of its lake in a bucket: table → paths of objects.

    Args:
        directory: Of the node's disk, as `disk_of` returns it.

    Raises:
        CorruptLogError: A list cannot be read, so that nobody knows (definite).
        StorageError: The disk fails.
    """
    pinned: dict[str, set[str]] = {}
    root = directory / LEASES
    for lease_id in filter(str.isalnum, _leases(root)):  # not those that are being written
        path = root / lease_id
        try:
            with storing(path), suppress(FileNotFoundError):  # released meanwhile
                names = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
                for table, paths in names.items():
                    pinned.setdefault(table, set()).update(paths)
        except msgspec.MsgspecError as error:
            raise CorruptLogError(
                f"the pins of a copy in {path} cannot be read: {error}",
                hint="Start the node of the lake again: it removes them.",
                path=str(path),
            ) from error
    return pinned


def _leases(root: Path) -> list[str]:
    with storing(root), suppress(FileNotFoundError):
        return sorted(one.name for one in os.scandir(root) if one.is_file(follow_symlinks=False))
    return []
