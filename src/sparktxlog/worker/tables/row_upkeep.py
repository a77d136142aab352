"""Upkeep of a replica's tables: OPTIMIZE of many small files, VACUUM of old versions.

A table on a local disk has one writer: two JVMs that commit at once may overwrite each other's
commit.  So OPTIMIZE and a full VACUUM take the worker's lock, for one table at a time.  While a
worker holds the lock, OPTIMIZE is skipped and VACUUM runs in lite mode.  That mode commits nothing
and looks only at files that the table's log removed, so a file that a worker linked and did not
commit yet is safe.  OPTIMIZE changes no rows, and the worker accepts it.

Nothing below `_sparktxlog/` is touched.  Files that donors pinned for running copies are hard links
there, which VACUUM leaves alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import newest_version
from sparktxlog.delta.log_segments import read_version
from sparktxlog.errors import LockedError
from sparktxlog.worker.apply.settling import settle
from sparktxlog.worker.apply.tables import read_commit
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.lakes.leftovers import Leftovers
from sparktxlog.worker.replica.driver_lock import lock_by_driver
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, applied_state
from sparktxlog.worker.tables.table_upkeep import (
    HOUR_MS,
    SMALL_BYTES,
    TableUpkeep,
    Upkeep,
    kept_ms,
    maintain_each,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Between two attempts to get the replica from its worker, seconds.
_TRY_S = 0.5


def maintain_replica(
    spark: SparkSession,
    lake: str | Path,
    wanted: Upkeep,
    tell: Callable[[str], None] = lambda _: None,
) -> list[TableUpkeep]:
    """Compact and vacuum the tables of a replica; hold `one_at_a_time` of it.

    Args:
        tell: Called with a line after each table.

    Raises:
        NotAppliedError: No worker has applied anything here yet (definite).
        InvalidRequestError: A table that is named is not of this replica (definite).
    """
    lake = Path(lake).absolute()
    state = applied_state(lake)
    session = applier_session(spark)
    # A log entry of VACUUM would be a commit that is not the worker's.
    session.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")
    # Delta would ignore RETAIN, and restore points would lose their files.
    session.conf.set("spark.databricks.delta.vacuum.retentionWindowIgnore.enabled", "false")
    # VACUUM lists files in this many tasks; Spark's default of 10,000 takes minutes (measured).
    tasks = max(4, 2 * spark.sparkContext.defaultParallelism)
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(tasks))
    keeper = _Keeper(session, lake, state, wanted)
    return maintain_each("row table", state.tables, wanted, keeper.maintain, tell)


class _Keeper:
    """Maintains single tables."""

    def __init__(
        self, session: SparkSession, lake: Path, state: ReplicaState, wanted: Upkeep
    ) -> None:
        self._session = session
        self._lake = lake
        self._state = state
        self._wanted = wanted
        self._leftovers = Leftovers()
        #: How long to wait for a worker, for all tables together.
        self._deadline_s = monotonic() + wanted.wait_s

    def maintain(self, found: TableUpkeep) -> None:
        directory = self._lake / found.table
        found.files_before, found.bytes_before, found.small_files = _live(directory)
        found.files, found.bytes = found.files_before, found.bytes_before
        found.disk_before = found.disk = _disk(directory)
        if diverged := self._state.tables[found.table].diverged:
            found.skipped = f"it stands still: {diverged}"
        elif self._wanted.dry_run:
            self._predict(found)
        else:
            self._work(found, directory)
            found.files, found.bytes, _ = _live(directory)
            found.disk = _disk(directory)

    def _is_due(self, found: TableUpkeep) -> bool:
        return self._wanted.optimize and found.small_files >= self._wanted.many_files

    def _predict(self, found: TableUpkeep) -> None:
        acts = ["OPTIMIZE"] if self._is_due(found) else []
        acts += ["VACUUM"] if self._wanted.vacuum else []
        found.skipped = f"dry run: {' and '.join(acts) or 'nothing'} would run"

    def _work(self, found: TableUpkeep, directory: Path) -> None:
        due = self._is_due(found)
        if not due and not self._wanted.vacuum:
            return
        try:
            replica = self._own_replica()
        except LockedError as error:
            if due:
                found.skipped = f"OPTIMIZE, for {error.message}"
            if self._wanted.vacuum:
                self._vacuum(found, directory, "lite")
            return
        with closing(replica):
            state = applied_state(self._lake)
            if state.pending is not None or state.copying is not None:
                found.skipped = "a batch or copy was interrupted; a worker has to finish it first"
                return
            if found.table not in state.tables:
                found.skipped = "it was dropped meanwhile"
                return
            if due:
                before = newest_version(directory, state.tables[found.table].version)
                with self._leftovers.removed(found.table, directory, lambda: before):
                    self._sql(f"OPTIMIZE {_quoted(directory)}")
                # Spark fsyncs nothing, and a later VACUUM removes the old files.
                newest = newest_version(directory, before)
                settle(directory, before + 1, newest)
                _record(replica, state, found.table, newest)
                found.optimized = True
            if self._wanted.vacuum:
                self._vacuum(found, directory, "full")

    def _vacuum(self, found: TableUpkeep, directory: Path, way: str) -> None:
        properties = read_version(directory).metadata.configuration
        keep_ms = kept_ms(found, self._wanted, properties)
        if keep_ms is not None:
            mode = "LITE " if way == "lite" else ""
            hours = -(-keep_ms // HOUR_MS)  # Delta refuses less than the table's own time
            self._sql(f"VACUUM {_quoted(directory)} {mode}RETAIN {hours} HOURS")
            found.vacuumed = way

    def _own_replica(self) -> ReplicaDirectory:
        """Return the replica, locked as a worker locks it; wait until a worker releases it."""
        never = threading.Event()
        while True:
            try:
                replica = ReplicaDirectory(self._lake)
            except LockedError:
                if monotonic() >= self._deadline_s:
                    raise
                never.wait(_TRY_S)
                continue
            try:
                rest_s = max(self._deadline_s - monotonic(), 0.0)
                path = replica.own / "lock.driver"
                replica.on_close(lock_by_driver(self._session, path, wait_s=rest_s))
            except BaseException:
                replica.close()
                raise
            return replica

    def _sql(self, statement: str) -> None:
        self._session.sql(statement).collect()


def _record(replica: ReplicaDirectory, state: ReplicaState, name: str, newest: int) -> None:
    """Let the replica's state name a table's newest version, if it has the rows of the known one.

    If nothing more is ordered, nobody else does, and VACUUM removes the files of the known version.
    """
    table, directory = state.tables[name], replica.lake / name
    versions = range(table.version + 1, newest + 1)
    if any(read_commit(directory, version).changes for version in versions):
        return  # of somebody else: the worker finds it, and the table stands still
    tables = {**state.tables, name: replace(table, version=newest)}
    replica.save(replace(state, tables=tables))


def _live(directory: Path) -> tuple[int, int, int]:
    """Return number and bytes of a table's live data files, and how many of them are small."""
    sizes = live_files(directory).sizes.values()
    return len(sizes), sum(sizes), sum(size < SMALL_BYTES for size in sizes)


def _disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _quoted(directory: Path) -> str:
    return f"delta.{quoted_name(str(directory))}"
