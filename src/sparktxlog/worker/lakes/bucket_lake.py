"""A lake in a bucket: each write is made only while the lake's lock is held.

    <lake>/orders/…                                a table, as Spark and the worker write it
    <lake>/_sparktxlog/state.json, lock            state of the replica, and who may write
    <lake>/_sparktxlog/attic/dropped-orders-17/…   a dropped table, as an attic on a disk has it
    <lake>/_sparktxlog/attic/…/moving              it is not whole, or its table is not gone yet
    <lake>/_sparktxlog/placing/orders              a copy puts a table there, and is not done

What a store took is durable, so no version is torn, and nothing has to be settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec

from sparktxlog.attic.attic import CONTENT, OF_LAKE, Entry, Kind, entry_id
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.delta.log_files import in_order
from sparktxlog.errors import ApplyError, ObjectMissingError
from sparktxlog.files.durability import storing
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
        self._attic = BucketAttic(store, OF_LAKE, may_write=may_write, in_order=in_order)

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
        begins = f"{entry_id(Kind.DROPPED, name, '')}-"
        return {one for one in self._attic.ids() if one.startswith(begins)}

    def set_aside(
        self,
        name: str,
        mark: str,
        why: str,
        kind: Kind = Kind.DROPPED,
        facts: dict[str, Any] | None = None,
    ) -> str:
        """As `Lake.set_aside`: by copies in the bucket."""
        said = {"kind": kind, "table": name, "mark": mark, "why": why, "facts": facts}
        return self._attic.put(name, **said).place

    def keep(self, name: str, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.keep`: by copies in the bucket."""
        said = {"table": name, "mark": mark, "why": why, "facts": facts}
        return self._attic.keep(name, kind=Kind.TABLE, **said)

    def put_rows(self, name: str, rows: Path, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """As `Lake.put_rows`: they are sent."""
        said = {"table": name, "mark": mark, "why": why, "facts": facts}
        files, source = files_below(rows), self.table(name).url
        return self._attic.send(files, source, kind=Kind.ROWS, **said)

    def kept(self, name: str) -> list[Entry]:
        """As `Lake.kept`."""
        return self._attic.whole(name)

    def forget(self, entry: Entry) -> None:
        """As `Lake.forget`."""
        self._attic.forget(entry)

    # -- copies ------------------------------------------------------------------------------------

    def back_up(self, name: str, mark: str, why: str, attic: Path) -> None:
        """As `Lake.back_up`: in the lake's own attic, by copies in the bucket."""
        if self._attic.newest(Kind.BACKUP, name, mark) is None:
            self._attic.keep(name, kind=Kind.BACKUP, table=name, mark=mark, why=why)

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
    return f"{OF_LAKE}/{entry_id(Kind.DROPPED, name, mark)}/{CONTENT}"
