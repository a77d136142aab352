"""Checks runs that clients assembled; their bytes are passed on unchanged.

This is the node's hot path: nothing in it is done per transaction or per row in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sparktxlog.codec.containers.payload import read_manifest, split_payload
from sparktxlog.codec.containers.sections import check_size, read_section
from sparktxlog.codec.rows import type_name
from sparktxlog.codec.submits.condition_requests import check_run_conditions
from sparktxlog.codec.submits.content_digests import ContentDigests
from sparktxlog.codec.submits.validation import (
    IndexArray,
    cast_bytes,
    check_made_for,
    check_rows,
    exact_table,
    run_schema,
)
from sparktxlog.errors import (
    DuplicateTransactionError,
    InvalidRequestError,
    ManifestMismatchError,
    OversizeError,
    SchemaMismatchError,
)
from sparktxlog.lazy_arrow import np, pa
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    LONGEST_RUN,
    OP_COLUMN,
    ROW_KINDS,
    TX_COLUMN,
    Block,
    RunManifest,
)

if TYPE_CHECKING:
    import numpy.typing as npt

#: Operations of transactions, `tx << 32 | op`.
_Places: TypeAlias = "npt.NDArray[np.int64]"
#: Operations of one transaction, and blocks of one run.
MAX_OPERATIONS = 1000
#: Compressed sections may inflate to this many times the limit of a run.
_INFLATION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Bounds of a run (protocol P1b)."""

    transactions: int = LONGEST_RUN
    #: Of the payload container.
    size_bytes: int = 4 << 20


def validate_run(
    payload: bytes, tables: Mapping[str, TableDefinition], limits: RunLimits
) -> RunManifest:
    """Check a payload container from a client against the tables; return its manifest.

    The manifest has the digests of what its transactions carry, which no client says.

    Args:
        payload: The container; inline blocks only, see `codec.assembly`.
        tables: Those of the log.
        limits: Bounds of a run.

    Raises:
        OversizeError: Too many transactions or bytes (definite).
        ManifestMismatchError: Digest, size or row count of a section differ (definite).
        DuplicateTransactionError: An id occurs twice (definite).
        InvalidRequestError: Blocks that a run from a client may not hold, or rows whose
            transactions are not ascending, complete and in range (definite).
        StaleSchemaError, SchemaMismatchError, InvalidRowsError, UnknownTableError: As for single
            transactions.
    """
    if len(payload) > limits.size_bytes:
        raise OversizeError(
            f"the run has {len(payload):,} bytes, {limits.size_bytes:,} are allowed",
            hint="Send smaller runs; stage the rows of a too large transaction as files.",
            size_bytes=len(payload),
            limit_bytes=limits.size_bytes,
        )
    manifest = read_manifest(payload)
    if manifest.n > limits.transactions:
        raise OversizeError(
            f"the run has {manifest.n:,} transactions, {limits.transactions:,} are allowed",
            hint="Split it.",
            transactions=manifest.n,
            limit=limits.transactions,
        )
    blocks = len(manifest.blocks)
    written_here = manifest.voided or any(
        (manifest.holders, manifest.participants, manifest.marks, manifest.commits, manifest.copies)
    )
    written_here = written_here or bool(manifest.commit_files or manifest.carried_files)
    if not 0 < blocks <= MAX_OPERATIONS or manifest.version != 1 or written_here:
        raise InvalidRequestError(
            f"expected a run of version 1 with 1 to {MAX_OPERATIONS} blocks",
            blocks=blocks,
            version=manifest.version,
        )
    check_distinct_ids(manifest.ids)
    _check_session(manifest.session)
    indices = [index for index, _ in manifest.valid_until]
    if indices != sorted(set(indices) & set(range(manifest.n))):
        raise InvalidRequestError(
            "valid_until names transactions of the run, each once, ascending", field="valid_until"
        )
    check_run_conditions(manifest, tables)
    sections = split_payload(payload)[1]
    _check_section_use(manifest, len(sections))
    digests = ContentDigests(manifest.n)
    places = [
        _check_block(block, manifest, sections, tables, limits, digests)
        for block in manifest.blocks
    ]
    _check_places(places, manifest.n)
    return replace(manifest, content_digests=digests.to_bytes())


def check_distinct_ids(ids: bytes) -> None:
    """Raise DuplicateTransactionError if one of the 16-byte ids occurs twice."""
    halves = np.frombuffer(ids, dtype="<u8").reshape(-1, 2)
    low = np.sort(halves[:, 1])
    if not bool((low[1:] == low[:-1]).any()):
        return  # random halves differ already
    order = np.lexsort((halves[:, 0], halves[:, 1]))
    ranked = halves[order]
    same = np.flatnonzero((ranked[1:] == ranked[:-1]).all(axis=1))
    if same.size:
        first = int(order[same[0]])
        text = transaction_id_to_text(ids[16 * first : 16 * first + 16])
        raise DuplicateTransactionError(
            f"transaction id {text} occurs twice in the run",
            hint="Give each transaction its own id.",
            transaction_id=text,
        )


def _check_session(session: str | None) -> None:
    if session is not None and not 1 <= len(session) <= 128:
        raise InvalidRequestError("a session's name has 1 to 128 characters")


def _check_section_use(manifest: RunManifest, sections: int) -> None:
    used = sorted(b.inline.index for b in manifest.blocks if b.inline is not None)
    if used != list(range(sections)):
        raise InvalidRequestError("each section of a run belongs to exactly one block")
    names = {(block.table, block.kind) for block in manifest.blocks}
    if len(names) != len(manifest.blocks):
        raise InvalidRequestError("a run has one block per table and kind")


def _check_block(
    block: Block,
    manifest: RunManifest,
    sections: list[memoryview],
    tables: Mapping[str, TableDefinition],
    limits: RunLimits,
    digests: ContentDigests,
) -> _Places:
    """Check one inline block; return its operations as `tx << 32 | op`, distinct, ascending."""
    definition = exact_table(tables, block.table)
    inline = block.inline
    plain = block.kind in ROW_KINDS and not block.files
    plain = plain and block.definition is None and block.change is None
    if inline is None or not plain or block.predicate is not None or block.op != 0:
        raise InvalidRequestError(
            f"table {block.table!r}: a run from a client may only hold inline rows",
            hint="POST the transaction to /v1/transactions.",
            table=block.table,
        )
    check_made_for(definition, block.schema_version)
    section = sections[inline.index]
    if len(section) != inline.size_bytes:
        raise ManifestMismatchError(
            f"the section of table {block.table!r} has {len(section):,} bytes, the manifest says "
            f"{inline.size_bytes:,}",
            table=block.table,
        )
    if hashlib.sha256(section).hexdigest() != inline.digest:
        raise ManifestMismatchError(
            f"inline rows of table {block.table!r} differ from their digest", table=block.table
        )
    schema = run_schema(definition, block.kind)

    def check(given: pa.Schema) -> None:
        if not given.equals(schema):
            raise _other_schema(block, given, schema)

    rows = read_section(section, _INFLATION * limits.size_bytes, check)
    check_size(cast_bytes(rows, schema), _INFLATION * limits.size_bytes)
    if rows.num_rows != inline.rows or (block.claim and block.claim.rows != inline.rows):
        raise ManifestMismatchError(
            f"the section of table {block.table!r} has {rows.num_rows:,} rows, the manifest says "
            f"{inline.rows:,}",
            table=block.table,
            rows=rows.num_rows,
        )
    txs, ops = rows[TX_COLUMN].to_numpy(), rows[OP_COLUMN].to_numpy()
    check_rows(definition, block.kind, rows, txs, ops)
    places = _places(block, manifest.n, txs, ops)
    digests.add_rows(
        definition.name, block.kind.value, rows.drop_columns([TX_COLUMN, OP_COLUMN]), txs, ops
    )
    return places


def _other_schema(block: Block, given: pa.Schema, wanted: pa.Schema) -> SchemaMismatchError:
    """Name the first field in which a section differs from what its table wants."""
    for index, field in enumerate(wanted):
        if index >= len(given) or not given.field(index).equals(field):
            found = "nothing"
            if index < len(given):
                other = given.field(index)
                null = "" if other.nullable else " not null"
                found = f"{other.name!r} {type_name(other.type)}{null}"
            null = "" if field.nullable else " not null"
            return SchemaMismatchError(
                f"table {block.table!r}: column {index} of the section is {found}, "
                f"{field.name!r} {type_name(field.type)}{null} is wanted",
                hint="Write sections in the schema of GET /v1/tables/{name}, then "
                f"{TX_COLUMN} and {OP_COLUMN}, both int32.",
                table=block.table,
                column=field.name,
                expected=type_name(field.type),
            )
    extra = given.names[len(wanted) :]
    return SchemaMismatchError(
        f"table {block.table!r}: the section has further columns: {', '.join(extra)[:200]}",
        table=block.table,
        column=extra[0] if extra else "",
    )


def _places(block: Block, n: int, txs: IndexArray, ops: IndexArray) -> _Places:
    if int(txs[0]) < 0 or int(txs.max()) >= n or int(ops.min()) < 0:
        raise InvalidRequestError(
            f"table {block.table!r}: {TX_COLUMN} is outside 0 … {n - 1}, or {OP_COLUMN} below 0",
            table=block.table,
        )
    if int(ops.max()) >= MAX_OPERATIONS:
        raise InvalidRequestError(
            f"table {block.table!r}: a transaction may have {MAX_OPERATIONS} operations",
            table=block.table,
        )
    places: _Places = (txs.astype(np.int64) << 32) | ops
    if bool((places[1:] < places[:-1]).any()):
        raise InvalidRequestError(
            f"table {block.table!r}: rows are not ascending by {TX_COLUMN} and {OP_COLUMN}",
            table=block.table,
        )
    places = places[np.concatenate(([True], places[1:] != places[:-1]))]
    concerned = places >> 32
    concerned = concerned[np.concatenate(([True], concerned[1:] != concerned[:-1]))]
    claimed = range(n) if block.txs is None else block.txs
    if len(concerned) != len(claimed) or (
        block.txs is not None and not np.array_equal(concerned, np.array(claimed))
    ):
        raise InvalidRequestError(
            f"table {block.table!r}: the block names other transactions than its rows",
            table=block.table,
        )
    return places


def _check_places(places: list[_Places], n: int) -> None:
    """Check that every transaction has an operation and no two blocks share one."""
    together = places[0] if len(places) == 1 else np.sort(np.concatenate(places))
    if bool((together[1:] == together[:-1]).any()):
        raise InvalidRequestError("one operation of a run is in two blocks")
    txs = together >> 32
    if 1 + int((txs[1:] != txs[:-1]).sum()) != n:
        raise InvalidRequestError("a transaction of the run has no operation")
