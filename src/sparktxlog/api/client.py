"""The Python client without Spark: transactions from Arrow tables or plain rows.

    with sparktxlog.Client("http://127.0.0.1:7070") as client:
        client.create_table("orders", {"id": "bigint", "amount": "decimal(10,2)"}, keys=["id"])
        client.upsert("orders", [{"id": 1, "amount": "12.50"}])
        with client.transaction() as tx:
            tx.append("events", arrow_table)
            tx.delete_where("orders", "amount < 0")
        print(tx.receipt.position)

Every transaction has an id that the client makes, so a repeat after a broken link is the same
transaction.  `error.definite` says whether it is certain that nothing happened.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from sparktxlog.api.given_data import Columns, Rows, arrow_table
from sparktxlog.api.log_client import LogClient
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.reading.at_least import least_position
from sparktxlog.api.tested_releases import warn_of_untested
from sparktxlog.api.writing.arrow_batches import BatchReceipt, send_runs, transactions_of
from sparktxlog.api.writing.background import BackgroundCommits
from sparktxlog.api.writing.held_transaction import HeldTransaction
from sparktxlog.api.writing.operations import Commits, Isolation, made_for_newest
from sparktxlog.api.writing.request_transaction import Transaction, TransactionOptions
from sparktxlog.api.writing.rows_to_transactions import EncodedRun
from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.arguments import is_whole, kind_given, whole_given
from sparktxlog.codec.submits.condition_requests import is_conflict
from sparktxlog.codec.submits.requests import (
    parse_level,
)
from sparktxlog.codec.submits.transactions import Rollback, Session
from sparktxlog.errors import (
    ConflictError,
    InvalidRequestError,
    LocalProtocolError,
    TxLogError,
)
from sparktxlog.lazy_arrow import load_arrow, pa
from sparktxlog.model.ids import (
    table_name,
    transaction_id_from_text,
    transaction_id_to_text,
)
from sparktxlog.model.tables.table import TableDefinition, Tables, VersionedTable
from sparktxlog.model.transactions.operation import LONGEST_RUN, OperationKind
from sparktxlog.model.transactions.receipt import Receipt

if TYPE_CHECKING:
    from sparktxlog.api.reading.at_least import Seen


class Client(LogClient, Commits[Rows, Columns]):
    """Talks to one node, or to several nodes of one log; safe to share between threads.

    With several URLs a call goes to the next node if one does not answer or takes no transactions.
    If a node is lost during a submit, the client finds the outcome at another one; an id is never
    applied twice.  Level `applied` then means the site of the node that answers.

    Args:
        url: The node's URL, such as `http://127.0.0.1:7070`; several as a list, or with commas.
        token: Client token; default: the variable `SPARKTXLOG_CLIENT_TOKEN`.
        timeout: Seconds for each call, repeats included.
        ca_file: PEM file with the authority of the nodes' certificates, for https; default: the
            variable `SPARKTXLOG_CA_FILE`, else the authorities that the system trusts.
        level: How far transactions must get: `accepted`, `acquired`, `ordered`, `applied`,
            `applied(k)` (at k sites, however many replicas each has).
    """

    def __init__(
        self,
        url: str | Sequence[str],
        token: str | None = None,
        *,
        timeout: float = 30.0,
        level: str = "ordered",
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        warn_of_untested()
        link = Nodes(url, token=token, timeout_s=timeout, ca_file=ca_file)
        super().__init__(link, link.timeout_s)
        parse_level(level)
        self._level = level
        self._definitions: dict[str, VersionedTable] = {}
        #: Tables as they were when a node was asked last.
        self.known_tables = Tables(cast("dict[str, TableDefinition]", self._definitions))
        self._info: dict[str, Any] | None = None
        self._backgrounds: list[BackgroundCommits] = []

    # -- transactions ---------------------------------------------------------------------------

    def transaction(
        self,
        *,
        transaction_id: str | uuid.UUID | None = None,
        first_wins: bool = False,
        session: str | None = None,
        level: str | None = None,
        timeout: float | None = None,
        valid_until: datetime | None = None,
        isolation: Isolation = None,
        is_sync: bool = False,
        participants: Sequence[str] = (),
        rollback: Rollback = "session",
    ) -> Transaction:
        """Begin a transaction for a `with` block.

        An append, upsert or delete of no rows is checked and changes nothing.  A transaction of
        nothing else is recorded only under an id that was given, so that a repeat is recognised;
        else its receipt has no id, no position and `n` 0.

        Args:
            transaction_id: A UUID; the same id again is the same transaction, and other content
                under it is refused (`IdTakenError`).
            first_wins: Whatever the log has under the id counts: its receipt is returned.
            session: Transactions of one session are ordered as they were submitted.
            level: Instead of the client's.
            timeout: Seconds; instead of the client's.
            valid_until: Time with a zone after which no copy of it takes effect, at most
                `id-window-time` (24 h) ahead.  With the same one in every repeat it takes
                effect once, for ever.
            isolation: "serializable": it takes effect only if nobody wrote to the tables that
                `read_at` names since; None: no reads are recorded, the last write wins.
            is_sync: Whether it is synchronous whatever its tables are: ordered only once as many
                members hold it as `synchro-quorum` says.
            participants: With these the transaction is *prepared*: it is ordered, and takes effect
                where the last of them says YES (`mark`), or never.  It needs `valid_until`.
            rollback: "session": it is withdrawn with an earlier one of its session that is
                withdrawn before it has a timestamp, `SessionRolledBackError`; "transaction": not.

        Raises:
            InvalidRequestError: No such isolation or rollback, its level is below `ordered`, or
                what cannot be participants (definite).
            InvalidNameError: The id is no UUID (definite).
        """
        options = TransactionOptions(
            transaction_id=transaction_id,
            session=Session(session, rollback),
            level=level or self._level,
            timeout_s=timeout,
            valid_until=valid_until,
            isolation=isolation,
            is_sync=is_sync,
            participants=participants,
        )
        return Transaction(self._link, options, first_wins=first_wins)

    def open_transaction(
        self,
        *,
        lease: float = 60.0,
        transaction_id: str | uuid.UUID | None = None,
        session: str | None = None,
        level: str | None = None,
        timeout: float | None = None,
        valid_until: datetime | None = None,
        isolation: Isolation = None,
        is_sync: bool = False,
        participants: Sequence[str] = (),
        rollback: Rollback = "session",
    ) -> HeldTransaction:
        """Begin a transaction that a node holds: what is added is sent at once, not kept here.

            with client.open_transaction(lease=600) as tx:
                for batch in batches:  # more than fits into memory
                    tx.append("readings", batch)
                tx.delete_where("readings", "value IS NULL")

        The node checks each operation when it comes; one that is refused is not in it, and the
        others are.  Many rows travel as files, a piece at a time, also those of a stream of Arrow
        such as a `pyarrow.RecordBatchReader`.  A broken connection repeats a request, which adds
        nothing twice.  An error in the block rolls it back.  Nothing is locked meanwhile, and
        nothing is in the log before the commit.

        It is open at one node, from its first operation on.  It ends without effect if that node
        ends, or if it hears nothing for `lease` seconds (`renew`).

        Args:
            lease: Seconds, 1 to 3,600.
            transaction_id: As `transaction`, like all others.
            session: See there.
            level: See there.
            timeout: Seconds for each request, repeats included; instead of the client's.
            valid_until: See there.
            isolation: See there; what is read and expected is said before the first operation.
            is_sync: See there.
            participants: See there.
            rollback: See there.

        Raises:
            InvalidRequestError: As `transaction`, or no such lease (definite).
        """
        options = TransactionOptions(
            transaction_id=transaction_id,
            session=Session(session, rollback),
            level=level or self._level,
            timeout_s=timeout,
            valid_until=valid_until,
            isolation=isolation,
            is_sync=is_sync,
            participants=participants,
        )
        return HeldTransaction(self._link, options, table=self.table, lease_s=lease)

    def _newest_definition(self, table: str) -> TableDefinition:
        return self.table(table)

    def _catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        winner, table = lost.fields.get("winner"), lost.fields.get("table")
        if winner is not None and table is not None:
            self._link.after(winner)
            self._link.table(table, timeout_s)

    def submit_many(
        self,
        table: str,
        rows: Any,
        *,
        kind: str = "append",
        transaction_column: str | None = None,
        session: str | None = None,
        level: str | None = None,
        timeout: float | None = None,
        run_transactions: int = LONGEST_RUN,
        connections: int = 2,
        rollback: Rollback = "session",
    ) -> BatchReceipt:
        """Submit a batch of many transactions, each row one of its own, or grouped by a column.

        Args:
            table: Name of the table.
            rows: Arrow data, or a DataFrame of pandas or polars; without rows nothing is submitted.
            kind: `append`, `upsert`, `delete_keys` or `overwrite`.
            transaction_column: Column whose equal values make one transaction; not stored.
            session: See `transaction`.
            level: Instead of the client's.
            timeout: Seconds for each run.
            run_transactions: Most transactions in one request, to 8,192: the fewer requests, the
                cheaper each transaction is.  A run is ordered, or refused, as a whole.
            connections: Requests at a time.  With more than one, the order of runs may differ from
                that of `rows`, so kinds other than `append` use only one.
            rollback: See `transaction`; a run is withdrawn as a whole.

        Raises:
            CommitStateUnknownError: Field `transaction_id` names the first of the run concerned;
                other runs may have been ordered (not definite).
            CommitRejectedError: A run was refused; earlier runs may have been ordered (definite
                for this run; field `accepted_transactions` counts those before it).
        """
        wanted = kind_given(kind)
        run_transactions = whole_given(run_transactions, "run_transactions")
        connections = whole_given(connections, "connections")
        level = level or self._level
        parse_level(level)
        timeout_s = self._seconds(timeout)
        own = Session(session, rollback)
        load_arrow("client.submit_many")
        limits = self._run_limits()
        given, key = arrow_table(rows), table_name(table).lower()
        made = made_for_newest(
            self.table(table, fresh=False),
            lambda: self.table(table),
            lambda known: transactions_of(known, wanted, given, transaction_column),
        )
        most = min(run_transactions, limits.transactions)
        runs = made.runs(most, limits.size_bytes, time.time_ns() // 1000, own)

        def send(run: EncodedRun) -> Receipt:
            return self._link.submit(
                run.payload, run.transaction_id, is_run=True, level=level, timeout_s=timeout_s
            )

        one = wanted is not OperationKind.APPEND
        try:
            receipts = send_runs(send, runs, 1 if one else connections)
        except TxLogError:
            self._definitions.pop(key, None)
            raise
        found = BatchReceipt(receipts=receipts, ids=made.ids)
        if any(map(is_conflict, found.rejections)):
            self._definitions.pop(key, None)
        return found

    # -- commits in the background --------------------------------------------------------------

    def background(
        self,
        *,
        level: str | None = None,
        session: str | None = None,
        rollback: Rollback = "transaction",
        timeout: float | None = None,
        limit_bytes: int = 64 << 20,
    ) -> BackgroundCommits:
        """Begin commits that the caller does not wait for: each call returns a future at once.

            with client.background() as later:
                pending = later.append("readings", [{"id": 1, "v": 20.5}])
                pending.id, pending.done()
                pending.result(level="applied", timeout=60)  # a receipt, or why it failed

        They are sent by one thread, many in a request, in the order of the calls, and ordered in
        that order.  The end of the block, `flush` and `close` wait for all of them, and raise the
        first failure that nobody took.  Rows are copied; what is wrong with them is raised at once.

        **What it does not promise.**  Before its future is done nothing is known of a commit: if
        this process is killed, those that were not sent never happen, and those under way may or
        may not (ask for their ids).  One that fails does not stop those after it.  If the outcome
        of one is unknown, it may be ordered after those.

        Args:
            level: How far they must get, instead of the client's.
            session: Name of the session that they are in; default: one of their own.
            rollback: "session": after a failure nothing more is sent; all that waits, and each
                further call, fails with `SessionRolledBackError`.  What travelled in the same run
                and was ordered takes effect.
            timeout: Seconds for each request, and for room in a full queue; instead of the
                client's.
            limit_bytes: About how much memory commits that are not settled may take; a call that
                finds it full waits for room, then raises `BusyError` (definite).

        Raises:
            InvalidRequestError: No such level or rollback, or `limit_bytes` is no size (definite).
            MissingDependencyError: pyarrow or NumPy is not installed (definite).
            TransportError: No node answers (definite).
        """
        load_arrow("client.background")
        parse_level(level or self._level)
        if not is_whole(limit_bytes):
            raise InvalidRequestError(
                f"limit_bytes={limit_bytes!r} is no number of bytes",
                hint="Give a whole number, such as 64 << 20.",
                field="limit_bytes",
                value=limit_bytes,
            )
        made = BackgroundCommits(
            self,
            self._link,
            level=level or self._level,
            timeout_s=self._seconds(timeout),
            session=Session(session or str(uuid.uuid4()), rollback),
            limit_bytes=int(limit_bytes),
            limits=self._run_limits(),
        )
        self._backgrounds.append(made)
        return made

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all commits in the background are settled; see `BackgroundCommits.flush`."""
        self._end_with(BackgroundCommits.flush, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Close the connections, after what was committed in the background is settled.

        Args:
            timeout: Seconds for that, see `BackgroundCommits.close`.

        Raises:
            TxLogError: The first failure of a commit in the background that nobody took.
        """
        try:
            self._end_with(BackgroundCommits.close, timeout)
        finally:
            super().close()

    def _end_with(
        self, wait: Callable[[BackgroundCommits, float | None], None], timeout: float | None
    ) -> None:
        """Let all senders end what they have, also after a failure; raise the first one."""
        end = None if timeout is None else time.monotonic() + self._seconds(timeout)
        failures = list[TxLogError]()
        for one in list(self._backgrounds):
            try:
                wait(one, None if end is None else max(0.0, end - time.monotonic()))
            except TxLogError as error:
                failures.append(error)
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"A commit in the background failed, too: {other}")
            raise failures[0]

    def begin(self, level: str) -> Transaction:
        """Begin a transaction with a level, and nothing else."""
        return self.transaction(level=level)

    def forget_background(self, commits: BackgroundCommits) -> None:
        """Leave out what was closed from what this client closes."""
        if commits in self._backgrounds:
            self._backgrounds.remove(commits)

    def _run_limits(self) -> RunLimits:
        if self._info is None:
            self._info = self.info()
        return RunLimits(
            transactions=self._info["run_limit_transactions"],
            size_bytes=self._info["run_limit_bytes"],
        )

    # -- questions ------------------------------------------------------------------------------

    def wait(
        self,
        receipt: Receipt | BatchReceipt | str,
        level: str = "ordered",
        timeout: float | None = None,
    ) -> Receipt:
        """Wait until a transaction, or the last run of a batch, has reached a level.

        Args:
            receipt: A receipt, or a transaction id.
            level: `accepted`, `acquired`, `ordered` or `applied`.
            timeout: Seconds; instead of the client's.

        Returns:
            The receipt; `late` if it is ordered but did not reach the level in time.

        Raises:
            CommitStateUnknownError: Not ordered in time (not definite).
            NotFoundError: No node ever saw it (definite).
        """
        return self._link.wait(_id_of(receipt), level, self._seconds(timeout))

    def receipt(self, transaction_id: str) -> Receipt:
        """Return the state of a transaction; NotFoundError if no node that answers saw it."""
        found = transaction_id_from_text(transaction_id)
        return self._link.receipt(transaction_id_to_text(found))

    def info(self) -> dict[str, Any]:
        """Return names, limits and directories of the node."""
        return dict(self._link.get("/v1/info"))

    def view(self, name: str, *, after: int | None = None, limit: int | None = None) -> pa.Table:
        """Return rows of a view of the state as an Arrow table; docs/views.md lists the views.

        Args:
            name: `queue`, `incoming`, `workers`, ….
            after: Of `queue`: rows after this position.
            limit: Rows at most; None = all, of `queue` the last 1,000.

        Raises:
            InvalidRequestError: No such view, or it cannot be read after a value (definite).
            MissingDependencyError: pyarrow or NumPy is not installed (definite).
        """
        return self._link.view(name, after=after, limit=limit)

    def queue(self, after: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """Return the runs of the synchronized queue after a position."""
        return list(self._link.get("/v1/queue", after=after, limit=limit))

    def tables(self) -> list[VersionedTable]:
        """Return the row tables at the node's position, by name."""
        return self._link.tables()

    def table(self, name: str, *, fresh: bool = True) -> VersionedTable:
        """Return a row table's definition, version and last write.

        Args:
            name: The table's.
            fresh: Ask a node; else what was answered before will do, with its version of then.

        Raises:
            UnknownTableError: There is none (definite).
        """
        key = table_name(name).lower()
        found = self._definitions.get(key)
        if fresh or found is None:
            found = self._link.table(name)
            self._definitions[key] = found
        return found

    def snapshot(
        self,
        position: int | None = None,
        *,
        at_least: Seen = None,
        timeout: float = 0.0,
        replica: str | None = None,
    ) -> dict[str, Any]:
        """Return the table versions of a replica of the site at one position.

        Args:
            position: End of a batch; default: the newest.
            at_least: A position, or receipts of any site, that must be applied.
            timeout: Seconds to wait for it.
            replica: Name of the replica; default: the most current one with all tables.

        Raises:
            NotAppliedError: Not applied there in time (definite).
            NotFoundError: No batch ended at `position`, or no such replica (definite).
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
        """
        wanted, timeout_s = least_position(at_least), self._seconds(timeout)
        return dict(
            self._link.get(
                "/v1/snapshot",
                position=position,
                at_least=wanted.position,
                log_id=wanted.log_id,
                replica=replica,
                timeout_s=timeout_s or None,
                waits=timeout_s > 0,
            )
        )


def _id_of(receipt: Receipt | BatchReceipt | str) -> str:
    if isinstance(receipt, str):
        return transaction_id_to_text(transaction_id_from_text(receipt))
    if not isinstance(receipt, (Receipt, BatchReceipt)):
        raise InvalidRequestError(
            f"{ascii(receipt)[:80]} is neither a receipt nor a transaction id",
            hint="Give what a commit returned, or the text of an id.",
            field="receipt",
            value=ascii(receipt)[:80],
        )
    if isinstance(receipt, BatchReceipt):
        if not receipt.n:
            raise LocalProtocolError("the batch had no rows, so there is nothing to wait for")
        return receipt.transaction_id(receipt.n - 1)
    if receipt.transaction_id is None:
        if not receipt.n:
            raise LocalProtocolError("nothing was submitted, so there is nothing to wait for")
        if receipt.ids:
            return receipt.ids[-1]
        raise LocalProtocolError(
            "the receipt of a run has no transaction id", hint="Wait for one of the run's ids."
        )
    return receipt.transaction_id
