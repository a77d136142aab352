"""The commit of a stage's keyed rows and predicates: it removes rows, and inserts others.

It removes every row whose key the stage upserts or deletes, and inserts exactly one row for
each key whose last operation is an upsert, so that duplicates by key never depend on layout.  Of
the other rows it removes those that a predicate of the stage matches.

One Spark job finds the rows to be removed in the version before, and counts them file by file
(protocol S2b).  So the new signature is part of the commit, and a second job writes what stays of
those files, and the new rows.  Only the keys of the batch are sent around.  Delta's own MERGE finds
the files in the same way, and then sorts all their rows by key; it is used where the table has
deletion vectors, with which files need not be written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Self

from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import InvariantViolation
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.worker.apply.batches import Piece, TableStage
from sparktxlog.worker.apply.deltalog import Action, LogTransaction, removal_of
from sparktxlog.worker.apply.fold import (
    DELETED_COLUMN,
    FILE_COLUMN,
    GONE_COLUMN,
    file_path,
    join_path,
    last_operations,
    matching,
    quoted_path,
    rows_of,
    signatures_by_file,
    with_gone,
    with_removed,
)
from sparktxlog.worker.apply.worker_session import marked, read_newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparktxlog.model.operation import StagedFile
    from sparktxlog.model.table import TableDefinition
    from sparktxlog.worker.apply.tables import OwnCommit

#: Names of both sides of a MERGE; a table may have columns of any other name.
_TARGET, _SOURCE = "__txlog_target", "__txlog_source"
#: Bytes for which one more file is written.
_FILE_BYTES = 32 << 20


class StageRows:
    """The rows of a stage that Spark must process; a context that frees its persisted data."""

    def __init__(
        self,
        session: SparkSession,
        payload_root: Path,
        table: Path,
        definition: TableDefinition,
        stage: TableStage,
    ) -> None:
        self._session = session
        self._root = str(payload_root)
        self._table = str(table)
        self._definition = definition
        self._stage = stage
        self._last: DataFrame | None = None
        self._touched: tuple[Piece, ...] | None = None
        #: Files of the table with rows that are removed.
        self._changed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last is not None:
            _release(self._last)

    def has_merge(self) -> bool:
        """Return whether there is something to MERGE: it takes a Spark job to see that of files."""
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

    def delta(self) -> TableSignature:
        """Count what the MERGE changes in the signature, whole appended pieces left out.

        Those count as claimed or as counted, whether their files are placed or merged; their rows
        that disappear are subtracted here.
        """
        frames: list[tuple[str, DataFrame]] = []
        last = self._last_operations()
        if last is not None:
            target = read_newest(self._session, self._table)
            target = target.select("*", file_path(target).alias(FILE_COLUMN))
            removed = with_removed(target, last, self._definition, self._stage).where(GONE_COLUMN)
            frames.append(("removed", removed))
            frames.append(("inserted", last.where(~F.col(DELETED_COLUMN))))
        touched = self._appended(self._touched_pieces())
        if touched is not None:
            frames.append(("dropped", touched.where(GONE_COLUMN)))
        partial = self._appended(self._stage.partial)
        if partial is not None:
            frames.append(("partial", partial.where(~F.col(GONE_COLUMN))))
        found = signatures_by_file(
            ((tag, frame, self._definition) for tag, frame in frames), by_file=["removed"]
        )
        change = EMPTY_SIGNATURE
        for (tag, _), signature in found.items():
            gained = tag in ("inserted", "partial")
            change = change + signature if gained else change - signature
        self._changed = {file for tag, file in found if tag == "removed"}
        return change

    def commit(self, own: OwnCommit) -> None:
        """Commit the stage's keyed rows, its predicates, and the appended rows of touched files.

        Only after `delta`.
        """
        last = self._last_operations()
        if last is not None and self._definition.deletion_vectors and self._changed:
            self._merge(last, own)
        else:
            self._rewrite(last, own)

    def _rewrite(self, last: DataFrame | None, own: OwnCommit) -> None:
        """Write what stays of the changed files, and the inserted rows, into new files."""
        transaction = LogTransaction(self._session, Path(self._table), files=False)
        rows, adds, pieces = self._inserted(last), list[Action](), self._stage.keyed
        if last is not None and self._changed:
            adds = transaction.adds_of(self._changed)
            marked_rows = with_removed(
                transaction.rows_of(adds), last, self._definition, self._stage
            )
            kept = marked_rows.where(~F.col(GONE_COLUMN))
            rows = kept.select(*self._names()).unionByName(rows)
        pieces = (*pieces, *self._stage.partial, *self._touched_pieces())
        size = sum(file.size_bytes for piece in pieces for file in piece.effect.files)
        size += sum(add["size"] for add in adds)
        transaction.write(self._distributed(rows, 1 + size // _FILE_BYTES))
        now_ms = time_ns() // 1_000_000
        txn = {"appId": own.app_id, "version": own.txn_version, "lastUpdated": now_ms}
        transaction.commit(
            [{"txn": txn}, *({"remove": removal_of(add, now_ms)} for add in adds)], own
        )

    def _distributed(self, rows: DataFrame, files: int) -> DataFrame:
        """Distribute rows so that few files are written: at most so many, or one a partition."""
        if not self._definition.partition_by:
            return rows.coalesce(files)
        return rows.repartition(*[F.col(quoted_name(n)) for n in self._definition.partition_by])

    def _merge(self, last: DataFrame, own: OwnCommit) -> None:
        """Let Delta do it, which notes removed rows in deletion vectors."""
        inserted = self._inserted(last)
        deleting = last.select(
            *[
                F.col(quoted_name(column.name))
                if column.name in self._definition.keys
                else F.lit(None).cast(column.type).alias(column.name)
                for column in self._definition.columns
            ],
            F.lit(True).alias(DELETED_COLUMN),
        )
        source = deleting.unionByName(inserted.withColumn(DELETED_COLUMN, F.lit(False)))
        merge = (
            DeltaTable.forPath(self._session, self._table)
            .alias(_TARGET)
            .merge(source.alias(_SOURCE), self._condition())
            .whenMatchedDelete()
            .whenNotMatchedInsert(
                condition=f"NOT {_SOURCE}.{DELETED_COLUMN}",
                values={name: F.col(f"{_SOURCE}.{name}") for name in self._names()},
            )
        )
        if self._stage.merges_wheres:
            merge = merge.whenNotMatchedBySourceDelete(
                matching(self._definition, self._stage.predicate)
            )
        with marked(self._session, own):
            merge.execute()

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

    def _condition(self) -> Column:
        same = [
            F.col(f"{_TARGET}.{quoted_name(key)}") == F.col(f"{_SOURCE}.{quoted_name(key)}")
            for key in self._definition.keys
        ]
        return reduce(lambda left, right: left & right, same, F.col(f"{_SOURCE}.{DELETED_COLUMN}"))

    def _last_operations(self) -> DataFrame | None:
        if self._last is None and self._stage.keyed:
            folded = last_operations(self._session, self._root, self._definition, self._stage)
            # Used several times.  A persisted frame is not possible: MERGE refuses cached sources.
            self._last = folded.localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK)
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


def _release(checkpointed: DataFrame) -> None:
    """Free the blocks of a local checkpoint now, not at the JVM's next garbage collection."""
    checkpointed._jdf.queryExecution().analyzed().rdd().unpersist(False)
