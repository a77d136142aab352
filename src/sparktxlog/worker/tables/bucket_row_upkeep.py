"""Upkeep of a replica's tables in a bucket: objects that no version needs are removed.

    <lake>/orders/…      files that versions within the retention do not need: rows that were
                         removed, attempts that failed
    <lake>/.incoming/…   what killed processes left of large objects

It is done only while this process has the lake's lock, as a worker has it; what copies of other
sites need (`files.stores.object_pins`) stays.  Old is what the store says.  Nothing is compacted.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from sparktxlog.delta.checkpoints import newest_checkpoint
from sparktxlog.delta.commit_contents import files_of_removed
from sparktxlog.delta.commit_files import files_of_commit
from sparktxlog.delta.file_paths import may_be_data
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import newest_version
from sparktxlog.delta.log_segments import read_version
from sparktxlog.errors import InvalidRequestError, LockedError
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.object_pins import LEASES, pinned_paths
from sparktxlog.files.stores.store import Found, Store, earlier_clock
from sparktxlog.files.stores.whole_files import AT_ONCE
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.commit_tables.table_sweep import NAME_AGE_MS, UNUSED_AGE_MS
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.lakes.lake_places import lake_at
from sparktxlog.worker.replica.bucket_replica import BucketReplica
from sparktxlog.worker.replica.state import ReplicaState, applied_state
from sparktxlog.worker.tables.table_upkeep import (
    SMALL_BYTES,
    TableUpkeep,
    Upkeep,
    kept_ms,
    maintain_each,
)

#: Between two attempts to get the replica from its worker, seconds.
_TRY_S = 0.5


def maintain_bucket(
    lake: str, here: Path, wanted: Upkeep, tell: Callable[[str], None] = lambda _: None
) -> list[TableUpkeep]:
    """Remove what the tables of a replica in a bucket do not need; hold `one_at_a_time` of `here`.

    Args:
        here: Directory of the node's disk, `lake-dir`.
        tell: Called with a line after each table.

    Raises:
        NotAppliedError: No worker has applied anything here yet (definite).
        InvalidRequestError: A table that is named is not of this replica, or `here` is not on this
            machine, so that nobody knows what copies need (definite).
        StorageError: As `Store`.
    """
    # A worker on another machine may have made the directory itself.
    if not (here / LEASES).is_dir():
        raise InvalidRequestError(
            f"{here}, the lake-dir of the node, is not on this machine: it says which objects "
            "copies of other sites need",
            hint="Run maintain on the machine of the node, which runs there.  Nothing was removed.",
            field="lake-dir",
            value=str(here),
        )
    state, reading = applied_state(lake), lake_at(lake)
    assert isinstance(reading, BucketLake)
    now_ms = int(earlier_clock(reading.store, f"{INCOMING}/clock-{secrets.token_hex(8)}") * 1_000)
    if wanted.dry_run:
        keeper = BucketKeeper(reading, here, state, wanted, now_ms)
        return maintain_each("row table", state.tables, wanted, keeper.maintain, tell)
    try:
        replica = _own_replica(lake, here, wanted.wait_s)
    except LockedError as error:
        why = (
            f"VACUUM, for {error.message}; a worker with --follow has the lock all the time: stop "
            "it, run maintain, and start it again"
        )
        keeper = BucketKeeper(reading, here, state, wanted, now_ms, why)
        return maintain_each("row table", state.tables, wanted, keeper.maintain, tell)
    with closing(replica):
        keeper = BucketKeeper(replica.place, here, replica.load(), wanted, now_ms)
        done = maintain_each("row table", keeper.state.tables, wanted, keeper.maintain, tell)
        if wanted.vacuum:
            keeper.remove_leftovers()
    return done


def _own_replica(lake: str, here: Path, wait_s: float) -> BucketReplica:
    """Return the replica, owned as a worker owns it; wait until a worker releases it.

    Raises:
        LockedError: It did not in time (definite).
    """
    deadline_s, never = monotonic() + wait_s, threading.Event()
    while True:
        try:
            return BucketReplica(lake, here)
        except LockedError:
            if monotonic() >= deadline_s:
                raise
            never.wait(_TRY_S)


@dataclass(slots=True)
class BucketKeeper:
    """Maintains single tables.

    Args:
        lake: Writes only while the lock is held.
        now_ms: By the clock of the store, milliseconds since 1970 UTC.
        locked_out: Why nothing may be removed; empty = it may.
    """

    lake: BucketLake
    here: Path
    state: ReplicaState
    wanted: Upkeep
    now_ms: int
    locked_out: str = ""

    def maintain(self, found: TableUpkeep) -> None:
        """Remove what a table does not need, and note what was done."""
        table, known = self.lake.table(found.table), self.state.tables[found.table]
        sizes = live_files(table).sizes.values()
        found.files_before = found.files = len(sizes)
        found.bytes_before = found.bytes = sum(sizes)
        found.small_files = sum(size < SMALL_BYTES for size in sizes)
        found.disk_before = found.disk = sum(one.size_bytes for one in table.list())
        if known.diverged:
            found.skipped = f"it stands still: {known.diverged}"
        elif self.locked_out:
            found.skipped = self.locked_out
        elif self.state.pending is not None or self.state.copying is not None:
            found.skipped = "a batch or copy was interrupted; a worker has to finish it first"
        elif self.wanted.vacuum:
            self._vacuum(found)

    def _vacuum(self, found: TableUpkeep) -> None:
        name = found.table
        table = self.lake.table(name)
        keep_ms = kept_ms(found, self.wanted, read_version(table).metadata.configuration)
        if keep_ms is None:
            return
        cutoff_ms = self.now_ms - keep_ms
        version = newest_version(table, self.state.tables[name].version)
        there = [*table.list()]  # what is put there later is young
        # The last look: a lease that is given later lists what is there then.
        stays = needed_since(table, version, there, cutoff_ms)
        stays |= pinned_paths(self.here).get(name, set())
        before_s = min(cutoff_ms, self.now_ms - NAME_AGE_MS) / 1_000
        gone = {
            one.key: one.size_bytes
            for one in there
            if may_be_data(one.key, changes=True)
            and one.key not in stays
            and one.changed_s < before_s
        }
        count, size = len(gone), sum(gone.values())
        if self.wanted.dry_run:
            found.skipped = f"dry run: VACUUM would remove {count:,} objects of {size:,} bytes"
            return
        table.remove(sorted(gone))
        found.vacuumed_files, found.vacuumed_bytes = count, size
        found.disk, found.vacuumed = found.disk_before - found.vacuumed_bytes, "full"

    def remove_leftovers(self) -> None:
        """Remove what killed processes left of large objects a week ago."""
        before = (self.now_ms - UNUSED_AGE_MS) / 1_000
        part = self.lake.table(INCOMING)
        part.remove([one.key for one in part.list() if one.changed_s < before])


def needed_since(table: Store, version: int, there: Iterable[Found], cutoff_ms: int) -> set[str]:
    """Return what readers need of all versions that were the newest one at a time or later.

    A version is as old as the store says that its commit is.

    Args:
        version: The newest version.
        there: What the table consists of.
        cutoff_ms: The time, milliseconds since 1970 UTC.

    Raises:
        CorruptLogError: A commit cannot be read, so that nobody knows.
        StorageError: As `Store`.
    """
    needed = {*live_files(table, version).needed}
    times = {one.key: one.changed_s * 1_000 for one in there}
    number, young = version, list[int]()
    while times.get(commit_file_name(number), 0.0) > cutoff_ms:
        young.append(number)
        number -= 1
    # What a version needed and the newest one does not, a commit after it removed.
    with ThreadPoolExecutor(AT_ONCE, "commits") as threads:
        for found in threads.map(lambda one: files_of_commit(table, one), young):
            needed |= found
    if number >= 0 and commit_file_name(number) not in times:  # the log was cleaned up
        base = newest_checkpoint(table, version)
        if base is not None:
            needed |= files_of_removed(base.removed_after(cutoff_ms))
    return needed
