"""Batches: many transactions made of a few DataFrames, and their receipts.

A column says which rows belong to which transaction.  Rows are fetched as Arrow with their hashes.
Runs are submitted one after another, each while the next one is being encoded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NotRequired, TypedDict, Unpack

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparktxlog.api.nodes import Doubt, Nodes
from sparktxlog.api.schema import conform
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import SignatureExpressions, with_lanes
from sparktxlog.api.writing.arrow_batches import send_runs
from sparktxlog.api.writing.operations import Draft
from sparktxlog.api.writing.rows_to_transactions import (
    EncodedRun,
    GroupedReceipt,
    GroupedRows,
    GroupedTransactions,
    check_groups_by,
)
from sparktxlog.codec.submits.arguments import kind_given, seconds_given
from sparktxlog.codec.submits.condition_requests import is_conflict
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.codec.submits.validation import align_rows
from sparktxlog.errors import (
    CommittedNotAppliedError,
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    TxLogError,
)
from sparktxlog.model.ids import table_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.worker.apply.signatures import LANE_COLUMNS

_TRANSACTION = "__txlog_transaction"
_ID = "__txlog_id"


class Grouping(TypedDict):
    """Which rows make a transaction; see `GroupedBatch.add`."""

    transaction: str
    transaction_ids: NotRequired[str | None]


class GroupedBatch(Draft[GroupedReceipt]):
    """Collects operations whose rows name their transaction.

    Each distinct value of the transaction column is one transaction: the rows of all operations
    with that value, all or nothing, in the order in which the operations were added.  Transactions
    are ordered by the column.  The end of a `with` block submits the batch; without one, `commit`
    does.

    Without rows nothing is submitted, whatever the kind.

    The rows pass through the driver, as Arrow, so a batch is for many small transactions.  Use
    `log.transaction()` for a large one: the executors write its rows.
    """

    _another = "log.batch()"

    def __init__(
        self, site: SiteSession, *, level: str = "ordered", timeout: float | None = None
    ) -> None:
        parse_level(level)
        self._site = site
        self._level = level
        self._timeout_s = site.timeout_s if timeout is None else seconds_given(timeout)
        self._operations: list[GroupedRows] = []
        #: Fixed by the first commit, including the ids.
        self._grouped: GroupedTransactions | None = None
        #: Of its runs, by their first ids.
        self._doubts: defaultdict[bytes, Doubt] = defaultdict(Doubt)

    def commit(self) -> GroupedReceipt:
        """Submit it and return the receipt; again, it returns the same one.

        Called again after an error it repeats the transactions under the same ids.

        Raises:
            CommitRejectedError: A run was refused; field `accepted_transactions` counts those
                before it (definite for the rest).
            CommitStateUnknownError: Not known in time (not definite).
            CommittedNotAppliedError: Ordered but not applied by `apply="inline"` (not definite).
            InvalidRequestError: There is no operation in it (definite).
        """
        if self._receipt is not None:
            return self._receipt
        if self._grouped is None:
            if not self._operations:
                raise InvalidRequestError(
                    "the batch has no operation", hint="First call b.append(…) or another one."
                )
            self._grouped = GroupedTransactions(self._operations)
            self._operations = []
        try:
            self._receipt = self._submit(self._grouped)
        except CommittedNotAppliedError as error:
            self._receipt = error.receipt
            raise
        return self._receipt

    def _submit(self, grouped: GroupedTransactions) -> GroupedReceipt:
        site, deadline = self._site, time.monotonic() + self._timeout_s
        info = site.link.get("/v1/info", timeout_s=self._timeout_s)
        runs = grouped.runs(
            int(info["run_limit_transactions"]),
            int(info["run_limit_bytes"]),
            time.time_ns() // 1000,
            site.session,
        )
        left = max(0.0, deadline - time.monotonic())
        try:
            level = site.asked_level(self._level)
            done = submit_runs(site.link, runs, level, left, self._doubts, waits=grouped.waits)
        except TxLogError:
            site.forget_definitions(grouped.tables)
            raise
        if any(is_conflict(item) for _, receipt in done for item in receipt.rejections):
            site.forget_definitions(grouped.tables)
        encoded, receipts = [run for run, _ in done], [receipt for _, receipt in done]
        try:
            reached = site.reach(receipts, self._level, deadline, grouped.tables)
        except CommittedNotAppliedError as error:
            error.receipt = GroupedReceipt.of(grouped, encoded, receipts)
            raise
        return GroupedReceipt.of(grouped, encoded, reached)

    def append(self, table: str, frame: DataFrame, **by: Unpack[Grouping]) -> None:
        """Add rows; see `add`."""
        self.add(OperationKind.APPEND, table, frame, **by)

    def upsert(self, table: str, frame: DataFrame, **by: Unpack[Grouping]) -> None:
        """Replace rows by key; see `add`."""
        self.add(OperationKind.UPSERT, table, frame, **by)

    def delete_keys(self, table: str, frame: DataFrame, **by: Unpack[Grouping]) -> None:
        """Delete rows by key; see `add`."""
        self.add(OperationKind.DELETE_KEYS, table, frame, **by)

    def add(
        self,
        kind: OperationKind,
        table: str,
        frame: DataFrame,
        *,
        transaction: str,
        transaction_ids: str | None = None,
    ) -> None:
        """Add an operation; its rows are fetched now, one Spark job.

        Args:
            kind: A kind that carries rows.
            table: Name of the table.
            frame: Rows; the transaction column need not be one of the table's.
            transaction: Column that distinguishes transactions and orders them.
            transaction_ids: Column with each transaction's UUID as text; default: random.  With
                ids a batch may be repeated: no transaction takes effect twice.

        Raises:
            UnknownTableError: The log has no such table (definite).
            SchemaMismatchError: The frame does not fit (definite).
            InvalidRowsError: NULL in the transaction column (definite).
            InvalidRequestError: Another kind (definite).
        """
        kind = kind_given(kind)
        self._take_more(self._grouped is not None)

        def fetched(definition: TableDefinition) -> GroupedRows:
            return fetch(
                frame,
                definition,
                kind,
                len(self._operations),
                self._site.expressions,
                transaction,
                transaction_ids,
            )

        # All rows of a batch for one table are made for one schema.
        name = table_name(table).lower()
        before = (o.definition for o in self._operations if o.definition.name.lower() == name)
        known = next(before, None)
        self._operations.append(fetched(known) if known else self._site.fitting(table, fetched))


def fetch(
    frame: DataFrame,
    definition: TableDefinition,
    kind: OperationKind,
    place: int,
    expressions: SignatureExpressions,
    transaction: str,
    transaction_ids: str | None,
) -> GroupedRows:
    """Fetch the rows of one operation with their transactions and hashes; one Spark job.

    Raises:
        SchemaMismatchError: The frame does not fit, or lacks the transaction column (definite).
        InvalidRowsError: NULL in the transaction column (definite).
    """
    keep = {_TRANSACTION: transaction}
    if transaction_ids is not None:
        keep[_ID] = transaction_ids
    for name in keep.values():
        if name not in frame.columns:
            raise SchemaMismatchError(
                f"the data for table {definition.name!r} has no column {name!r} to mark its "
                "transactions apart",
                hint=f"Its columns: {', '.join(frame.columns)}.",
                table=definition.name,
                column=name,
            )
    rows = with_lanes(conform(frame, definition, kind, keep=keep), definition, kind, expressions)
    if transaction_ids is not None:
        rows = rows.withColumn(_ID, F.col(_ID).cast("string"))
    found = rows.toArrow()
    for name in keep:
        if found[name].null_count:
            raise InvalidRowsError(
                f"{found[name].null_count:,} rows for table {definition.name!r} have NULL in "
                f"{keep[name]!r}, so they belong to no transaction",
                table=definition.name,
                column=keep[name],
            )
    lanes = tuple(found[name].to_numpy() for name in LANE_COLUMNS if name in found.column_names)
    ids = found[_ID] if transaction_ids is not None else None
    values = found[_TRANSACTION]
    check_groups_by(transaction, values.type, definition.name)
    extra = [name for name in (*keep, *LANE_COLUMNS) if name in found.column_names]
    table = align_rows(definition, kind, found.drop_columns(extra))
    return GroupedRows(
        definition=definition,
        kind=kind,
        place=place,
        rows=table,
        values=values,
        ids=ids,
        lanes=lanes,
    )


def submit_runs(
    link: Nodes,
    runs: Iterable[EncodedRun],
    level: str,
    timeout_s: float,
    doubts: defaultdict[bytes, Doubt],
    *,
    waits: bool = False,
) -> list[tuple[EncodedRun, Receipt]]:
    """Commit runs in order; each is posted while the next one is encoded.

    A run is posted after the one before was accepted, which keeps their order.  The level is
    awaited at the end.

    Args:
        doubts: Of the runs, by their first ids: an earlier call may have submitted them.
        waits: Runs wait for members or a group, and may be withdrawn after they were accepted: so
            each is posted once the one before was ordered.

    Raises:
        CommitRejectedError: A run was refused; the hint says how many transactions before it
            are accepted (definite for the rest).
        CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
    """
    deadline = time.monotonic() + timeout_s
    posted: list[EncodedRun] = []

    def noted() -> Iterator[EncodedRun]:
        for run in runs:
            posted.append(run)
            yield run

    def post(run: EncodedRun, level: str) -> Receipt:
        left, first = max(0.0, deadline - time.monotonic()), run.transaction_id
        with doubts[first].posting() as doubt:
            return link.submit(
                run.payload, first, is_run=True, level=level, timeout_s=left, doubt=doubt
            )

    is_final = parse_level(level)[0] is Level.ACCEPTED
    first = "ordered" if waits and not is_final else "accepted"
    accepted = send_runs(partial(post, level=first), noted())
    if is_final:
        return list(zip(posted, accepted, strict=True))
    # A repeated run gets the receipt of the first one, once that has reached the level.
    return [(run, post(run, level)) for run in posted]
