"""The attic of a lake in a bucket: the entries that its worker made, with the same manifests.

    <root>/<id>/manifest.json   as on a disk; an entry without one is in no list
    <root>/<id>/content/…       what was set aside
    <root>/<id>/moving          a worker is filling it, or removes the table: it stays at any age

Only a worker puts something there, under its lock.  An entry loses its manifest first, so after a
kill nobody restores a part of one; `empty` removes the rest.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from sparktxlog.attic.attic import CONTENT, MANIFEST, Emptied, Entry, Kind, refuse_taken
from sparktxlog.errors import InvalidRequestError, ObjectMissingError
from sparktxlog.files.durability import move_durably, storing, sync_tree, write_at_once
from sparktxlog.files.stores.store import Found, Store
from sparktxlog.model.ids import check_relative_path

#: There while a worker fills an entry, or removes its table.
MOVING = "moving"


class BucketAttic:
    """An attic in a bucket; its methods block.  Those of the same name are as in `Attic`.

    Errors of all methods, besides those that they name, as `Store`.

    Args:
        store: Its root is the attic.
        tables: Its root is the lake.
    """

    def __init__(self, store: Store, tables: Store) -> None:
        self._store, self._tables = store, tables

    def entries(self, kind: Kind | None = None, table: str | None = None) -> list[Entry]:
        """As `Attic.entries`."""
        found = [
            entry
            for entry in self._all(self._objects())
            if kind in (None, entry.kind) and table in (None, entry.table)
        ]
        return sorted(found, key=lambda entry: (entry.at, entry.id))

    def measured(self, entry: Entry) -> tuple[int, int]:
        """As `Attic.measured`."""
        sizes = [found.size_bytes for found in self._store.list(f"{entry.id}/{CONTENT}")]
        return len(sizes), sum(sizes)

    def restore(self, entry: Entry, to: Path) -> None:
        """As `Attic.restore`: objects are read from the bucket.

        Raises:
            InvalidRequestError: There is something at that path, or the entry is not whole
                (definite).
            DiskFullError, StorageError: Nothing is there; repeat it.
        """
        refuse_taken(to)
        self._refuse_moving(entry)
        if not entry.at and entry.kind is not Kind.UNKNOWN:
            raise InvalidRequestError(
                f"{entry.id} is not whole: a worker that filled it was killed",
                hint="What it should have is in the table's place still, or in another entry of "
                "the table: `sparktxlog attic list`.  Remove this one.",
                field="id",
                value=entry.id,
            )
        restoring, below = to.with_name(f".{to.name}.{uuid.uuid4().hex}.restoring"), entry.id
        try:
            with storing(to):
                restoring.mkdir(parents=True)
                for found in self._store.list(f"{below}/{CONTENT}"):
                    path = check_relative_path(found.key.removeprefix(f"{below}/{CONTENT}/"))
                    (restoring / path).parent.mkdir(parents=True, exist_ok=True)
                    write_at_once(restoring / path, self._store.open(found.key).pieces)
                sync_tree(restoring)
                move_durably(restoring, to)
        finally:
            shutil.rmtree(restoring, ignore_errors=True)

    def remove(self, entry: Entry) -> None:
        """As `Attic.remove`.

        Raises:
            InvalidRequestError: A worker is filling it (definite).
        """
        if self._refuse_moving(entry):
            # First what would keep the rest for ever, then what makes it an entry.
            self._store.remove([f"{entry.id}/{MOVING}"])
        self._store.remove([f"{entry.id}/{MANIFEST}"])
        self._store.remove([found.key for found in self._store.list(entry.id)])

    def empty(
        self,
        older_than: int,
        *,
        stays: Callable[[Entry], bool] = lambda entry: False,
        dry_run: bool = False,
    ) -> Emptied:
        """As `Attic.empty`."""
        done, objects = Emptied(), self._objects()
        for entry in self._all(objects):
            if not 0 < entry.at < older_than or stays(entry):
                done.kept += 1
                continue
            files, size_bytes = self.measured(entry)
            if not dry_run:
                self.remove(entry)
            done.removed.append(entry)
            done.files += files
            done.size_bytes += size_bytes
        for identity, found in objects.items():
            names = {one.key.partition("/")[2] for one in found}
            is_old = max(one.changed_s for one in found) * 1_000_000 < older_than
            if not dry_run and is_old and names.isdisjoint({MANIFEST, MOVING}):
                self._store.remove([one.key for one in self._store.list(identity)])
        return done

    def _objects(self) -> dict[str, list[Found]]:
        """Return what is in the attic, by the ids of entries."""
        objects: dict[str, list[Found]] = {}
        for found in self._store.list():
            objects.setdefault(found.key.partition("/")[0], []).append(found)
        return objects

    def _all(self, objects: dict[str, list[Found]]) -> Iterator[Entry]:
        for identity, found in sorted(objects.items()):
            keys, directory = {one.key for one in found}, self._store.url_of(identity)
            if f"{identity}/{MANIFEST}" not in keys:
                continue
            try:
                with suppress(ObjectMissingError):  # removed meanwhile
                    content = self._store.read(f"{identity}/{MANIFEST}")
                    entry = msgspec.json.decode(content, type=Entry)
                    if f"{identity}/{MOVING}" in keys and self._is_left(identity, entry.table):
                        entry = msgspec.structs.replace(entry, at=0)
                    yield msgspec.structs.replace(entry, id=identity, directory=directory)
            except msgspec.MsgspecError as error:
                why = f"its manifest cannot be read: {error}"
                yield Entry(id=identity, kind=Kind.UNKNOWN, why=why, directory=directory)

    def _is_left(self, identity: str, table: str) -> bool:
        """Return whether some of a table that an entry has is still in its place.

        Else no worker goes on with it: the table is gone, or is another one.
        """
        below = f"{identity}/{CONTENT}/"
        kept = {
            (one.key.removeprefix(below), one.size_bytes)
            for one in self._store.list(f"{identity}/{CONTENT}")
        }
        there = {
            (one.key.removeprefix(f"{table}/"), one.size_bytes) for one in self._tables.list(table)
        }
        return bool(there) and (there <= kept or kept <= there)

    def _refuse_moving(self, entry: Entry) -> bool:
        """Raise if a worker fills an entry; return whether one that was killed left its mark."""
        is_marked = self._store.find(f"{entry.id}/{MOVING}") is not None
        if is_marked and self._is_left(entry.id, entry.table):
            raise InvalidRequestError(
                f"a worker is moving a table to {entry.id}, or was killed while it did",
                hint="Let a worker of the site run: it goes on with that.",
                field="id",
                value=entry.id,
            )
        return is_marked
