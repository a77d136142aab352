"""A lake in a bucket: each write is made only while the lake's lock is held.

    <lake>/orders/…                                a table, as Spark and the worker write it
    <lake>/_sparktxlog/state.json, lock            state of the replica, and who may write
    <lake>/_sparktxlog/attic/dropped-orders-17/…   a dropped table, as an attic on a disk has it

What a store took is durable, so no version is torn, and nothing has to be settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import time_ns

import msgspec

from sparktxlog.attic.attic import Entry, Kind, entry_id
from sparktxlog.delta.log_files import commits_among, is_in_log
from sparktxlog.errors import ApplyError, StorageError
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.lakes.payload_files import PayloadFiles

#: Directory of the worker's own objects; Delta ignores the leading underscore.
OWN = "_sparktxlog"
ATTIC = f"{OWN}/attic"
_CONTENT = "content"
#: Objects that are copied at the same time.
_PARALLEL_COPIES = 8


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

    def set_aside(self, name: str, mark: str, why: str) -> str:
        """As `Lake.set_aside`: by copies in the bucket, of 5 GiB at most each."""
        table = self.table(name)
        entry = Entry(
            id=entry_id(Kind.DROPPED, name, mark),
            kind=Kind.DROPPED,
            why=why,
            table=name,
            mark=mark,
            source=table.url,
            at=time_ns() // 1000,
        )
        place = attic_key(name, mark).removesuffix(f"/{_CONTENT}")
        kept = PartOfStore(self.store, place, self._may_write)
        kept.replace("manifest.json", msgspec.json.encode(entry))
        keys = [found.key for found in table.list()]

        def copy(key: str) -> None:
            target = f"{place}/{_CONTENT}/{key}"
            self._may_write()
            if self.store.copy(f"{name}/{key}", target) is Created.OTHER:
                raise StorageError(
                    f"{self.store.url_of(target)} is not a copy of {table.url_of(key)}",
                    hint="Somebody else put an object there: move it away.",
                    url=self.store.url_of(target),
                )

        with ThreadPoolExecutor(_PARALLEL_COPIES, "set-aside") as threads:
            for _ in threads.map(copy, keys):
                pass
        # While a commit is there, the table is: a repetition goes on.  The keys of one request go
        # in any order, so commits have one of their own.
        for gone in _in_order(keys):
            table.remove(gone)
        return kept.url_of(_CONTENT)


def attic_key(name: str, mark: str) -> str:
    """Return where a dropped table is, below its lake."""
    return f"{ATTIC}/{entry_id(Kind.DROPPED, name, mark)}/{_CONTENT}"


def _in_order(keys: Iterable[str]) -> list[list[str]]:
    """Return the keys of a table as they are removed: data, the rest of the log, commits."""
    parts: list[list[str]] = [[], [], []]
    for key in sorted(keys):
        is_commit = is_in_log(key) and bool(commits_among([key.rpartition("/")[2]]))
        parts[2 if is_commit else int(is_in_log(key))].append(key)
    return parts
