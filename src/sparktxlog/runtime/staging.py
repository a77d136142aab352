"""Staged files of a submit: seen, counted and typed before the node says `accepted`.

Everything here blocks on disks and belongs in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.arrow import ddl_type
from sparktxlog.codec.rows import check_columns
from sparktxlog.codec.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.codec.validation import row_schema
from sparktxlog.errors import InvalidRowsError, ManifestMismatchError, SchemaMismatchError
from sparktxlog.model.operation import OperationKind, StagedFile
from sparktxlog.model.table import TableDefinition
from sparktxlog.storage.interfaces import PayloadStore
from sparktxlog.storage.parquet import ParquetFacts, inspect_parquet


def verify_staged(
    transaction: PreparedTransaction,
    tables: Mapping[str, TableDefinition],
    payloads: PayloadStore,
) -> PreparedTransaction:
    """Check and fsync all staged files; return the transaction with their statistics.

    Args:
        transaction: Checked by form.
        tables: The catalog; tables the transaction creates need not be in it.
        payloads: The node's payload store.

    Raises:
        PayloadStoreError: A file is not there: node and executors see two stores (definite).
        ManifestMismatchError: Size, digest or rows differ from the manifest (definite).
        SchemaMismatchError: Columns of a file are not the table's (definite).
        InvalidRowsError: NULL in a key or NOT NULL column (definite).
    """
    known = dict(tables)
    for operation in transaction.operations:
        if operation.definition is not None:
            known[operation.table] = operation.definition
    return replace(
        transaction,
        operations=tuple(
            _verified(operation, known[operation.table], payloads) if operation.files else operation
            for operation in transaction.operations
        ),
    )


def _verified(
    operation: PreparedOperation, definition: TableDefinition, payloads: PayloadStore
) -> PreparedOperation:
    files = []
    for file in operation.files:
        payloads.verify(file)
        facts = inspect_parquet(payloads.path(file.path))
        if facts.rows != file.rows:
            raise ManifestMismatchError(
                f"{file.path!r} holds {facts.rows:,} rows, its manifest says {file.rows:,}",
                path=file.path,
                rows=facts.rows,
            )
        _check_schema(file, facts, definition, operation.kind)
        _check_nulls(file, facts, definition, operation.kind, payloads)
        files.append(replace(file, stats=facts.stats))
    return replace(operation, files=tuple(files))


def _file_columns(definition: TableDefinition, kind: OperationKind) -> pa.Schema:
    """Return the columns a staged file holds: the operation's without the partition columns.

    Files of keys to delete are never placed in the table: they hold all keys as columns.
    """
    schema = row_schema(definition, kind)
    if kind is OperationKind.DELETE_KEYS:
        return schema
    return pa.schema([field for field in schema if field.name not in definition.partition_by])


def _check_schema(
    file: StagedFile, facts: ParquetFacts, definition: TableDefinition, kind: OperationKind
) -> None:
    wanted = _file_columns(definition, kind)
    where = f"the staged file {file.path!r}"
    check_columns(definition.name, facts.schema.names, wanted.names, where)
    for field in wanted:
        given = facts.schema.field(field.name).type
        try:
            same = ddl_type(given) == ddl_type(field.type)
        except SchemaMismatchError:
            same = False
        if not same:
            raise SchemaMismatchError(
                f"table {definition.name!r}: column {field.name!r} of {where} is {given}, "
                f"{ddl_type(field.type)} is wanted",
                hint="Cast before writing; timestamps as TIMESTAMP_MICROS.",
                table=definition.name,
                column=field.name,
                path=file.path,
                expected=ddl_type(field.type),
            )


def _check_nulls(
    file: StagedFile,
    facts: ParquetFacts,
    definition: TableDefinition,
    kind: OperationKind,
    payloads: PayloadStore,
) -> None:
    counts = json.loads(facts.stats)["nullCount"]
    for field in _file_columns(definition, kind):
        if field.nullable and field.name not in definition.keys:
            continue
        nulls = counts.get(field.name)
        if nulls is None:  # a footer may lack the count
            nulls = pq.read_table(payloads.path(file.path), columns=[field.name])[0].null_count
        if nulls:
            raise InvalidRowsError(
                f"table {definition.name!r}: {nulls:,} rows of the staged file {file.path!r} have "
                f"NULL in {field.name!r}, which takes none",
                hint="Key columns and columns declared NOT NULL need a value.",
                table=definition.name,
                column=field.name,
                path=file.path,
            )
