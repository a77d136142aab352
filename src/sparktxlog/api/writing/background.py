"""Commits that the caller does not wait for: one thread sends them in runs, in the caller's order.

One run is under way at a time.  Meanwhile others gather, and are the next run: so runs grow with
the rate and with the distance to other sites, and order needs no more than that.  Rows are checked
where they are given, so what is wrong with them is raised there.

The promise of a commit begins with its result.  A node says nothing of a transaction that is not
durable there, so it could not answer earlier than at level `accepted`; what comes before that is
this process's alone.  See docs/decisions/0106-commits-without-waiting.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

from sparktxlog.api.given_data import Rows, arrow_table, is_row_list
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.writing.operations import made_for_newest
from sparktxlog.api.writing.pending_commit import PendingCommit
from sparktxlog.codec.containers.assembly import NewIds, assemble_run
from sparktxlog.codec.containers.runs import MAX_OPERATIONS, RunLimits
from sparktxlog.codec.rows import to_json
from sparktxlog.codec.submits.arguments import seconds_given
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.codec.submits.plain_rows import table_of
from sparktxlog.codec.submits.requests import (
    TransactionRequest,
    encode_request,
    parse_level,
    prepare,
    prepare_rows,
)
from sparktxlog.codec.submits.transactions import PreparedTransaction, Session, is_synchronous
from sparktxlog.codec.submits.validation import align_rows, check_rows
from sparktxlog.errors import (
    BusyError,
    CommitRejectedError,
    CommitStateUnknownError,
    DuplicateTransactionError,
    ForbiddenError,
    LocalProtocolError,
    SessionRolledBackError,
    StaleSchemaError,
    TxLogError,
    UnknownTableError,
)
from sparktxlog.model.tables.groups import group_of
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Receipt, ReceiptRejection

_log = logging.getLogger(__name__)

#: What a waiting transaction takes in memory beside its rows, bytes.
_ITEM_BYTES = 2_048
#: Share of the byte limit that runs are cut for, and what a table of a run adds to its bytes.
_FILL, _BLOCK_BYTES = 0.9, 4_096
#: Bytes of a transaction's id in a run, and of the marks of a row.
_ID_BYTES, _MARK_BYTES = 16, 8
#: Failures that nobody took, beyond which nothing more is taken on.
_MOST_FAILURES = 10_000


class SubmittedTransaction(Protocol):
    """A transaction of `client.transaction()`, as it is committed."""

    @property
    def id_bytes(self) -> bytes:
        """Its id, 16 bytes."""

    def hand_over(self) -> TransactionRequest | None:
        """Return it as it is submitted, None = it does nothing; it takes nothing more."""

    def give_back(self) -> None:
        """Note that it was not submitted after all; it may be once more."""

    def travels_in_runs(self, level: str) -> bool:
        """Whether it is nothing but rows, and asks for nothing that a run of others has not."""

    def join(self, session: Session) -> None:
        """Make it one of a session, unless it is of one already, or can be of none."""

    def delete_where(self, table: str, predicate: str) -> None:
        """Remove the rows for which a predicate is true."""

    def commit(self) -> Receipt:
        """Submit it and return the receipt."""


class Committer(Protocol):
    """The client that has commits in the background."""

    @property
    def known_tables(self) -> Tables:
        """Tables as they were when a node was asked last."""

    def table(self, name: str, *, fresh: bool = True) -> TableDefinition:
        """Return a table, from a node unless what was answered before will do."""

    def begin(self, level: str) -> SubmittedTransaction:
        """Begin a transaction."""

    def forget_background(self, commits: BackgroundCommits) -> None:
        """Note that they were closed."""


@dataclass(slots=True, eq=False)
class _Item:
    """A commit that waits to be sent."""

    pending: PendingCommit
    #: Of its rows in a run, or of its request.
    size_bytes: int
    #: It as rows of a run; None: it goes alone, by `commit`.
    prepared: PreparedTransaction | None
    commit: Callable[[], Receipt] | None = None
    #: Whether one of its tables is synchronous (P34), and the groups of its tables (P41).
    waits_for: tuple[bool, frozenset[str]] = (False, frozenset())

    @property
    def memory_bytes(self) -> int:
        """About what it takes here."""
        return _ITEM_BYTES + self.size_bytes

    def blocks(self) -> list[tuple[str, OperationKind, int]]:
        """Return table, kind and schema version of each operation."""
        operations = () if self.prepared is None else self.prepared.operations
        return [(one.table, one.kind, one.schema_version) for one in operations]

    def tables(self) -> set[str]:
        """Return the tables whose rows it carries."""
        return {table for table, _, _ in self.blocks()}

    def remake(self, definition: TableDefinition) -> bool:
        """Make its rows for a table as it is now; False: they are made for that already.

        Raises:
            CommitRejectedError: They do not fit (definite).
        """
        if self.prepared is None:
            return False
        made, version = list(self.prepared.operations), definition.schema_version
        is_other = False
        for place, one in enumerate(made):
            if one.table == definition.name and one.schema_version != version:
                rows = align_rows(definition, one.kind, table_of([one.rows]))
                check_rows(definition, one.kind, rows)
                made[place] = replace(one, rows=rows, schema_version=version)
                is_other = True
        self.prepared = replace(self.prepared, operations=tuple(made))
        return is_other


class _Run:
    """Items that travel together, as far as a node takes them in one run."""

    def __init__(self, limits: RunLimits) -> None:
        self.items: list[_Item] = []
        self._most, self._room = limits.transactions, _FILL * limits.size_bytes
        self._blocks: set[tuple[str, OperationKind, int]] = set()
        #: Of the same blocks: a run has one of a table and kind.
        self._kinds: set[tuple[str, OperationKind]] = set()

    def takes(self, item: _Item) -> bool:
        """Add an item if it fits; the first one always does."""
        if not self.items:
            return self._add(item, item.blocks())
        if item.prepared is None or self.items[0].prepared is None:
            return False
        new = [block for block in item.blocks() if block not in self._blocks]
        # One that waits for members or a group would take others along when it is withdrawn.
        fits = len(self.items) < self._most and item.waits_for == self.items[0].waits_for
        fits = fits and self._room >= item.size_bytes + _BLOCK_BYTES * len(new)
        if new:
            fits = fits and len(self._blocks) + len(new) <= MAX_OPERATIONS
            fits = fits and not any(block[:2] in self._kinds for block in new)
        return fits and self._add(item, new)

    def _add(self, item: _Item, new: Sequence[tuple[str, OperationKind, int]]) -> bool:
        self.items.append(item)
        self._blocks.update(new)
        self._kinds.update(block[:2] for block in new)
        self._room -= item.size_bytes + _BLOCK_BYTES * len(new)
        return True


class BackgroundCommits:
    """Commits in the background, of one caller or of several threads; see `Client.background`.

    Args:
        client: Closes this with itself.
        link: Its connections.
        level, timeout_s: Of each request.
        session: All of its transactions belong to it.
        limit_bytes: Most memory of what is not answered yet.
    """

    def __init__(
        self,
        client: Committer,
        link: Nodes,
        *,
        level: str,
        timeout_s: float,
        session: Session,
        limit_bytes: int,
        limits: RunLimits,
    ) -> None:
        self._client, self.link = client, link
        self._level, self._timeout_s = level, timeout_s
        self._session = session
        self._limit_bytes, self._limits = limit_bytes, limits
        self._tables = client.known_tables
        self._ids = NewIds()
        self.changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._memory_bytes = 0
        #: Commits that were called, and that were settled, in that order.
        self._called = self._settled = 0
        self._sending = self._closed = self._is_given_up = False
        #: The thread that sends.
        self._sender = 0
        #: Failures that nobody took, in their order.
        self._failed: dict[PendingCommit, None] = {}
        #: The first failure of a session that fails together.
        self._broken: tuple[str, BaseException] | None = None
        # Its thread is joined when the interpreter ends, so what waits then is sent.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="txlog-background")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except TxLogError as error:
            if raised is None:
                raise
            raised.add_note(f"A commit in the background failed, too: {error}")

    # -- commits --------------------------------------------------------------------------------

    def append(self, table: str, rows: Rows) -> PendingCommit:
        """Add rows; keys are not enforced."""
        return self._one(OperationKind.APPEND, table, rows)

    def upsert(self, table: str, rows: Rows) -> PendingCommit:
        """Remove every row that has one of the keys, then add the rows."""
        return self._one(OperationKind.UPSERT, table, rows)

    def delete_keys(self, table: str, rows: Rows) -> PendingCommit:
        """Remove the rows that have one of the keys; `rows` has the key columns only."""
        return self._one(OperationKind.DELETE_KEYS, table, rows)

    def overwrite(self, table: str, rows: Rows) -> PendingCommit:
        """Replace all rows of the table; no rows empty it."""
        return self._one(OperationKind.OVERWRITE, table, rows)

    def delete_where(self, table: str, predicate: str) -> PendingCommit:
        """Remove the rows for which a predicate is true; it is sent as a request of its own."""
        transaction = self._client.begin(self._level)
        transaction.delete_where(table, predicate)
        return self.commit(transaction)

    def _one(self, kind: OperationKind, table: str, rows: Rows) -> PendingCommit:
        given = [to_json(row) for row in rows] if is_row_list(rows) else arrow_table(rows)
        operation = made_for_newest(
            self._client.table(table, fresh=False),
            lambda: self._client.table(table),
            lambda known: prepare_rows(known, kind, given, self._limits),
        )
        if operation is not None and operation.rows is None:  # it empties the table
            return self.delete_where(table, "TRUE")
        with self.changed:
            transaction_id = self._ids.next()
        if operation is None:
            return self._of_nothing(PendingCommit(transaction_id, self))
        pending = PendingCommit(transaction_id, self, operation.rows.num_rows)
        prepared = PreparedTransaction(
            transaction_id=transaction_id,
            operations=(operation,),
            session=self._session.name,
            stands_alone=self._session.stands_alone,
        )
        self._put(_item(pending, prepared, self._tables))
        return pending

    def _of_nothing(self, pending: PendingCommit) -> PendingCommit:
        self._check_takes_more()
        pending.settle(Receipt.of_nothing(parse_level(self._level)[0]))
        return pending

    def commit(self, transaction: SubmittedTransaction) -> PendingCommit:
        """Commit a transaction of `client.transaction()` in its turn; it takes nothing more.

        One of rows only, without conditions and at the level of this sender, travels with others in
        a run.  Any other one is sent in its turn as its `commit` does, in a request of its own.
        After an error it is as before.

        Raises:
            CommitRejectedError: It is wrong, as far as that can be seen here; `BusyError`: for
                `timeout` there was no room for it (definite).
            SessionRolledBackError: With `rollback="session"`: an earlier one failed (definite).
            LocalProtocolError: It is submitted already, this is closed, or 10,000 failures were
                not taken (definite).
            TransportError: No node answered what its table is; nothing was sent (definite).
        """
        request = transaction.hand_over()
        try:
            return self._in_turn(transaction, request)
        except TxLogError:
            transaction.give_back()
            raise

    def _in_turn(
        self, transaction: SubmittedTransaction, request: TransactionRequest | None
    ) -> PendingCommit:
        transaction_id, prepared = transaction.id_bytes, None
        if request is not None and transaction.travels_in_runs(self._level):
            prepared = self._prepared(transaction_id, request)
        rows = 0 if prepared is None else prepared.carried
        pending = PendingCommit(transaction_id, self, rows)
        if request is None or (prepared is not None and request.transaction_id is None):
            return self._of_nothing(pending)
        if prepared is None or not all(one.rows is not None for one in prepared.operations):
            size = len(encode_request(request))
            self._put(_Item(pending, size, None, partial(self._alone, transaction)))
        else:
            self._put(_item(pending, prepared, self._tables))
        return pending

    def _alone(self, transaction: SubmittedTransaction) -> Receipt:
        """Commit a transaction in its turn; so it is ordered after what is only accepted before."""
        transaction.join(self._session)
        return transaction.commit()

    def _prepared(self, transaction_id: bytes, request: TransactionRequest) -> PreparedTransaction:
        """Check a transaction of rows against its tables, as a node does."""
        session = self._session
        request.session, request.rollback = session.name, session.rollback
        names = {operation.table for operation in request.operations}

        def known(*, fresh: bool) -> list[TableDefinition]:
            return [self._client.table(name, fresh=fresh) for name in names]

        return made_for_newest(
            known(fresh=False),
            lambda: known(fresh=True),
            lambda _: prepare(request, transaction_id, self._tables, self._limits),
        )

    # -- the queue ------------------------------------------------------------------------------

    def _put(self, item: _Item) -> None:
        with self.changed:
            self._check_takes_more()
            if not self._has_room(item):
                self.changed.wait_for(lambda: self._ends() or self._has_room(item), self._timeout_s)
                self._check_takes_more()
            if not self._has_room(item):
                raise BusyError(
                    f"{self._memory_bytes:,} bytes of commits wait to be sent, "
                    f"{self._limit_bytes:,} may, and none was answered in {self._timeout_s:g} s",
                    hint="This one was not taken on.  Try again, or look at the node: `sparktxlog "
                    "status`.",
                    limit_bytes=self._limit_bytes,
                )
            if not self._sending:
                self._start()
            self._waiting.append(item)
            self._memory_bytes += item.memory_bytes
            self._called += 1

    def _start(self) -> None:
        """Let the thread send; it waits for the lock before it ends."""
        try:
            self._pool.submit(self._send_all)
        except RuntimeError as error:
            raise LocalProtocolError(
                f"nothing is sent in the background any more: {error}",
                hint="This one was not taken on.  Commit it with the client, without background().",
            ) from error
        self._sending = True

    def _has_room(self, item: _Item) -> bool:
        """Whether an item fits; a single one always does."""
        return not self._memory_bytes or (
            self._memory_bytes + item.memory_bytes <= self._limit_bytes
        )

    def _ends(self) -> bool:
        return self._closed or self._broken is not None or len(self._failed) >= _MOST_FAILURES

    def _check_takes_more(self) -> None:
        if self._closed:
            raise LocalProtocolError(
                "these commits in the background were closed",
                hint="Begin others: client.background().",
            )
        if self._broken is not None:
            raise self._rolled_back()
        if len(self._failed) >= _MOST_FAILURES:
            raise LocalProtocolError(
                f"{len(self._failed):,} commits failed, and nobody took their results; the first "
                f"is: {next(iter(self._failed)).failure}",
                hint="Call flush(), which raises the first one and takes all.",
                failed=len(self._failed),
            )

    def take(self, pending: PendingCommit) -> None:
        """Note that somebody took a failure."""
        with self.changed:
            self._failed.pop(pending, None)

    # -- the thread that sends ------------------------------------------------------------------

    def _send_all(self) -> None:
        self._sender = threading.get_ident()
        while items := self._next():
            try:
                self._send(items)
            except Exception as error:  # noqa: BLE001 - those who wait for it must hear of it
                self._fail([item for item in items if not item.pending.done()], error)
            with self.changed:
                self._memory_bytes -= sum(item.memory_bytes for item in items)
                self._settled += len(items)
                self.changed.notify_all()

    def _next(self) -> list[_Item]:
        """Take what travels next; nothing waits: no items, and this thread has ended."""
        run = _Run(self._limits)
        # Only this thread takes from the left, so callers may add to the right meanwhile.
        while self._waiting and run.takes(self._waiting[0]):
            self._waiting.popleft()
        if not run.items:
            with self.changed:
                if self._waiting:
                    return self._next()
                self._sending = False
        return run.items

    def _send(self, items: Sequence[_Item]) -> None:
        """Send items as one run, or one alone, and settle them; a refused run is sent in parts."""
        if not items:
            return
        if self._broken is not None:
            self._fail(items, self._rolled_back())
            return
        if self._is_given_up:
            self._fail(items, LocalProtocolError("it was closed before this one was sent"))
            return
        try:
            receipt = self._answer(items)
        except TxLogError as error:
            self._refused(items, error)
        else:
            self._settle(items, receipt)

    def _answer(self, items: Sequence[_Item]) -> Receipt:
        if items[0].commit is not None:
            return items[0].commit()
        runs = [item.prepared for item in items if item.prepared is not None]
        _, payload = assemble_run(runs, time.time_ns() // 1000)
        return self.link.submit(
            payload,
            runs[0].transaction_id,
            is_run=True,
            level=self._level,
            timeout_s=self._timeout_s,
        )

    def _settle(self, items: Sequence[_Item], receipt: Receipt) -> None:
        if items[0].prepared is None:
            with self.changed:
                items[0].pending.settle(receipt)
                self.changed.notify_all()
            items[0].pending.call_back()
            return
        found = replace(receipt, ids=(items[0].pending.id,))
        others = {one.index: self._other(items, found, one) for one in receipt.rejections}
        with self.changed:
            # Once each: whoever asks sees the first outcome, without the lock.
            for index, item in enumerate(items):
                other = others.get(index)
                if other is None:
                    item.pending.settle(found, index)
                elif isinstance(other, Receipt):
                    item.pending.settle(other)
                else:
                    self._note_failure(item.pending, other)
            self.changed.notify_all()
        for item in items:
            item.pending.call_back()

    def _other(
        self, items: Sequence[_Item], run: Receipt, one: ReceiptRejection
    ) -> Receipt | TxLogError:
        """Return what became of a transaction that was rejected at its position in a run.

        A repeat of what the log has under its id is rejected there; what counts is the first one.
        """
        pending = items[one.index].pending
        error = _rejection(pending, run, one)
        if not isinstance(error, DuplicateTransactionError):
            return error
        level = parse_level(self._level)[0].value
        try:
            return self.link.known(pending.transaction_id, level, self._timeout_s) or error
        except (CommitRejectedError, CommitStateUnknownError) as of_the_first:
            return of_the_first
        except TxLogError as silent:
            return CommitStateUnknownError(
                f"transaction {pending.id} was ordered before, and no node says what became of it: "
                f"{silent.message}",
                hint="Ask for its id.",
                transaction_id=pending.id,
            )

    def _refused(self, items: Sequence[_Item], error: TxLogError) -> None:
        """Fail those that an error concerns, and send the others."""
        alone = len(items) == 1
        if isinstance(error, StaleSchemaError) and items[0].prepared is not None:
            self._send_for_newest(items, error)
        elif alone or not _concerns_some(error):
            self._fail(items, error)
        elif self._session.stands_alone and isinstance(error, (ForbiddenError, UnknownTableError)):
            table = error.fields.get("table")
            concerned = [item for item in items if table in item.tables()]
            self._fail(concerned or items, error)
            self._send([item for item in items if not item.pending.done()])
        else:
            middle = len(items) // 2
            self._send(items[:middle])
            self._send(items[middle:])

    def _send_for_newest(self, items: Sequence[_Item], error: StaleSchemaError) -> None:
        """Send items once more, those of a table that changed as rows of what it is now."""
        name, is_other = error.fields["table"], False
        try:
            definition = self._client.table(name)
        except TxLogError as missing:
            self._fail([item for item in items if name in item.tables()], missing)
        else:
            for item in items:
                try:
                    is_other = item.remake(definition) or is_other
                except CommitRejectedError as wrong:
                    self._fail([item], wrong)
                    is_other = True
            if not is_other:  # the node that refused them knows another table than this one
                self._fail([item for item in items if name in item.tables()], error)
        self._send([item for item in items if not item.pending.done()])

    def _fail(self, items: Sequence[_Item], error: Exception) -> None:
        if items:
            _log.warning("%d commits in the background failed: %s", len(items), error)
        with self.changed:
            for item in items:
                self._note_failure(item.pending, _own(error, item.pending.id))
            self.changed.notify_all()
        for item in items:
            item.pending.call_back()

    def _note_failure(self, pending: PendingCommit, error: BaseException) -> None:
        self._failed[pending] = None
        if not self._session.stands_alone and self._broken is None:
            self._broken = pending.id, error
        pending.settle(error)

    def _rolled_back(self) -> SessionRolledBackError:
        assert self._broken is not None
        first, error = self._broken
        return SessionRolledBackError(
            f"an earlier commit in the background failed, transaction {first}: {error}",
            hint="Begin others, client.background(), once you know what became of it.",
            rests_on=first,
        )

    # -- the end --------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was called before is settled; raise a failure that nobody took.

        Args:
            timeout: Seconds; None: as long as it takes, which is at most the sender's timeout for
                each run that waits.

        Raises:
            CommitStateUnknownError: Not in time; they go on (not definite).
            LocalProtocolError: A callback of a commit called it (definite).
            TxLogError: The first failure whose result nobody asked for; field `failed` says how
                many there were.  All of them count as taken then; their futures keep them.
        """
        timeout_s = None if timeout is None else seconds_given(timeout)
        if threading.get_ident() == self._sender:
            raise LocalProtocolError(
                "a callback of a commit waits for all commits, and they wait for it",
                hint="Call flush() or close() in another thread.",
            )
        with self.changed:
            called = self._called
            if not self.changed.wait_for(lambda: self._settled >= called, timeout_s):
                left = called - self._settled
                raise CommitStateUnknownError(
                    f"{left:,} commits in the background are not settled after {timeout_s} s",
                    hint="They go on: call flush() again.",
                    waiting=left,
                )
            failed, self._failed = list(self._failed), {}
        if failed:
            error = failed[0].failure
            assert error is not None
            raise _own(error, failed[0].id, failed=len(failed))

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, and `flush`; what is not sent after `timeout` seconds fails.

        Raises:
            CommitStateUnknownError: Not all was settled in time; what was not on its way yet is
                never sent, and its future says so (not definite).
            TxLogError: As `flush`.
        """
        timeout_s = None if timeout is None else seconds_given(timeout)
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        try:
            self.flush(timeout_s)
        finally:
            self._is_given_up = True
            self._pool.shutdown(wait=False)
            self._client.forget_background(self)


def _item(pending: PendingCommit, prepared: PreparedTransaction, tables: Tables) -> _Item:
    size = _ID_BYTES
    for one in prepared.operations:
        size += one.rows.nbytes + _MARK_BYTES * one.rows.num_rows
    known = (tables.known(one.table) for one in prepared.operations)
    groups = frozenset(group for table in known if table and (group := group_of(table)))
    return _Item(pending, size, prepared, None, (is_synchronous(prepared, tables), groups))


def _rejection(pending: PendingCommit, run: Receipt, one: ReceiptRejection) -> TxLogError:
    """Return why a transaction of a run was rejected at its position."""
    found = replace(pending.receipt_in(run, one.index), outcome="rejected")
    try:
        committed(replace(found, rejections=(replace(one, index=0),)))
    except TxLogError as error:
        return error
    raise AssertionError("a rejected receipt raises")


def _concerns_some(error: TxLogError) -> bool:
    """Whether a refusal of a run may be that of one of its transactions, and nothing happened."""
    of_them = isinstance(error, (CommitRejectedError, ForbiddenError))
    return of_them and error.definite and not error.retryable


def _own(error: BaseException, transaction_id: str, **more: Any) -> BaseException:
    """Return the error of a run as that of one of its transactions."""
    if not isinstance(error, TxLogError):
        return error
    fields = {**error.fields, "transaction_id": transaction_id, **more}
    found = type(error)(error.message, hint=error.hint, **fields)
    found.__cause__ = error
    return found
