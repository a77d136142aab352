"""Stages rows: small DataFrames as Arrow, all others as Parquet files that are written once.

One Spark job writes the files *and* counts rows, NULLs and the content signature, with an
`Observation` of the write.  Rows are not read again, except the key columns of upserts, to find
duplicates.  Small DataFrames (a local relation, a Python list) are fetched as Arrow instead, with
the row hashes as two more columns of the same job.

    <payload store>/<transaction id>/<place>-<table>-<random>/[column=value/]part-….parquet
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from sparktxlog.api.given_data import Rows, arrow_table, is_row_list
from sparktxlog.api.schema import HOW_OFTEN, arrow_frame, conform, repeated_keys, struct_of
from sparktxlog.api.spark_paths import spark_url
from sparktxlog.api.staging.executor_uploads import RANK, TWICE, UploadTarget, ranked, repeated_key
from sparktxlog.api.staging.parquet_parts import describe_file, file_partitions, list_files
from sparktxlog.api.writing.rows_to_transactions import lane_signature
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.partitions import NULL_PARTITION, check_partition_text
from sparktxlog.codec.rows import rows_to_arrow, to_json
from sparktxlog.codec.submits.transactions import PreparedOperation
from sparktxlog.codec.submits.validation import align_rows, check_rows, required_columns, row_schema
from sparktxlog.errors import (
    InvalidRowsError,
    PayloadStoreError,
)
from sparktxlog.files.durability import storing
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.worker.apply.observing import result_of
from sparktxlog.worker.apply.signatures import (
    AGGREGATES,
    LANE_COLUMNS,
    hashed,
    observed,
    row_hash,
    second_lane,
    signature_from,
)

#: A frame of unknown size (a Python list) is fetched up to so many rows before it is staged.
_PROBE_ROWS = 4096
#: How Spark writes Parquet files: each site reads them, and programs that know no calendar of
#: before 1582.  Sessions may be set otherwise, also after `connect`.
WRITER_SETTINGS = {
    # INT96, Spark's default, has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_NO_MARKER = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingPlace:
    """The payload store of the home node, and how executors reach it."""

    #: Its absolute path: at the node, and where it is shared at the driver and all executors.
    root: Path
    #: Most bytes of rows, as Arrow, that are sent with the transaction itself.
    inline_limit_bytes: int
    #: Where executors send files; None = they share the store, and write below `root`.
    uploads: UploadTarget | None = None


class SignatureExpressions:
    """Spark expressions of signatures, built once per table: each takes many calls into the JVM."""

    def __init__(self) -> None:
        #: Row hashes of a table.
        self.row_hash = cache(_row_hash)


def _row_hash(definition: TableDefinition) -> Column:
    return row_hash(definition.columns)


class FrameStager:
    """Stages the operations of one transaction; `discard` removes what it wrote.

    Args:
        spark: Session whose executors write.
        store: Where to.
        transaction_id: 16 bytes, names the directory.
        expressions: Shared by all transactions of a session.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StagingPlace,
        transaction_id: bytes,
        expressions: SignatureExpressions,
    ) -> None:
        self._spark = spark
        self._store = store
        self._expressions = expressions
        self._base = store.root / transaction_id_to_text(transaction_id)
        self._written: list[Path] = []

    def stage(
        self, given: Rows, definition: TableDefinition, kind: OperationKind, place: int
    ) -> PreparedOperation:
        """Check, write and count the rows of one operation; without rows nothing is written.

        Args:
            given: Rows; columns in any order.  Few rows that are no DataFrame of Spark need no
                Spark job.
            definition: The table.
            kind: A kind that carries rows.
            place: Index of the operation in its transaction.

        Raises:
            SchemaMismatchError: Columns or types do not fit; no Spark job ran (definite).
            InvalidRowsError: NULL in a column that takes none, a key twice in an upsert (definite).
            PayloadStoreError: The driver does not see what executors wrote, or an executor could
                not upload it (definite).
            BusyError, DiskFullError: The node took no file of an executor (definite).
        """
        if isinstance(given, DataFrame):
            frame: DataFrame = given
        else:
            table = _aligned(given, definition, kind)
            if table.nbytes <= self._store.inline_limit_bytes:
                if table.num_rows:
                    check_rows(definition, kind, table)
                return inline_rows(definition, kind, table)
            frame = arrow_frame(self._spark, table, struct_of(definition, kind))
        rows = conform(frame, definition, kind)
        inline = self._collect(rows, definition, kind)
        if inline is not None:
            return inline
        return self._write(rows, definition, kind, place)

    def link(
        self,
        files: Sequence[tuple[Callable[[Path], None], Mapping[str, str | None]]],
        definition: TableDefinition,
    ) -> tuple[StagedFile, ...]:
        """Give Parquet files of a Delta table a second name in the store; return what they are.

        Files without rows are left out.

        Args:
            files: What gives each a name of this machine, by a link or a copy, with its partition
                values as Delta writes them.
            definition: The table that gets them.

        Raises:
            DiskFullError, StorageError: The disk failed, or a file is gone.
            PayloadStoreError: The store is not shared with the driver (definite).
        """
        if self._store.uploads is not None:
            raise PayloadStoreError(
                f"files of a Delta table cannot be linked into {self._store.root}, which this "
                "session does not share",
                hint="Adopt and follow tables from the node's machine, or connect with "
                "staging='shared'.",
                path=str(self._store.root),
            )
        target = self._base / f"linked-{definition.name}-{uuid.uuid4().hex[:8]}"
        self._written.append(target)
        with storing(target):
            target.mkdir(parents=True)

        def placed(
            numbered: tuple[int, tuple[Callable[[Path], None], Mapping[str, str | None]]],
        ) -> StagedFile:
            number, (place_at, partition) = numbered
            path = target / f"part-{number:06d}.parquet"
            with storing(path):
                place_at(path)  # the node brings it to the disk
            found = describe_file(self._store.root, target, path)
            return replace(found, partition=dict(partition) or None)

        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            found = list(pool.map(placed, enumerate(files)))
        return tuple(file for file in found if file.rows)

    def discard(self) -> None:
        """Remove the files of this transaction; nothing else of its directory."""
        for path in self._written:
            shutil.rmtree(path, ignore_errors=True)
        self._written.clear()
        if self._base.is_dir() and not any(self._base.iterdir()):
            self._base.rmdir()

    def _collect(
        self, rows: DataFrame, definition: TableDefinition, kind: OperationKind
    ) -> PreparedOperation | None:
        limit = self._store.inline_limit_bytes
        size = _size_bytes(rows)
        if size is None:
            # One partition, read up to the limit: no shuffle, no further rows.
            rows = rows.coalesce(1).limit(_PROBE_ROWS + 1)
        elif size > limit:
            return None
        found = with_lanes(rows, definition, kind, self._expressions).toArrow()
        table, claim = split_lanes(found)
        if table.num_rows > _PROBE_ROWS or table.nbytes > limit:
            return None
        table = align_rows(definition, kind, table)
        if table.num_rows:
            check_rows(definition, kind, table)
        return inline_rows(definition, kind, table, claim)

    def _write(
        self, rows: DataFrame, definition: TableDefinition, kind: OperationKind, place: int
    ) -> PreparedOperation:
        folder = f"{place}-{definition.name}-{uuid.uuid4().hex[:8]}"
        observation = Observation()
        takes_no_null = required_columns(definition, kind)
        nulls = [
            F.count_if(F.col(quoted_name(name)).isNull()).alias(f"__txlog_null{index}")
            for index, name in enumerate(takes_no_null)
        ]
        texts = [
            name
            for name in definition.partition_by
            if file_partitions(definition, kind) and rows.schema[name].dataType == StringType()
        ]
        nulls += [
            F.count_if(F.col(quoted_name(name)) == NULL_PARTITION).alias(f"__txlog_marker{index}")
            for index, name in enumerate(texts)
        ]
        uploads, is_upsert = self._store.uploads, kind is OperationKind.UPSERT
        if uploads is not None and is_upsert:
            # What is uploaded cannot be read again: keys that occur twice are found on the way.
            rows, nulls = ranked(rows, definition), [*nulls, repeated_key(definition)]
        is_delete = kind is OperationKind.DELETE_KEYS
        hash_of_rows = self._expressions.row_hash(_of_keys(definition) if is_delete else definition)
        observed_rows = observed(rows, observation, hash_of_rows, *nulls)
        if uploads is None:
            files = self._written_by_spark(observed_rows, folder, definition, kind)
        else:
            folder = f"{self._base.name}/{folder}"
            files = uploads.stage(observed_rows.drop(RANK), folder, definition, kind)
        found = _counted(observation, self._base / folder)
        count, rows_there = found[AGGREGATES[0]], sum(file.rows for file in files)
        if not count:
            return inline_rows(definition, kind, row_schema(definition, kind).empty_table())
        for index, name in enumerate(takes_no_null):
            if found[f"__txlog_null{index}"]:
                raise _null_in(definition, kind, name, found[f"__txlog_null{index}"])
        for index, name in enumerate(texts):
            if found[f"__txlog_marker{index}"]:
                check_partition_text(definition.name, name, NULL_PARTITION)
        if uploads is not None and is_upsert and found[TWICE] is not None:
            raise _duplicate_key(definition, kind, json.loads(found[TWICE]))
        if rows_there != count:
            raise PayloadStoreError(
                f"executors wrote {count:,} rows to {self._base / folder}, the driver sees "
                f"{rows_there:,}",
                hint="Driver, executors and node must share the payload store under one path, or "
                "the session be connected with staging='http'. If so, write again: where Spark "
                "lost an executor and ran a stage again, it counts rows twice.",
                path=str(self._base / folder),
            )
        if uploads is None and is_upsert:
            self._check_keys(self._base / folder, definition)
        return PreparedOperation(
            table=definition.name,
            kind=kind,
            schema_version=definition.schema_version,
            files=files,
            # A claim is the signature of whole rows.
            claim=None if is_delete else signature_from(found),
            content=signature_from(found).to_text() if is_delete else "",
        )

    def _written_by_spark(
        self, rows: DataFrame, folder: str, definition: TableDefinition, kind: OperationKind
    ) -> tuple[StagedFile, ...]:
        """Let executors write into the store that they share; return what they wrote."""
        target = self._base / folder
        self._written.append(target)
        for name, value in WRITER_SETTINGS.items():
            if rows.sparkSession.conf.get(name, None) != value:
                rows.sparkSession.conf.set(name, value)
        # Moments in the names of partitions' directories are in UTC.
        writer = _named_as_in_files(rows, definition).write.option(_NO_MARKER, "false")
        writer = writer.option("timeZone", "UTC")
        if partitions := file_partitions(definition, kind):
            writer = writer.partitionBy(*partitions)
        writer.parquet(spark_url(target))
        files = list_files(self._store.root, target)
        if not files:
            self._written.remove(target)
            shutil.rmtree(target, ignore_errors=True)
        return files

    def _check_keys(self, target: Path, definition: TableDefinition) -> None:
        struct = struct_of(definition, OperationKind.DELETE_KEYS)
        names = definition.in_files(struct.names)
        stored = [
            StructField(name, field.dataType) for name, field in zip(names, struct, strict=True)
        ]
        staged = self._spark.read.schema(StructType(stored)).parquet(spark_url(target))
        keys = [quoted_name(name) for name in names]
        twice = repeated_keys(staged, keys).drop(HOW_OFTEN).limit(1).collect()
        if twice:
            raise _duplicate_key(
                definition, OperationKind.UPSERT, dict(zip(struct.names, twice[0], strict=True))
            )


def _counted(observation: Observation, place: Path) -> Mapping[str, Any]:
    found = result_of(observation)
    if found is None:
        raise PayloadStoreError(
            f"Spark lost the count of the rows that it wrote to {place}",
            hint="Nothing was submitted: write them again. Spark loses counts when its queue of "
            "events overflows; see spark.scheduler.listenerbus.eventqueue.capacity.",
            path=str(place),
        )
    return found


def _aligned(given: Rows, definition: TableDefinition, kind: OperationKind) -> pa.Table:
    """Return rows that are no DataFrame of Spark as the operation takes them."""
    if is_row_list(given):
        rows = [to_json(row) for row in given]
        return rows_to_arrow(definition.name, rows, row_schema(definition, kind))
    return align_rows(definition, kind, arrow_table(given))


def keys_of(spark: SparkSession, given: Rows, definition: TableDefinition) -> DataFrame:
    """Return the key columns of rows that are to be appended.

    Raises:
        InvalidRequestError: The table has no keys (definite).
        SchemaMismatchError: The rows do not fit the table (definite).
        InvalidRowsError: More than one row has a key (definite).
    """
    names = struct_of(definition, OperationKind.DELETE_KEYS).names
    kind = OperationKind.APPEND
    if not isinstance(given, DataFrame):
        table = _aligned(given, definition, kind)
        given = arrow_frame(spark, table, struct_of(definition, kind))
    quoted = [quoted_name(name) for name in names]
    keys = conform(given, definition, kind).select(*quoted)
    twice = repeated_keys(keys, quoted).drop(HOW_OFTEN).limit(1).collect()
    if twice:
        raise _duplicate_key(definition, kind, dict(zip(names, twice[0], strict=True)))
    return keys


def _named_as_in_files(rows: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return conformed rows under the names that their columns have in files."""
    if not definition.is_mapped:
        return rows
    stored = definition.in_files(rows.columns)
    return rows.select(
        *[F.col(quoted_name(n)).alias(s) for n, s in zip(rows.columns, stored, strict=True)]
    )


def _of_keys(definition: TableDefinition) -> TableDefinition:
    """Return a table of only the key columns."""
    columns = tuple(one for one in definition.columns if one.name in definition.keys)
    return replace(definition, columns=columns, partition_by=(), cluster_by=())


def inline_rows(
    definition: TableDefinition,
    kind: OperationKind,
    rows: pa.Table,
    claim: TableSignature | None = None,
) -> PreparedOperation:
    """Return the operation whose rows are sent with the transaction itself."""
    return PreparedOperation(
        table=definition.name,
        kind=kind,
        schema_version=definition.schema_version,
        rows=rows,
        claim=claim,
    )


def with_lanes(
    rows: DataFrame,
    definition: TableDefinition,
    kind: OperationKind,
    expressions: SignatureExpressions,
) -> DataFrame:
    """Return conformed rows with their hashes in `LANE_COLUMNS`; deletes carry no hashes."""
    if kind is OperationKind.DELETE_KEYS:
        return rows
    found = hashed(rows, expressions.row_hash(definition))
    return found.select("*", second_lane().alias(LANE_COLUMNS[1]))


def split_lanes(table: pa.Table) -> tuple[pa.Table, TableSignature | None]:
    """Return the rows without their hashes, and the sum of the hashes as a signature."""
    if LANE_COLUMNS[0] not in table.column_names:
        return table, None
    claim = lane_signature(*(table[name].to_numpy() for name in LANE_COLUMNS))
    return table.drop_columns(list(LANE_COLUMNS)), claim


def _size_bytes(frame: DataFrame) -> int | None:
    """Return the optimiser's estimate; None for rows of unknown number held by the driver.

    Frames made of Python lists have no statistics: they are recognised by their plan, an RDD below
    nothing but projections and filters.
    """
    java = getattr(frame, "_jdf", None)
    if java is None:  # Spark Connect shows no plans
        return 1 << 62
    plan: Any = java.queryExecution().optimizedPlan()
    size = int(plan.stats().sizeInBytes())
    if size < 1 << 40:
        return size
    while plan.nodeName() in ("Project", "Filter") and plan.children().size() == 1:
        plan = plan.children().head()
    return None if plan.nodeName() == "LogicalRDD" else size


def _null_in(
    definition: TableDefinition, kind: OperationKind, column: str, count: int
) -> InvalidRowsError:
    role = "key" if column in definition.keys else "NOT NULL"
    return InvalidRowsError(
        f"{kind.value} of table {definition.name!r}: {count:,} rows have NULL in the {role} "
        f"column {column!r}",
        hint=f"Filter them out: df.where({(column + ' is not null')!r}).",
        table=definition.name,
        column=column,
        rows=count,
    )


def _duplicate_key(
    definition: TableDefinition, kind: OperationKind, key: dict[str, Any]
) -> InvalidRowsError:
    shown = ", ".join(f"{name}={str(value)[:60]!r}" for name, value in key.items())
    return InvalidRowsError(
        f"{kind.value} of table {definition.name!r}: more than one row has the key {shown}",
        hint=f"Keep one row for each key: df.dropDuplicates({list(definition.keys)!r}).",
        table=definition.name,
        key=shown,
    )
