"""Upkeep of commit tables: OPTIMIZE, checkpoints, VACUUM, and what is left over.

Delta compacts no table that a catalog manages, so OPTIMIZE runs on a plain twin, and its commit is
ordered as any other.  While it runs, the twin follows its table: Delta itself then checks what
others committed meanwhile, by its own rules, and commits the next version.  A compaction that
loses all the same is made again; where two sites compact at once, one loses and finds nothing to
do.

Checkpoints, VACUUM and the removal of leftovers are this site's own, and no commits.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sparktxlog.codec.delta_catalog.catalog_answers import LoadedTable
from sparktxlog.codec.delta_catalog.catalog_requests import update_of
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.checkpoints import forget_taken, newest_of_twin, take_checkpoint
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import (
    CorruptLogError,
    StaleTimestampError,
    StorageError,
    VersionConflictError,
)
from sparktxlog.http.catalog_link import CatalogLink, path_of_location
from sparktxlog.storage.commit_tables.table_sweep import (
    abandoned,
    decided_commits,
    remove_abandoned,
    remove_directory,
    unneeded_files,
    unused_directories,
)
from sparktxlog.storage.commit_tables.twin import (
    extend_plain_twin,
    make_plain_twin,
    own_version,
    stage_twin_commit,
    with_feature,
    withdraw_twin_commit,
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
#: Where twins are, below the directory of all tables.
_TWINS = ".twins"
#: Property of a table → its value if it has none: versions between two checkpoints.
_INTERVAL, _EVERY = "delta.checkpointInterval", 10


class CommitTableKeeper:
    """Maintains the commit tables of one site; hold `one_at_a_time` of their directory.

    Args:
        spark: Returns the session; called only if there is something to compact.
        link: The node of this site.
        root: The directory of all tables, which is here.
        tell: Called with a line after each table.
        reader_root: That of the reader tables next to them, None = there are none.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        link: CatalogLink,
        root: Path,
        wanted: Upkeep,
        tell: Callable[[str], None] = lambda _: None,
        *,
        reader_root: Path | None = None,
    ) -> None:
        self._reader_root = reader_root
        self._spark = spark
        self._link = link
        self._root = root
        self._wanted = wanted
        self._tell = tell

    @cached_property
    def _session(self) -> SparkSession:
        session = applier_session(self._spark())
        session.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", "json")
        return session

    def maintain(self, tables: list[CatalogTable]) -> list[TableUpkeep]:
        """Maintain those of all tables of the log that are wanted; errors as `maintain_each`."""
        shutil.rmtree(self._root / _TWINS, ignore_errors=True)  # of a run that was killed
        known = {f"{one.schema_name}.{one.name}" for one in tables}
        return maintain_each("commit table", known, self._wanted, self._maintain, self._tell)

    def remove_unused(self, tables: list[CatalogTable]) -> list[Path]:
        """Remove directories that have had no table for long enough; return them.

        Raises:
            StorageError: Some may be left; try again.
        """
        known, dry_run = {one.table_id for one in tables}, self._wanted.dry_run
        now_ms = time.time_ns() // 1_000_000
        found = unused_directories(self._root, known, now_ms=now_ms, dry_run=dry_run)
        for directory in () if dry_run else found:
            remove_directory(directory)
        return found

    def remove_abandoned(self) -> list[Path]:
        """Remove twins of killed jobs and parts of files that are a week old; return them.

        Raises:
            StorageError: Some may be left; try again.
        """
        found = abandoned(self._root, now_ms=time.time_ns() // 1_000_000)
        if not self._wanted.dry_run:
            remove_abandoned(found)
        return found

    def _maintain(self, found: TableUpkeep) -> None:
        shown = self._link.load(found.table)
        found.version_before = shown.latest_table_version
        self._count(found, shown)
        found.files_before = found.files
        if self._wanted.optimize:
            self._optimize(found)
        if self._wanted.vacuum:
            self._vacuum(found)

    def _count(self, found: TableUpkeep, shown: LoadedTable) -> None:
        """Count the files of a table at its newest version, without Spark."""
        table, clusters = _directory(shown), "delta.clusteringColumns" in shown.metadata.properties
        data = live_files(table, shown.latest_table_version).data
        found.version, found.files = shown.latest_table_version, len(data)
        found.small_files = sum(
            one.size < SMALL_BYTES or (clusters and not one.is_clustered) for one in data
        )

    # -- OPTIMIZE ----------------------------------------------------------------------------------

    def _optimize(self, found: TableUpkeep) -> None:
        """Compact a table if that is due, and write a checkpoint if that is."""
        may_compact = True
        while True:
            shown = self._link.load(found.table)
            self._count(found, shown)
            due = may_compact and found.small_files >= self._wanted.many_files
            if self._wanted.dry_run:
                found.skipped = (
                    f"dry run: nothing is changed; OPTIMIZE would{'' if due else ' not'} run"
                )
                return
            if not due and not self._lacks_checkpoint(shown):
                return
            with self._twin(shown) as twin:
                if not due:
                    self._checkpoint(found, shown, twin)
                    return
                found.attempts += 1
                done = self._compacted(found, shown, twin)
            found.optimized = done is True
            may_compact = done is False and found.attempts < ATTEMPTS
            if done is False and not may_compact:
                found.skipped = f"OPTIMIZE, for other commits were faster {ATTEMPTS} times"

    def _compacted(self, found: TableUpkeep, shown: LoadedTable, twin: Path) -> bool | None:
        """Compact a twin; return whether that became a version of the table.

        None = Delta found nothing to do.
        """
        table, metadata = _directory(shown), shown.metadata
        with _following(table, twin):
            self._session.sql(f"OPTIMIZE delta.{quoted_name(str(twin))}").collect()
        version = own_version(table, twin)
        if version is None:
            return None
        commit = stage_twin_commit(table, twin, version)
        try:
            request = update_of(metadata.table_uuid, commit.proposed)
            self._link.commit(found.table, request, timeout_s=COMMIT_S)
        except (VersionConflictError, StaleTimestampError) as error:
            withdraw_twin_commit(table, commit)
            self._tell(f"{found.table}: version {version} went to another commit: {error.message}")
            return False
        return True

    @contextmanager
    def _twin(self, shown: LoadedTable) -> Iterator[Path]:
        twin = self._root / _TWINS / str(uuid.uuid4())
        try:
            make_plain_twin(_directory(shown), shown.latest_table_version, twin, history=False)
            yield twin
        finally:
            shutil.rmtree(twin, ignore_errors=True)
            forget_log(self._session, twin)

    # -- this site alone ---------------------------------------------------------------------------

    def _lacks_checkpoint(self, shown: LoadedTable) -> bool:
        version = shown.latest_table_version
        base = newest_of_twin(_directory(shown), version)
        every = int(shown.metadata.properties.get(_INTERVAL, _EVERY))
        return version - (-1 if base is None else base.version) >= every

    def _checkpoint(self, found: TableUpkeep, shown: LoadedTable, twin: Path) -> None:
        """Let Delta write a checkpoint of a twin, and give it to the table."""
        write_checkpoint(self._session, twin)
        made = newest_of_twin(twin, shown.latest_table_version)
        if made is None or made.version != shown.latest_table_version:
            raise CorruptLogError(f"Delta wrote no checkpoint in {twin}", path=str(twin))
        take_checkpoint(made, _directory(shown), with_feature)
        forget_taken(_directory(shown))
        found.checkpoint = made.version

    def _vacuum(self, found: TableUpkeep) -> None:
        """Remove what no version within the table's retention, or since the first restore point,
        needs; and decided commits.
        """
        shown = self._link.load(found.table)
        table, version = _directory(shown), shown.latest_table_version
        self._count(found, shown)
        now_ms = time.time_ns() // 1_000_000
        keep_ms = kept_ms(found, self._wanted, shown.metadata.properties)
        if keep_ms is None:
            return
        old = unneeded_files(table, version, now_ms=now_ms, keep_ms=keep_ms)
        staged = decided_commits(table, version, now_ms=now_ms)
        found.vacuumed_files, found.vacuumed_bytes = len(old.paths), old.size_bytes
        found.staged_commits = len(staged.paths)
        if self._wanted.dry_run:
            return
        if self._reader_root is not None:
            readers = self._reader_root / Path(*found.table.split("."))
            for path in old.paths:
                (readers / path.relative_to(table)).unlink(missing_ok=True)
        old.remove()
        staged.remove()


@contextmanager
def _following(table: Path, twin: Path) -> Iterator[None]:
    """Let a twin follow its table until it has a version of its own."""
    over = threading.Event()

    def follow() -> None:
        newest = newest_commit(twin)
        while not over.wait(_FOLLOW_S):
            try:
                if (now := newest_commit(table)) > newest:
                    extend_plain_twin(table, now, twin)
                    newest = now
            except (StorageError, OSError):
                return  # it has a version of its own, or its files are gone: the commit says which

    thread = threading.Thread(target=follow, name="twin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _directory(shown: LoadedTable) -> Path:
    return Path(path_of_location(shown.metadata.location))
