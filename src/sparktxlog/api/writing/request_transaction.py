"""Transactions of a `Client`: operations as requests to a node, submitted at once.

`RequestTransaction` makes requests of what is called; `Transaction` keeps them until its commit.
`api.writing.held_transaction` sends each when it is made.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sparktxlog.api.given_data import Columns, Rows, arrow_table, columns_given, is_row_list
from sparktxlog.api.nodes import Doubt, Nodes
from sparktxlog.api.writing.operations import Isolation, NewTable, TransactionDraft
from sparktxlog.codec.rows import to_json
from sparktxlog.codec.submits.alterations import put_change
from sparktxlog.codec.submits.arguments import (
    flag_given,
    is_whole,
    kind_given,
    microseconds,
    seconds_given,
)
from sparktxlog.codec.submits.condition_requests import request_of_condition
from sparktxlog.codec.submits.requests import (
    ColumnRequest,
    OperationRequest,
    TransactionRequest,
    arrow_text,
    encode_request,
    parse_level,
)
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.ids import (
    table_name,
    transaction_id_from_text,
    transaction_id_to_text,
)
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind
from sparktxlog.model.transactions.receipt import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """What is said of a transaction where it begins; `Client.transaction` explains it."""

    transaction_id: str | uuid.UUID | None
    session: Session
    level: str
    timeout_s: float | None
    valid_until: datetime | None
    isolation: Isolation
    is_sync: bool
    participants: Sequence[str]


class RequestTransaction(TransactionDraft[Rows, Columns]):
    """Makes requests of the operations of a transaction.

    Args:
        link: The nodes.
        options: Of the transaction.
    """

    def __init__(self, link: Nodes, options: TransactionOptions) -> None:
        super().__init__(
            options.isolation,
            options.level,
            is_sync=options.is_sync,
            participants=options.participants,
        )
        self._link = link
        given = options.transaction_id
        self._id = uuid.uuid4().bytes if given is None else transaction_id_from_text(str(given))
        #: The user gave the id: a transaction without effect is still recorded under it.
        self._given = given is not None
        self._session = options.session
        timeout_s = options.timeout_s
        self._timeout_s = None if timeout_s is None else seconds_given(timeout_s)
        #: Microseconds since 1970 UTC after which no copy of it takes effect.
        self._valid_until = microseconds(options.valid_until)
        self._schemas: dict[str, int] = {}
        self._posted = False
        self._doubt = Doubt()

    @property
    def id(self) -> str:
        """The transaction id, a UUID."""
        return transaction_id_to_text(self._id)

    @property
    def id_bytes(self) -> bytes:
        """The same, 16 bytes."""
        return self._id

    def add(self, kind: OperationKind, table: str, rows: Rows) -> None:
        """Add an operation of a kind that carries rows."""
        kind = kind_given(kind)
        operation = OperationRequest(kind=kind, table=table)
        if is_row_list(rows):
            operation.rows = [to_json(row) for row in rows]
            count = len(operation.rows)
        else:
            given = arrow_table(rows)
            operation.arrow, count = arrow_text(given), given.num_rows
        self._add(operation, is_nothing=not count and kind is not OperationKind.OVERWRITE)

    def _create(self, columns: Columns, table: NewTable) -> None:
        self._add(
            OperationRequest(
                kind=OperationKind.CREATE_TABLE,
                table=table.table,
                columns=[
                    ColumnRequest(name=c.name, type=c.type, nullable=c.nullable, comment=c.comment)
                    for c in columns_given(columns)
                ],
                keys=list(table.keys),
                partition_by=list(table.partition_by),
                deletion_vectors=table.deletion_vectors,
                is_sync=table.is_sync or None,
                cluster_by=list(table.cluster_by) or None,
                comment=table.comment or None,
                properties=None if table.properties is None else dict(table.properties),
            )
        )

    def _append_new(self, table: str, rows: Rows) -> None:
        raise InvalidRequestError(
            f"a Client has no tables in which the keys of table {table!r} could be looked up",
            hint="Use upsert, which replaces the rows that are there, or append from Spark: "
            "sparktxlog.connect(spark, url).",
            table=table,
            field="on_duplicate",
        )

    def _alter(self, table: str, change: TableChange) -> None:
        kind = OperationKind.DROP_TABLE if change.is_dropped else OperationKind.ALTER_TABLE
        operation = OperationRequest(kind=kind, table=table)
        put_change(change, operation)
        self._add(operation)

    def _delete_where(self, table: str, predicate: str) -> None:
        self._add(
            OperationRequest(kind=OperationKind.DELETE_WHERE, table=table, predicate=predicate)
        )

    def read_at(self, position: int, *tables: str) -> None:
        """Note that tables were read as they were at a position: nobody may write to them since.

        A client has no tables of its own.  The rows come from a replica of the site, as
        `client.snapshot()` names them, or from anybody that knows a position.  The oldest of
        several positions counts for all tables.

        Args:
            position: The last transaction that was visible to the reader, 0 = none.
            tables: Names.

        Raises:
            LocalProtocolError: It was begun without `isolation="serializable"`, or is submitted
                already (definite).
            InvalidRequestError: It is no position, or no table is named (definite).
            InvalidNameError: A name is outside the allowed pattern (definite).
        """
        self._check_records_reads()
        if not is_whole(position, 0) or not tables:
            raise InvalidRequestError(
                f"tables {list(tables)} were read at {position!r}",
                hint="Write t.read_at(position, 'orders', …), with a whole number from 0.",
                field="position" if tables else "tables",
                value=position,
            )
        names = [table_name(table) for table in tables]
        self._takes_more()
        self._record(int(position), names)

    def expect_schema(self, table: str, schema_version: int) -> None:
        """Say for which schema version of a table the operations of the transaction are made.

        If the table has another one, the commit raises StaleSchemaError, which `retry` repeats.
        Otherwise the rows are only compared with the columns that the table has by then.

        Args:
            table: Its name.
            schema_version: `client.table(name).schema_version` of the definition that was used.

        Raises:
            InvalidRequestError: It is no version, or not the one expected before (definite).
            LocalProtocolError: The transaction is submitted already (definite).
        """
        table = table_name(table).lower()
        expected = self._schemas.get(table, schema_version)
        if not is_whole(schema_version) or schema_version != expected:
            raise InvalidRequestError(
                f"table {table!r}: {schema_version!r} is no schema version that it can have"
                + ("" if schema_version == expected else f", not {expected}"),
                hint="It is a whole number, 1 or more: client.table(name).schema_version.",
                field="schema_version",
                value=schema_version,
            )
        self._takes_more()
        self._schemas[table] = int(schema_version)

    def _takes_more(self) -> bool:
        self._take_more(self._posted)
        return True

    @abstractmethod
    def _add(self, operation: OperationRequest, *, is_nothing: bool = False) -> None:
        """Add an operation; `is_nothing`: it has no rows, and changes nothing."""


class Transaction(RequestTransaction):
    """Operations over one or more tables that take effect together or not at all.

    Made by `Client.transaction`.  The end of its `with` block submits it; an error inside drops it.
    Without a `with` block, `commit` submits it.

    Args:
        link: The nodes.
        options: Of the transaction.
        first_wins: Whatever the log has under its id counts.
    """

    _another = "client.transaction()"

    def __init__(self, link: Nodes, options: TransactionOptions, *, first_wins: bool) -> None:
        super().__init__(link, options)
        self._first_wins = flag_given(first_wins, "first_wins")
        self._operations: list[OperationRequest] = []
        self._is_nothing = True

    def _add(self, operation: OperationRequest, *, is_nothing: bool = False) -> None:
        self._takes_more()
        operation.table = table_name(operation.table)
        self._operations.append(operation)
        self._is_nothing = self._is_nothing and is_nothing

    def commit(self) -> Receipt:
        """Submit it and return the receipt; again, it returns the same one.

        After an unknown outcome or an interrupt it may be called again: the id makes both one
        transaction.

        Raises:
            ConflictError: What it read or expected does not hold, or a table changed; again, it
                is the same error, and a new attempt needs a new transaction (definite).
            CommitRejectedError: It does not take effect; the class says why (definite).
            CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
            UnreachableError: No node could be reached; nothing was sent (definite).
        """
        self._posted = True
        if self._receipt is None:
            self._receipt = self._submit()
        return self._receipt

    def hand_over(self) -> TransactionRequest | None:
        """Return it as it is submitted, None = it does nothing; it takes nothing more.

        Raises:
            LocalProtocolError: It is submitted already (definite).
        """
        self._takes_more()
        self._posted = True
        return self._request()

    def give_back(self) -> None:
        """Note that it was not submitted after all; it may be once more."""
        self._posted = False

    def join(self, session: Session) -> None:
        """Make it one of a session, unless it is of one already, or can be of none (P35)."""
        if self._session.name is None and not self._participants:
            self._session = session

    def travels_in_runs(self, level: str) -> bool:
        """Whether it is nothing but rows, and asks for nothing that a run of others has not."""
        is_plain = not (self._is_sync or self._participants or self._first_wins)
        is_plain = is_plain and self._session.name is None and self._timeout_s is None
        is_plain = is_plain and self._level == level and self._condition() is None
        is_plain = is_plain and not self._schemas and bool(self._operations)
        return is_plain and all(one.kind in ROW_KINDS for one in self._operations)

    def _request(self) -> TransactionRequest | None:
        if self._only_read(*self._operations):
            return None
        for operation in self._operations:
            if operation.kind is not OperationKind.CREATE_TABLE:
                operation.schema_version = self._schemas.get(operation.table.lower())
        condition = self._condition()
        # Without an id from the user nothing is recorded.
        is_recorded = self._given or not self._is_nothing or condition is not None
        is_recorded = is_recorded or bool(self._participants)
        return TransactionRequest(
            operations=self._operations,
            transaction_id=self.id if is_recorded else None,
            session=self._session.name,
            rollback=self._session.rollback,
            valid_until=self._valid_until,
            conditions=request_of_condition(condition),
            is_sync=self._is_sync,
            participants=list(self._participants) or None,
        )

    def _submit(self) -> Receipt:
        request = self._request()
        if request is None:
            return Receipt.of_nothing(parse_level(self._level)[0])
        body = encode_request(request)
        with self._doubt.posting() as doubt:
            return self._link.commit(
                body,
                self._id,
                level=self._level,
                timeout_s=self._timeout_s,
                after=self._read_position,
                first_wins=self._first_wins,
                doubt=doubt,
            )
