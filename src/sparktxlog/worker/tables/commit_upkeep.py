"""Upkeep of commit tables: OPTIMIZE, checkpoints, VACUUM, and what is left over.

Delta compacts no table that a catalog manages, so OPTIMIZE runs on a plain twin, and its commit is
ordered as any other.  While it runs, the twin follows its table: Delta itself then checks what
others committed meanwhile, by its own rules, and commits the next version.  A compaction that
loses all the same is made again; where two sites compact at once, one loses and finds nothing to
do.

Checkpoints, VACUUM and the removal of leftovers are this site's own, and no commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from sparktxlog.codec.delta_catalog.catalog_answers import LoadedTable
from sparktxlog.codec.delta_catalog.catalog_requests import update_of
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import (
    StaleTimestampError,
    StorageError,
    TxLogError,
    VersionConflictError,
)
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.storage.commit_tables.shared_tables import (
    UPKEEP_TWINS,
    SharedTable,
    SharedTables,
    Twin,
)
from sparktxlog.worker.apply.deltalog import forget_log, write_checkpoint
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.tables.table_upkeep import (
    SMALL_BYTES,
    TableUpkeep,
    Upkeep,
    kept_ms,
    maintain_each,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.codec.delta_catalog.catalog_answers import CatalogTable

#: Most attempts at a compaction that loses.
ATTEMPTS = 3
#: Seconds that its commit may take until it is ordered.
COMMIT_S = 120.0
#: Between two looks at what others committed while OPTIMIZE runs, seconds.
_FOLLOW_S = 0.2
#: Property of a table → its value if it has none: versions between two checkpoints.
_INTERVAL, _EVERY = "delta.checkpointInterval", 10


class CommitTableKeeper:
    """Maintains the commit tables of one site; in a directory hold `one_at_a_time` of it.

    Args:
        spark: Returns the session; called only if there is something to compact.
        link: The node of this site.
        places: All tables, which this process reaches.
        tell: Called with a line after each table.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        link: CatalogLink,
        places: SharedTables,
        wanted: Upkeep,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._link = link
        self._places = places
        self._wanted = wanted
        self._tell = tell

    @cached_property
    def _session(self) -> SparkSession:
        session = applier_session(self._spark())
        session.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", "json")
        return session

    @cached_property
    def _now_ms(self) -> int:
        return self._places.now_ms()

    def maintain(self, tables: list[CatalogTable]) -> list[TableUpkeep]:
        """Maintain those of all tables of the log that are wanted; errors as `maintain_each`."""
        self._places.begin()
        known = {f"{one.schema_name}.{one.name}" for one in tables}
        return maintain_each("commit table", known, self._wanted, self._maintain, self._tell)

    def remove_unused(self, tables: list[CatalogTable]) -> list[str]:
        """Remove places that have had no table for long enough; return them.

        Raises:
            StorageError: Some may be left; try again.
        """
        known, dry_run = {one.table_id for one in tables}, self._wanted.dry_run
        found = self._places.unused(known, now_ms=self._now_ms, dry_run=dry_run)
        self._places.remove_unused(() if dry_run else found)
        return found

    def remove_abandoned(self) -> list[str]:
        """Remove twins of killed jobs and parts of files that are a week old; return them.

        Raises:
            StorageError: Some may be left; try again.
        """
        found = self._places.abandoned(now_ms=self._now_ms)
        self._places.remove_abandoned(() if self._wanted.dry_run else found)
        return found

    def _maintain(self, found: TableUpkeep) -> None:
        shown = self._link.load(found.table)
        table = self._places.table(found.table, shown.metadata.location)
        found.version_before = shown.latest_table_version
        self._count(found, shown, table)
        found.files_before = found.files
        if self._wanted.optimize:
            self._optimize(found, table)
        if self._wanted.vacuum:
            self._vacuum(found, table)

    def _count(self, found: TableUpkeep, shown: LoadedTable, table: SharedTable) -> None:
        """Count the files of a table at its newest version, without Spark."""
        clusters = "delta.clusteringColumns" in shown.metadata.properties
        data = table.data(shown.latest_table_version)
        found.version, found.files = shown.latest_table_version, len(data)
        found.small_files = sum(
            one.size < SMALL_BYTES or (clusters and not one.is_clustered) for one in data
        )

    # -- OPTIMIZE ----------------------------------------------------------------------------------

    def _optimize(self, found: TableUpkeep, table: SharedTable) -> None:
        """Compact a table if that is due, and write a checkpoint if that is."""
        may_compact = True
        while True:
            shown = self._link.load(found.table)
            version = shown.latest_table_version
            self._count(found, shown, table)
            due = may_compact and found.small_files >= self._wanted.many_files
            if self._wanted.dry_run:
                found.skipped = (
                    f"dry run: nothing is changed; OPTIMIZE would{'' if due else ' not'} run"
                )
                return
            if not due:
                every = int(shown.metadata.properties.get(_INTERVAL, _EVERY))
                if version - table.checkpointed(version) >= every:
                    with self._kept(table.log_twin(version, UPKEEP_TWINS)) as twin:
                        write_checkpoint(self._session, twin.path)
                        table.take_checkpoint(twin, version)
                        found.checkpoint = version
                return
            with self._kept(table.twin(version, UPKEEP_TWINS)) as twin:
                found.attempts += 1
                done = self._compacted(found, shown, table, twin)
            found.optimized = done is True
            may_compact = done is False and found.attempts < ATTEMPTS
            if done is False and not may_compact:
                found.skipped = f"OPTIMIZE, for other commits were faster {ATTEMPTS} times"

    def _compacted(
        self, found: TableUpkeep, shown: LoadedTable, table: SharedTable, twin: Twin
    ) -> bool | None:
        """Compact a twin; return whether that became a version of the table.

        None = Delta found nothing to do.
        """
        with _following(twin):
            self._session.sql(f"OPTIMIZE delta.{quoted_name(twin.path)}").collect()
        version = twin.own_version()
        if version is None:
            return None
        commit = twin.stage(version)
        try:
            request = update_of(shown.metadata.table_uuid, commit.proposed)
            self._link.commit(found.table, request, timeout_s=COMMIT_S)
        except TxLogError as error:
            if error.definite:
                table.withdraw(commit)
            if not isinstance(error, (VersionConflictError, StaleTimestampError)):
                raise
            self._tell(f"{found.table}: version {version} went to another commit: {error.message}")
            return False
        return True

    @contextmanager
    def _kept(self, twin: Twin) -> Iterator[Twin]:
        """Give a twin, which is removed in the end."""
        try:
            yield twin
        finally:
            twin.remove()
            forget_log(self._session, twin.path)

    # -- this site alone ---------------------------------------------------------------------------

    def _vacuum(self, found: TableUpkeep, table: SharedTable) -> None:
        """Remove what no version within the table's retention, or since the first restore point,
        needs; and decided commits.
        """
        shown = self._link.load(found.table)
        version = shown.latest_table_version
        self._count(found, shown, table)
        keep_ms = kept_ms(found, self._wanted, shown.metadata.properties)
        if keep_ms is None:
            return
        old = table.unneeded(version, now_ms=self._now_ms, keep_ms=keep_ms)
        staged = table.decided(version, now_ms=self._now_ms)
        found.vacuumed_files, found.vacuumed_bytes = old.count, old.size_bytes
        found.staged_commits = staged.count
        if self._wanted.dry_run:
            return
        old.remove()
        staged.remove()


@contextmanager
def _following(twin: Twin) -> Iterator[None]:
    """Let a twin follow its table until it has a version of its own."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(_FOLLOW_S):
            try:
                twin.follow()
            except (StorageError, OSError):
                return  # it has a version of its own, or its files are gone: the commit says which

    thread = threading.Thread(target=follow, name="twin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
