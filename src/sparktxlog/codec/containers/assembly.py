"""Makes a run of transactions: one inline section per (table, kind), one block per other operation.

The run is the unit that is made durable, sent, ordered and hashed (protocol P1b).  Inline rows of
all its transactions on one table and of one kind stand in one Arrow stream, in the order of the
transactions and of their operations; `TX_COLUMN` and `OP_COLUMN` say to which each row belongs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from sparktxlog.codec.containers.payload import encode_payload
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.content_digests import ContentDigests
from sparktxlog.codec.submits.plain_rows import table_of
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import LocalProtocolError
from sparktxlog.lazy_arrow import np, pa
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.groups import CopiesNeeded
from sparktxlog.model.transactions.operation import (
    OP_COLUMN,
    TX_COLUMN,
    Acceptance,
    Block,
    InlineSection,
    OperationKind,
    RunManifest,
    StagedFile,
)

_Value = TypeVar("_Value")
#: Groups of a UUID text: place in the text, first and last of the 32 digits.
_UUID_GROUPS = ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32))


@dataclass
class _Group:
    """Inline rows of one (table, kind, schema version), in run order."""

    operations: list[PreparedOperation] = field(default_factory=list)
    txs: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)

    def add(self, tx: int, op: int, operation: PreparedOperation) -> None:
        """Add the rows of an operation."""
        self.operations.append(operation)
        self.txs.append(tx)
        self.ops.append(op)

    @cached_property
    def rows(self) -> tuple[pa.Table, np.ndarray, np.ndarray]:
        """All rows; and for each its transaction, and its operation there."""
        parts = [operation.rows for operation in self.operations]
        rows = table_of(parts)
        counts = [part.num_rows for part in parts]
        txs = np.repeat(np.array(self.txs, dtype=np.int32), counts)
        return rows, txs, np.repeat(np.array(self.ops, dtype=np.int32), counts)

    def without_claims(self, places: Sequence[Sequence[int | None]]) -> _Group:
        """Return those that count by their rows; this group, if all do.

        Args:
            places: Of the operations of each transaction, among those that count.
        """
        found = _Group()
        for tx, op, operation in zip(self.txs, self.ops, self.operations, strict=True):
            place = places[tx][op]
            if operation.claim is None and place is not None:
                found.add(tx, place, operation)
        return self if (found.txs, found.ops) == (self.txs, self.ops) else found


#: By table, kind and schema version.
_Groups: TypeAlias = dict[tuple[str, OperationKind, int], _Group]


def assemble_run(
    transactions: Sequence[PreparedTransaction],
    submitted_at: int,
    *,
    compression: str | None = None,
    acceptance: Acceptance | None = None,
    holders: int = 0,
    copies: tuple[CopiesNeeded, ...] = (),
) -> tuple[RunManifest, bytes]:
    """Return manifest and payload container of a run of validated transactions.

    Args:
        transactions: 1 to 8,192 of them, validated, ids distinct; of one session, or of none.
            A prepared one comes alone, and one with commit files among such of other tables.
        submitted_at: Wall clock, microseconds since 1970 UTC.
        compression: Of the inline sections: None, `lz4` or `zstd`.
        acceptance: What the accepting node knows of the ids; None at a client.
        holders: See `RunManifest.holders`; 0 at a client.
        copies: See `RunManifest.copies`; none at a client.

    Raises:
        LocalProtocolError: Transactions of different sessions, or none at all (definite).
    """
    if not transactions:
        raise LocalProtocolError("a run needs at least one transaction")
    session = transactions[0].session
    if any(transaction.session != session for transaction in transactions):
        raise LocalProtocolError("all transactions of a run must belong to one session")
    blocks, groups = _grouped(transactions)
    sections: list[bytes] = []
    for (table, kind, schema_version), group in groups.items():
        marked = mark_rows(*group.rows)
        section = write_section(marked, compression)
        blocks.append(
            Block(
                table=table,
                kind=kind,
                schema_version=schema_version,
                txs=_concerned(group.txs, len(transactions)),
                inline=inline_section(len(sections), section, marked.num_rows),
                claim=_sum(operation.claim for operation in group.operations),
            )
        )
        sections.append(section)
    staged, carried, contents = _commit_files(transactions)
    sections += contents
    manifest = RunManifest(
        n=len(transactions),
        ids=b"".join(transaction.transaction_id for transaction in transactions),
        blocks=tuple(blocks),
        submitted_at=submitted_at,
        session=session,
        stands_alone=transactions[0].stands_alone,
        acceptance=acceptance,
        valid_until=_given(transaction.valid_until for transaction in transactions),
        conditions=_given(transaction.condition for transaction in transactions),
        holders=holders,
        participants=transactions[0].participants,
        marks=_given(transaction.mark for transaction in transactions),
        commits=tuple((tx, one) for tx, each in enumerate(transactions) for one in each.commits),
        commit_files=staged,
        carried_files=carried,
        content_digests=_content_digests(transactions, groups),
        copies=copies,
    )
    return manifest, encode_payload(manifest, sections)


def content_digests(transactions: Sequence[PreparedTransaction]) -> bytes:
    """Return what the contents of transactions are known by; see `RunManifest.content_digests`."""
    return _content_digests(transactions, _grouped(transactions)[1])


def _content_digests(transactions: Sequence[PreparedTransaction], groups: _Groups) -> bytes:
    digests = ContentDigests(len(transactions))
    places = [digests.add(tx, transaction) for tx, transaction in enumerate(transactions)]
    for (table, kind, _), group in groups.items():
        if (plain := group.without_claims(places)).operations:
            digests.add_rows(table, kind.value, *plain.rows)
    return digests.to_bytes()


def _grouped(
    transactions: Sequence[PreparedTransaction],
) -> tuple[list[Block], _Groups]:
    """Return a block for each operation without inline rows, and the inline rows of the others."""
    groups: _Groups = {}
    blocks: list[Block] = []
    for tx, transaction in enumerate(transactions):
        for op, operation in enumerate(transaction.operations):
            if operation.rows is None:
                blocks.append(_single_block(operation, tx, op))
                continue
            key = (operation.table, operation.kind, operation.schema_version)
            group = groups.setdefault(key, _Group())
            group.add(tx, op, operation)
    return blocks, groups


def _commit_files(
    transactions: Sequence[PreparedTransaction],
) -> tuple[tuple[StagedFile, ...], tuple[StagedFile, ...], list[bytes]]:
    """Return the files of commits that are staged, those that the run carries, and their bytes."""
    contents = {path: one for each in transactions for path, one in each.contents.items()}
    files = [file for each in transactions for file in each.commit_files]
    carried = tuple(file for file in files if file.path in contents)
    staged = tuple(file for file in files if file.path not in contents)
    return staged, carried, [contents[file.path] for file in carried]


def assemble_rows(
    table: str,
    kind: OperationKind,
    schema_version: int,
    rows: pa.Table,
    txs: np.ndarray,
    ids: bytes,
    submitted_at: int,
    *,
    session: str | None = None,
    compression: str | None = None,
) -> tuple[RunManifest, bytes]:
    """Return a run whose transactions are one operation each, of one kind on one table.

    Args:
        table: Name of the table.
        kind: A kind that carries rows.
        schema_version: Of the table.
        rows: Checked rows without TX and OP columns.
        txs: int32, for each row the index of its transaction: ascending, 0 … n-1, none left out.
        ids: n transaction ids of 16 bytes, distinct.
        submitted_at: Wall clock, microseconds since 1970 UTC.
        session: See `RunManifest.session`.
        compression: Of the section: None, `lz4` or `zstd`.
    """
    marked = mark_rows(rows, txs, np.zeros(len(txs), dtype=np.int32))
    section = write_section(marked, compression)
    block = Block(
        table=table,
        kind=kind,
        schema_version=schema_version,
        inline=inline_section(0, section, rows.num_rows),
    )
    manifest = RunManifest(
        n=len(ids) // 16, ids=ids, blocks=(block,), submitted_at=submitted_at, session=session
    )
    return manifest, encode_payload(manifest, [section])


def as_ids(random: bytes) -> bytes:
    """Turn random bytes, 16 for each, into UUIDs of version 4."""
    ids = np.frombuffer(random, dtype=np.uint8).reshape(-1, 16).copy()
    ids[:, 6] = (ids[:, 6] & 0x0F) | 0x40
    ids[:, 8] = (ids[:, 8] & 0x3F) | 0x80
    return ids.tobytes()


class NewIds:
    """Random transaction ids, made many at a time: a system call for each lets other threads run.

    Used by one thread at a time.
    """

    _BATCH = 256

    def __init__(self) -> None:
        self._ids = b""
        self._at = 0

    def next(self) -> bytes:
        """Return another id, 16 bytes."""
        if self._at >= len(self._ids):
            self._ids, self._at = as_ids(os.urandom(16 * self._BATCH)), 0
        self._at += 16
        return self._ids[self._at - 16 : self._at]


def uuid_texts(ids: bytes) -> pa.StringArray:
    """Return the UUID texts of ids of 16 bytes each."""
    digits = np.frombuffer(ids.hex().encode(), np.uint8).reshape(-1, 32)
    text = np.full((len(digits), 36), ord("-"), np.uint8)
    for start, first, last in _UUID_GROUPS:
        text[:, start : start + last - first] = digits[:, first:last]
    offsets = np.arange(0, 36 * (len(digits) + 1), 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(digits), pa.py_buffer(offsets), pa.py_buffer(text))


def mark_rows(rows: pa.Table, txs: np.ndarray, ops: np.ndarray) -> pa.Table:
    """Return the rows with their TX and OP columns, both int32."""
    for name, numbers in ((TX_COLUMN, txs), (OP_COLUMN, ops)):
        place = pa.field(name, pa.int32(), nullable=False)
        rows = rows.append_column(place, pa.array(numbers, pa.int32()))
    return rows


def inline_section(index: int, section: bytes, rows: int) -> InlineSection:
    """Return the manifest's entry of a section."""
    return InlineSection(
        index=index,
        size_bytes=len(section),
        rows=rows,
        digest=hashlib.sha256(section).hexdigest(),
    )


def _given(values: Iterable[_Value | None]) -> tuple[tuple[int, _Value], ...]:
    return tuple((index, value) for index, value in enumerate(values) if value is not None)


def _single_block(operation: PreparedOperation, tx: int, op: int) -> Block:
    return Block(
        table=operation.table,
        kind=operation.kind,
        schema_version=operation.schema_version,
        txs=(tx,),
        op=op,
        files=operation.files,
        definition=operation.definition,
        predicate=operation.predicate,
        claim=operation.claim,
        change=operation.change,
    )


def _concerned(txs: list[int], n: int) -> tuple[int, ...] | None:
    distinct = tuple(dict.fromkeys(txs))  # ascending, because the run is walked in order
    return None if len(distinct) == n else distinct


def _sum(claims: Iterable[TableSignature | None]) -> TableSignature | None:
    total = TableSignature()
    for claim in claims:
        if claim is None:
            return None
        total = total + claim
    return total
