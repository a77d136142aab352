"""Batches of many transactions on one table: they get ids and go over several connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sparktxlog.api.writing.rows_to_transactions import (
    EncodedRun,
    RowGroup,
    TransactionRuns,
    check_groups_by,
    new_ids,
)
from sparktxlog.codec.submits.validation import IndexArray, align_rows, row_schema
from sparktxlog.errors import SchemaMismatchError, TxLogError
from sparktxlog.lazy_arrow import np, pa
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Receipt, ReceiptRejection


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceipt:
    """Receipts of the runs of a batch, in the order of its rows."""

    #: One receipt per run.
    receipts: tuple[Receipt, ...]
    #: `n` transaction ids of 16 bytes.
    ids: bytes

    @property
    def n(self) -> int:
        """Number of transactions."""
        return len(self.ids) // 16

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(receipt.rows or 0 for receipt in self.receipts)

    @property
    def late(self) -> bool:
        """Whether a run is ordered but did not reach the requested level in time."""
        return any(receipt.late for receipt in self.receipts)

    def transaction_id(self, index: int) -> str:
        """Return the id of the transaction at `index` (0-based), a UUID."""
        return transaction_id_to_text(self.ids[16 * index : 16 * index + 16])

    @property
    def rejections(self) -> tuple[ReceiptRejection, ...]:
        """Transactions that take no effect; `index` counts through the batch."""
        found = []
        start = 0
        for receipt in self.receipts:
            for item in receipt.rejections:
                found.append(
                    ReceiptRejection(index=start + item.index, code=item.code, text=item.text)
                )
            start += receipt.n
        return tuple(found)


def transactions_of(
    definition: TableDefinition, kind: OperationKind, rows: pa.Table, column: str | None
) -> TransactionRuns:
    """Check rows and make transactions of them: one per row, or per value of a column."""
    rows, txs = _grouped(definition, rows, column)
    row_schema(definition, kind)
    rows = align_rows(definition, kind, rows)
    if not rows.num_rows:
        return TransactionRuns((), b"", ())
    group = RowGroup(definition=definition, kind=kind, rows=rows, txs=txs, ops=np.zeros_like(txs))
    n = int(txs[-1]) + 1
    return TransactionRuns([group], new_ids(n), range(n))


def send_runs(
    send: Callable[[EncodedRun], Receipt], runs: Iterable[EncodedRun], connections: int = 1
) -> tuple[Receipt, ...]:
    """Send runs, as many at a time as there are connections; return their receipts in order.

    The next run is encoded meanwhile.  With one connection it is sent once the one before has its
    receipt, which keeps their order.

    Raises:
        TxLogError: From `send`; field `accepted_transactions` counts those of the runs before.
    """
    receipts: list[Receipt] = []
    sending: deque[Future[Receipt]] = deque()
    most = 1 if connections <= 1 else 2 * connections
    with ThreadPoolExecutor(max(1, connections), thread_name_prefix="txlog-submit") as pool:
        try:
            for run in runs:
                if len(sending) == most:
                    receipts.append(sending.popleft().result())
                sending.append(pool.submit(send, run))
            while sending:
                receipts.append(sending.popleft().result())
        except TxLogError as error:
            pool.shutdown(wait=False, cancel_futures=True)
            done = sum(receipt.n for receipt in receipts)
            count = f"The first {done:,} transactions of the batch are accepted."
            error.hint = f"{error.hint} {count}".lstrip()
            error.fields["accepted_transactions"] = done
            raise
    return tuple(receipts)


def _grouped(
    definition: TableDefinition, rows: pa.Table, column: str | None
) -> tuple[pa.Table, IndexArray]:
    """Return the rows sorted by transaction, and each row's transaction."""
    if column is None:
        each: IndexArray = np.arange(rows.num_rows, dtype=np.int32)
        return rows, each
    if column not in rows.column_names:
        raise SchemaMismatchError(
            f"the rows have no column {column!r} to group by", table=definition.name, column=column
        )
    values = rows[column]
    is_encoded = pa.types.is_dictionary(values.type)
    kind = values.type.value_type if is_encoded else values.type
    check_groups_by(column, kind, definition.name)
    if is_encoded:  # a dictionary may have values that no row has, or one twice
        values = values.cast(kind)
    values = values.combine_chunks()
    if values.null_count:
        raise SchemaMismatchError(
            f"column {column!r} groups rows into transactions and must not be NULL",
            table=definition.name,
            column=column,
        )
    codes: IndexArray = values.dictionary_encode().indices.to_numpy().astype(np.int32)
    rows = rows.drop_columns([column])
    if bool((codes[1:] < codes[:-1]).any()):
        order = np.argsort(codes, kind="stable")
        rows, codes = rows.take(pa.array(order)), codes[order]
    return rows, codes
