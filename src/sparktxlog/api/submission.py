"""Transactions and runs on their way to a node, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from sparktxlog.api.batches import RUN_CONTENT_TYPE
from sparktxlog.api.grouped import EncodedRun
from sparktxlog.api.http import error_of_rejection
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.waiting import wait_for
from sparktxlog.codec.requests import parse_level, request_of
from sparktxlog.codec.transactions import PreparedTransaction
from sparktxlog.errors import (
    NotFoundError,
    TxLogError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.receipt import Level, Receipt


class Submission:
    """Submits over the client interface of one node, or of several.

    Args:
        link: The nodes.
        home: URL of the node in whose payload store files are staged.
    """

    def __init__(self, link: Nodes, home: str) -> None:
        self._link = link
        self._home = home

    def submit(self, transaction: PreparedTransaction, level: str, timeout_s: float) -> Receipt:
        """Commit one transaction and return its receipt at the level.

        Raises:
            CommitRejectedError: It does not take effect; the class says why (definite).
            CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
            UnreachableError: No node answers; nothing was sent (definite).
        """
        staged = any(operation.files for operation in transaction.operations)
        receipt = self._link.submit(
            "/v1/transactions",
            request_of(transaction),
            "application/json",
            transaction.transaction_id,
            level=level,
            timeout_s=timeout_s,
            only=self._home if staged else None,
        )
        return committed(receipt)

    def submit_runs(
        self, runs: Iterable[EncodedRun], level: str, timeout_s: float
    ) -> list[tuple[EncodedRun, Receipt]]:
        """Commit runs in order, each posted while the next is being encoded.

        A run is posted once the one before is accepted, so that their order is kept; the level is
        awaited at the end.

        Raises:
            CommitRejectedError: A run was refused; the hint says how many transactions before it
                are accepted (definite for the rest).
            CommitStateUnknownError: As `submit`.
        """
        deadline = time.monotonic() + timeout_s
        posted: list[tuple[EncodedRun, Receipt]] = []
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="txlog-submit") as pool:
            pending: tuple[EncodedRun, Future[Receipt]] | None = None
            for run in runs:
                if pending is not None:
                    posted.append((pending[0], _result(pending[1], posted)))
                pending = (run, pool.submit(self._post_run, run, "accepted", deadline))
            if pending is not None:
                posted.append((pending[0], _result(pending[1], posted)))
        if parse_level(level)[0] is Level.ACCEPTED:
            return posted
        # A repeated run is answered from the first one, once that has reached the level.
        return [(run, self._post_run(run, level, deadline)) for run, _ in posted]

    def _post_run(self, run: EncodedRun, level: str, deadline: float) -> Receipt:
        return self._link.submit(
            "/v1/runs",
            run.payload,
            RUN_CONTENT_TYPE,
            run.transaction_id,
            level=level,
            timeout_s=max(0.0, deadline - time.monotonic()),
        )

    def find(self, transaction_id: bytes, timeout_s: float | None = None) -> Receipt | None:
        """Return what is known of a transaction, None if no node that answers ever saw it."""
        try:
            return self._link.receipt(transaction_id_to_text(transaction_id), timeout_s)
        except NotFoundError:
            return None

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> Receipt | None:
        """Return the receipt of a transaction that a node knows, once at the level.

        Raises:
            CommitRejectedError: It was refused by the order of the log (definite).
            CommitStateUnknownError: It did not reach the level in time (not definite).
        """
        deadline = time.monotonic() + timeout_s
        receipt = self.find(transaction_id, timeout_s)
        if receipt is None:
            return None
        left = max(0.0, deadline - time.monotonic())
        return committed(wait_for(self._link, receipt, level, left))


def committed(receipt: Receipt) -> Receipt:
    """Return the receipt of a transaction that takes effect, or is not ordered yet.

    Raises:
        CommitRejectedError: It was rejected at its position; the class fits the code (definite).
    """
    if receipt.outcome == "rejected":
        raise error_of_rejection(receipt)
    return receipt


def _result(future: Future[Receipt], posted: list[tuple[EncodedRun, Receipt]]) -> Receipt:
    try:
        return future.result()
    except TxLogError as error:
        done = sum(run.n for run, _ in posted)
        error.hint = f"{error.hint} The first {done:,} transactions of the batch are accepted."
        error.fields["accepted_transactions"] = done
        raise
