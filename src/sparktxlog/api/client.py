"""The Python client without Spark: transactions from Arrow tables or plain rows.

    with sparktxlog.Client("http://127.0.0.1:7070") as client:
        client.create_table("orders", {"id": "bigint", "amount": "decimal(10,2)"}, keys=["id"])
        client.upsert("orders", [{"id": 1, "amount": "12.50"}])
        with client.transaction() as tx:
            tx.append("events", arrow_table)
            tx.delete_where("orders", "amount < 0")
        print(tx.receipt.position)

Every transaction has an id that the client makes, so a repeat after a broken link is the same
transaction.  An error says whether certainly nothing happened (`error.definite`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
import pyarrow as pa

from sparktxlog.api.batches import BatchReceipt, submit_batch
from sparktxlog.api.http import error_of_rejection
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.waiting import wait_for
from sparktxlog.codec.arrow import columns_of
from sparktxlog.codec.requests import (
    ColumnRequest,
    OperationRequest,
    TransactionRequest,
    arrow_text,
    encode_request,
    microseconds,
)
from sparktxlog.codec.rows import to_json
from sparktxlog.errors import InvalidRequestError, LocalProtocolError
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.operation import OperationKind
from sparktxlog.model.receipt import Receipt
from sparktxlog.model.table import Column, TableDefinition

_NOT_NULL = re.compile(r"\s*(.+?)\s+not\s+null\s*", re.IGNORECASE | re.DOTALL)

#: Rows of one operation: a list of mappings, or anything that speaks Arrow's C stream.
Rows: TypeAlias = Sequence[Mapping[str, Any]] | Any
#: Columns of a new table: name → type, `Column`s, or an Arrow schema (which has no type stubs).
Columns: TypeAlias = Mapping[str, str] | Iterable[Column] | Any


@dataclass(slots=True)
class _Options:
    """How one transaction is submitted."""

    transaction_id: bytes
    #: The user gave the id: what changes nothing is recorded under it all the same.
    given: bool
    session: str | None
    level: str
    timeout_s: float | None
    valid_until: datetime | None


class Transaction:
    """Operations over one or more tables that take effect together or not at all.

    Made by `Client.transaction`; leaving its `with` block submits it, an error inside drops it.
    Without one, `commit` submits it.
    """

    def __init__(self, submit: Callable[[Transaction], Receipt], options: _Options) -> None:
        self._submit = submit
        self._options = options
        self._operations: list[OperationRequest] = []
        self._is_nothing = True
        self._posted = False
        self._receipt: Receipt | None = None

    @property
    def id(self) -> str:
        """The transaction id, a UUID."""
        return transaction_id_to_text(self._options.transaction_id)

    @property
    def receipt(self) -> Receipt:
        """The receipt, once submitted.

        Raises:
            LocalProtocolError: Not submitted yet (definite).
        """
        if self._receipt is None:
            raise LocalProtocolError(
                f"transaction {self.id} has no receipt, for no commit of it succeeded",
                hint="Call its commit(), or leave its `with` block.",
                transaction_id=self.id,
            )
        return self._receipt

    def create_table(
        self,
        table: str,
        columns: Columns,
        *,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool = False,
    ) -> None:
        """Create a table; creating an equal one again does nothing.

        Args:
            table: Letters, digits and underscores, a letter first.
            columns: Name → Spark's DDL type (`bigint`, with ` not null` if need be), an Arrow
                schema, or `Column`s.
            keys: Columns that upserts and deletes match on.
            partition_by: Columns to partition the table by.
            deletion_vectors: Whether Delta marks deleted rows instead of rewriting files.
        """
        self._add(
            OperationRequest(
                kind=OperationKind.CREATE_TABLE,
                table=table,
                columns=[
                    ColumnRequest(name=c.name, type=c.type, nullable=c.nullable)
                    for c in _columns(columns)
                ],
                keys=list(keys),
                partition_by=list(partition_by),
                deletion_vectors=deletion_vectors,
            )
        )

    def append(self, table: str, rows: Rows) -> None:
        """Add rows; keys are not looked at.  No rows are no operation; see `Client.transaction`."""
        self._rows(OperationKind.APPEND, table, rows)

    def upsert(self, table: str, rows: Rows) -> None:
        """Remove every row with one of the keys, then add the rows."""
        self._rows(OperationKind.UPSERT, table, rows)

    def delete_keys(self, table: str, rows: Rows) -> None:
        """Remove every row with one of the keys; the rows hold the key columns only."""
        self._rows(OperationKind.DELETE_KEYS, table, rows)

    def overwrite(self, table: str, rows: Rows) -> None:
        """Replace all rows of the table; no rows empty it."""
        self._rows(OperationKind.OVERWRITE, table, rows)

    def delete_where(self, table: str, predicate: str) -> None:
        """Remove the rows for which the predicate is true."""
        self._add(
            OperationRequest(kind=OperationKind.DELETE_WHERE, table=table, predicate=predicate)
        )

    def _rows(self, kind: OperationKind, table: str, rows: Rows) -> None:
        operation = OperationRequest(kind=kind, table=table)
        if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
            operation.rows = [to_json(row) for row in rows]
            count = len(operation.rows)
        else:
            given = arrow_table(rows)
            operation.arrow, count = arrow_text(given), given.num_rows
        self._add(operation, is_nothing=not count and kind is not OperationKind.OVERWRITE)

    def _add(self, operation: OperationRequest, *, is_nothing: bool = False) -> None:
        if self._posted:
            raise LocalProtocolError(
                f"transaction {self.id} was submitted, it takes no more operations",
                hint="Begin another one with client.transaction().",
                transaction_id=self.id,
            )
        self._operations.append(operation)
        self._is_nothing = self._is_nothing and is_nothing

    def body(self) -> bytes:
        """Return the request's JSON; without an id if there is nothing to record."""
        return encode_request(
            TransactionRequest(
                operations=self._operations,
                transaction_id=self.id if self._options.given or not self._is_nothing else None,
                session=self._options.session,
                valid_until=microseconds(self._options.valid_until),
            )
        )

    @property
    def options(self) -> _Options:
        """How to submit it."""
        return self._options

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()

    def commit(self) -> Receipt:
        """Submit it and return the receipt; again, it returns the same one.

        After an unknown outcome it may be called again: the id makes both one transaction.

        Raises:
            CommitRejectedError: It does not take effect; the class says why (definite).
            CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
            UnreachableError: No node could be reached; nothing was sent (definite).
        """
        self._posted = True
        if self._receipt is None:
            self._receipt = self._submit(self)
        return self._receipt


class Client:
    """Talks to one node, or to several nodes of one log; safe to share between threads.

    With several URLs a call goes to the next node when one does not answer or takes no
    transactions, and a submit whose node was lost is followed to its outcome; the same id is never
    applied twice.  Level `applied` then means the site of the node that answers.

    Args:
        url: The node's URL, such as `http://127.0.0.1:7070`; several as a list, or with commas.
        token: Client token; default: the variable `SPARKTXLOG_CLIENT_TOKEN`.
        timeout_s: Seconds for each call, repeats included.
        level: How far transactions must get: `accepted`, `acquired`, `ordered`, `applied`,
            `applied(k)`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        level: str = "ordered",
    ) -> None:
        self._link = Nodes(url, token=token, timeout_s=timeout_s)
        self._level = level
        self._definitions: dict[str, TableDefinition] = {}
        self._info: dict[str, Any] | None = None

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transactions ---------------------------------------------------------------------------

    def transaction(
        self,
        *,
        transaction_id: str | None = None,
        session: str | None = None,
        level: str | None = None,
        timeout_s: float | None = None,
        valid_until: datetime | None = None,
    ) -> Transaction:
        """Begin a transaction for a `with` block.

        An append, upsert or delete of no rows is checked and changes nothing.  A transaction of
        nothing else is recorded only under an id that was given, so that a repeat is recognised;
        else its receipt has no id, no position and `n` 0.

        Args:
            transaction_id: A UUID; the same id again is the same transaction.
            session: Transactions of one session are ordered as they were submitted.
            level: Instead of the client's.
            timeout_s: Instead of the client's.
            valid_until: Time with a zone after which no copy of it takes effect, at most
                `id-window-time` (24 h) ahead.  Who gives the same one with every repeat has the
                transaction once, for ever.
        """
        found = transaction_id_from_text(transaction_id) if transaction_id else uuid.uuid4().bytes
        options = _Options(
            transaction_id=found,
            given=transaction_id is not None,
            session=session,
            level=level or self._level,
            timeout_s=timeout_s,
            valid_until=valid_until,
        )
        return Transaction(self._submit, options)

    def _submit(self, transaction: Transaction) -> Receipt:
        options = transaction.options
        receipt = self._link.submit(
            "/v1/transactions",
            transaction.body(),
            "application/json",
            options.transaction_id,
            level=options.level,
            timeout_s=options.timeout_s,
        )
        if receipt.outcome == "rejected":
            raise error_of_rejection(receipt)
        return receipt

    def create_table(
        self,
        table: str,
        columns: Columns,
        *,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool = False,
        **options: Any,
    ) -> Receipt:
        """Create a table; see `Transaction.create_table`, options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.create_table(
                table,
                columns,
                keys=keys,
                partition_by=partition_by,
                deletion_vectors=deletion_vectors,
            )
        return tx.receipt

    def append(self, table: str, rows: Rows, **options: Any) -> Receipt:
        """Add rows in a transaction of their own; options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.append(table, rows)
        return tx.receipt

    def upsert(self, table: str, rows: Rows, **options: Any) -> Receipt:
        """Replace rows by key in a transaction of their own; options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.upsert(table, rows)
        return tx.receipt

    def delete_keys(self, table: str, rows: Rows, **options: Any) -> Receipt:
        """Remove rows by key in a transaction of its own; options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.delete_keys(table, rows)
        return tx.receipt

    def overwrite(self, table: str, rows: Rows, **options: Any) -> Receipt:
        """Replace all rows in a transaction of its own; options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.overwrite(table, rows)
        return tx.receipt

    def delete_where(self, table: str, predicate: str, **options: Any) -> Receipt:
        """Remove rows by predicate in a transaction of its own; options as `transaction`."""
        with self.transaction(**options) as tx:
            tx.delete_where(table, predicate)
        return tx.receipt

    def submit_many(
        self,
        table: str,
        rows: Any,
        *,
        kind: str = "append",
        transaction_column: str | None = None,
        session: str | None = None,
        level: str | None = None,
        timeout_s: float | None = None,
        run_transactions: int = 1000,
        connections: int = 2,
    ) -> BatchReceipt:
        """Submit a batch of many transactions, each row one of its own, or grouped by a column.

        Args:
            table: Name of the table.
            rows: Arrow data; without rows there are no transactions, and none are submitted.
            kind: `append`, `upsert`, `delete_keys` or `overwrite`.
            transaction_column: Column whose equal values make one transaction; not stored.
            session: See `transaction`.
            level: Instead of the client's.
            timeout_s: Seconds for each run.
            run_transactions: Transactions in one request, to 8,192.
            connections: Requests at a time.  With more than one, runs may be ordered otherwise
                than they stand in `rows`; kinds other than `append` therefore use one.

        Raises:
            CommitStateUnknownError: Field `transaction_id` names the first of the run concerned;
                other runs may have been ordered (not definite).
            CommitRejectedError: The run was refused; earlier ones may have been ordered
                (definite for this run; field `accepted` counts the transactions before it).
        """
        try:
            wanted = OperationKind(kind)
        except ValueError as error:
            raise InvalidRequestError(f"{kind!r} is no kind of operation") from error
        if self._info is None:
            self._info = self.info()
        return submit_batch(
            self._link,
            self.table(table, fresh=False),
            wanted,
            arrow_table(rows),
            transaction_column=transaction_column,
            session=session,
            level=level or self._level,
            timeout_s=timeout_s,
            run_transactions=min(run_transactions, self._info["run_limit_transactions"]),
            run_bytes=self._info["run_limit_bytes"],
            connections=connections if wanted is OperationKind.APPEND else 1,
        )

    def after(self, position: int) -> None:
        """Let all that is submitted or asked for from now on come after a position.

        A client remembers the positions of its own receipts by itself; this is for those of
        others.  A node that has not got there waits, for as long as the call may take.
        """
        self._link.after(position)

    # -- questions ------------------------------------------------------------------------------

    def wait(
        self,
        receipt: Receipt | BatchReceipt | str,
        level: str = "ordered",
        timeout_s: float | None = None,
    ) -> Receipt:
        """Wait until a transaction, or the last run of a batch, has reached a level.

        Args:
            receipt: A receipt, or a transaction id.
            level: `accepted`, `acquired`, `ordered` or `applied`.
            timeout_s: Instead of the client's.

        Returns:
            The receipt; `late` where it is ordered and has not reached a higher level in time.

        Raises:
            CommitStateUnknownError: Not ordered in time (not definite).
            NotFoundError: No node ever saw it (definite).
        """
        return wait_for(
            self._link, receipt, level, self._link.timeout_s if timeout_s is None else timeout_s
        )

    def receipt(self, transaction_id: str) -> Receipt:
        """Return what is known of a transaction; NotFoundError if no node that answers saw it."""
        found = transaction_id_from_text(transaction_id)
        return self._link.receipt(transaction_id_to_text(found))

    def info(self) -> dict[str, Any]:
        """Return names, limits and directories of the node."""
        return dict(self._link.get("/v1/info"))

    def status(self) -> dict[str, Any]:
        """Return the master's view: queues, peers, who is awaited and why, replicas."""
        return dict(self._link.get("/v1/status"))

    def queue(self, after: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """Return the runs of the synchronized queue behind a position."""
        return list(self._link.get("/v1/queue", after=after, limit=limit))

    def tables(self) -> list[TableDefinition]:
        """Return the tables of the catalog at the node's position, by name."""
        return [_definition(item) for item in self._link.tables()]

    def table(self, name: str, *, fresh: bool = True) -> TableDefinition:
        """Return a table's definition; UnknownTableError if there is none."""
        found = self._definitions.get(name)
        if fresh or found is None:
            found = _definition(self._link.table(name))
            self._definitions[name] = found
        return found

    def snapshot(
        self, position: int | None = None, *, at_least: int | None = None, timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """Return the table versions of the site's replica at one position."""
        return dict(
            self._link.get(
                "/v1/snapshot",
                position=position,
                at_least=at_least,
                timeout_s=timeout_s or None,
                waits=timeout_s > 0,
            )
        )


def arrow_table(rows: Any) -> pa.Table:
    """Return anything that speaks Arrow as a table.

    Raises:
        InvalidRequestError: It does not (definite).
    """
    if isinstance(rows, pa.Table):
        return rows
    try:
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows).read_all()
        if type(rows).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException as error:
        raise InvalidRequestError(f"the rows cannot be read as Arrow: {error}") from error
    raise InvalidRequestError(
        f"rows are an Arrow table or a list of dicts, not {type(rows).__name__}",
        hint="Spark DataFrames are committed with sparktxlog.connect(spark, url).",
    )


def _columns(columns: Columns) -> list[Column]:
    if isinstance(columns, pa.Schema):
        return list(columns_of(columns))
    if not isinstance(columns, Mapping):
        return list(columns)
    found = []
    for name, text in columns.items():
        match = _NOT_NULL.fullmatch(text)
        found.append(Column(name=name, type=match[1] if match else text, nullable=match is None))
    return found


def _definition(value: Mapping[str, Any]) -> TableDefinition:
    plain = {name: item for name, item in value.items() if name != "position"}
    return msgspec.convert(plain, TableDefinition)
