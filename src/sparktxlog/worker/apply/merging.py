"""The commit of a stage's keyed rows and predicates: it removes rows, and inserts others.

It removes every row whose key the stage upserts or deletes, and inserts exactly one row for
each key whose last operation is an upsert, so that duplicates by key never depend on layout.  Of
the other rows it removes those that a predicate of the stage matches.

One Spark job finds the files with rows to be removed, by their keys.  A second one writes what
stays of those files, and the new rows, and counts what does not stay, so that the new signature is
part of the commit (protocol S2b).  Only the keys of the batch are sent around.  Delta's own MERGE
finds the files in the same way, and then sorts all their rows by key; it is used where the table
has deletion vectors, with which files need not be written again; then the first job counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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
    file_uri,
    is_sent_around,
    join_path,
    last_operations,
    matching,
    met_by_key,
    quoted_path,
    rows_of,
    signatures_by_file,
    with_gone,
    with_removed,
)
from sparktxlog.worker.apply.observing import CountedBeside
from sparktxlog.worker.apply.worker_session import marked, read_newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparktxlog.model.operation import StagedFile
    from sparktxlog.model.table import TableDefinition
    from sparktxlog.worker.apply.tables import OwnCommit

_logger = logging.getLogger(__name__)

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
        #: No two operations have the same key, as far as is known.
        self._distinct = stage.has_one_keyed_operation and is_sent_around(definition, stage)
        self._touched: tuple[Piece, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last is not None and not self._distinct:
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

    def commit(self, own: Callable[[TableSignature], OwnCommit]) -> TableSignature:
        """Commit the stage's keyed rows, its predicates, and the appended rows of touched files.

        Whole appended pieces count as claimed or as counted, whether their files are placed or
        merged; their rows that disappear are subtracted here.

        Args:
            own: Makes the commit's metadata of what the commit changes in the signature.

        Returns:
            That change.
        """
        gained, removed = self._counted()
        if self._definition.deletion_vectors and removed:
            last = self._last_operations()
            assert last is not None, "something is removed by it"
            change = reduce(TableSignature.__sub__, removed.values(), gained)
            self._merge(last, own(change))
            return change
        return self._rewrite(gained, removed, own)

    def _counted(self) -> tuple[TableSignature, dict[str, TableSignature]]:
        """Count what the commit adds to the signature, and by file of the table what it removes.

        Of what is removed only the rows are counted where files are written again: that job reads
        all columns anyway.
        """
        frames: list[tuple[str, DataFrame, TableDefinition | None]] = []
        table, last = self._definition, self._last_operations()
        if last is not None:
            target = read_newest(self._session, self._table)
            target = target.select("*", file_uri(target).alias(FILE_COLUMN))
            gone = with_removed(target, last, table, self._stage).where(GONE_COLUMN)
            frames.append(("removed", gone, table if table.deletion_vectors else None))
            frames.append(("inserted", last.where(~F.col(DELETED_COLUMN)), table))
            if self._distinct:
                frames.append(("met", met_by_key(last, table, self._stage), None))
        touched = self._appended(self._touched_pieces())
        if touched is not None:
            frames.append(("dropped", touched.where(GONE_COLUMN), table))
        partial = self._appended(self._stage.partial)
        if partial is not None:
            frames.append(("partial", partial.where(~F.col(GONE_COLUMN)), table))
        gained, removed = EMPTY_SIGNATURE, dict[str, TableSignature]()
        counted = signatures_by_file(frames, by_file=["removed"])
        if self._distinct and counted.pop(("met", "")).rows != self._stage.keyed_rows:
            _logger.warning("an operation of table %s names a key twice", table.name)
            self._distinct, self._last = False, None
            return self._counted()
        for (tag, file), signature in counted.items():
            if tag == "removed":
                removed[file] = signature
            else:
                gained = gained - signature if tag == "dropped" else gained + signature
        return gained, removed

    def _rewrite(
        self,
        gained: TableSignature,
        removed: Mapping[str, TableSignature],
        own: Callable[[TableSignature], OwnCommit],
    ) -> TableSignature:
        """Write what stays of the changed files, and the inserted rows, into new files.

        What does not stay is counted meanwhile.

        Args:
            removed: By changed file, of which the rows count.
        """
        transaction = LogTransaction(self._session, Path(self._table), files=False)
        last, adds, pieces = self._last_operations(), list[Action](), self._stage.keyed
        rows, counting = self._inserted(last), None
        if last is not None and removed:
            adds = transaction.adds_of(removed)
            marked_rows = with_removed(
                transaction.rows_of(adds), last, self._definition, self._stage
            )
            counting = CountedBeside(marked_rows, self._definition, F.col(GONE_COLUMN))
            kept = counting.rows.where(~F.col(GONE_COLUMN))
            rows = kept.select(*self._names()).unionByName(rows)
        pieces = (*pieces, *self._stage.partial, *self._touched_pieces())
        size = sum(file.size_bytes for piece in pieces for file in piece.effect.files)
        size += sum(add["size"] for add in adds)
        transaction.write(self._distributed(rows, 1 + size // _FILE_BYTES))
        change = gained
        if counting is not None:
            change = change - counting.found(sum(one.rows for one in removed.values()))
        now_ms, mark = time_ns() // 1_000_000, own(change)
        txn = {"appId": mark.app_id, "version": mark.txn_version, "lastUpdated": now_ms}
        transaction.commit(
            [{"txn": txn}, *({"remove": removal_of(add, now_ms)} for add in adds)], mark
        )
        return change

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
            last = last_operations(
                self._session, self._root, self._definition, self._stage, distinct=self._distinct
            )
            # Used several times.  A persisted frame is not possible: MERGE refuses cached sources.
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


def _release(checkpointed: DataFrame) -> None:
    """Free the blocks of a local checkpoint now, not at the JVM's next garbage collection."""
    checkpointed._jdf.queryExecution().analyzed().rdd().unpersist(False)
