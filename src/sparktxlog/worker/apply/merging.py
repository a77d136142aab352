"""The commit of a stage's keyed rows and predicates: it removes rows, and inserts others.

It removes every row whose key the stage upserts or deletes, and inserts exactly one row for
each key whose last operation is an upsert, so that duplicates by key never depend on layout.  It
also removes the other rows that a predicate of the stage matches.

One Spark job finds the rows to be removed, by their keys.  A second one writes the new rows, and a
third one copies the files with rows to be removed, without these, and counts them, so that the new
signature is part of the commit (protocol S2b).  Only the keys of the batch are sent around.
Delta's own MERGE finds the files in the same way, and then sorts all their rows by key.  Where
there is little to copy, or it cannot be copied, one job of Spark writes what stays and the new
rows.  Where a table has deletion vectors, files need not be written again: one job finds the rows
to be removed, counts them, and notes them in vectors by Delta's own means; another one writes the
new rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import InvariantViolation
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.worker.apply.batches import Piece, TableStage
from sparktxlog.worker.apply.deltalog import Action, LogTransaction, removal_of
from sparktxlog.worker.apply.fold import (
    DELETED_COLUMN,
    FILE_COLUMN,
    GONE_COLUMN,
    URI_COLUMN,
    file_uri,
    is_sent_around,
    join_path,
    last_operations,
    met_by_key,
    quoted_path,
    rows_of,
    signatures_and_places,
    with_gone,
    with_removed,
)
from sparktxlog.worker.apply.observing import CountedBeside
from sparktxlog.worker.apply.rewriting import (
    FILE_BYTES,
    Copied,
    are_copied,
    reaches_python,
    rewrite,
)
from sparktxlog.worker.apply.row_copying import RowPlaces
from sparktxlog.worker.apply.signatures import row_hash
from sparktxlog.worker.apply.worker_session import read_newest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.model.tables.table import TableDefinition
    from sparktxlog.worker.apply.tables import OwnCommit
    from sparktxlog.worker.lakes.lake import Lake

_logger = logging.getLogger(__name__)

#: The row hashes of both lanes, made before a join.
_HASH_COLUMN = "__txlog_hash"
#: Changed files of fewer bytes are written by Spark, with the new rows: a job less.
_LEAST_COPIED = 16 << 20


class StageRows:
    """The rows of a stage that Spark must process; a context that frees its persisted data."""

    def __init__(
        self,
        session: SparkSession,
        payload_url: str,
        lake: Lake,
        definition: TableDefinition,
        stage: TableStage,
    ) -> None:
        self._session = session
        self._root = payload_url
        self._lake = lake
        self._table = lake.url_of(definition.name)
        self._definition = definition
        self._stage = stage
        self._last: DataFrame | None = None
        #: No two operations have the same key, as far as is known.
        self._distinct = stage.has_one_keyed_operation and is_sent_around(definition, stage)
        self._touched: tuple[Piece, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last is not None and not self._distinct:
            _release(self._last)

    def has_merge(self) -> bool:
        """Return whether there is something to MERGE; for files only a Spark job finds it out."""
        return bool(self._stage.keyed or self._stage.partial or self._touched_pieces())

    def untouched_files(self) -> list[StagedFile]:
        """Return the appended files that can be placed as they are, in the log's order."""
        touched = {file.path for piece in self._touched_pieces() for file in piece.effect.files}
        return [
            file
            for piece in self._stage.whole
            for file in piece.effect.files
            if file.path not in touched
        ]

    def commit(self, own: Callable[[TableSignature], OwnCommit]) -> TableSignature:
        """Commit the stage's keyed rows, its predicates, and the appended rows of touched files.

        Whole appended pieces count as claimed or as counted, whether their files are placed or
        merged; their rows that disappear are subtracted here.

        Args:
            own: Makes the commit's metadata of what the commit changes in the signature.

        Returns:
            That change.
        """
        transaction = log_transaction(self._session, self._lake, self._definition.name)
        live = self._live_files(transaction.version)
        change, removed = self._counted(live)
        added, copied, left = list[Action](), list[Copied](), dict[str, Action]()
        last, rewritten, counting = self._last_operations(), list[Action](), None
        rows, here, gone = self._inserted(last), F.col(GONE_COLUMN), 0
        if last is not None and self._definition.deletion_vectors:
            counting = self._counting(transaction.rows_with_place(), last)
            gone = transaction.remove_rows(counting.rows.where(here))
        elif last is not None and removed:
            known = removed.keys() <= live.keys()
            left = {file: live[file] for file in removed} if known else transaction.adds_of(removed)
            rewritten = [*left.values()]
            copied = self._copied(left, removed) if live else []
            done = {one.file for one in copied}
            left = {file: add for file, add in left.items() if file not in done}
            if left:
                counting = self._counting(transaction.rows_of(left.values()), last)
                gone = sum(removed[file].rows for file in left)
                rows = counting.rows.where(~here).select(*self._names()).unionByName(rows)
        self._write(transaction, rows, [*left.values()])
        if counting is not None:
            change = change - counting.found(gone)
        if copied:
            added, lost = self._copy(transaction, copied)
            change = change - lost
        _commit(transaction, rewritten, own(change), added)
        return change

    @property
    def _directory(self) -> Path:
        """Where the table is; it is in no bucket."""
        table = self._lake.table(self._definition.name)
        assert isinstance(table, Path)
        return table

    def _live_files(self, version: int) -> dict[str, Action]:
        """Return the live files whose rows get numbers, by path; empty = Spark does all."""
        table = self._lake.table(self._definition.name)
        if not isinstance(table, Path) or self._definition.deletion_vectors:
            return {}
        adds = LogState.read(table, version).adds if self._stage.keyed else {}
        is_much = bool(adds) and sum(add["size"] for add in adds.values()) >= _LEAST_COPIED
        if not is_much or any(add.get("deletionVector") for add in adds.values()):
            return {}
        root = str(table.resolve())
        found = {quoted_path(f"{root}/{path}"): add for path, add in adds.items()}
        return found if reaches_python(self._session) else {}

    def _numbered(self, live: Mapping[str, Action]) -> DataFrame:
        """Return the rows of live files with `place_columns`."""
        table = self._directory
        columns, by = self._definition.columns, {*self._definition.partition_by}
        # Values of partitions are joined, which takes time for each row: only if they are needed.
        is_read = not by.isdisjoint(self._definition.keys) or self._stage.merges_wheres
        if not is_read:
            columns = tuple(column for column in columns if column.name not in by)
        files = (
            StagedFile(
                path=path_of_file(add["path"]),
                size_bytes=add["size"],
                rows=0,
                digest="",
                partition={name: value or None for name, value in add["partitionValues"].items()}
                if is_read
                else None,
            )
            for add in live.values()
        )
        effect = TableEffect(table="", kind="append", first=0, last=0, files=tuple(files))
        root, piece = str(table.resolve()), Piece(effect=effect, whole=True)
        return rows_of(self._session, root, columns, [piece], placed=True)

    def _copied(self, adds: Mapping[str, Action], removed: Mapping[str, RowPlaces]) -> list[Copied]:
        """Return the files that are copied without some rows; Spark writes all others again."""
        table = self._directory
        able = are_copied(table, self._definition, [*adds.values()])
        found = [
            Copied(adds[file], file, removed[file])
            for file, is_able in zip(adds, able, strict=True)
            if is_able
        ]
        return found if sum(one.add["size"] for one in found) >= _LEAST_COPIED else []

    def _copy(
        self, transaction: LogTransaction, copied: Sequence[Copied]
    ) -> tuple[list[Action], TableSignature]:
        """Copy files without some rows, and what was written, if that is little."""
        table = self._directory
        partitions = [one.add["partitionValues"] for one in copied]
        # Else each batch would leave one more small file.
        small = transaction.take_written(
            lambda add: (
                add["size"] < FILE_BYTES
                and add["partitionValues"] in partitions
                and all(are_copied(table, self._definition, [add]))
            )
        )
        files = [*map(Copied, small), *copied]
        found = rewrite(self._session, table, self._definition, files)
        for add in small:
            path = table / path_of_file(add["path"])
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return found

    def _counted(self, live: Mapping[str, Action]) -> tuple[TableSignature, dict[str, RowPlaces]]:
        """Count what the commit adds to the signature, and find by file the rows that it removes.

        Files with deletion vectors are not written again, and need not be found before.

        Args:
            live: Files whose rows get numbers; empty = they get none.
        """
        frames: list[tuple[str, DataFrame, TableDefinition | None]] = []
        table, last = self._definition, self._last_operations()
        placed = None
        if last is not None and not table.deletion_vectors:
            if live:
                target = self._numbered(live)
            else:
                target = read_newest(self._session, self._table)
                target = target.select("*", file_uri(target).alias(URI_COLUMN))
            placed = with_removed(target, last, table, self._stage).where(GONE_COLUMN)
        if last is not None:
            frames.append(("inserted", last.where(~F.col(DELETED_COLUMN)), table))
            if self._distinct:
                frames.append(("met", met_by_key(last, table, self._stage), None))
        touched = self._appended(self._touched_pieces())
        if touched is not None:
            frames.append(("dropped", touched.where(GONE_COLUMN), table))
        partial = self._appended(self._stage.partial)
        if partial is not None:
            frames.append(("partial", partial.where(~F.col(GONE_COLUMN)), table))
        counted, removed = signatures_and_places(frames, placed)
        if self._distinct and counted.pop("met").rows != self._stage.keyed_rows:
            _logger.info("an operation of table %s names a key twice", table.name)
            self._distinct, self._last = False, None
            return self._counted(live)
        gained = EMPTY_SIGNATURE
        for tag, signature in counted.items():
            gained = gained - signature if tag == "dropped" else gained + signature
        return gained, removed

    def _counting(self, rows: DataFrame, last: DataFrame) -> CountedBeside:
        """Add `GONE_COLUMN` to rows of the table; the job that reads them counts what is gone."""
        table, hashed = self._definition, ""
        if table.deletion_vectors and not is_sent_around(table, self._stage):
            # The join sorts all rows: it need not carry columns that only the hashes are made of.
            hashed = _HASH_COLUMN
            rows = rows.withColumn(hashed, row_hash(table.columns))
        marked_rows = with_removed(rows, last, table, self._stage)
        return CountedBeside(marked_rows, table, F.col(GONE_COLUMN), hashed)

    def _write(
        self, transaction: LogTransaction, rows: DataFrame, rewritten: Sequence[Action]
    ) -> None:
        pieces = (*self._stage.keyed, *self._stage.partial, *self._touched_pieces())
        size = sum(file.size_bytes for piece in pieces for file in piece.effect.files)
        size += sum(add["size"] for add in rewritten)
        transaction.write(self._distributed(rows, 1 + size // FILE_BYTES))

    def _distributed(self, rows: DataFrame, files: int) -> DataFrame:
        """Distribute rows so that few files are written: at most so many, or one a partition."""
        if not self._definition.partition_by:
            return rows.coalesce(files)
        return rows.repartition(*[F.col(quoted_name(n)) for n in self._definition.partition_by])

    def _names(self) -> list[str]:
        return [quoted_name(column.name) for column in self._definition.columns]

    def _inserted(self, last: DataFrame | None) -> DataFrame:
        """Return the rows to insert: last upserts, and appended rows of files not placed."""
        frames, names = [], self._names()
        if last is not None:
            frames.append(last.where(~F.col(DELETED_COLUMN)).select(*names))
        appended = self._appended([*self._stage.partial, *self._touched_pieces()])
        if appended is not None:
            frames.append(appended.where(~F.col(GONE_COLUMN)).select(*names))
        return reduce(lambda left, right: left.unionByName(right), frames)

    def _last_operations(self) -> DataFrame | None:
        if self._last is None and self._stage.keyed:
            last = last_operations(
                self._session, self._root, self._definition, self._stage, distinct=self._distinct
            )
            # Folded once, used several times.
            kept = StorageLevel.MEMORY_AND_DISK
            self._last = last if self._distinct else last.localCheckpoint(storageLevel=kept)
        return self._last

    def _touched_pieces(self) -> tuple[Piece, ...]:
        """Return whole appended pieces, reduced to files with a row that disappears."""
        if self._touched is None:
            self._touched = self._find_touched()
        return self._touched

    def _find_touched(self) -> tuple[Piece, ...]:
        candidates = self._stage.removable
        appended = self._appended(candidates)
        if appended is None:
            return ()
        gone = appended.where(GONE_COLUMN).select(FILE_COLUMN).distinct()
        found = {row[0] for row in gone.collect()}
        touched = []
        for piece in candidates:
            files = tuple(
                file
                for file in piece.effect.files
                if quoted_path(join_path(self._root, file)) in found
            )
            if files:
                touched.append(replace(piece, effect=replace(piece.effect, files=files)))
        if sum(len(piece.effect.files) for piece in touched) != len(found):
            raise InvariantViolation(
                f"table {self._definition.name!r}: Spark names files that the log does not: "
                f"{sorted(found)[:3]}",
                table=self._definition.name,
            )
        return tuple(touched)

    def _appended(self, pieces: Sequence[Piece]) -> DataFrame | None:
        """Return appended rows with `GONE_COLUMN`."""
        if not pieces:
            return None
        columns = self._definition.columns
        rows = rows_of(self._session, self._root, columns, pieces, self._stage)
        return with_gone(rows, self._last_operations(), self._definition, self._stage)


def remove_matching(
    session: SparkSession,
    lake: Lake,
    definition: TableDefinition,
    predicate: str | None,
    own: OwnCommit,
) -> None:
    """Commit the removal of the rows that a predicate matches, without Delta's own commit.

    Args:
        predicate: None = all rows.
    """
    transaction = log_transaction(session, lake, definition.name)
    rewritten = list[Action]()
    if predicate is not None and definition.deletion_vectors:
        transaction.remove_rows(transaction.rows_with_place().where(predicate))
    elif predicate is not None:
        rows = read_newest(session, lake.url_of(definition.name))
        rows = rows.select("*", file_uri(rows).alias(URI_COLUMN)).where(predicate)
        found = rows.select(URI_COLUMN).distinct().collect()
        rewritten = [*transaction.adds_of([row[0] for row in found]).values()]
        # Rows for which it is NULL stay.
        stays = ~F.coalesce(F.expr(predicate), F.lit(False))
        size = sum(add["size"] for add in rewritten)
        rows = transaction.rows_of(rewritten).where(stays).coalesce(1 + size // FILE_BYTES)
        transaction.write(rows)
    else:
        version = transaction.version
        rewritten = [*LogState.read(lake.table(definition.name), version).adds.values()]
    _commit(transaction, rewritten, own)


def log_transaction(session: SparkSession, lake: Lake, name: str) -> LogTransaction:
    """Begin a transaction over a table; in a bucket its version is made by hand."""
    table = lake.table(name)
    by_hand = None if isinstance(table, Path) else table
    return LogTransaction(session, lake.url_of(name), by_hand)


def _commit(
    transaction: LogTransaction,
    rewritten: Sequence[Action],
    own: OwnCommit,
    added: Sequence[Action] = (),
) -> None:
    """Commit what was written, and files that were added by hand, in place of files."""
    now_ms = time_ns() // 1_000_000
    txn = {"appId": own.app_id, "version": own.txn_version, "lastUpdated": now_ms}
    removals = ({"remove": removal_of(add, now_ms)} for add in rewritten)
    transaction.commit([{"txn": txn}, *removals, *({"add": add} for add in added)], own)


def _release(checkpointed: DataFrame) -> None:
    """Free the blocks of a local checkpoint now, not at the JVM's next garbage collection."""
    checkpointed._jdf.queryExecution().analyzed().rdd().unpersist(False)
