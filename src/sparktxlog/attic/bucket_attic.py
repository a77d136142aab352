"""The attic of tables in a bucket: the same entries and manifests as in a directory.

    <root>/<id>/manifest.json   as on a disk; an entry without one is in no list
    <root>/<id>/content/…       what was set aside
    <root>/<id>/moving          a process is filling it, or removes the table: it stays at any age
    <root>/<id>/removing        a process removes it: nobody puts something more into it

Row tables have one at `OF_LAKE` of their lake, into which the worker puts something, under its
lock; commit tables one at `OF_COMMIT_TABLES` of their prefix, into which the node does.  What is
set aside is copied within the bucket: nothing of it comes to this machine.  An entry loses its
manifest first, so after a kill nobody restores a part of one; `empty` removes the rest.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec
from msgspec.structs import replace

from sparktxlog.attic.attic import (
    CONTENT,
    MANIFEST,
    Emptied,
    Entry,
    Kind,
    emptied,
    entry_id,
    refuse_taken,
)
from sparktxlog.errors import InvalidRequestError, ObjectMissingError, StorageError
from sparktxlog.files.durability import move_durably, storing, sync_tree, write_at_once
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Found, Store
from sparktxlog.files.stores.whole_files import in_parallel, put_files
from sparktxlog.model.ids import check_relative_path

_OTHER = Created.OTHER
#: There while a process fills an entry, or removes its table.
MOVING = "moving"
#: There while a process removes an entry; it goes last.
REMOVING = "removing"


def _numbered(name: str, sign: str) -> Iterator[str]:
    """Yield a name, and then the same with a sign and a number from 2 on, for ever."""
    return (name if number == 1 else f"{name}{sign}{number}" for number in count(1))


def _ids_of(kind: Kind, table: str, mark: str) -> Iterator[str]:
    """Yield the ids that entries of a kind, table and mark get, one after the other, for ever."""
    return _numbered(entry_id(kind, table, mark), "-")


def _at_once(keys: Iterable[str]) -> list[list[str]]:
    return [[*keys]]


class BucketAttic:
    """An attic in a bucket; its methods block.  Those of the same name are as in `Attic`.

    Errors of all methods, in addition to those that they name, as `Store`.

    Args:
        tables: Its root is that of the tables.
        directory: Where the attic is, below that root.
        may_write: Called before each write; what it raises, the write raises.
        in_order: Parts the keys of a table into those that are removed together, the log last.
    """

    def __init__(
        self,
        tables: Store,
        directory: str,
        *,
        may_write: Callable[[], None] = lambda: None,
        in_order: Callable[[Iterable[str]], list[list[str]]] = _at_once,
    ) -> None:
        self._tables, self._may_write, self._in_order = tables, may_write, in_order
        self._store = PartOfStore(tables, directory, may_write)

    # -- putting -----------------------------------------------------------------------------------

    def put(self, directory: str, **said: Any) -> Entry:
        """Move what is below a directory of the tables here; repeated, it goes on.

        Args:
            said: `kind`, `why`, `table`, `mark` and `facts` as in `Attic.put`.
        """
        source = PartOfStore(self._tables, directory, self._may_write)
        fresh = self._fresh(source.url, **said)
        entry = self._moving(fresh) or fresh
        part = self._part(entry)
        part.replace(MOVING, b"")
        if not entry.at:
            entry = self._filled(entry, source)
        # What came after the copies stays: it has none.
        below = f"{CONTENT}/"
        kept = {found.key.removeprefix(below) for found in part.list(CONTENT)}
        # While a commit is there, the table is: a repetition goes on.  The keys of one request go
        # in any order, so commits have one of their own.
        for gone in self._in_order(found.key for found in source.list() if found.key in kept):
            source.remove(gone)
        part.remove([MOVING])
        return entry

    def keep(self, directory: str, **said: Any) -> Entry:
        """Copy what is below a directory of the tables; repeated, it goes on; the rest as `put`."""
        source = PartOfStore(self._tables, directory, self._may_write)
        fresh = self._fresh(source.url, **said)
        return self._filled(self._begun(fresh) or fresh, source)

    def send(self, files: Mapping[str, Path], source: str, **said: Any) -> Entry:
        """Put files of this machine here: path in the entry → file; arguments as in `put`."""
        entry = self._fresh(source, **said)
        part = self._part(entry)
        part.replace(MANIFEST, msgspec.json.encode(entry))
        put_files(part, {f"{CONTENT}/{path}": file for path, file in files.items()})
        return self._done(entry)

    def take(self, key: str, path: str, *, kind: Kind, why: str, table: str) -> None:
        """Move one object of the tables, if there is one, into the entry of a kind and table.

        Args:
            path: Its path there; if that has other bytes, it gets a number.
        """
        if self._tables.find(key) is None:
            return
        source = self._tables.url_of(table)
        for identity in _ids_of(kind, table, ""):
            entry = self._read(identity)
            if entry is None:
                if self._is_taken(identity):  # what a kill left, or a removal that is under way
                    continue
                entry = Entry(id=identity, kind=kind, why=why, table=table, source=source)
            if self._store.find(f"{identity}/{REMOVING}") is not None:
                continue
            self._done(entry)
            names = _numbered(path, ".")
            try:
                while self._copied(key, kept := f"{identity}/{CONTENT}/{next(names)}") is _OTHER:
                    pass
            except ObjectMissingError:
                return  # somebody removed it meanwhile, and what is there by now is not kept
            if self._stays(identity, kept):
                break
        self._may_write()
        self._tables.remove([key])

    def _stays(self, identity: str, kept: str) -> bool:
        """Return whether what was put into an entry after `_done` stays there.

        Who removes an entry puts its mark first, and then looks whether the entry is newer; so one
        of both sees the other one.  Without a mark a removal has ended, or is not begun.
        """
        if self._store.find(f"{identity}/{REMOVING}") is not None:
            return False
        return all(self._store.find(one) is not None for one in (f"{identity}/{MANIFEST}", kept))

    def _fresh(
        self,
        source: str,
        *,
        kind: Kind,
        why: str,
        table: str = "",
        mark: str = "",
        facts: dict[str, Any] | None = None,
    ) -> Entry:
        """Return an entry that is not there yet; an id never means another one later."""
        ids = _ids_of(kind, table, mark)
        fresh = next(one for one in ids if not self._is_taken(one))
        return Entry(
            id=fresh, kind=kind, why=why, table=table, mark=mark, source=source, facts=facts or {}
        )

    def _taken(self, kind: Kind, table: str, mark: str) -> Iterator[str]:
        """Yield the ids that are taken, also by what a kill left; it lists no other entries."""
        return takewhile(self._is_taken, _ids_of(kind, table, mark))

    def _is_taken(self, identity: str) -> bool:
        return next(self._store.list(identity), None) is not None

    def _of(self, kind: Kind, table: str, mark: str) -> Iterator[Entry]:
        """Yield the entries of a kind, table and mark, as their manifests say."""
        for entry in filter(None, map(self._read, self._taken(kind, table, mark))):
            if (entry.kind, entry.table, entry.mark) == (kind, table, mark):
                yield entry

    def _begun(self, fresh: Entry) -> Entry | None:
        """Return the entry to which the same was being copied when that was broken off.

        Args:
            fresh: A new entry for it.
        """
        begun = (one for one in self._of(fresh.kind, fresh.table, fresh.mark) if not one.at)
        return next((one for one in begun if self._compared(one)[1]), None)

    def _moving(self, fresh: Entry) -> Entry | None:
        """Return the entry to which something was being moved when that was broken off.

        Args:
            fresh: A new entry for it.
        """
        for identity in self._taken(fresh.kind, fresh.table, fresh.mark):
            if self._store.find(f"{identity}/{MOVING}") is None:
                continue
            # Without a manifest nothing is copied yet.
            entry = self._read(identity) or replace(fresh, id=identity)
            said = (entry.kind, entry.table, entry.mark)
            if said == (fresh.kind, fresh.table, fresh.mark):
                is_there, is_same = self._compared(entry)
                if is_same or (entry.at and not is_there):
                    return entry
        return None

    def _compared(self, entry: Entry) -> tuple[bool, bool]:
        """Return whether a table is in the place of an entry's, and whether it is that one still.

        It is if it is what the entry has, or is getting; not if it was made after the entry was
        whole, as the store's own times say: its first commits may look like those of the entry.
        """
        below = f"{self._tables.url}/"
        place = entry.source.removeprefix(below) if entry.source.startswith(below) else entry.table
        if not place:
            return False, False
        kept = {one.key: one.size_bytes for one in self._part(entry).list(CONTENT)}
        found = [*PartOfStore(self._tables, place).list()]
        there = {f"{CONTENT}/{one.key}": one.size_bytes for one in found}
        if not entry.at:
            return bool(there), kept.items() <= there.items()
        is_same = bool(there) and there.items() <= kept.items()
        if is_same and (whole := self._part(entry).find(MANIFEST)) is not None:
            is_same = all(one.changed_s <= whole.changed_s for one in found)
        return bool(there), is_same

    def _filled(self, entry: Entry, source: PartOfStore) -> Entry:
        """Copy a table to an entry; what is there already is not copied again."""
        part = self._part(entry)
        part.replace(MANIFEST, msgspec.json.encode(entry))

        def copy(key: str) -> None:
            target = f"{entry.id}/{CONTENT}/{key}"
            made = self._copied(f"{source.directory}/{key}", target)
            if made is Created.OTHER:  # of an attempt before: somebody wrote to the table since
                self._store.remove([target])
                made = self._copied(f"{source.directory}/{key}", target)
            if made is Created.OTHER:
                raise StorageError(
                    f"{self._store.url_of(target)} is not a copy of {source.url_of(key)}",
                    hint="Somebody else put an object there: move it away.",
                    url=self._store.url_of(target),
                )

        in_parallel(copy, [found.key for found in source.list()])
        return self._done(entry)

    def _copied(self, key: str, target: str) -> Created:
        """Copy an object of the tables to a key of the attic."""
        self._may_write()
        return self._tables.copy(key, f"{self._store.directory}/{target}")

    def _done(self, entry: Entry) -> Entry:
        """Note that an entry is whole."""
        done = replace(entry, at=time_ns() // 1000, directory="")
        self._part(entry).replace(MANIFEST, msgspec.json.encode(done))
        return replace(done, directory=self._part(entry).url)

    def _part(self, entry: Entry) -> PartOfStore:
        return PartOfStore(self._store, entry.id)

    # -- looking -----------------------------------------------------------------------------------

    def ids(self) -> set[str]:
        """Return the ids of what is there, also of parts of entries that a kill left.

        What is in them is not listed; an id may be that of an entry that was removed.
        """
        return set(self._store.directories())

    def whole(self, table: str) -> list[Entry]:
        """Return the entries of a table that were filled, oldest first."""
        ids = sorted(one for one in self.ids() if f"-{table}" in one)
        found = [entry for one in ids if (entry := self._read(one)) is not None]
        whole = (entry for entry in found if entry.table == table and entry.at)
        return sorted(whole, key=lambda entry: (entry.at, entry.id))

    def newest(self, kind: Kind, table: str, mark: str) -> Entry | None:
        """As `Attic.newest`: the newest one that was filled."""
        whole = (one for one in self._of(kind, table, mark) if one.at)
        return max(whole, key=lambda one: one.at, default=None)

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
            InvalidRequestError: A worker is filling it, or as `forget` (definite).
        """
        if self._refuse_moving(entry):
            # First what would keep the rest for ever, then what makes it an entry.
            self._store.remove([f"{entry.id}/{MOVING}"])
        self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Remove an entry that nobody fills, its manifest first: the rest is in no list.

        Raises:
            InvalidRequestError: Something was put into it meanwhile (definite).
        """
        mark = f"{entry.id}/{REMOVING}"
        self._store.replace(mark, b"")
        again = self._read(entry.id)
        if entry.at and again is not None and again.at > entry.at:
            self._store.remove([mark])
            raise InvalidRequestError(
                f"something was put into {entry.id} meanwhile",
                hint="Look what it has by now, and remove it then.",
                field="id",
                value=entry.id,
            )
        self._store.remove([f"{entry.id}/{MANIFEST}"])
        rest = (found.key for found in self._store.list(entry.id))
        self._store.remove([key for key in rest if key != mark])
        self._store.remove([mark])

    def empty(
        self,
        older_than: int,
        *,
        stays: Callable[[Entry], bool] = lambda entry: False,
        dry_run: bool = False,
    ) -> Emptied:
        """As `Attic.empty`."""
        objects = self._objects()
        done = emptied(self, self._all(objects), older_than, stays, dry_run)
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
                    entry = replace(entry, id=identity, directory=directory)
                    if f"{identity}/{MOVING}" in keys and all(self._compared(entry)):
                        entry = replace(entry, at=0)
                    yield entry
            except msgspec.MsgspecError as error:
                why = f"its manifest cannot be read: {error}"
                yield Entry(id=identity, kind=Kind.UNKNOWN, why=why, directory=directory)

    def _read(self, identity: str) -> Entry | None:
        """Return an entry by its id, as its manifest says; None = nobody can say what it is."""
        try:
            found = msgspec.json.decode(self._store.read(f"{identity}/{MANIFEST}"), type=Entry)
        except (ObjectMissingError, msgspec.MsgspecError):
            return None
        return replace(found, id=identity, directory=self._store.url_of(identity))

    def _refuse_moving(self, entry: Entry) -> bool:
        """Raise if a worker fills an entry; return whether one that was killed left its mark."""
        is_marked = self._store.find(f"{entry.id}/{MOVING}") is not None
        if is_marked and all(self._compared(self._read(entry.id) or entry)):
            raise InvalidRequestError(
                f"a worker is moving a table to {entry.id}, or was killed while it did",
                hint="Let a worker of the site run: it goes on with that.",
                field="id",
                value=entry.id,
            )
        return is_marked
