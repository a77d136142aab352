"""Transactions that clients build up over several requests: opened, added to, committed or not.

An open transaction is in the memory of one node, under a *lease* that each request of its client
renews.  Nothing of it is in the log, and no table is locked: it takes effect as a whole when it is
committed, under the id that it was opened with.  It ends without effect if its lease ends, if it is
rolled back, or if the node ends.  It belongs to the client that opened it: to others it is
forbidden, but operators see all and may roll them back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.mark_requests import check_prepared
from sparktxlog.codec.submits.requests import Preparation
from sparktxlog.codec.submits.transactions import PreparedTransaction, Session
from sparktxlog.errors import (
    CommitRejectedError,
    ForbiddenError,
    InvalidRequestError,
    TransactionNotOpenError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.runtime.audit_trail import OPERATOR, asks
from sparktxlog.runtime.tokens.budgets import Budgets

#: Ended transactions of which the node still says how they ended.
_REMEMBERED = 1_000


class OpenTransaction:
    """One transaction under way; its owner is `OpenTransactions`.

    Args:
        transaction_id: Its id in the log.
        lease_s: Seconds after which it ends, if its client says nothing.
        participants: With these its commit prepares it (P35).

    Raises:
        InvalidRequestError: It could not be prepared (definite).
    """

    def __init__(
        self,
        transaction_id: bytes,
        lease_s: float,
        limits: RunLimits,
        *,
        session: Session,
        valid_until: int | None,
        condition: Condition | None,
        is_sync: bool = False,
        participants: tuple[str, ...] = (),
    ) -> None:
        if participants:
            check_prepared((), valid_until, session.name)
        self.transaction_id = transaction_id
        self.lease_s = lease_s
        #: Name of the token that opened it.
        self.owner = asks.get()
        self.preparation = Preparation(transaction_id, limits)
        #: Bytes of the requests that added its operations.
        self.size_bytes = 0
        #: Digest of the request that added operations last, and how many there were before.
        self.last_added: tuple[int, bytes] | None = None
        #: Requests that are working on it; meanwhile its lease does not end.
        self.busy = 0
        #: Held by the one request that adds operations or commits.
        self.turn = asyncio.Lock()
        self.committing = False
        self.timer: asyncio.TimerHandle | None = None
        self._session, self._valid_until = session, valid_until
        self._condition, self._is_sync = condition, is_sync
        self._participants = participants

    def prepared(self) -> PreparedTransaction:
        """Return it as it is committed.

        Raises:
            InvalidRequestError: It has participants, and an operation that cannot wait for them
                (definite); it stays open.
        """
        if self._participants:
            check_prepared(self.preparation.operations, self._valid_until, self._session.name)
        return PreparedTransaction(
            transaction_id=self.transaction_id,
            operations=self.preparation.operations,
            session=self._session.name,
            stands_alone=self._session.stands_alone,
            valid_until=self._valid_until,
            condition=self._condition,
            is_sync=self._is_sync,
            participants=self._participants,
        )

    def digest(self) -> bytes:
        """Return what its content is known by; empty = it cannot be committed."""
        try:
            return Content(self.prepared()).digests
        except CommitRejectedError:
            return b""


class OpenTransactions:
    """The open transactions of a node, within bounds of number and memory.

    All methods belong to the event loop.

    Args:
        budgets: Have their number, and the bytes of all requests that added operations to them.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._number, self._memory = budgets.open_transactions, budgets.memory
        self._open: dict[bytes, OpenTransaction] = {}
        #: Id of an ended transaction → how it ended, and what its content is known by.
        self._ended: OrderedDict[bytes, tuple[str, asyncio.Future[bytes]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, transaction: OpenTransaction) -> None:
        """Begin a transaction; its lease runs from now on.

        Raises:
            InvalidRequestError: One with this id is open (definite).
            BusyError: Too many are open, or too many of its token (definite).
        """
        if transaction.transaction_id in self._open:
            text = transaction_id_to_text(transaction.transaction_id)
            raise InvalidRequestError(
                f"transaction {text} is open already",
                hint="Go on with it, or roll it back first.",
                transaction_id=text,
            )
        self._number.take(holder=transaction.owner)
        self._ended.pop(transaction.transaction_id, None)
        self._open[transaction.transaction_id] = transaction
        self._renew(transaction)

    def get(self, transaction_id: bytes, *, writes: bool = False) -> OpenTransaction:
        """Return an open transaction of the client that asks; its lease runs on.

        Args:
            writes: It is to be added to, or committed, which even operators cannot do for others.

        Raises:
            TransactionNotOpenError: It is not open; the message says how it ended (definite).
            ForbiddenError: Another client opened it (definite).
        """
        transaction = self._open.get(transaction_id)
        if transaction is None:
            raise self._not_open(transaction_id)
        caller = asks.get()
        if transaction.owner != caller and (writes or caller != OPERATOR):
            text = transaction_id_to_text(transaction_id)
            raise ForbiddenError(
                f"transaction {text} was opened with another token",
                hint="Use the token that opened it, or open one of your own.  Operators may look "
                "at it and roll it back.",
                transaction_id=text,
            )
        return transaction

    def all(self) -> list[OpenTransaction]:
        """Return the open transactions of the client that asks, oldest first; operators see all."""
        caller = asks.get()
        return [one for one in self._open.values() if caller in (one.owner, OPERATOR)]

    def check_open(self, transaction: OpenTransaction) -> None:
        """Compare with what is open now; errors as `get`."""
        if self._open.get(transaction.transaction_id) is not transaction:
            raise self._not_open(transaction.transaction_id)

    @contextmanager
    def working(self, transaction_id: bytes, *, writes: bool = True) -> Iterator[OpenTransaction]:
        """Give an open transaction; its lease does not end meanwhile, and is renewed after that.

        Arguments and errors as `get`.
        """
        transaction = self.get(transaction_id, writes=writes)
        transaction.busy += 1
        try:
            yield transaction
        finally:
            transaction.busy -= 1
            if self._open.get(transaction_id) is transaction:
                self._renew(transaction)

    def how_it_ended(self, transaction_id: bytes) -> str:
        """Return how a transaction ended; empty = it is open, or not known here."""
        ended = self._ended.get(transaction_id)
        return "" if ended is None else ended[0]

    async def content(self, transaction_id: bytes) -> Content:
        """Return the content of a transaction that ended, as far as it is remembered."""
        ended = self._ended.get(transaction_id)
        return Content(transaction_id, digest=b"" if ended is None else await ended[1])

    def keep_memory(self, transaction: OpenTransaction, size_bytes: int) -> None:
        """Keep the bytes of a request that added operations, which counts them until it ends.

        Raises:
            TransactionNotOpenError: It ended meanwhile (definite).
        """
        self.check_open(transaction)
        self._memory.keep(transaction.owner, size_bytes)
        transaction.size_bytes += size_bytes

    def end(self, transaction: OpenTransaction, how: str) -> None:
        """Forget a transaction; how it ended is remembered for a while."""
        transaction_id = transaction.transaction_id
        if self._open.get(transaction_id) is not transaction:
            return
        del self._open[transaction_id]
        self._number.give(transaction.owner)
        self._memory.give(transaction.owner, transaction.size_bytes)
        transaction.size_bytes = 0
        if transaction.timer is not None:
            transaction.timer.cancel()
        # Rows of 30 MiB would hold up the loop.
        digest = asyncio.get_running_loop().run_in_executor(None, transaction.digest)
        self._ended[transaction_id] = how, digest
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def close(self) -> None:
        """End all of them: they are not in the log."""
        for transaction in list(self._open.values()):
            self.end(transaction, "the node stopped")

    def _renew(self, transaction: OpenTransaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()
        loop = asyncio.get_running_loop()
        transaction.timer = loop.call_later(transaction.lease_s, self._expire, transaction)

    def _expire(self, transaction: OpenTransaction) -> None:
        if not transaction.busy:
            self.end(transaction, f"its lease of {transaction.lease_s:g} s ended")

    def _not_open(self, transaction_id: bytes) -> TransactionNotOpenError:
        text = transaction_id_to_text(transaction_id)
        how = self.how_it_ended(transaction_id)
        if how:
            what = f"transaction {text} is not open any more: {how}"
        else:
            what = f"no transaction {text} is open at this node"
        return TransactionNotOpenError(what, transaction_id=text)
