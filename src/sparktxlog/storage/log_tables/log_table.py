"""Delta tables of `log/`, written by this process alone: appended, compacted, repaired.

Readers see plain tables at reader version 1 / writer version 2.  The data files are written and
fsynced here, and delta-rs commits their names.  It fsyncs nothing itself (measured), so the commit
and the directories are fsynced here too.  The next commit of the same version overwrites the files
of an undone commit, so there are no orphans.

Every ~100 commits `maintain` merges small files into one, writes a checkpoint, and drops expired
log entries and replaced files (vacuum in lite mode only: full mode is known to delete live
files).  Without that each commit would cost more than the one before.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from sparktxlog.codec.parquet_columns import exact_columns
from sparktxlog.delta.checkpoints import drop_torn, files_to_sync
from sparktxlog.delta.commit_files import lowest_torn
from sparktxlog.delta.log_files import commit_path, commits_in, log_of
from sparktxlog.errors import CorruptLogError, NewerReleaseError, StorageError
from sparktxlog.storage.durability import (
    rewrite_file,
    storage_error,
    storing,
    sync_directory,
    sync_file,
)
from sparktxlog.storage.parquet_files import RowStatistics, write_parquet

#: Format of the tables that this release writes; those without a number are of the first one.
FORMAT = 1
#: Precedes the number in a table's description: delta-rs accepts only Delta's own properties.
_FORMAT_IS = "sparktxlog log table, format "
_PROPERTIES: dict[str, str | None] = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
#: Checkpoints and clean-up happen in `maintain`, where they are fsynced.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
#: Files below this are merged; merging stops growing them there.
_SMALL_BYTES = 8 << 20
#: Rows held in memory while merging.
_MERGE_ROWS = 65_536
_RETENTION_HOURS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveFile:
    path: str
    size_bytes: int
    rows: int
    #: Greatest value of the column asked for, None = not known.
    greatest: Any = None


class LogTable:
    """One table of `log/`; one writer, used by one thread at a time.

    Args:
        directory: The table's directory; made if missing.
        schema: Its columns.
        app_id: Name of its writer's transaction version, "" = none is kept.

    Raises:
        CorruptLogError: A commit at or below `safe_version` is damaged.
        NewerReleaseError: The table has a format that this release does not know; nothing of it
            was changed (definite).
    """

    #: Commits between two runs of `maintain`.
    maintain_every = 100

    def __init__(
        self, directory: Path, schema: pa.Schema, *, app_id: str = "", safe_version: int = -1
    ) -> None:
        self.directory = directory
        self.schema = schema
        self._app_id = app_id
        self._log = log_of(directory)
        self._commits = 0
        #: True: files that a kill between removal and vacuum left were searched for.
        self._swept = False
        #: True: a commit failed, so the handle may know less than the disk holds.
        self._stale = False
        self._check_format()
        repair(directory, safe_version)
        self._table = self._open()
        self._sync_found(safe_version)
        #: Asking the handle costs milliseconds.
        self._transaction = self._read_transaction()

    def _check_format(self) -> None:
        """Refuse a table of a later format before it is repaired."""
        if not self._log.is_dir():
            return
        try:
            described = DeltaTable(self.directory).metadata().description or ""
        except (DeltaError, OSError):
            return  # torn: no release writes such a table
        number = described.removeprefix(_FORMAT_IS)
        if number != described and number.isdigit() and int(number) > FORMAT:
            raise NewerReleaseError(
                f"{self.directory} has format {number}, this release knows formats up to {FORMAT}",
                hint="Start the newer release: it reads what it wrote.",
                path=str(self.directory),
                format=int(number),
            )

    def _open(self) -> DeltaTable:
        try:
            if not any(self._log.glob("*.json")):
                self.directory.mkdir(parents=True, exist_ok=True)
                made = DeltaTable.create(
                    self.directory,
                    schema=self.schema,
                    name=self.directory.name,
                    description=f"{_FORMAT_IS}{FORMAT}",
                    configuration=_PROPERTIES,
                )
                self._sync_commit(made.version())
                sync_directory(self.directory.parent)
            table = DeltaTable(self.directory)
        except DeltaError as error:
            raise CorruptLogError(
                f"Delta table {self.directory} cannot be opened: {error}",
                hint="Move the directory away: it is written again from the journal.",
                path=str(self.directory),
            ) from error
        except OSError as error:
            raise storage_error(error, self.directory) from error
        self._commits = table.version() % self.maintain_every
        return table

    def _sync_found(self, safe_version: int) -> None:
        """Fsync commits of a former process or attempt, which may not have done so.

        If that fsync failed, the system treats unwritten pages as written.
        """
        with storing(self.directory):
            for version in commits_in(self.directory):
                if version > safe_version:
                    rewrite_file(commit_path(self.directory, version))
            sync_directory(self._log)
            sync_directory(self.directory)

    @property
    def version(self) -> int:
        """Delta version of the table."""
        return int(self._table.version())

    @property
    def transaction_version(self) -> int:
        """Transaction version of the last append that carried one, 0 = none."""
        self._refresh()
        return self._transaction

    def _read_transaction(self) -> int:
        return int(self._table.transaction_version(self._app_id) or 0)

    def append(self, rows: pa.Table, *, transaction: int | None = None) -> int:
        """Append rows as one file in one fsynced commit and return its Delta version.

        Args:
            rows: Columns as in `schema`.
            transaction: Transaction version that the commit records, > `transaction_version`.

        Raises:
            DiskFullError: No space left; see `StorageError`.
            StorageError: The commit may exist: check `transaction_version` before trying again.
        """
        self._refresh()
        carried = []
        if transaction is not None:
            carried.append(Transaction(self._app_id, transaction))
        file = self._write_file(f"part-{self.version + 1:020}.parquet", [rows])
        version = self._commit([file], carried)
        if transaction is not None:
            self._transaction = transaction
        self._commits += 1
        if self._commits >= self.maintain_every:
            self.maintain()
            version = self.version
        return version

    def _refresh(self) -> None:
        """After a failed commit read what is on the disk, and make that durable."""
        if not self._stale:
            return
        try:
            self._table.update_incremental()
            rewrite_file(commit_path(self.directory, self.version))
            self._sync_commit(self.version)
            self._transaction = self._read_transaction()
        except (DeltaError, OSError) as error:
            raise self._failure("reading", error) from error
        self._stale = False

    def maintain(self) -> None:
        """Merge small files, write a checkpoint, drop what has expired."""
        self._commits = 0
        try:
            self._merge_small_files()
            self._table.create_checkpoint()
            for path in files_to_sync(self.directory, self.version, self.version):
                sync_file(path)
            sync_directory(self._log)
            self._table.cleanup_metadata()
            self._vacuum(_RETENTION_HOURS)
            # A new handle begins at the checkpoint; the old one holds all commits since it began.
            self._table = DeltaTable(self.directory)
            self._sync_latest()
        except (DeltaError, OSError) as error:
            self._stale = True
            raise self._failure("maintenance", error) from error

    def expire(self, column: str, horizon: int | datetime) -> int:
        """Remove the files whose rows all have `column` at or below the horizon, for good.

        One fsynced commit removes them from the table; then they are deleted at once, so a reader
        of the old version may miss them.  A file with later rows stays.  It may be repeated, also
        after a crash.

        Args:
            column: A number or timestamp whose maximum is in the table's statistics.
            horizon: Largest value to remove.

        Returns:
            Rows removed.

        Raises:
            StorageError: The files may be removed from the table but still be on the disk.
        """
        self._refresh()
        gone = [file for file in self._live_files(column) if _is_at_most(file.greatest, horizon)]
        try:
            if gone:
                self._commit([self._removal(file, data_change=True) for file in gone], [])
            if gone or (not self._swept and self._has_removed_files()):
                # A checkpoint first: the vacuum's commits must not take more space than it frees.
                self._table.create_checkpoint()
                self._vacuum(0)
                self._table = DeltaTable(self.directory)
                self._sync_latest()
            self._swept = True
        except (DeltaError, OSError) as error:
            self._stale = True
            raise self._failure("expiry", error) from error
        return sum(file.rows for file in gone)

    def last_values(self, order: str, other: str) -> tuple[Any, Any] | None:
        """Return two columns of the row with the greatest value of the first, None without rows.

        Reads the statistics, and the end of one file, whose rows are in that order.

        Raises:
            CorruptLogError: That file is damaged.
        """
        files = [file for file in self._live_files(order) if file.greatest is not None]
        if not files:
            return None
        path = self.directory / max(files, key=lambda file: file.greatest).path
        try:
            with pq.ParquetFile(path) as source:
                rows = source.read_row_group(source.num_row_groups - 1, columns=[order, other])
        except (OSError, pa.ArrowException) as error:
            raise CorruptLogError(
                f"{path} is damaged: {error}",
                hint="Move the table's directory away: it is written again from the journal.",
                path=str(path),
            ) from error
        return rows.column(order)[-1].as_py(), rows.column(other)[-1].as_py()

    def _has_removed_files(self) -> bool:
        """Return whether there are files that are not in the table: a kill before vacuum."""
        live = {file.path for file in self._live_files()}
        return any(path.name not in live for path in self.directory.glob("*.parquet"))

    def _vacuum(self, retention_hours: int) -> None:
        self._table.vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            post_commithook_properties=_NO_HOOKS,
            full=False,
        )

    def _sync_latest(self) -> None:
        for path in self._log.glob("*.json"):
            if int(path.stem) > self.version - 4:
                sync_file(path)
        sync_directory(self._log)

    @staticmethod
    def _removal(file: _LiveFile, *, data_change: bool) -> RemoveAction:
        return RemoveAction(
            path=file.path,
            data_change=data_change,
            deletion_timestamp=time_ns() // 1_000_000,
            size=file.size_bytes,
            partition_values={},
        )

    def _merge_small_files(self) -> None:
        small = sorted(
            (file for file in self._live_files() if file.size_bytes < _SMALL_BYTES),
            key=lambda file: file.path,
        )
        if len(small) < 2:
            return
        merged = self._write_file(
            # Sorts like the last of its sources, so that the order of files is that of time.
            f"part-{self.version:020}-merged-{self.version + 1}.parquet",
            self._read_files(small),
            data_change=False,
        )
        removed = [self._removal(file, data_change=False) for file in small]
        self._commit([merged, *removed], [])

    def _live_files(self, column: str = "") -> list[_LiveFile]:
        """Return the table's files, with the greatest value of a column."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        greatest = f"max.{column}"
        known = greatest in actions.column_names
        return [
            _LiveFile(path=path, size_bytes=size, rows=rows or 0, greatest=value)
            for path, size, rows, value in zip(
                actions.column("path").to_pylist(),
                actions.column("size_bytes").to_pylist(),
                actions.column("num_records").to_pylist(),
                actions.column(greatest).to_pylist() if known else [None] * actions.num_rows,
                strict=True,
            )
        ]

    def _read_files(self, files: list[_LiveFile]) -> Iterator[pa.Table]:
        """Yield the rows of files in order, a bounded number at once."""
        for file in files:
            with pq.ParquetFile(self.directory / file.path) as source:
                for batch in source.iter_batches(batch_size=_MERGE_ROWS):
                    yield pa.Table.from_batches([batch]).cast(self.schema)

    def _write_file(
        self, name: str, pieces: Iterator[pa.Table] | list[pa.Table], *, data_change: bool = True
    ) -> AddAction:
        path, stats = self.directory / name, RowStatistics(self.schema)
        with storing(path):
            if isinstance(pieces, list):
                stats.take(pieces[0])
                path.write_bytes(memoryview(write_parquet(pieces[0])))
            else:
                _write_stream(path, self.schema, _counted(pieces, stats))
            sync_file(path)
            sync_directory(self.directory)
            status = path.stat()
        return AddAction(
            path=name,
            size=status.st_size,
            partition_values={},
            modification_time=status.st_mtime_ns // 1_000_000,
            data_change=data_change,
            stats=stats.to_json(),
        )

    def _commit(self, actions: list[Any], transactions: list[Transaction]) -> int:
        try:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self.schema,
                commit_properties=CommitProperties(
                    app_transactions=transactions or None, max_commit_retries=0
                ),
                post_commithook_properties=_NO_HOOKS,
            )
            self._table.update_incremental()
            self._sync_commit(self.version)
        except (DeltaError, OSError) as error:
            self._stale = True
            raise self._failure("commit", error) from error
        return self.version

    def _failure(self, act: str, error: Exception) -> StorageError:
        if isinstance(error, OSError) and error.errno is not None:
            return storage_error(error, self.directory)
        if "No space left" in str(error):
            return storage_error(OSError(errno.ENOSPC, str(error)), self.directory)
        return StorageError(
            f"{act} of Delta table {self.directory} failed: {error}",
            hint="Only the node may write this table; it will try again.",
            path=str(self.directory),
        )

    def _sync_commit(self, version: int) -> None:
        sync_file(commit_path(self.directory, version))
        sync_directory(self._log)
        sync_directory(self.directory)


def _is_at_most(value: Any, horizon: int | datetime) -> bool:
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value is not None and bool(value <= horizon)


def _counted(pieces: Iterator[pa.Table], stats: RowStatistics) -> Iterator[pa.Table]:
    for piece in pieces:
        stats.take(piece)
        yield piece


def _write_stream(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    """Write pieces as row groups of about `_MERGE_ROWS` rows."""
    with pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        store_schema=False,
        **exact_columns(schema),
    ) as writer:
        held: list[pa.Table] = []
        rows = 0
        for piece in pieces:
            held.append(piece)
            rows += piece.num_rows
            if rows >= _MERGE_ROWS:
                writer.write_table(pa.concat_tables(held))
                held, rows = [], 0
        if held:
            writer.write_table(pa.concat_tables(held))


def repair(directory: Path, safe_version: int) -> list[int]:
    """Undo commits that a power loss damaged, and return their versions.

    Only versions above `safe_version`, the last one known to be fsynced, are undone: the first
    damaged one and all above it.  Torn checkpoints are removed too; their commits still exist,
    because clean-up happens only after a checkpoint was fsynced.

    Raises:
        CorruptLogError: A commit at or below `safe_version` is damaged.
    """
    log = log_of(directory)
    if not log.is_dir():
        return []
    undone: list[int] = []
    with storing(log):
        # Undoing a merge brings its sources back, so the rest is checked again.
        while (damaged := _first_damaged(directory, safe_version)) is not None:
            if damaged <= safe_version:
                raise CorruptLogError(
                    f"version {damaged} of Delta table {directory} is damaged",
                    hint="Move the directory away: it is written again from the journal.",
                    path=str(commit_path(directory, damaged)),
                )
            torn = [version for version in commits_in(directory) if version >= damaged]
            for version in reversed(torn):
                for path in log.glob(f"{version:020}.*"):
                    path.unlink()
            undone.extend(torn)
        drop_torn(directory)
        sync_directory(log)
    return sorted(undone)


def _first_damaged(directory: Path, safe_version: int) -> int | None:
    """Return the lowest damaged version, `safe_version` itself included, None if all are sound."""
    versions = commits_in(directory)
    gaps = [after for before, after in pairwise(versions) if after != before + 1]
    torn = lowest_torn(directory, [version for version in versions if version >= safe_version])
    return min([*gaps, *([] if torn is None else [torn])], default=None)
