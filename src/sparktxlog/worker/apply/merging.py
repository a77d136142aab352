"""Commits that Spark makes: MERGE of a stage's keyed rows and predicates.

A stage's MERGE removes every row whose key it upserts or deletes and inserts exactly one row for
each key whose last operation is an upsert, so that duplicates by key never depend on layout.  Of
the other rows it removes those that a predicate of the stage matches.  A join with the version
before counts the removed rows (protocol S2b), so that the new signature is part of the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Self

from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import InvariantViolation
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.worker.apply.batches import Piece, TableStage
from sparktxlog.worker.apply.fold import (
    DELETED_COLUMN,
    FILE_COLUMN,
    GONE_COLUMN,
    join_path,
    last_operations,
    matching,
    quoted_path,
    removed_rows,
    rows_of,
    signatures_of,
    with_gone,
)
from sparktxlog.worker.apply.tables import OwnCommit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparktxlog.model.operation import StagedFile
    from sparktxlog.model.table import TableDefinition

_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
#: Names of both sides of a MERGE; a table may have columns of any other name.
_TARGET, _SOURCE = "__txlog_target", "__txlog_source"

#: Fixed for all rows processed by a worker, so that every site evaluates alike.
SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files of nodes do not say that their calendar is that of today.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The source is read from files that never change, so it needs no copy.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Listing given files needs no Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Only the worker itself commits.
    "spark.databricks.delta.autoCompact.enabled": "false",
}


def applier_session(spark: SparkSession) -> SparkSession:
    """Return a separate session for the worker: all users of one share its `txn` settings."""
    session = spark.newSession()
    for name, value in SESSION_SETTINGS.items():
        session.conf.set(name, value)
    return session


@contextmanager
def marked(session: SparkSession, own: OwnCommit) -> Iterator[None]:
    """Add `txn` and metadata to all commits of the session inside the block."""
    session.conf.set(_APP_ID, own.app_id)
    session.conf.set(_TXN_VERSION, str(own.txn_version))
    session.conf.set(_USER_METADATA, own.to_text())
    try:
        yield
    finally:
        for name in (_APP_ID, _TXN_VERSION, _USER_METADATA):
            session.conf.unset(name)


@contextmanager
def tagged(session: SparkSession, act: str, table: str) -> Iterator[None]:
    """Tag the Spark jobs of a block, for the UI, the event log and `interruptTag`."""
    tag = f"sparktxlog:{act}:{table}"
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


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
            frames.append(("removed", removed_rows(target, last, self._definition, self._stage)))
            frames.append(("inserted", last.where(~F.col(DELETED_COLUMN))))
        touched = self._appended(self._touched_pieces())
        if touched is not None:
            frames.append(("dropped", touched.where(GONE_COLUMN)))
        partial = self._appended(self._stage.partial)
        if partial is not None:
            frames.append(("partial", partial.where(~F.col(GONE_COLUMN))))
        found = signatures_of((tag, frame, self._definition) for tag, frame in frames)
        gained = found.get("inserted", EMPTY_SIGNATURE) + found.get("partial", EMPTY_SIGNATURE)
        lost = found.get("removed", EMPTY_SIGNATURE) + found.get("dropped", EMPTY_SIGNATURE)
        return gained - lost

    def commit(self, own: OwnCommit) -> None:
        """MERGE the stage's keyed rows, its predicates, and the appended rows of touched files."""
        last = self._last_operations()
        inserted = self._inserted(last)
        with marked(self._session, own):
            if last is None:
                inserted.write.format("delta").mode("append").save(self._table)
                return
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
            names = [quoted_name(column.name) for column in self._definition.columns]
            merge = (
                DeltaTable.forPath(self._session, self._table)
                .alias(_TARGET)
                .merge(source.alias(_SOURCE), self._condition())
                .whenMatchedDelete()
                .whenNotMatchedInsert(
                    condition=f"NOT {_SOURCE}.{DELETED_COLUMN}",
                    values={name: F.col(f"{_SOURCE}.{name}") for name in names},
                )
            )
            if self._stage.merges_wheres:
                merge = merge.whenNotMatchedBySourceDelete(
                    matching(self._definition, self._stage.predicate)
                )
            merge.execute()

    def _inserted(self, last: DataFrame | None) -> DataFrame:
        """Return the rows to insert: last upserts, and appended rows of files not placed."""
        names = [quoted_name(column.name) for column in self._definition.columns]
        frames = []
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


def read_newest(session: SparkSession, table: str) -> DataFrame:
    """Read a table that only this worker writes.

    A named version would make Delta compute its snapshot again, in two Spark jobs.  If another
    writer commits meanwhile, the examination after the step finds it, and the table stops.
    """
    return session.read.format("delta").load(table)


def read_version(session: SparkSession, table: str, version: int) -> DataFrame:
    """Read a table as it was at a version."""
    return session.read.format("delta").option("versionAsOf", version).load(table)
