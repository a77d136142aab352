"""Waiting for a level that a receipt has not reached yet."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from sparktxlog.api.batches import BatchReceipt
from sparktxlog.api.nodes import Nodes
from sparktxlog.codec.requests import parse_level
from sparktxlog.errors import (
    CommitStateUnknownError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
)
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.receipt import LEVEL_RANK, Receipt

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25


def wait_for(
    link: Nodes, receipt: Receipt | BatchReceipt | str, level: str, timeout_s: float
) -> Receipt:
    """Ask until the level is reached; see `Client.wait`."""
    wanted, copies = parse_level(level)
    if copies != 1:
        raise InvalidRequestError(
            f"level {level!r} can only be asked for at submit", hint="Wait for applied."
        )
    transaction_id = _id_of(receipt)
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    pause_s = _FIRST_PAUSE_S
    while True:
        found: Receipt | None = None
        try:
            found = link.receipt(transaction_id, max(0.0, deadline - time.monotonic()))
        except NotFoundError as error:
            if not error.fields.get("unheard"):
                raise  # else a node that does not answer may have it
        level_now = None if found is None else found.level
        if (
            found is not None
            and level_now is not None
            and LEVEL_RANK[level_now] >= LEVEL_RANK[wanted]
        ):
            return found
        left = deadline - time.monotonic()
        if left <= 0 and found is not None and found.position is not None:
            return replace(found, late=True)
        if left <= 0:
            reached = None if level_now is None else level_now.value
            raise CommitStateUnknownError(
                f"transaction {transaction_id} has not reached {level!r} in time",
                hint="It may still get there.",
                transaction_id=transaction_id,
                reached=reached,
            )
        pause.wait(min(pause_s, left))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _id_of(receipt: Receipt | BatchReceipt | str) -> str:
    if isinstance(receipt, str):
        return transaction_id_to_text(transaction_id_from_text(receipt))
    if isinstance(receipt, BatchReceipt):
        if not receipt.n:
            raise LocalProtocolError("the batch had no rows: there is nothing to wait for")
        return receipt.transaction_id(receipt.n - 1)
    if receipt.transaction_id is None:
        if not receipt.n:
            raise LocalProtocolError("nothing was submitted: there is nothing to wait for")
        if receipt.ids:
            return receipt.ids[-1]
        raise LocalProtocolError(
            "the receipt of a run names no transaction", hint="Wait for one of its ids."
        )
    return receipt.transaction_id
