"""A commit whose caller does not wait: it is done later, with a receipt or an error.

It is no `concurrent.futures.Future`: that has a lock and a dozen objects for each, which costs more
than all else of a small commit.  All commits of a sender share one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sparktxlog.api.nodes import Nodes
from sparktxlog.codec.submits.arguments import seconds_given
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.errors import CommitStateUnknownError, InvalidRequestError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt

_log = logging.getLogger(__name__)


class _Sender(Protocol):
    """What a pending commit needs of its sender."""

    @property
    def changed(self) -> threading.Condition:
        """Notified after commits were settled."""

    @property
    def link(self) -> Nodes:
        """The nodes, for levels above the sender's."""

    def take(self, pending: PendingCommit) -> None:
        """Note that somebody took a failure."""


class PendingCommit:
    """One commit of `Client.background`.  Safe to share between threads.

    It is done once the commit has the level of its sender, or has failed.
    """

    __slots__ = ("_callbacks", "_index", "_outcome", "_rows", "_sender", "transaction_id")

    def __init__(self, transaction_id: bytes, sender: _Sender, rows: int = 0) -> None:
        self.transaction_id = transaction_id
        self._sender, self._rows = sender, rows
        #: Its receipt, or that of its run: then it is the transaction at `_index`; or an error.
        self._outcome: Receipt | BaseException | None = None
        self._index: int | None = None
        self._callbacks: list[Callable[[PendingCommit], object]] | None = None

    @property
    def id(self) -> str:
        """The transaction id, a UUID; known before anything is sent."""
        return transaction_id_to_text(self.transaction_id)

    def done(self) -> bool:
        """Return whether it has the level of its sender, or has failed."""
        return self._outcome is not None

    def result(self, timeout: float | None = None, *, level: str | None = None) -> Receipt:
        """Wait until the commit has a level, and return its receipt.

        Args:
            timeout: Seconds; None: as long as its sender tries, then, for a level above the
                sender's, the client's.
            level: `accepted`, `acquired`, `ordered` or `applied`; None: the sender's.

        Raises:
            CommitRejectedError: It takes no effect; the class says why (definite).
            InvalidRequestError: No such level, or one of several sites (definite).
            CommitStateUnknownError: Not there in time (then `done()` is false), or nobody knows
                what became of it; field `transaction_id` (not definite).
            TransportError: No node answered; its `definite` says whether anything was sent.
        """
        rank = 0 if level is None else _rank(level)
        timeout = None if timeout is None else seconds_given(timeout)
        begin = time.monotonic()
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        of_run = self._outcome
        assert isinstance(of_run, Receipt)
        receipt = of_run if self._index is None else self.receipt_in(of_run, self._index)
        if level is None or not receipt.n or receipt.level is None:
            return receipt
        if LEVEL_RANK[receipt.level] >= rank:
            return receipt
        link = self._sender.link
        end = time.monotonic() + link.timeout_s if timeout is None else begin + timeout
        if receipt.position is None:
            # Of a run that is not ordered yet, nodes find the first transaction only.
            first = of_run.ids[0] if of_run.ids else self.id
            link.wait(first, Level.ORDERED.value, max(0.0, end - time.monotonic()))
        return link.wait(self.id, level, max(0.0, end - time.monotonic()))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done, and return why it failed; None = it did not.

        Raises:
            CommitStateUnknownError: It is not done in time (not definite).
        """
        timeout = None if timeout is None else seconds_given(timeout)
        if self._outcome is None:
            changed = self._sender.changed
            with changed:
                is_done = changed.wait_for(self.done, timeout)
            if not is_done:
                raise CommitStateUnknownError(
                    f"the commit of transaction {self.id} is still under way after {timeout} s",
                    hint="It goes on: wait again.",
                    transaction_id=self.id,
                )
        if isinstance(self._outcome, BaseException):
            self._sender.take(self)
            return self._outcome
        return None

    def add_done_callback(self, call: Callable[[PendingCommit], object]) -> None:
        """Call a function with this commit once it is done; at once, if it is.

        It is called in the thread that sends, which waits for it: it must not wait for a commit
        itself.  What it raises is logged.  It takes a failure only by `result` or `exception`.
        """
        with self._sender.changed:
            if not self.done():
                self._callbacks = [*(self._callbacks or ()), call]
                return
        self._call(call)

    # -- for its sender -------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, without taking that."""
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def settle(self, outcome: Receipt | BaseException, index: int | None = None) -> None:
        """Say what became of it; the sender has its lock.

        Args:
            outcome: Its receipt, or that of its run, or an error.
            index: Its place in the run.
        """
        self._index, self._outcome = index, outcome

    def call_back(self) -> None:
        """Make the calls that waited for it to be done; without the lock."""
        callbacks, self._callbacks = self._callbacks, None
        for call in callbacks or ():
            self._call(call)

    def _call(self, call: Callable[[PendingCommit], object]) -> None:
        try:
            call(self)
        except (Exception, SystemExit):  # noqa: BLE001 - the sender goes on
            _log.exception("a callback of transaction %s failed", self.id)

    def receipt_in(self, run: Receipt, index: int) -> Receipt:
        """Return its receipt as the transaction at `index` of a run that is not rejected."""
        position = None if run.position is None else run.position + index
        # A node that does not keep the outcomes of a run gives no receipt of it.
        outcome = run.outcome if run.n == 1 or position is None else "committed"
        return replace(
            run,
            transaction_id=self.id,
            n=1,
            position=position,
            outcome=outcome,
            rejections=(),
            ids=(),
            rows=self._rows,
        )


def _rank(level: str) -> int:
    wanted, sites = parse_level(level)
    if sites != 1:
        raise InvalidRequestError(
            f"level {level!r} cannot be waited for later",
            hint=f"Begin with it: client.background(level={level!r}).",
            field="level",
            value=level,
        )
    return LEVEL_RANK[wanted]
