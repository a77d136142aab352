"""Rows for tables of groups: they travel in files, so only the sites of a group get them (P41).

Rows that a client sends with its transaction are written to the payload store by the node that
accepts it, as if they had been staged.  Runs of many small transactions are refused: their rows
lie together in a payload that goes to all sites.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import pyarrow as pa

from sparktxlog.codec.partitions import split_by_partition
from sparktxlog.codec.submits.content_digests import RowsContent
from sparktxlog.codec.submits.plain_rows import table_of
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import InvalidRequestError, NotOfferedError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.groups import (
    GROUPS,
    CopiesNeeded,
    check_groups,
    copies_needed,
    group_of,
)
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind, RunManifest, StagedFile
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.parquet_files import write_parquet
from sparktxlog.storage.payloads.payload_store import PayloadStore


def has_grouped_rows(tx: PreparedTransaction, tables: Mapping[str, TableDefinition]) -> bool:
    """Return whether a transaction carries rows itself that are for a table of a group."""
    known = _known(tx, tables)
    return any(one.rows is not None and _is_grouped(one, known) for one in tx.operations)


def in_files(
    tx: PreparedTransaction,
    tables: Mapping[str, TableDefinition],
    payloads: PayloadStore | None = None,
) -> PreparedTransaction:
    """Return a transaction with its rows for groups in files; blocks.

    The same rows under the same id get the same files.

    Args:
        tables: Those of the log.
        payloads: Gets the files; None = only what the transaction is known by is wanted.

    Raises:
        DiskFullError, StorageError: Nothing refers to what was written.
    """
    known = _known(tx, tables)
    return replace(
        tx,
        operations=tuple(
            _staged(tx.transaction_id, index, one, known[one.table], payloads)
            if one.rows is not None and _is_grouped(one, known)
            else one
            for index, one in enumerate(tx.operations)
        ),
    )


def _known(
    tx: PreparedTransaction, tables: Mapping[str, TableDefinition]
) -> Mapping[str, TableDefinition]:
    created = {one.table: one.definition for one in tx.operations if one.definition is not None}
    return ChainMap(created, cast(dict[str, TableDefinition], tables)) if created else tables


def _is_grouped(operation: PreparedOperation, tables: Mapping[str, TableDefinition]) -> bool:
    table = tables.get(operation.table)
    return table is not None and bool(group_of(table))


def _staged(
    transaction_id: bytes,
    index: int,
    operation: PreparedOperation,
    table: TableDefinition,
    payloads: PayloadStore | None,
) -> PreparedOperation:
    rows = table_of([operation.rows])
    content = RowsContent()
    content.add(rows)
    sources: dict[str, bytes] = {}
    named: dict[str, StagedFile] = {}
    for partition, piece in _pieces(operation.kind, table, rows):
        data = write_parquet(piece).to_pybytes() if payloads is not None else b""
        digest = hashlib.sha256(data).hexdigest()
        directory = f"{transaction_id_to_text(transaction_id)}/{table.name}"
        path = f"{directory}/rows-{index}-{len(named)}-{digest[:16]}.parquet"
        sources[path] = data
        named[path] = StagedFile(
            path=path,
            size_bytes=len(data),
            rows=piece.num_rows,
            digest=digest,
            partition=partition or None,
        )
    if payloads is not None:
        payloads.take_in(sources)
    return replace(operation, rows=None, files=tuple(named.values()), content=content.to_text())


def _pieces(
    kind: OperationKind, table: TableDefinition, rows: pa.Table
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows of each partition under their names in files."""
    stored = rows.rename_columns(list(table.in_files(rows.column_names)))
    by = () if kind is OperationKind.DELETE_KEYS else table.in_files(table.partition_by)
    if not by:
        yield {}, stored
        return
    yield from split_by_partition(stored, by)


def copies_of(
    tx: PreparedTransaction, tables: Mapping[str, TableDefinition]
) -> tuple[CopiesNeeded, ...]:
    """Return what a transaction needs of groups.

    Raises:
        NotOfferedError: It is prepared, and has rows for a group (definite).
    """
    written = [one.table for one in tx.operations if one.files]
    if not written:
        return ()
    needed = copies_needed(written, _known(tx, tables))
    if needed and tx.participants:
        raise NotOfferedError(
            f"a prepared transaction writes to no table of a group ({needed[0].tables[0]!r} is of "
            f"group {needed[0].group!r})",
            hint="Leave out 'participants': a transaction over several groups takes effect in all "
            "or none of them.",
            field="participants",
            table=needed[0].tables[0],
        )
    return needed


def refuse_runs(manifest: RunManifest, tables: Tables) -> None:
    """Refuse a run of transactions with rows for a group.

    Raises:
        NotOfferedError: (definite).
    """
    for block in manifest.blocks:
        table = tables.alike(block.table)
        if block.inline is not None and table is not None and group_of(table):
            raise NotOfferedError(
                f"table {table.name!r} is of group {group_of(table)!r}: a run of transactions "
                "cannot carry rows for it",
                hint="Commit one transaction after the other, or stage the rows as files.",
                table=table.name,
                field="group",
                value=group_of(table),
            )


def check_level(copies: tuple[CopiesNeeded, ...], level: Level, sites: int, node_id: str) -> None:
    """Refuse to wait for sites that hold none of the rows.

    Raises:
        NotOfferedError: (definite).
    """
    if level is not Level.APPLIED:
        return
    for one in copies:
        if sites > 1 or node_id not in one.sites:
            raise NotOfferedError(
                f"level applied({sites}) at node {node_id!r} does not say which sites of group "
                f"{one.group!r} applied it",
                hint=f"Use level ordered; or applied at one of its sites: {', '.join(one.sites)}.",
                field="level",
                value=f"applied({sites})",
                group=one.group,
            )


def check_sites_of_groups(operation: PreparedOperation, view: View) -> None:
    """Refuse a new group with a site that the log does not have.

    Raises:
        InvalidRequestError: It has no such place, or it carries no data (definite).
    """
    change = operation.change
    if operation.table != GROUPS or change is None or change.is_dropped:
        return
    places = [seat.node_id for seat in view.roster if not seat.witness and not seat.follower]
    # What is there already was checked when it came.
    made = check_groups({}, {key: value for key, value in change.properties if value is not None})
    for group in made:
        for site in group.sites:
            if site not in places:
                raise InvalidRequestError(
                    f"group {group.name!r} names site {site!r}, which carries no data in this log",
                    hint=f"Sites: {', '.join(places)}.",
                    group=group.name,
                    field="sites",
                    value=site,
                )
