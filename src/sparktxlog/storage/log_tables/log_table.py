"""Delta tables of `log/`, written by this process alone: appended, compacted, repaired.

Readers see plain tables at reader version 1 / writer version 2.  Files, commits, checkpoints and
directories are written and fsynced here, from a state that was read once (decision 100).  The next
commit of the same version overwrites the files of an undone commit.

Every so many commits a checkpoint is written, and expired log entries and replaced files go.
Small files are merged by `tidy`, a bounded piece at a time, when there is nothing better to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from sparktxlog.codec.calendars import TODAYS_CALENDAR
from sparktxlog.codec.row_statistics import RowStatistics
from sparktxlog.delta.checkpoints import drop_torn
from sparktxlog.delta.classic_checkpoints import drop_expired, write_state
from sparktxlog.delta.commit_files import commit_by_hand, lowest_torn
from sparktxlog.delta.log_files import (
    commit_path,
    commits_in,
    log_of,
    names_in_log,
    whole_checkpoints,
)
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CorruptLogError, NewerReleaseError
from sparktxlog.files.durability import (
    drop_uncreated,
    storing,
    sync_directory,
    sync_file,
)
from sparktxlog.storage.log_tables.row_files import ColumnForms
from sparktxlog.storage.log_tables.small_files import MOST_SMALL, pieces_of

#: Format of the tables that this release writes; those without a number are of the first one.
FORMAT = 1
#: Precedes the number in a table's description: readers may refuse properties that are not Delta's.
_FORMAT_IS = "sparktxlog log table, format "
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
#: Characters of a file's name up to its number.
_NUMBERED = len("part-") + 20
#: Rows held in memory while merging.
_MERGE_ROWS = 65_536
#: Files that are written like one whose rows were looked at.
_SAME_FORMS = 15
#: Rows of the newest small files that are kept in memory, about 400 bytes each: to open a file and
#: its columns costs more than its rows.
_RECENT_ROWS = 16_384
#: Commits between two checkpoints, unless the node's configuration says otherwise.
CHECKPOINT_EVERY = 100
#: How long files stay that a merge replaced, milliseconds: a reader may be about to open one.
_RETENTION_MS = 3_600_000


class LogTable:
    """One table of `log/`; one writer, used by one thread at a time.

    Args:
        directory: The table's directory; made if missing.
        schema: Its columns.
        app_id: Name of its writer's transaction version, "" = none is kept.
        checkpoint_every: Commits between two checkpoints.

    Raises:
        CorruptLogError: A commit at or below `safe_version` is damaged.
        NewerReleaseError: The table has a format that this release does not know; nothing of it
            was changed (definite).
        StorageError: It needs features that are not known here, or the disk fails.
    """

    #: Commits between two looks for small files.
    look_every = 32

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        *,
        app_id: str = "",
        safe_version: int = -1,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> None:
        self.directory = directory
        self._checkpoint_every = checkpoint_every
        self.schema = schema
        self._app_id = app_id
        self._log = log_of(directory)
        #: True: files that a failure or kill between removal and vacuum left were searched for.
        self._swept = False
        #: True: a commit failed, so the disk may hold more than is known.
        self._stale = False
        found = self._known_state()
        undone = repair(directory, safe_version)
        if not commits_in(directory):
            self._create()
        with storing(directory):
            self._sync_names()
        self._state = LogState.read(directory) if found is None or undone else found
        self._commits = self.version % self._checkpoint_every
        #: `tidy` looks for small files again at this version.
        self._look_at = 0
        #: Path of a live file → its rows, the newest last.
        self._recent: dict[str, pa.Table] = {}
        #: How columns are written, and for how many more files.
        self._forms: ColumnForms | None = None
        self._forms_for = 0

    def _known_state(self) -> LogState | None:
        """Return what is there, None = nothing, or it is torn; it is not repaired yet.

        Refuses a table of a later format, or with unknown features.
        """
        if not self._log.is_dir():
            return None
        try:
            state = LogState.read(self.directory, known=True)
        except CorruptLogError:
            return None  # torn: no release writes such a table
        described = str(state.metadata.get("description") or "")
        number = described.removeprefix(_FORMAT_IS)
        if number != described and number.isdigit() and int(number) > FORMAT:
            raise NewerReleaseError(
                f"{self.directory} has format {number}, this release knows formats up to {FORMAT}",
                hint="Start the newer release: it reads what it wrote.",
                path=str(self.directory),
                format=int(number),
            )
        return state

    def _create(self) -> None:
        metadata = {
            "id": str(uuid.uuid4()),
            "name": self.directory.name,
            "description": f"{_FORMAT_IS}{FORMAT}",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": Schema.from_arrow(self.schema).to_json(),
            "partitionColumns": [],
            "createdTime": time_ns() // 1_000_000,
            "configuration": _PROPERTIES,
        }
        actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
        with storing(self.directory):
            commit_by_hand(
                self.directory,
                0,
                {"operation": "CREATE TABLE"},
                "",
                [*actions, {"metaData": metadata}],
            )
            sync_directory(self.directory.parent)

    @property
    def version(self) -> int:
        """Delta version of the table."""
        return self._state.version

    @property
    def transaction_version(self) -> int:
        """Transaction version of the last append that carried one, 0 = none."""
        self._refresh()
        return self._state.transactions.get(self._app_id, 0)

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
        actions = [self._write_file(f"part-{self.version + 1:020}.parquet", [rows])]
        if transaction is not None:
            actions.append({"txn": {"appId": self._app_id, "version": transaction}})
        self._commit(actions)
        self._keep_recent(actions[0]["add"]["path"], rows)
        self._commits += 1
        if self._commits >= self._checkpoint_every:
            self._write_checkpoint()
        return self.version

    def _keep_recent(self, path: str, rows: pa.Table) -> None:
        """Keep the rows of a new file until it is merged, if they are few."""
        self._recent[path] = rows
        while sum(kept.num_rows for kept in self._recent.values()) > _RECENT_ROWS:
            del self._recent[next(iter(self._recent))]

    def _refresh(self) -> None:
        """After a failed commit read what is on the disk, and make that durable."""
        if not self._stale:
            return
        with storing(self.directory):
            self._state = LogState.read(self.directory)
            self._sync_names()
        self._stale = False

    def maintain(self) -> None:
        """Merge all small files, write a checkpoint, drop what has expired."""
        self._refresh()
        for paths in self._pieces(all_of_them=True):
            self._merge(paths)
        self._write_checkpoint()

    def tidy(self, *, late: bool = False) -> bool:
        """Merge a piece of the small files, some ten thousand rows at most; return if any was.

        Args:
            late: Only if there are so many that readers and checkpoints become slow.

        Raises:
            StorageError: Try again.
        """
        if self.version < self._look_at:
            return False
        self._refresh()
        pieces = self._pieces()
        if pieces and not (late and sum(map(len, pieces)) < MOST_SMALL):
            self._merge(pieces[0])
            return True
        self._look_at = self.version + self.look_every
        return False

    def _pieces(self, *, all_of_them: bool = False) -> list[list[str]]:
        files = [(path, self._state.rows(path)) for path in sorted(self._state.adds)]
        return pieces_of(files, all_of_them=all_of_them)

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, and drop what has expired."""
        self._commits = 0
        self._refresh()
        self._vacuum(_RETENTION_MS)
        # An older checkpoint stands for what goes: the newest version may be undone, with its own.
        drop_expired(self.directory, _RETENTION_MS)
        write_state(self.directory, self._state)

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
        adds = self._state.adds
        gone = [path for path in adds if _is_at_most(self._greatest(path, column), horizon)]
        rows = sum(map(self._state.rows, gone))
        if gone:
            self._swept = False
            self._commit([self._removal(path, data_change=True) for path in gone])
        if not self._swept:
            self._vacuum(0)
        self._swept = True
        return rows

    def last_values(self, order: str, other: str) -> tuple[Any, Any] | None:
        """Return two columns of the row with the greatest value of the first, None without rows.

        Reads the statistics, and the end of one file, whose rows are in that order.

        Raises:
            CorruptLogError: That file is damaged.
        """
        found = {path: self._greatest(path, order) for path in self._state.adds}
        known = {path: value for path, value in found.items() if value is not None}
        if not known:
            return None
        path = self.directory / max(known, key=known.__getitem__)
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

    def _vacuum(self, keep_ms: int) -> None:
        """Remove files that are not live, unless they were removed from the table since."""
        state, horizon = self._state, time_ns() // 1_000_000 - keep_ms
        state.removed = {path: at for path, at in state.removed.items() if at > horizon}
        with storing(self.directory):
            for path in self.directory.glob("*.parquet"):
                if path.name not in state.adds and path.name not in state.removed:
                    path.unlink(missing_ok=True)

    def _removal(self, path: str, *, data_change: bool) -> dict[str, Any]:
        return {
            "remove": {
                "path": path,
                "dataChange": data_change,
                "deletionTimestamp": time_ns() // 1_000_000,
                "size": self._state.adds[path]["size"],
                "partitionValues": {},
            }
        }

    def _greatest(self, path: str, column: str) -> Any:
        return self._state.bounds(path, column)[1]

    def _merge(self, paths: list[str]) -> None:
        """Replace neighbours by one file with their rows, in one commit."""
        # Sorts like the last of its sources, so that the order of files is that of time.
        name = f"{paths[-1][:_NUMBERED]}-merged-{self.version + 1}.parquet"
        add = self._write_file(name, self._read_files(paths), data_change=False)
        self._commit([add, *(self._removal(path, data_change=False) for path in paths)])

    def _read_files(self, paths: list[str]) -> Iterator[pa.Table]:
        """Yield the rows of files in order, a bounded number at once."""
        for path in paths:
            if (kept := self._recent.get(path)) is not None:
                yield kept
                continue
            with pq.ParquetFile(self.directory / path) as source:
                for batch in source.iter_batches(batch_size=_MERGE_ROWS, use_threads=False):
                    yield pa.Table.from_batches([batch]).cast(self.schema)

    def _write_file(
        self, name: str, pieces: Iterator[pa.Table] | list[pa.Table], *, data_change: bool = True
    ) -> dict[str, Any]:
        path, stats = self.directory / name, RowStatistics(self.schema)
        with storing(path):
            if isinstance(pieces, list):
                stats.take(pieces[0])
                path.write_bytes(memoryview(self._in_parquet(pieces[0])))
            else:
                _write_stream(path, self.schema, _counted(pieces, stats))
            sync_file(path)
            status = path.stat()
        add = {
            "path": name,
            "partitionValues": {},
            "size": status.st_size,
            "modificationTime": status.st_mtime_ns // 1_000_000,
            "dataChange": data_change,
            "stats": stats.to_json(),
        }
        return {"add": add}

    def _in_parquet(self, rows: pa.Table) -> pa.Buffer:
        """Return rows as one file; those of the next commits have mostly the same forms."""
        forms, self._forms_for = self._forms, self._forms_for - 1
        if forms is None or self._forms_for < 0:
            self._forms = forms = ColumnForms.for_rows(rows)
            self._forms_for = _SAME_FORMS
        sink = pa.BufferOutputStream()
        with forms.writer(sink, rows.schema) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(TODAYS_CALENDAR)
        return sink.getvalue()

    def _commit(self, actions: list[dict[str, Any]]) -> None:
        """Make a version, durably."""
        info = {
            "timestamp": time_ns() // 1_000_000,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
        }
        self._stale = True
        with storing(self.directory):
            # With the commit's name those of the files that it adds become durable.
            commit_by_hand(self.directory, self.version + 1, info, "", actions)
        self._stale = False
        self._state.follow(actions)
        for action in actions:
            if "remove" in action:
                self._recent.pop(action["remove"]["path"], None)

    def _sync_names(self) -> None:
        sync_directory(self._log)
        sync_directory(self.directory)


def _is_at_most(value: Any, horizon: int | datetime) -> bool:
    if isinstance(horizon, datetime) and value is not None:
        value = datetime.fromisoformat(value)
    return value is not None and bool(value <= horizon)


def _counted(pieces: Iterator[pa.Table], stats: RowStatistics) -> Iterator[pa.Table]:
    for piece in pieces:
        stats.take(piece)
        yield piece


def _write_stream(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    """Write pieces as row groups of about `_MERGE_ROWS` rows."""
    with ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        for rows in _gathered(pieces):
            if writer is None:
                writer = opened.enter_context(ColumnForms.for_rows(rows).writer(path, schema))
            writer.write_table(rows)


def _gathered(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += piece.num_rows
        if rows >= _MERGE_ROWS:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def repair(directory: Path, safe_version: int) -> list[int]:
    """Undo commits that a power loss damaged, and return their versions.

    Only versions above `safe_version`, the last one known to be fsynced, are undone: the first
    damaged one and all above it.  Torn checkpoints are removed too; their commits still exist,
    because a clean-up removes only what is older than a checkpoint that was fsynced.

    Raises:
        CorruptLogError: A commit at or below `safe_version` is damaged.
    """
    log = log_of(directory)
    if not log.is_dir():
        return []
    undone: list[int] = []
    with storing(log):
        drop_torn(directory)
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
        drop_uncreated(log)
        sync_directory(log)
    return sorted(undone)


def _first_damaged(directory: Path, safe_version: int) -> int | None:
    """Return the lowest damaged version, `safe_version` itself included, None if all are sound."""
    versions = commits_in(directory)
    # Nobody reads what is older than a checkpoint, and a clean-up that was killed left any of it.
    known = whole_checkpoints(names_in_log(directory), max(versions, default=-1))
    base = max((version for version, _ in known), default=-1)
    gaps = [after for before, after in pairwise(versions) if after > max(before, base) + 1]
    first = max(safe_version, base)
    torn = lowest_torn(directory, [version for version in versions if version >= first])
    return min([*gaps, *([] if torn is None else [torn])], default=None)
