"""Checks the staged files of a submit before the node accepts it.

Every page is decoded once: a page that cannot be read would stop the workers of all sites after
the transaction is ordered.  Everything here blocks on disks and belongs in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparktxlog.codec.submits.column_values import check_column_values
from sparktxlog.codec.submits.requests import without_rows
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.codec.submits.validation import (
    check_file_schema,
    check_made_for,
    looked_at_columns,
    required_columns,
)
from sparktxlog.errors import InvalidRowsError, ManifestMismatchError
from sparktxlog.files.foreign_files import with_progress
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.storage.parquet_files import ParquetFacts, inspect_parquet
from sparktxlog.storage.payloads.payload_store import PayloadStore

#: Staged files of a transaction that are read at once.
_PARALLEL_FILES = 4


def verify_staged(
    transaction: PreparedTransaction,
    tables: Mapping[str, TableDefinition],
    payloads: PayloadStore,
) -> PreparedTransaction:
    """Check and fsync all staged files; return the transaction with their statistics.

    An operation whose files have no rows becomes what `prepare` makes of one without rows.

    Args:
        tables: Those of the log; what the transaction creates need not be among them.

    Raises:
        PayloadStoreError: A file is missing: node and executors see different stores (definite).
        ManifestMismatchError: Size, digest or rows differ from the manifest, or a page cannot be
            decoded (definite).
        StaleSchemaError: A table changed since the operation was prepared (definite).
        SchemaMismatchError: Columns of a file are not the table's (definite).
        InvalidRowsError: NULL in a key or NOT NULL column, or as `check_column_values` (definite).
    """
    created = {one.table: one.definition for one in transaction.operations if one.definition}
    with ThreadPoolExecutor(_PARALLEL_FILES, "staging") as threads:

        def verified(operation: PreparedOperation) -> PreparedOperation | None:
            definition = created.get(operation.table) or tables[operation.table]
            # The node may have learned of a change since the operation was checked.
            check_made_for(definition, operation.schema_version)
            kind = operation.kind
            check = with_progress(partial(_verified, kind, definition, payloads))
            found = replace(operation, files=tuple(threads.map(check, operation.files)))
            return found if found.carried else without_rows(definition, kind)

        try:
            operations = [
                verified(operation) if operation.files else operation
                for operation in transaction.operations
            ]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return replace(transaction, operations=tuple(item for item in operations if item is not None))


def _verified(
    kind: OperationKind, definition: TableDefinition, payloads: PayloadStore, file: StagedFile
) -> StagedFile:
    payloads.verify(file)
    with payloads.at_hand(file) as path:
        facts = inspect_parquet(
            path,
            partial(check_file_schema, file.path, definition, kind),
            partial(_check_values, file, definition, kind),
        )
    if facts.rows != file.rows:
        raise ManifestMismatchError(
            f"{file.path!r} holds {facts.rows:,} rows, its manifest says {file.rows:,}",
            path=file.path,
            rows=facts.rows,
        )
    _check_nulls(file, facts, definition, kind)
    return replace(file, stats=facts.stats)


def _check_values(
    file: StagedFile,
    definition: TableDefinition,
    kind: OperationKind,
    rows: pa.RecordBatch,
    before: int,
) -> None:
    if kind is OperationKind.DELETE_KEYS:
        return
    looked_at = looked_at_columns(definition)
    for name, stored in zip(looked_at, definition.in_files(looked_at), strict=True):
        if stored not in definition.in_files(definition.partition_by):
            column = pa.chunked_array([rows.column(stored)])
            check_column_values(definition.name, name, column, before=before, path=file.path)


def _check_nulls(
    file: StagedFile, facts: ParquetFacts, definition: TableDefinition, kind: OperationKind
) -> None:
    required = required_columns(definition, kind)
    for name, stored in zip(required, definition.in_files(required), strict=True):
        nulls = facts.nulls.get(stored, 0)
        if nulls:
            raise InvalidRowsError(
                f"table {definition.name!r}: {nulls:,} rows of the staged file {file.path!r} have "
                f"NULL in {name!r}, which takes none",
                hint="Key columns and columns declared NOT NULL need a value.",
                table=definition.name,
                column=name,
                path=file.path,
            )
