"""Transactions that a node holds while a `Client` adds to them, over as many requests as it takes.

Few rows travel with the request.  Many are staged: written as Parquet in a temporary directory and
sent to the node's payload store, a file at a time, so neither side holds them in memory, and no
request is longer than the node takes.  Every request may be repeated: an operation says how many
there were before it, a commit is known by the transaction's id.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec

from sparktxlog.api.given_data import Columns, Rows, arrow_table, columns_given, is_row_list
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.staging.uploaded_rows import upload_rows
from sparktxlog.api.writing.operations import NewTable
from sparktxlog.api.writing.request_transaction import RequestTransaction, TransactionOptions
from sparktxlog.codec.rows import rows_to_arrow, to_json
from sparktxlog.codec.submits.arguments import kind_given
from sparktxlog.codec.submits.condition_requests import committed, request_of_condition
from sparktxlog.codec.submits.content_digests import RowsContent
from sparktxlog.codec.submits.requests import (
    AddedOperations,
    FileRequest,
    OpenRequest,
    OperationRequest,
    arrow_text,
    encode_request,
    parse_level,
)
from sparktxlog.codec.submits.validation import (
    align_rows,
    check_made_for,
    check_rows,
    row_schema,
)
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    InvalidRequestError,
    LocalProtocolError,
    NotMemberError,
    OversizeError,
    TransactionNotOpenError,
    TransportError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.http.link import GrowingPause, Http, node_patience
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.lazy_arrow import pa
from sparktxlog.model.ids import table_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Receipt
from sparktxlog.supervision import beating

_PATH = "/v1/open-transactions"
#: Bytes of rows that travel with their request; more are staged.
_INLINE_BYTES = 256 << 10
#: Shortest and longest pause between two attempts, seconds; least and most seconds for a rollback.
_PAUSES_S = 0.05, 1.0
_ROLLBACK_S = 5.0


class _Opened(msgspec.Struct):
    """What counts of the answer of a node that opened it."""

    incarnation: int | None = None


class HeldTransaction(RequestTransaction):
    """Operations that a node holds until they take effect together, or not at all.

    Made by `Client.open_transaction`.  Used by one thread at a time.  The end of its `with` block
    commits it; an error inside rolls it back.

    Args:
        link: The nodes; the first one that takes transactions holds it.
        options: Of the transaction.
        table: Returns a table of the log.
        lease_s: Seconds without a request after which it ends without effect.

    Raises:
        InvalidRequestError: The lease is out of range (definite).
    """

    _another = "client.open_transaction()"

    def __init__(
        self,
        link: Nodes,
        options: TransactionOptions,
        *,
        table: Callable[[str], TableDefinition],
        lease_s: float,
    ) -> None:
        super().__init__(link, options)
        if not isinstance(lease_s, (int, float)) or not 1 <= lease_s <= 3600:
            raise InvalidRequestError(
                f"lease={lease_s!r} is no number of seconds from 1 to 3,600",
                hint="Its node forgets a transaction that it has not heard of for so long.",
                field="lease",
                value=lease_s,
            )
        self._table, self._lease_s = table, float(lease_s)
        self._node: Http | None = None
        #: Of the node at its beginning, None = not known.
        self._incarnation: int | None = None
        #: Operations that the node has.
        self._operations = 0
        #: Tables that it creates itself, by lower-case name.
        self._created: dict[str, TableDefinition] = {}

    # -- operations -----------------------------------------------------------------------------

    def add(self, kind: OperationKind, table: str, rows: Rows) -> None:
        """Add an operation of a kind that carries rows; they are sent now.

        Args:
            kind: A kind that carries rows.
            table: Its name.
            rows: Also a stream of Arrow of any length, such as a `RecordBatchReader`.  Those of one
                upsert are held in memory, because their keys are compared.
        """
        self._takes_more()
        kind = kind_given(kind)
        given = _given(kind, rows)
        is_list = isinstance(given, list)
        is_stream = not is_list and isinstance(given, pa.RecordBatchReader)
        if not is_stream and _size(given) <= _INLINE_BYTES:
            operation = OperationRequest(kind=kind, table=table)
            if is_list:
                operation.rows = given
            else:
                operation.arrow = arrow_text(given)
            try:
                self._add(operation)
            except OversizeError:
                if self._is_full():
                    raise
            else:
                return
        self._stage(kind, table_name(table), given)

    def _create(self, columns: Columns, table: NewTable) -> None:
        super()._create(columns, table)
        name = table_name(table.table)
        self._created[name.lower()] = TableDefinition(
            name=name,
            columns=columns_given(columns),
            keys=table.keys,
            partition_by=table.partition_by,
        )

    def _add(self, operation: OperationRequest, *, is_nothing: bool = False) -> None:
        self._takes_more()
        operation.table = table_name(operation.table)
        if operation.kind is not OperationKind.CREATE_TABLE and operation.schema_version is None:
            operation.schema_version = self._schemas.get(operation.table.lower())
        self._send([operation])

    def _send(self, operations: list[OperationRequest]) -> None:
        added = AddedOperations(operations=operations, first=self._operations)
        self._ask("POST", "/operations", encode_request(added))
        self._operations += len(operations)

    def _is_full(self) -> bool:
        shown = msgspec.json.decode(self._ask("GET", ""))
        return int(shown["operations"]) >= 1_000

    def _stage(self, kind: OperationKind, table: str, given: Any) -> None:
        """Send rows as files, and then the operation that names them."""
        created = self._created.get(table.lower())
        definition = created or self._table(table)
        if created is None:
            check_made_for(definition, self._schemas.get(definition.name.lower()))
        schema = row_schema(definition, kind)
        if isinstance(given, list):
            given = rows_to_arrow(definition.name, given, schema)
        is_whole = isinstance(given, pa.Table)
        if is_whole:
            given = align_rows(definition, kind, given)
            check_rows(definition, kind, given)
        content = RowsContent()

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in given.to_batches() if is_whole else given:
                found = align_rows(definition, kind, pa.Table.from_batches([batch]))
                content.add(found)
                yield from found.to_batches()

        folder = f"{self.id}/{self._operations}-{definition.name}-{uuid.uuid4().hex[:8]}"
        node = self._home()
        link = UploadLink(node.url, token=node.token, ca_file=node.ca_file)
        # Both use one connection, so the last renewal ends first.
        renewing = beating("lease", self.renew, self._lease_s / 3, join_s=None)
        with closing(link), renewing:
            files = upload_rows(
                link, counted(), folder, definition, kind, name="part", checks=not is_whole
            )
        self._send(
            [
                OperationRequest(
                    kind=kind,
                    table=definition.name,
                    files=msgspec.convert(files, list[FileRequest], from_attributes=True),
                    content=content.to_text() if files else None,
                    schema_version=None if created else definition.schema_version,
                )
            ]
        )

    def _record(self, position: int, tables: Any) -> None:
        self._check_not_open()
        super()._record(position, tables)

    def expect_version(self, table: str, version: int) -> None:
        """Let it take effect only if a table has this version then; before the first operation.

        Arguments and errors as `Transaction.expect_version`.
        """
        self._check_not_open()
        super().expect_version(table, version)

    def _check_not_open(self) -> None:
        if self._node is not None:
            raise LocalProtocolError(
                f"transaction {self.id} is open, and takes no more conditions",
                hint="Say what it read and expects before its first operation.",
                transaction_id=self.id,
            )

    # -- requests -------------------------------------------------------------------------------

    def renew(self) -> None:
        """Let its lease begin again: for work that takes long between two operations.

        Raises:
            TransactionNotOpenError: It has ended; the message says how (definite).
        """
        self._ask("POST", "/operations", encode_request(AddedOperations(operations=[])))

    def _home(self) -> Http:
        """Return the node that holds it; the first call opens it there."""
        if self._node is not None:
            return self._node
        node, _ = self._link.choose()
        request = OpenRequest(
            transaction_id=self.id,
            session=self._session.name,
            rollback=self._session.rollback,
            valid_until=self._valid_until,
            conditions=request_of_condition(self._condition()),
            is_sync=self._is_sync,
            participants=list(self._participants) or None,
            lease=self._lease_s,
        )
        try:
            opened = self._repeated(node, "POST", _PATH, encode_request(request))
            self._incarnation = msgspec.json.decode(opened, type=_Opened).incarnation
        except InvalidRequestError as error:
            # Its own first attempt may have arrived: nobody else has an id that was made here.
            if self._given or error.fields.get("transaction_id") != self.id:
                raise
        self._node = node
        return node

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        node = self._home()
        return self._repeated(node, method, f"{_PATH}/{self.id}{path}", body)

    @property
    def _seconds(self) -> float:
        return self._link.timeout_s if self._timeout_s is None else self._timeout_s

    def _repeated(self, node: Http, method: str, path: str, body: bytes | None) -> bytes:
        """Ask until there is an answer; all of these requests may come twice."""
        end, pause = time.monotonic() + self._seconds, GrowingPause(*_PAUSES_S)
        while True:
            left = end - time.monotonic()
            try:
                return node.request(method, path, body=body, timeout_s=max(left, 1.0))
            except (TransportError, BusyError) as error:
                if not error.retryable or end - time.monotonic() <= 0:
                    raise
                pause.wait(end - time.monotonic())

    # -- the end --------------------------------------------------------------------------------

    def commit(self) -> Receipt:
        """Let it take effect and return the receipt; again, it returns the same one.

        After an error that is definite it is open as before, and may be committed again, unless a
        condition did not hold.

        Raises:
            ConflictError: A condition did not hold, or a table changed: begin again (definite).
            TransactionNotOpenError: It ended before, by its lease or with its node (definite).
            CommitRejectedError: It does not take effect; the class says why (definite).
            CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
        """
        if self._receipt is None:
            self._posted = True
            try:
                self._receipt = self._submit()
            except TxLogError as error:
                self._posted = not error.definite
                raise
        return self._receipt

    def _submit(self) -> Receipt:
        condition = self._condition()
        if self._node is None:
            is_recorded = self._given or bool(self._participants) or condition is not None
            if self._only_read() or not is_recorded:
                return Receipt.of_nothing(parse_level(self._level)[0])
        node, end = self._home(), time.monotonic() + self._seconds
        with self._doubt.posting() as doubt:
            return self._answered(node, end, doubt)

    def _answered(self, node: Http, end: float, doubt: TxLogError | None) -> Receipt:
        pause = GrowingPause(*_PAUSES_S)
        while True:
            try:
                found = self._answer(node, max(1.0, end - time.monotonic()))
            except TxLogError as error:
                if not error.definite:
                    doubt = error
                elif doubt is not None and self._knows_nothing(error):
                    return self._asked_elsewhere(doubt)
                elif not isinstance(error, UnreachableError) and error.http_status != 503:
                    raise  # the node refuses it, and knows of no earlier attempt
                if time.monotonic() >= end:
                    if doubt is None:
                        raise
                    return self._asked_elsewhere(doubt)
                pause.wait(end - time.monotonic())
                continue
            if found.position is not None:
                self._link.after(found.position)
            return self._at_level(committed(found), end)

    def _at_level(self, found: Receipt, end: float) -> Receipt:
        """Return a receipt once it has the level; of an earlier attempt a node says what it is."""
        wanted = parse_level(self._level)[0]
        if found.late or found.level is None or found.prepared_at is not None:
            return found
        if LEVEL_RANK[found.level] >= LEVEL_RANK[wanted]:
            return found
        left_s = max(0.0, end - time.monotonic())
        return committed(self._link.wait(self.id, wanted.value, left_s))

    def _answer(self, node: Http, left_s: float) -> Receipt:
        after = max(self._link.position, self._read_position or 0)
        query = {
            "level": self._level,
            "timeout": round(node_patience(left_s), 3),
            "after": after or None,
        }
        path = f"{_PATH}/{self.id}/commit"
        answer = node.request("POST", path, body=b"", query=query, timeout_s=left_s)
        return msgspec.json.decode(answer, type=Receipt)

    def _knows_nothing(self, error: TxLogError) -> bool:
        """Return whether a node did not look for an earlier attempt, or lost its disk since."""
        if isinstance(error, TransactionNotOpenError):
            return self._incarnation not in (None, error.fields.get("incarnation"))
        return isinstance(error, TransportError) and not isinstance(error, UnreachableError)

    def _asked_elsewhere(self, doubt: TxLogError) -> Receipt:
        """Return the receipt that another node has."""
        with suppress(TransportError, NotMemberError):
            found = self._link.find(self._id, _ROLLBACK_S)
            if found is not None and found.position is not None:
                return committed(found)
        raise CommitStateUnknownError(
            f"transaction {self.id} may have been committed, but no node knows it at level "
            f"{self._level!r} in time: {doubt.message}",
            hint="Ask for its id, or call commit() again.",
            transaction_id=self.id,
        ) from doubt

    def rollback(self) -> None:
        """End it without effect; once it is committed, that is refused.

        Raises:
            LocalProtocolError: It is committed, or its commit may have been taken (definite).
            TransportError: Its node does not answer; it ends with its lease.
        """
        self._takes_more()
        self._posted = True
        if self._node is not None:
            with suppress(TransactionNotOpenError):
                self._node.request("DELETE", f"{_PATH}/{self.id}", timeout_s=_ROLLBACK_S)

    def _drop(self) -> None:
        if not self._posted:
            self.rollback()


def _given(kind: OperationKind, rows: Any) -> list[Any] | pa.Table | pa.RecordBatchReader:
    """Return rows in JSON's form, as a table, or as a stream that is not read yet."""
    if is_row_list(rows):
        return [to_json(row) for row in rows]
    if isinstance(rows, pa.RecordBatchReader) and kind is not OperationKind.UPSERT:
        return rows
    return arrow_table(rows)


def _size(given: list[Any] | pa.Table) -> int:
    return len(encode_request(given)) if isinstance(given, list) else int(given.nbytes)
