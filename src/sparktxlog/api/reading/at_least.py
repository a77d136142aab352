"""What a reader waits for: a position, or the receipt of what it wants to see.

Positions of two logs cannot be compared.  A receipt names its log, so that a node of another one
refuses it; a bare position cannot be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sparktxlog.api.writing.arrow_batches import BatchReceipt
from sparktxlog.api.writing.rows_to_transactions import GroupedReceipt
from sparktxlog.errors import InvalidRequestError, LocalProtocolError
from sparktxlog.model.transactions.receipt import Receipt

if TYPE_CHECKING:
    from sparktxlog.api.nodes import Nodes

    #: A position, or receipts of this log from any site.
    Seen: TypeAlias = int | Receipt | BatchReceipt | GroupedReceipt | None
    #: The same, or "own": all that the session committed, read and learned of.
    AtLeast: TypeAlias = Seen | Literal["own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPosition:
    """The position that a reader must see; 0 = any."""

    position: int = 0
    #: Its log; None = not known.
    log_id: str | None = None


def least_position(at_least: Seen) -> LeastPosition:
    """Return the position of a receipt, of all transactions of a batch, or as it is given.

    A commit of no rows has no position and nothing to wait for.

    Raises:
        LocalProtocolError: The transaction was not ordered when the receipt was made (definite).
        InvalidRequestError: It is neither a position nor a receipt (definite).
    """
    if at_least is None or isinstance(at_least, int):
        return LeastPosition(position=at_least or 0)
    if isinstance(at_least, Receipt):
        receipts: tuple[Receipt, ...] = (at_least,)
    elif isinstance(at_least, BatchReceipt):
        receipts = at_least.receipts
    elif isinstance(at_least, GroupedReceipt):
        receipts = at_least.runs
    else:
        raise InvalidRequestError(
            f"at_least is {at_least!r}, expected a position or a receipt",
            hint="Give receipt.position, the receipt itself, or leave it out.",
        )
    found = [_least(receipt) for receipt in receipts]
    return max(found, key=lambda wanted: wanted.position, default=LeastPosition())


def come_after(link: Nodes, seen: Seen) -> None:
    """Let later requests to the nodes come after a position, or after the transactions of receipts.

    Raises:
        ForeignLogError: A receipt of another log (definite).
        LocalProtocolError, InvalidRequestError: As `least_position`.
        TransportError: For a receipt: no node answers that could say whether it is of its log.
    """
    wanted = least_position(seen)
    if wanted.log_id is not None:
        link.get("/v1/published", at_least=wanted.position, log_id=wanted.log_id)  # no wait
    link.after(wanted.position)


def _least(receipt: Receipt) -> LeastPosition:
    if not receipt.n:
        return LeastPosition()
    if receipt.position is None:
        what = "the run" if receipt.transaction_id is None else receipt.transaction_id
        reached = "nothing" if receipt.level is None else receipt.level.value
        raise LocalProtocolError(
            f"the receipt of {what} has no position: it had reached {reached!r}, not 'ordered'",
            hint="Commit at level ordered, or ask for its id until the receipt has a position: "
            "log.find(id), client.wait(id).",
            transaction_id=receipt.transaction_id,
        )
    return LeastPosition(position=receipt.position + receipt.n - 1, log_id=receipt.log_id)
