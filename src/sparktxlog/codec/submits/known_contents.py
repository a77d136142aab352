"""An id belongs to its content: what is submitted under a known id is compared with that.

A client that submits the same again gets the receipt of the first.  Other content under the id is
refused, or it would be lost in silence.  What is not known of one of both is not compared: ids of
older releases.  See docs/decisions/0073-ids-belong-to-their-content.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from sparktxlog.codec.containers.assembly import content_digests
from sparktxlog.codec.submits.content_digests import differing
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import DuplicateTransactionError, IdTakenError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.operation import DIGEST_BYTES, RunManifest
from sparktxlog.model.transactions.receipt import Receipt, ReceiptRejection


class Content:
    """What is submitted under some ids; its digests are made when they are first needed.

    Args:
        of: A single transaction, or a checked run; or the id of a single one.
        first_wins: Whatever the log has under an id counts: nothing is compared.
        digest: What the content of an id is known by; empty = it is not compared.
    """

    def __init__(
        self,
        of: PreparedTransaction | RunManifest | bytes,
        *,
        first_wins: bool = False,
        digest: bytes = b"",
    ) -> None:
        self._of = of
        self._digest = digest
        self._is_compared = not first_wins
        #: Of a run; None = a single transaction.
        self.run = of if isinstance(of, RunManifest) else None
        if isinstance(of, PreparedTransaction):
            of = of.transaction_id
        #: 16 bytes for each transaction.
        self.ids = of.ids if isinstance(of, RunManifest) else of

    @property
    def is_several(self) -> bool:
        """Whether it is a run of more than one transaction."""
        return len(self.ids) > 16

    @cached_property
    def digests(self) -> bytes:
        """What it is compared by, empty = it is not compared."""
        if not self._is_compared:
            return b""
        if isinstance(self._of, PreparedTransaction):
            return content_digests([self._of])
        return self._digest if self.run is None else self.run.content_digests

    def check(self, other: Content) -> None:
        """Compare with a single transaction of the same id that is not in the journal yet.

        Raises:
            IdTakenError: It has other content (definite).
        """
        if differing(self.digests, other.digests):
            raise self._taken(0, None)

    def judged(self, first: Receipt, held: bytes, position: int | None) -> Receipt:
        """Return the receipt of the first submit of these ids, as it is for this one.

        Args:
            held: Digests of what was submitted first.
            position: Where that stands; None = nowhere yet.

        Raises:
            IdTakenError: A single transaction, with other content (definite).
        """
        others = differing(self.digests, held)
        if not others:
            return first
        if not self.is_several:
            raise self._taken(0, position)
        by_index = {rejection.index: rejection for rejection in first.rejections}
        for index in others:
            by_index[index] = self._rejection(index, None if position is None else position + index)
        return replace(first, rejections=tuple(by_index[index] for index in sorted(by_index)))

    def with_taken_ids(
        self,
        receipt: Receipt,
        locate: Callable[[bytes], int | None],
        digests_at: Callable[[int], bytes],
    ) -> Receipt:
        """Return the receipt of a run if some of its ids were ordered before, in other runs.

        Args:
            locate: Returns the first position of an id.
            digests_at: Returns the digest of what was submitted at a position.
        """
        rejections = []
        for rejection in receipt.rejections:
            at = rejection.index * DIGEST_BYTES
            own = self.digests[at : at + DIGEST_BYTES]
            if rejection.code == DuplicateTransactionError.code and own:
                first = locate(self._id(rejection.index))
                if first is not None and differing(own, digests_at(first)):
                    rejection = self._rejection(rejection.index, first)
            rejections.append(rejection)
        return replace(receipt, rejections=tuple(rejections))

    def _id(self, index: int) -> bytes:
        return self.ids[16 * index : 16 * index + 16]

    def _taken(self, index: int, position: int | None) -> IdTakenError:
        text = transaction_id_to_text(self._id(index))
        where = "is under way" if position is None else f"stands at position {position:,}"
        return IdTakenError(
            f"transaction id {text} belongs to other content, which {where}",
            field="transaction_id",
            value=text,
            transaction_id=text,
            position=position,
        )

    def _rejection(self, index: int, position: int | None) -> ReceiptRejection:
        error = self._taken(index, position)
        return ReceiptRejection(index=index, code=error.code, text=error.message)
