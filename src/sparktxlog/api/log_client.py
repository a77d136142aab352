"""Questions that both clients of a log ask its nodes: `Client`, and `TxLog` of a Spark session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import msgspec

from sparktxlog.api.nodes import Nodes
from sparktxlog.api.reading.at_least import come_after
from sparktxlog.codec.submits.arguments import flag_given, seconds_given
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.codec.submits.mark_requests import MarkRequest
from sparktxlog.codec.submits.requests import encode_request
from sparktxlog.health.cluster_status import ClusterStatus
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.tables.table_kind import TableDescription
from sparktxlog.model.transactions.receipt import Level, Receipt

if TYPE_CHECKING:
    from sparktxlog.api.reading.at_least import Seen


class LogClient:
    """A client of one node, or of several nodes of one log.

    Args:
        link: The nodes.
        timeout_s: Seconds that a call may take by default.
    """

    def __init__(self, link: Nodes, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

    def after(self, position: Seen) -> None:
        """Make later commits and reads come after a position, or after what receipts say.

        A client remembers the positions of its own receipts; this is for those of other clients.
        A node that has not reached the position waits, at most as long as the call may take.

        Raises:
            ForeignLogError: A receipt of another log (definite).
            LocalProtocolError: A receipt without a position: it was not ordered yet (definite).
            TransportError: For a receipt: no node answers that could name its log.
        """
        come_after(self._link, position)

    def mark(
        self, transaction_id: str, participant: str, *, yes: bool, timeout: float | None = None
    ) -> Receipt:
        """Say YES or NO to a prepared transaction, for one of its participants.

        The receipt is that of the mark; `decision` says what becomes of the transaction.  To say
        the same again is to repeat one transaction, so it is harmless, at any node.

        Args:
            transaction_id: Of the prepared transaction, a UUID.
            participant: One of its participants.
            yes: False: it must not take effect; also after a YES, until it is decided.
            timeout: Seconds; instead of the client's.

        Raises:
            NotPreparedError: It is decided, or not prepared; field `outcome` (definite).
            NotParticipantError: It does not wait for this one (definite).
            CommitRejectedError: The mark does not count; the class says why (definite).
            CommitStateUnknownError, TransportError: It may have been taken: say it again.
        """
        text = transaction_id_to_text(transaction_id_from_text(transaction_id))
        body = encode_request(MarkRequest(participant=participant, yes=flag_given(yes, "yes")))
        path, timeout_s = f"/v1/transactions/{text}/marks", self._seconds(timeout)
        return committed(self._link.post(path, body, timeout_s))

    def decision(self, transaction_id: str, timeout: float | None = None) -> Receipt:
        """Wait until a prepared transaction is decided; return its receipt.

        Later calls come after it.  After `timeout` its outcome may still be `prepared`.

        Raises:
            RolledBackError, ExpiredTransactionError, StaleSchemaError, ConflictError: It takes no
                effect (definite).
            CommitStateUnknownError: It was not ordered in time (not definite).
            NotFoundError: No node ever saw it (definite).
        """
        text = transaction_id_to_text(transaction_id_from_text(transaction_id))
        timeout_s, link = self._seconds(timeout), self._link
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

    def describe(self, name: str) -> TableDescription:
        """Return a table of either kind: columns, comments, properties, and where it is.

        Raises:
            UnknownTableError: There is none (definite).
        """
        return self._link.describe(name)

    def status(self) -> ClusterStatus:
        """Return the node's status: queues, peers, missing nodes, replicas; it prints in words."""
        return ClusterStatus(self._link.get("/v1/status"))

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout_s if timeout is None else seconds_given(timeout)
