"""What participants of a prepared transaction ask of the nodes: a mark, and the decision (P35)."""

from __future__ import annotations

import time

import msgspec

from sparktxlog.api.nodes import Nodes, committed
from sparktxlog.codec.mark_requests import MarkRequest
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.receipt import Level, Receipt

_encode = msgspec.json.Encoder().encode


def send_mark(
    link: Nodes, transaction_id: str, participant: str, *, yes: bool, timeout_s: float
) -> Receipt:
    """Say YES or NO at the first node that takes it; return the receipt of the mark.

    To say the same again is to repeat one transaction, so each node may be asked.

    Raises:
        NotPreparedError: It is decided already, or was never prepared (definite).
        NotParticipantError: It does not wait for this one (definite).
        CommitRejectedError: The mark does not count; the class says why (definite).
        CommitStateUnknownError, TransportError: It may have been taken: say it again.
    """
    text = transaction_id_to_text(transaction_id_from_text(transaction_id))
    body = _encode(MarkRequest(participant=participant, yes=yes))
    return committed(link.post(f"/v1/transactions/{text}/marks", body, timeout_s))


def decision(link: Nodes, transaction_id: str, timeout_s: float) -> Receipt:
    """Wait until a prepared transaction is decided; return its receipt.

    Its outcome is `prepared` if it is undecided still.

    Raises:
        CommitRejectedError: It takes no effect; the class says why (definite).
        CommitStateUnknownError: It was not ordered in time (not definite).
        NotFoundError: No node ever saw it (definite).
    """
    text = transaction_id_to_text(transaction_id_from_text(transaction_id))
    end = time.monotonic() + timeout_s
    receipt = link.wait(text, Level.ORDERED.value, timeout_s)
    while receipt.outcome == "prepared" and (left := end - time.monotonic()) > 0:
        answer = link.get(
            f"/v1/transactions/{text}", timeout_s=left, waits=True, after=receipt.position
        )
        receipt = msgspec.convert(answer, Receipt)
    if receipt.position is not None:
        link.after(receipt.position)
    return committed(receipt)
