"""Rows for tables of groups: they travel in files, so only the sites of a group get them (P41).

Rows that a client sends with its transaction are written to the payload store by the node that
accepts it, as if they had been staged.  Those of a run of many small transactions are written to
one file for each table and kind, which says of which transaction each row is.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import cast

import numpy as np
import pyarrow as pa

from sparktxlog.codec.containers.payload import encode_payload, split_payload
from sparktxlog.codec.partitions import split_by_partition
from sparktxlog.codec.submits.content_digests import RowsContent
from sparktxlog.codec.submits.plain_rows import table_of
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.codec.submits.validation import check_made_for
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.groups import (
    GROUPS,
    CopiesNeeded,
    check_groups,
    copies_needed,
    group_of,
    sites_of,
)
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    IN_ROWS,
    Block,
    OperationKind,
    RunManifest,
    StagedFile,
)
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.protocol.messages.view import View
from sparktxlog.storage.parquet_files import write_parquet
from sparktxlog.storage.payloads.payload_store import FileSink, PayloadStore
from sparktxlog.storage.segments.inline_files import InlineGroup

_NOTHING_REJECTED = np.empty(0, np.int64)


def has_grouped_rows(tx: PreparedTransaction, tables: Mapping[str, TableDefinition]) -> bool:
    """Return whether a transaction carries rows itself that are for a table of a group."""
    known = with_created(tx, tables)
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
        StaleSchemaError: A table changed since the transaction was checked (definite).
        DiskFullError, StorageError: Nothing refers to what was written.
    """
    known = with_created(tx, tables)
    return replace(
        tx,
        operations=tuple(
            _staged(tx.transaction_id, index, one, known[one.table], payloads)
            if one.rows is not None and _is_grouped(one, known)
            else one
            for index, one in enumerate(tx.operations)
        ),
    )


def with_created(
    tx: PreparedTransaction, tables: Mapping[str, TableDefinition]
) -> Mapping[str, TableDefinition]:
    """Return the tables of the log, and what a transaction creates."""
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
    check_made_for(table, operation.schema_version)
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
    """Return what a transaction needs of groups."""
    written = [one.table for one in tx.operations if one.files]
    if not written:
        return ()
    return copies_needed(written, with_created(tx, tables))


def has_grouped_blocks(manifest: RunManifest, tables: Mapping[str, TableDefinition]) -> bool:
    """Return whether a run carries rows itself that are for a table of a group."""
    return any(_is_grouped_block(block, tables) for block in manifest.blocks)


def run_in_files(
    payload: bytes,
    manifest: RunManifest,
    tables: Mapping[str, TableDefinition],
    payloads: PayloadStore,
) -> tuple[bytes, RunManifest]:
    """Return a checked run with its rows for groups in files; blocks.

    The same run gets the same files.

    Args:
        payload: Its container.
        tables: Those of the log.
        payloads: Gets the files.

    Raises:
        StaleSchemaError: A table changed since the run was checked (definite).
        DiskFullError, StorageError: Nothing refers to what was written.
    """
    sections = split_payload(payload)[1]
    directory = transaction_id_to_text(manifest.transaction_id(0))
    sink = _Gathered()
    blocks: list[Block] = []
    kept: list[memoryview] = []
    for block in manifest.blocks:
        inline = block.inline
        if inline is not None and _is_grouped_block(block, tables):
            check_made_for(tables[block.table], block.schema_version)
            group = InlineGroup(block.table, block.kind, tables[block.table])
            group.add(block, sections[inline.index], 0)
            effect, _ = group.write(sink, f"{directory}/{block.table}", _NOTHING_REJECTED)
            files = () if effect is None else tuple(map(sink.named, effect.files))
            block = replace(block, inline=None, files=files, op=IN_ROWS)
        elif inline is not None:
            block = replace(block, inline=replace(inline, index=len(kept)))
            kept.append(sections[inline.index])
        blocks.append(block)
    payloads.take_in(sink.files)
    manifest = replace(manifest, blocks=tuple(blocks))
    return encode_payload(manifest, kept), manifest


class _Gathered(FileSink):
    """Keeps written files in memory, and gives them names with their digests."""

    def __init__(self) -> None:
        self._written: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}

    def write_file(self, relative: str, content: bytes | memoryview) -> None:
        self._written[relative] = bytes(content)

    def named(self, file: StagedFile) -> StagedFile:
        """Return a file that was written under its lasting name."""
        old = PurePosixPath(file.path)
        path = str(old.with_name(f"rows-{old.stem}-{file.digest[:16]}{old.suffix}"))
        self.files[path] = self._written.pop(file.path)
        return replace(file, path=path)


def _is_grouped_block(block: Block, tables: Mapping[str, TableDefinition]) -> bool:
    table = tables.get(block.table)
    return block.inline is not None and table is not None and bool(group_of(table))


def copies_of_run(manifest: RunManifest, tables: Mapping[str, TableDefinition]) -> RunManifest:
    """Return a run whose rows for groups are in files, with what it needs of groups."""
    written = [block.table for block in manifest.blocks if block.files]
    return replace(manifest, copies=copies_needed(written, tables)) if written else manifest


def appliers_of(
    written: Iterable[str], tables: Mapping[str, TableDefinition], sites: int, node_id: str
) -> Appliers:
    """Return the sites that shall have applied what is written: those that hold it count.

    Args:
        written: Names of tables.
        tables: Those of the log, and what is created.
        sites: So many of each group; 1 at a site that holds all of it = this site.

    Raises:
        InvalidRequestError: A group has fewer sites (definite).
    """
    groups = {}
    for name in written:
        table = tables.get(name)
        if table is not None and (at := sites_of(table)):
            groups[at] = group_of(table)
    for at, group in groups.items():
        if sites > len(at):
            raise InvalidRequestError(
                f"level applied({sites}) cannot be reached: group {group!r} has {len(at)} sites, "
                f"{', '.join(at)}",
                hint=f"Ask for 1 to {len(at)}.",
                field="level",
                value=f"applied({sites})",
                group=group,
            )
    if sites == 1 and all(node_id in at for at in groups):
        return Appliers()
    return Appliers(sites, tuple(sorted(groups)))


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
