"""All errors of sparktxlog, in one tree.

Every class says with `definite` whether the refused or failed act certainly did **not** happen
(`True`) or may have happened (`False`: ask for the transaction id before doing it again).  Each
instance carries a stable `code`, the fields of the case and a `hint` that names the way out, so
that HTTP (RFC 9457), the CLI and Python show the same text.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict, Unpack


class _Facts(TypedDict, total=False):
    """What a class statement of an error may say; the rest is as in its base."""

    code: str
    definite: bool
    retryable: bool
    http_status: int


class TxLogError(Exception):
    """Base of all errors of sparktxlog.

    Args:
        message: What is wrong, with the value that is.
        hint: What to do about it.
        fields: The case as data, shown beside the text in JSON.
    """

    #: Stable identifier, part of the public interface.
    code: ClassVar[str] = "error"
    #: True: certainly nothing happened.  False: it may have happened.
    definite: ClassVar[bool] = True
    #: True: the same call may succeed later.
    retryable: ClassVar[bool] = False
    #: Status of the HTTP answer that carries this error.
    http_status: ClassVar[int] = 500
    #: Hint of an error that is raised without one.
    way_out: ClassVar[str] = ""

    def __init_subclass__(cls, **facts: Unpack[_Facts]) -> None:
        for name, value in facts.items():
            setattr(cls, name, value)

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.way_out
        self.fields = fields

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text}  {self.hint}" if self.hint else text

    def to_problem(self) -> dict[str, Any]:
        """Return the error as an RFC 9457 problem document."""
        return {
            "type": f"urn:sparktxlog:error:{self.code}",
            "title": self.code,
            "status": self.http_status,
            "detail": self.message,
            "hint": self.hint,
            "definite": self.definite,
            "retryable": self.retryable,
            "fields": {name: _plain(value) for name, value in self.fields.items()},
        }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


class ConfigError(TxLogError, code="config", http_status=400):
    """A configuration value is missing or wrong: fields `file`, `key`, `value`."""


class MissingDependencyError(TxLogError, code="missing-dependency"):
    """An optional library is not installed: the hint is the command that installs it."""


class ProtocolError(TxLogError, code="protocol"):
    """The sync protocol was broken, here or by a peer."""


class LocalProtocolError(ProtocolError, code="protocol-local", http_status=409):
    """This node was asked for something its protocol state does not allow."""


class RemoteProtocolError(ProtocolError, code="protocol-remote", http_status=400):
    """A peer sent what the protocol does not allow; its message changed nothing."""


class UnknownKindError(RemoteProtocolError):
    """A peer of a later release sent a kind of message that this one does not know."""


class CommitRejectedError(TxLogError, code="rejected", http_status=422):
    """The transaction certainly did not and will not take effect."""


class UnknownTableError(CommitRejectedError, code="unknown-table", http_status=404):
    """The table is not in the catalog at this node's position."""


class SchemaMismatchError(CommitRejectedError, code="schema-mismatch"):
    """Columns or types are not the table's."""


class InvalidRowsError(CommitRejectedError, code="invalid-rows"):
    """Rows break a rule of the table: NULL or duplicate keys, no rows."""


class InvalidNameError(CommitRejectedError, code="invalid-name", http_status=400):
    """A name or path is outside the allowed pattern."""


class InvalidRequestError(CommitRejectedError, code="invalid-request", http_status=400):
    """The request cannot be understood: wrong JSON, wrong field, wrong value."""


class DuplicateTransactionError(CommitRejectedError, code="duplicate-transaction", http_status=409):
    """The transaction id stands for another transaction."""


class ExpiredIdError(CommitRejectedError, code="expired-id", http_status=409):
    """The transaction was ordered so long after it was accepted that its id may be a repeat."""


class ExpiredTransactionError(CommitRejectedError, code="expired-transaction", http_status=409):
    """The transaction was ordered, or submitted, after the time that it was valid until."""


class OversizeError(CommitRejectedError, code="oversize", http_status=413):
    """A body, run or transaction is over its configured limit."""


class UnsupportedTypeError(CommitRejectedError, code="unsupported-type", http_status=415):
    """The body of a request has a type that no route takes."""


class HeadTooLongError(CommitRejectedError, code="head-too-long", http_status=431):
    """URL and headers of a request are longer than a node takes."""


class SlowRequestError(CommitRejectedError, code="slow-request", retryable=True, http_status=408):
    """A request did not arrive in time."""


class ManifestMismatchError(CommitRejectedError, code="manifest-mismatch"):
    """A staged file is not what its manifest says: digest, size, rows or schema."""


class PayloadStoreError(CommitRejectedError, code="payload-store"):
    """The node cannot see staged files: node and executors do not share the payload store."""


class BusyError(CommitRejectedError, code="busy", retryable=True, http_status=503):
    """A bounded queue is full; the same submit may succeed later."""


class NotMemberError(CommitRejectedError, code="not-a-member", retryable=True, http_status=503):
    """The node is no member of the current epoch: it takes no transactions (P19).

    It asks by itself to be admitted, which takes seconds, so the same submit may succeed later.
    """

    way_out = (
        "Try again, since the node asks to be admitted, or submit at another site; `sparktxlog "
        "status` says why it is no member."
    )


class NoQuorumError(CommitRejectedError, code="no-quorum", retryable=True, http_status=503):
    """Too few nodes answer: the level cannot be reached before others return.

    Fields `waits_for` (nodes that are not heard) and `levels` (the highest one that is possible).
    """

    way_out = (
        "Try again, or submit at another site.  At level `accepted` the node keeps it, and "
        "it is ordered when the others are back."
    )


class PausedError(CommitRejectedError, code="paused", retryable=True, http_status=503):
    """An operator paused the node: it takes no transactions."""


class PositionNotReachedError(
    CommitRejectedError, code="position-not-reached", retryable=True, http_status=503
):
    """The node has not got to the position after which the request was to come.

    Fields `after`, and `position` that the node has got to.
    """

    way_out = (
        "Try again, here or elsewhere; `sparktxlog status` names the nodes that are missing.  "
        "After a restore or `peer force` the log may end before it: then connect again."
    )


class CommitStateUnknownError(
    TxLogError, code="unknown-outcome", definite=False, retryable=True, http_status=504
):
    """The transaction may or may not take effect: ask for its id (field `transaction_id`)."""


class NotFoundError(TxLogError, code="not-found", http_status=404):
    """What was asked for is not there."""


class StorageError(TxLogError, code="storage", definite=False):
    """The node's storage failed."""


class CorruptLogError(StorageError, code="corrupt-log"):
    """Stored bytes are damaged beyond what the node may repair by itself."""


class FrontLostError(CorruptLogError):
    """The journal lacks what the node's other files say it had: the node must not go on with it."""


class NewerReleaseError(CorruptLogError, code="newer-release", definite=True):
    """A newer release wrote this, and the one at hand would read it wrongly; nothing changed."""


class ExpiredError(StorageError, code="expired", definite=True, http_status=410):
    """The entry was pruned from the log."""


class LeaseGoneError(StorageError, code="lease-gone", definite=True, http_status=410):
    """The lease of a copy was released, has expired, or is of an earlier start of the donor."""


class FileChangedError(StorageError, code="file-changed", definite=True, http_status=410):
    """A pinned file is no longer what it was when it was pinned."""


class LockedError(StorageError, code="locked", definite=True):
    """Another process owns this directory."""


class DiskFullError(StorageError, code="disk-full", definite=True, retryable=True, http_status=507):
    """No space left: nothing of this act was kept."""


class TransportError(TxLogError, code="transport", definite=False, retryable=True, http_status=502):
    """A node could not be reached or the link broke in the middle."""


class UnreachableError(TransportError, code="unreachable", definite=True):
    """No connection to the node came about: nothing was sent."""


class PeerTimeoutError(TransportError, code="peer-timeout"):
    """A peer did not answer in time."""


class DonorYieldsError(TransportError, code="donor-yields", definite=True, http_status=503):
    """A donor's own transactions go first for a while: ask again."""


class DamagedChunkError(TransportError, code="damaged-chunk"):
    """Bytes of a copy are not what the donor's digest says, twice in a row: they were not used."""


class UnauthorizedError(
    TransportError, code="unauthorized", definite=True, retryable=False, http_status=401
):
    """Credentials are missing or wrong."""


class ForbiddenError(UnauthorizedError, code="forbidden", http_status=403):
    """The credentials are good, and not for this: it takes an operator's (`admin-token`)."""


class ForeignPageError(UnauthorizedError, code="foreign-page", http_status=403):
    """The request comes from a page of another site, in a browser."""


class ForbiddenPeerError(UnauthorizedError, code="forbidden-peer", http_status=403):
    """The sender is no configured peer, or not the one it claims to be."""


class WireVersionError(ForbiddenPeerError, code="wire-version"):
    """The two nodes speak no common wire version, or the log works by a later one (P31)."""


class ApplyError(TxLogError, code="apply"):
    """A worker could not apply a batch; the table keeps its last whole state."""


class PayloadLostError(ApplyError, code="payload-lost"):
    """A file that a batch needs is damaged here, and no other site gave it."""


class DivergedError(ApplyError, code="diverged", http_status=409):
    """A replica's table is not what the log makes of it."""


class ForeignLogError(DivergedError, code="foreign"):
    """The replica is of another log than the node's: it is the wrong node, or the wrong lake."""


class CopyConflictError(ApplyError, code="copy-conflict", retryable=True, http_status=409):
    """Somebody wrote to a table while a copy replaced it; the table is as that writer left it."""


class NotAppliedError(ApplyError, code="not-applied", retryable=True, http_status=409):
    """The table or position asked for was not applied here yet."""


class CommittedNotAppliedError(ApplyError, code="committed-not-applied", definite=False):
    """The transaction has its position, and `apply="inline"` could not apply it here.

    Attribute `receipt`: what the commit would have returned, None where the error came as JSON.
    """

    way_out = (
        "Do not commit it again: every site has it.  log.apply() tries once more; `sparktxlog "
        "status` says what keeps this site's tables."
    )

    def __init__(self, message: str, *, hint: str = "", receipt: Any = None, **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.receipt = receipt


class InternalError(TxLogError, code="internal", definite=False):
    """The node failed at a request in an unforeseen way; its log has the trace."""


class InvariantViolation(TxLogError, code="invariant", definite=False):
    """An invariant of the protocol does not hold: the node must stop and not guess."""


class ContradictionError(InvariantViolation, code="contradiction"):
    """A node contradicts what it said itself: nothing more of it is believed (P10, P30)."""

    def __init__(self, message: str, *, peer: str = "", hint: str = "", **fields: object) -> None:
        super().__init__(message, hint=hint, **({"peer": peer} if peer else {}), **fields)
        self.peer = peer


class OtherQueueError(ContradictionError, code="diverged"):
    """A node has another queue at a position that this one knows (I1)."""


class OutdatedError(InvariantViolation, code="outdated"):
    """Others hold what this node said and does not know of: its disk is an older image (P30)."""


def first_lines(error: BaseException, most: int = 3) -> str:
    """Return the first lines of an error's text as one: Spark's go on with a trace."""
    return " ".join(str(error).strip().split("\n")[:most])[:600]


#: The way out for a node whose history is another one than that of the log which goes on (P28).
QUARANTINE_HINT = (
    "On the side that gives way, stop the node and run `sparktxlog peer quarantine --config FILE "
    "--from URL` (URL of a node that goes on). It keeps what only this node has, and lets it join."
)
