"""Prepared transactions and marks in requests: their form, and what is refused (P35).

"participants": ["billing", "stock"]        of a transaction, which also has "valid_until"
{"participant": "billing", "yes": true}     of a mark
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from sparktxlog.codec.containers.assembly import as_ids
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.operation import Mark

#: Most participants of a prepared transaction.
MOST_PARTICIPANTS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class MarkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a participant says of a prepared transaction."""

    participant: str
    #: False: it must not take effect.
    yes: bool


def participants_of(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the participants that a request names, checked.

    Raises:
        InvalidRequestError: None, too many, one twice, or one that cannot be a name (definite).
    """
    if names is None:
        return ()
    if not 1 <= len(names) <= MOST_PARTICIPANTS or len(set(names)) < len(names):
        raise InvalidRequestError(
            f"expected 1 to {MOST_PARTICIPANTS} participants, each once; got {len(names)}",
            field="participants",
            value=list(names)[: MOST_PARTICIPANTS + 1],
        )
    return tuple(_checked(name, "participants") for name in names)


def check_prepared(
    operations: Sequence[PreparedOperation], valid_until: int | None, session: str | None
) -> None:
    """Refuse a prepared transaction that could not be decided, or that does what it may not.

    Raises:
        InvalidRequestError: Nothing happened (definite).
    """
    if valid_until is None:
        raise InvalidRequestError(
            "a prepared transaction needs valid_until: it is rejected if it is undecided then",
            field="valid_until",
        )
    if session is not None:
        raise InvalidRequestError(
            "a prepared transaction belongs to no session: it takes effect where it is decided",
            field="session",
            value=session,
        )
    for operation in operations:
        if operation.definition is not None or operation.change is not None:
            raise InvalidRequestError(
                f"a prepared transaction cannot {operation.kind.value.replace('_', ' ')} "
                f"{operation.table!r}",
                hint="Create or change the table before, in a transaction of its own.",
                field="kind",
                value=operation.kind.value,
            )


def marking(transaction_id: bytes, said: MarkRequest) -> PreparedTransaction:
    """Return the transaction that is a mark.

    Its id follows from what it says: to say it again, anywhere, is to repeat it (P25c).

    Args:
        transaction_id: Of the prepared transaction.

    Raises:
        InvalidRequestError: The participant cannot be a name (definite).
    """
    mark = Mark(
        transaction_id=transaction_id,
        participant=_checked(said.participant, "participant"),
        yes=said.yes,
    )
    return PreparedTransaction(transaction_id=mark_id(mark), operations=(), mark=mark)


def mark_id(mark: Mark) -> bytes:
    """Return the transaction id of a mark."""
    text = b"mark:%s:%d:%s" % (mark.transaction_id, mark.yes, mark.participant.encode())
    return as_ids(hashlib.sha256(text).digest()[:16])


def _checked(name: str, field: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name[:80]!r} cannot name a participant",
            hint="Use letters, digits, '.', '-' and '_', 64 at most.",
            field=field,
            value=name[:80],
        )
    return name
