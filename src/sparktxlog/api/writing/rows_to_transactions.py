"""Makes many transactions of Arrow rows: sorted once by transaction, then cut into runs (P1b).

No object is made per row or transaction: ids are one array of bytes, groups and cuts are array
operations, and a run is one Arrow stream for each table and kind.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparktxlog.codec.containers.assembly import as_ids, inline_section, mark_rows, uuid_texts
from sparktxlog.codec.containers.payload import encode_payload
from sparktxlog.codec.containers.runs import check_distinct_ids
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.codec.submits.validation import check_rows
from sparktxlog.errors import InvalidRowsError, OversizeError, SchemaMismatchError
from sparktxlog.lazy_arrow import np, pa, pc
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.groups import group_of
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import Block, OperationKind, RunManifest
from sparktxlog.model.transactions.receipt import Receipt

#: Share of the byte limit that runs are cut for; sizes are estimated from averages.
_FILL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRows:
    """The fetched rows of one operation in many transactions."""

    definition: TableDefinition
    kind: OperationKind
    #: Index of the operation in its transactions.
    place: int
    rows: pa.Table
    #: Each row's value in the transaction column.
    values: pa.ChunkedArray
    #: Each row's transaction id as text, None = random ids.
    ids: pa.ChunkedArray | None
    #: int64 row hashes of both lanes; none for deletes.
    lanes: tuple[np.ndarray[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRun:
    """A run ready to be submitted: transactions `first … first + n - 1` of the whole."""

    first: int
    n: int
    #: Id of its first transaction.
    transaction_id: bytes
    payload: bytes


@dataclass(slots=True, kw_only=True)
class RowGroup:
    """Rows of one (table, kind), sorted by transaction and operation: the unit of a block.

    Raises:
        InvalidRowsError: NULLs, a key twice in an upsert of one transaction (definite).
    """

    definition: TableDefinition
    kind: OperationKind
    rows: pa.Table
    #: int32, each row's transaction, and its operation in it.
    txs: np.ndarray[Any, Any]
    ops: np.ndarray[Any, Any]
    #: int64 row hashes of both lanes, if there are any.
    lanes: tuple[np.ndarray[Any, Any], ...] = ()

    def __post_init__(self) -> None:
        check_rows(self.definition, self.kind, self.rows, self.txs, self.ops)


class TransactionRuns:
    """Transactions in their order, to be cut into runs; `len` is their number.

    Args:
        groups: Their rows.
        ids: 16 bytes for each of them.
        values: Name of each of them in errors.
    """

    def __init__(self, groups: Sequence[RowGroup], ids: bytes, values: Sequence[Any]) -> None:
        self.groups = groups
        self.ids = ids
        self.values = values

    def __len__(self) -> int:
        return len(self.ids) // 16

    @property
    def tables(self) -> set[str]:
        """Names of the tables that they write to."""
        return {group.definition.name for group in self.groups}

    @property
    def waits(self) -> bool:
        """Whether they wait for members or a group before they are ordered (P34, P41)."""
        tables = [group.definition for group in self.groups]
        return any(table.is_sync or group_of(table) for table in tables)

    def runs(
        self, limit_transactions: int, limit_bytes: int, submitted_at: int, session: Session
    ) -> Iterator[EncodedRun]:
        """Yield the runs in order; the same rows and limits give the same runs.

        Raises:
            OversizeError: One transaction alone is over the limit of a run; known before the
                first run is yielded where the estimate says so (definite).
        """
        if not len(self):
            return
        bounds = self._cut(limit_transactions, limit_bytes)
        for first, end in itertools.pairwise(bounds):
            yield from self._encode(first, end, limit_bytes, submitted_at, session)

    def _cut(self, limit_transactions: int, limit_bytes: int) -> list[int]:
        sizes = np.full(len(self), 24.0)  # its id
        for group in self.groups:
            width = group.rows.nbytes / group.rows.num_rows + 8
            sizes += np.bincount(group.txs, minlength=len(self)) * width
        if sizes.max() > limit_bytes:
            raise self._oversize(int(sizes.argmax()), int(sizes.max()), limit_bytes)
        ends = np.zeros(len(self) + 1)
        np.cumsum(sizes, out=ends[1:])
        bounds = [0]
        while bounds[-1] < len(self):
            first = bounds[-1]
            end = int(np.searchsorted(ends, ends[first] + _FILL * limit_bytes, side="right")) - 1
            bounds.append(min(max(end, first + 1), first + limit_transactions, len(self)))
        return bounds

    def _encode(
        self, first: int, end: int, limit_bytes: int, submitted_at: int, session: Session
    ) -> Iterator[EncodedRun]:
        blocks: list[Block] = []
        sections: list[bytes] = []
        for group in self.groups:
            # Bounds of the array's type: otherwise each run converts the whole array.
            bounds = np.array((first, end), dtype=group.txs.dtype)
            low, high = np.searchsorted(group.txs, bounds).tolist()
            if low == high:
                continue
            txs = group.txs[low:high] - first
            section = write_section(
                mark_rows(group.rows.slice(low, high - low), txs, group.ops[low:high])
            )
            is_whole = np.count_nonzero(txs[1:] != txs[:-1]) + 1 == end - first
            blocks.append(
                Block(
                    table=group.definition.name,
                    kind=group.kind,
                    schema_version=group.definition.schema_version,
                    txs=None if is_whole else tuple(np.unique(txs).tolist()),
                    inline=inline_section(len(sections), section, high - low),
                    claim=lane_signature(*(lane[low:high] for lane in group.lanes))
                    if group.lanes
                    else None,
                )
            )
            sections.append(section)
        manifest = RunManifest(
            n=end - first,
            ids=self.ids[16 * first : 16 * end],
            blocks=tuple(blocks),
            submitted_at=submitted_at,
            session=session.name,
            stands_alone=session.stands_alone,
        )
        payload = encode_payload(manifest, sections)
        if len(payload) <= limit_bytes:
            yield EncodedRun(
                first=first, n=end - first, transaction_id=manifest.ids[:16], payload=payload
            )
            return
        if end - first == 1:
            raise self._oversize(first, len(payload), limit_bytes)
        middle = (first + end) // 2
        yield from self._encode(first, middle, limit_bytes, submitted_at, session)
        yield from self._encode(middle, end, limit_bytes, submitted_at, session)

    def _oversize(self, index: int, size: int, limit: int) -> OversizeError:
        value = str(self.values[index])[:80]
        return OversizeError(
            f"transaction {value!r} has about {size:,} bytes, a run may have {limit:,}",
            hint="Split it into several transactions, or commit it with log.transaction() of "
            "sparktxlog.connect: its rows are then staged as files.",
            transaction=value,
            size_bytes=size,
            limit_bytes=limit,
        )


def check_groups_by(column: str, kind: pa.DataType, table: str) -> None:
    """Refuse a column whose values cannot be told apart.

    Raises:
        SchemaMismatchError: (definite).
    """
    if pa.types.is_nested(kind):
        raise SchemaMismatchError(
            f"column {column!r} of type {kind} cannot group the rows for table {table!r} into "
            "transactions",
            hint="Group by a number, a text, a date or a time.",
            table=table,
            column=column,
        )


class GroupedTransactions(TransactionRuns):
    """Transactions of several operations, one for each distinct value, ascending.

    Args:
        operations: In the order in which each transaction performs them.

    Raises:
        InvalidRowsError: NULLs, a key twice in an upsert of one transaction (definite).
        SchemaMismatchError: Transaction columns of different types (definite).
        DuplicateTransactionError: Two transactions have one id (definite).
    """

    def __init__(self, operations: Sequence[GroupedRows]) -> None:
        kinds = {operation.values.type for operation in operations}
        if len(kinds) != 1:
            raise SchemaMismatchError(
                "the transaction columns of a batch are of different types: "
                f"{', '.join(sorted(map(str, kinds)))}",
                hint="Cast them to one type.",
            )
        distinct = pc.unique(
            pa.chunked_array([chunk for op in operations for chunk in op.values.chunks], *kinds)
        )
        operations = [operation for operation in operations if operation.rows.num_rows]
        values: pa.Array = distinct.take(pc.array_sort_indices(distinct))
        positions = [
            pc.index_in(operation.values, value_set=values).to_numpy().astype(np.int32)
            for operation in operations
        ]
        self.rows = sum(operation.rows.num_rows for operation in operations)
        ids = _ids(operations, positions, len(values))
        super().__init__(_group(operations, positions), ids, values)


def _group(
    operations: Sequence[GroupedRows], positions: Sequence[np.ndarray[Any, Any]]
) -> list[RowGroup]:
    parts: dict[tuple[str, OperationKind], list[int]] = {}
    for index, operation in enumerate(operations):
        parts.setdefault((operation.definition.name, operation.kind), []).append(index)
    groups = []
    for indices in parts.values():
        txs = np.concatenate([positions[index] for index in indices])
        ops = np.repeat(
            np.array([operations[index].place for index in indices], dtype=np.int32),
            [len(positions[index]) for index in indices],
        )
        order = np.argsort((txs.astype(np.int64) << 32) | ops, kind="stable")
        rows = pa.concat_tables([operations[index].rows for index in indices])
        lanes = [
            np.concatenate(lane)[order]
            for lane in zip(*(operations[index].lanes for index in indices), strict=True)
        ]
        first = operations[indices[0]]
        groups.append(
            RowGroup(
                definition=first.definition,
                kind=first.kind,
                rows=rows.combine_chunks().take(pa.array(order)),
                txs=txs[order],
                ops=ops[order],
                lanes=tuple(lanes),
            )
        )
    return groups


def _ids(
    operations: Sequence[GroupedRows], positions: Sequence[np.ndarray[Any, Any]], n: int
) -> bytes:
    """Return the ids of all transactions: given ones checked, or fresh random UUIDs."""
    given = [operation.ids is not None for operation in operations]
    if not any(given):
        return new_ids(n)
    if not all(given):
        raise SchemaMismatchError(
            "some operations of the batch have transaction ids and some have none",
            hint="Give transaction_ids= to all of them, or to none.",
        )
    texts = pa.chunked_array(
        [chunk for op in operations if op.ids is not None for chunk in op.ids.chunks], pa.string()
    ).combine_chunks()
    txs = np.concatenate(list(positions))
    order = np.argsort(txs, kind="stable")
    starts = np.concatenate(([True], np.diff(txs[order]) != 0))
    first = texts.take(pa.array(order[starts]))
    if not pc.all(pc.equal(first.take(pa.array(txs)), texts)).as_py():
        raise InvalidRowsError(
            "rows of one transaction have different transaction ids",
            hint="The id must follow from the transaction column alone.",
        )
    digits = pc.replace_substring(first, "-", "")
    if not pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")).as_py():
        raise InvalidRowsError(
            "some transaction ids are not UUIDs of 32 hexadecimal digits",
            hint="Make them with F.expr('uuid()'), or from a hash: md5(...) has 32 digits.",
        )
    text: bytes = digits.buffers()[2].to_pybytes()
    ids = bytes.fromhex(text[: 32 * n].decode("ascii"))
    check_distinct_ids(ids)
    return ids


def new_ids(n: int) -> bytes:
    """Return n random transaction ids, 16 bytes each."""
    return as_ids(os.urandom(16 * n))


def lane_signature(lane0: np.ndarray[Any, Any], lane1: np.ndarray[Any, Any]) -> TableSignature:
    """Return the signature of rows from their int64 hashes."""
    sums = [int(lane.view(np.uint64).sum(dtype=np.uint64)) for lane in (lane0, lane1)]
    return TableSignature(rows=len(lane0), lane0=sums[0], lane1=sums[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRejection:
    """A transaction of a batch that takes no effect; all sites reject it."""

    transaction_id: str
    #: Its value in the transaction column, as text.
    transaction: str
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedReceipt:
    """The result of a batch."""

    transactions: int
    rows: int
    #: One receipt for each run, in order.
    runs: tuple[Receipt, ...]
    #: **Shape:** transaction (as in the data, ascending), transaction_id string, position bigint
    #: (NULL while not ordered): one row for each transaction.
    mapping: pa.Table
    rejections: tuple[GroupedRejection, ...] = ()

    @property
    def late(self) -> bool:
        """Whether a run is ordered but did not reach the requested level in time."""
        return any(receipt.late for receipt in self.runs)

    @classmethod
    def of(
        cls,
        grouped: GroupedTransactions,
        runs: Sequence[EncodedRun],
        receipts: Sequence[Receipt],
    ) -> GroupedReceipt:
        """Collect the receipts of a batch's runs."""
        positions = np.zeros(len(grouped), dtype=np.int64)
        rejections = []
        for run, receipt in zip(runs, receipts, strict=True):
            if receipt.position is not None:
                positions[run.first : run.first + run.n] = receipt.position + np.arange(run.n)
            for rejection in receipt.rejections:
                index = run.first + rejection.index
                rejections.append(
                    GroupedRejection(
                        transaction_id=transaction_id_to_text(
                            grouped.ids[16 * index : 16 * index + 16]
                        ),
                        transaction=str(grouped.values[index]),
                        code=rejection.code,
                        text=rejection.text,
                    )
                )
        mapping = pa.table(
            {
                "transaction": grouped.values,
                "transaction_id": uuid_texts(grouped.ids),
                "position": pa.array(positions, pa.int64(), mask=positions == 0),
            }
        )
        return cls(
            transactions=len(grouped),
            rows=grouped.rows,
            runs=tuple(receipts),
            mapping=mapping,
            rejections=tuple(rejections),
        )
