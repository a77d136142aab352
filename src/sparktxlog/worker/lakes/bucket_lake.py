"""A lake in a bucket: each write is made only while the lake's lock is held.

    <lake>/orders/…                                a table, as Spark and the worker write it
    <lake>/_sparktxlog/state.json, lock            state of the replica, and who may write
    <lake>/_sparktxlog/attic/dropped-orders-17/…   a dropped table, as an attic on a disk has it
    <lake>/_sparktxlog/attic/…/moving              it is not whole, or its table is not gone yet
    <lake>/_sparktxlog/placing/orders              a copy puts a table there, and is not done

What a store took is durable, so no version is torn, and nothing has to be settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec
from msgspec.structs import replace

from sparktxlog.attic.attic import CONTENT, MANIFEST, Entry, Kind, entry_id
from sparktxlog.attic.bucket_attic import MOVING
from sparktxlog.delta.log_files import commits_among, is_in_log
from sparktxlog.errors import ApplyError, ObjectMissingError, StorageError
from sparktxlog.files.durability import storing, sync_tree
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.whole_files import (
    bring_down,
    files_below,
    in_parallel,
    put_file,
    put_files,
)
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.lakes.payload_files import PayloadFiles

#: Directory of the worker's own objects; Delta ignores the leading underscore.
OWN = "_sparktxlog"
ATTIC = f"{OWN}/attic"
_PLACING = f"{OWN}/placing"


class _Placing(msgspec.Struct):
    #: Of the copy.
    mark: str
    #: The commit that is put last, below the table, and its SHA-256; empty = there is none.
    last: str
    digest: str


class BucketLake:
    """A prefix of a bucket with one for each table.  Methods are those of `Lake`.

    Args:
        store: Its root is the lake.
        may_write: Called before each write; raises LockedError once the lock is lost.
    """

    def __init__(self, store: Store, may_write: Callable[[], None]) -> None:
        self.store, self._may_write = store, may_write

    @property
    def url(self) -> str:
        """As `Lake.url`."""
        return self.store.url

    def table(self, name: str) -> PartOfStore:
        """As `Lake.table`."""
        return PartOfStore(self.store, name, self._may_write)

    def url_of(self, name: str) -> str:
        """As `Lake.url_of`."""
        return self.store.url_of(name)

    def has(self, name: str) -> bool:
        """As `Lake.has`."""
        return next(self.store.list(name), None) is not None

    def identity(self, name: str, version: int) -> Hashable:
        """As `Lake.identity`."""
        found = self.table(name).find(commit_file_name(version))
        return version, "" if found is None else found.mark

    def undo_torn(self, name: str, recorded: int, log_id: str, batch: Batch | None) -> bool:
        """As `Lake.undo_torn`: none is torn."""
        return False

    def settle(self, name: str, first: int, last: int, *, found: bool = False) -> None:
        """As `Lake.settle`: they are."""

    def bring(self, name: str, path: str, file: StagedFile, payloads: PayloadFiles) -> int:
        """As `Lake.bring`: it is sent once, or copied within the bucket.

        Raises:
            ApplyError: Also if another object has its name (definite).
        """
        table = self.table(name)
        # Only who has the lock gives this name, and always to the same bytes.
        if payloads.put(file, table, path) is Created.OTHER:
            raise ApplyError(
                f"{table.url_of(path)} is not the file {file.path} of the log",
                hint="Somebody else put an object there, which is in no version of the table: "
                "move it away.",
                path=table.url_of(path),
            )
        return time_ns() // 1_000_000

    def drops_of(self, name: str) -> set[str]:
        """As `Lake.drops_of`."""
        begins = f"{ATTIC}/{entry_id(Kind.DROPPED, name, '')}-"
        ids = {found.key.split("/")[2] for found in self.store.list(ATTIC)}
        return {one for one in ids if f"{ATTIC}/{one}".startswith(begins)}

    def set_aside(
        self,
        name: str,
        mark: str,
        why: str,
        kind: Kind = Kind.DROPPED,
        facts: dict[str, Any] | None = None,
    ) -> str:
        """As `Lake.set_aside`: by copies in the bucket, of 5 GiB at most each."""
        table = self.table(name)
        fresh = self._entry(name, mark, why, kind, facts)
        entry = self._moving(fresh) or fresh
        self._part(entry).replace(MOVING, b"")
        if not entry.at:
            entry = self._keep(entry, name)
        # While a commit is there, the table is: a repetition goes on.  The keys of one request go
        # in any order, so commits have one of their own.
        for gone in in_order(found.key for found in table.list()):
            table.remove(gone)
        self._part(entry).remove([MOVING])
        return self._part(entry).url_of(CONTENT)

    def keep(self, name: str, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.keep`: by copies in the bucket, of 5 GiB at most each."""
        return self._keep(self._entry(name, mark, why, Kind.TABLE, facts), name)

    def put_rows(self, name: str, rows: Path, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.put_rows`: they are sent."""
        entry = self._entry(name, mark, why, Kind.ROWS, facts)
        part = self._part(entry)
        part.replace(MANIFEST, msgspec.json.encode(entry))
        files = {f"{CONTENT}/{path}": file for path, file in files_below(rows).items()}
        put_files(part, files)
        return self._done(entry)

    def kept(self, name: str) -> list[Entry]:
        """As `Lake.kept`."""
        found = [entry for entry in self._entries(name) if entry.at]
        return sorted(found, key=lambda entry: (entry.at, entry.id))

    def forget(self, entry: Entry) -> None:
        """As `Lake.forget`."""
        part = self._part(entry)
        # What is left of it after a kill is in no list.
        part.remove([MANIFEST])
        part.remove([found.key for found in part.list()])

    def _entry(
        self, name: str, mark: str, why: str, kind: Kind, facts: dict[str, Any] | None
    ) -> Entry:
        """Return an entry that is not there yet; an id never means another one later."""
        wanted, taken = entry_id(kind, name, mark), self._ids()
        ids = (wanted if number == 1 else f"{wanted}-{number}" for number in count(1))
        return Entry(
            id=next(one for one in ids if one not in taken),
            kind=kind,
            why=why,
            table=name,
            mark=mark,
            source=self.table(name).url,
            facts=facts or {},
        )

    def _moving(self, fresh: Entry) -> Entry | None:
        """Return the entry to which this table was being moved when that was broken off.

        Args:
            fresh: A new entry for it.
        """
        wanted = entry_id(fresh.kind, fresh.table, fresh.mark)
        for found in self.store.list(ATTIC):
            identity, _, rest = found.key.removeprefix(f"{ATTIC}/").partition("/")
            if rest != MOVING or not f"{identity}-".startswith(f"{wanted}-"):
                continue
            # Without a manifest nothing is copied yet.
            entry = self._read(identity) or replace(fresh, id=identity)
            said = (entry.kind, entry.table, entry.mark)
            if said == (fresh.kind, fresh.table, fresh.mark) and self._may_have(entry):
                return entry
        return None

    def _may_have(self, entry: Entry) -> bool:
        """Return whether a table is what an entry has, or is getting; not one made after it."""
        kept = {found.key: found.size_bytes for found in self._part(entry).list(CONTENT)}
        there = {f"{CONTENT}/{one.key}": one.size_bytes for one in self.table(entry.table).list()}
        if entry.at:
            return there.items() <= kept.items()
        return kept.items() <= there.items()

    def _keep(self, entry: Entry, name: str) -> Entry:
        """Copy a table to an entry; what is there already is not copied again."""
        table, part = self.table(name), self._part(entry)
        part.replace(MANIFEST, msgspec.json.encode(entry))

        def copy(key: str) -> None:
            target = f"{ATTIC}/{entry.id}/{CONTENT}/{key}"
            self._may_write()
            if self.store.copy(f"{name}/{key}", target) is Created.OTHER:
                raise StorageError(
                    f"{self.store.url_of(target)} is not a copy of {table.url_of(key)}",
                    hint="Somebody else put an object there: move it away.",
                    url=self.store.url_of(target),
                )

        in_parallel(copy, [found.key for found in table.list()])
        return self._done(entry)

    def _done(self, entry: Entry) -> Entry:
        """Note that an entry is whole."""
        done = replace(entry, at=time_ns() // 1000)
        self._part(entry).replace(MANIFEST, msgspec.json.encode(replace(done, directory="")))
        return replace(done, directory=self._part(entry).url)

    def _part(self, entry: Entry) -> PartOfStore:
        return PartOfStore(self.store, f"{ATTIC}/{entry.id}", self._may_write)

    def _ids(self) -> set[str]:
        return {found.key.split("/")[2] for found in self.store.list(ATTIC)}

    def _entries(self, name: str) -> list[Entry]:
        """Return the entries of a table, also those that are not whole."""
        ids = sorted(one for one in self._ids() if f"-{name}" in one)
        found = [entry for one in ids if (entry := self._read(one)) is not None]
        return [entry for entry in found if entry.table == name]

    def _read(self, identity: str) -> Entry | None:
        """Return an entry by its id; None = nobody can say what it is."""
        key = f"{ATTIC}/{identity}/{MANIFEST}"
        try:
            found = msgspec.json.decode(self.store.read(key), type=Entry)
        except (ObjectMissingError, msgspec.MsgspecError):
            return None
        return replace(found, id=identity, directory=self.store.url_of(f"{ATTIC}/{identity}"))

    # -- copies ------------------------------------------------------------------------------------

    def bring_back(self, name: str, to: Path) -> None:
        """As `Lake.bring_back`: it is read from the bucket."""
        table = self.table(name)
        in_parallel(lambda found: bring_down(table, found, to / found.key), [*table.list()])
        sync_tree(to)

    def bring_own(self, name: str, files: Mapping[str, int], to: Path) -> bool:
        """As `Lake.bring_own`: what has path and size is read from the bucket, not from a site."""
        table = self.table(name)
        own = [
            found
            for found in table.list()
            if files.get(found.key) == found.size_bytes and not (to / found.key).exists()
        ]
        in_parallel(lambda found: bring_down(table, found, to / found.key), own)
        return bool(own)

    def add_files(self, name: str, files: Mapping[str, Path]) -> None:
        """As `Lake.add_files`: each is sent."""
        put_files(self.table(name), files)

    def take_over(self, name: str, directory: Path, mark: str) -> None:
        """As `Lake.take_over`: data first, then the log, its versions in their order.

        So a reader finds no table, or one at a version before.  What an attempt with another donor
        left goes first.
        """
        table, placing = self.table(name), f"{_PLACING}/{name}"
        files = files_below(directory)
        data, log, commits = in_order(files)
        last = commits[-1] if commits else ""
        with storing(directory):
            digest = sha256(files[last].read_bytes()).hexdigest() if last else ""
        self._may_write()
        self.store.replace(placing, msgspec.json.encode(_Placing(mark, last, digest)))
        table.remove([one.key for one in table.list() if one.key not in files])
        put_files(table, {key: files[key] for key in (*data, *log)})
        for key in commits:
            put_file(table, key, files[key])
        self._may_write()
        self.store.remove([placing])

    def is_begun(self, name: str, mark: str) -> bool:
        """As `Lake.is_begun`.

        A table whose last commit is there is whole.  Somebody may have written to it since.
        """
        try:
            content = self.store.read(f"{_PLACING}/{name}")
            placing = msgspec.json.decode(content, type=_Placing)
        except (ObjectMissingError, msgspec.MsgspecError):
            return False
        if placing.mark != mark or not placing.last:
            return placing.mark == mark
        try:
            return sha256(self.table(name).read(placing.last)).hexdigest() != placing.digest
        except ObjectMissingError:
            return True


def attic_key(name: str, mark: str) -> str:
    """Return where a dropped table is, below its lake."""
    return f"{ATTIC}/{entry_id(Kind.DROPPED, name, mark)}/{CONTENT}"


def in_order(keys: Iterable[str]) -> list[list[str]]:
    """Return the keys of a table as they are removed: data, the rest of the log, commits."""
    parts: list[list[str]] = [[], [], []]
    for key in sorted(keys):
        is_commit = is_in_log(key) and bool(commits_among([key.rpartition("/")[2]]))
        parts[2 if is_commit else int(is_in_log(key))].append(key)
    return parts
