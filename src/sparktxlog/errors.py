"""All errors of sparktxlog, in one tree.

Every class says with `definite` whether the refused or failed act certainly did **not** happen
(`True`) or may have happened (`False`: ask for the transaction id before doing it again).  Each
instance carries a stable `code`, the fields of the case and a `hint` that names the way out, so
that HTTP (RFC 9457), the CLI and Python show the same text.

    TxLogError
      ConfigError                      MissingDependencyError
      ProtocolError                    LocalProtocolError, RemoteProtocolError
      CommitRejectedError  definite    UnknownTableError, SchemaMismatchError, InvalidRowsError,
                                       InvalidNameError, DuplicateTransactionError, ExpiredIdError,
                                       ExpiredTransactionError, OversizeError,
                                       ManifestMismatchError, PayloadStoreError, BusyError,
                                       NotMemberError, NoQuorumError, PausedError,
                                       HeadTooLongError, SlowRequestError,
                                       PositionNotReachedError,
                                       UnsupportedTypeError
      CommitStateUnknownError          may have happened; carries the transaction id
      StorageError                     CorruptLogError (FrontLostError), ExpiredError, LockedError,
                                       DiskFullError, LeaseGoneError, FileChangedError
      TransportError                   PeerTimeoutError, UnauthorizedError, ForbiddenError,
                                       ForeignPageError,
                                       UnreachableError, DamagedChunkError
      ApplyError                       DivergedError (ForeignLogError), NotAppliedError,
                                       CopyConflictError,
                                       CommittedNotAppliedError (not definite)
      InternalError                    a bug of the node: it may have happened
      InvariantViolation               a bug or a damaged disk: the node stops
"""

from __future__ import annotations

from typing import Any, ClassVar


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


class ConfigError(TxLogError):
    """A configuration value is missing or wrong: fields `file`, `key`, `value`."""

    code = "config"
    http_status = 400


class MissingDependencyError(TxLogError):
    """An optional library is not installed: the hint is the command that installs it."""

    code = "missing-dependency"


class ProtocolError(TxLogError):
    """The sync protocol was broken, here or by a peer."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This node was asked for something its protocol state does not allow."""

    code = "protocol-local"
    http_status = 409


class RemoteProtocolError(ProtocolError):
    """A peer sent what the protocol does not allow; its message changed nothing."""

    code = "protocol-remote"
    http_status = 400


class UnknownKindError(RemoteProtocolError):
    """A peer of a later release sent a kind of message that this one does not know."""


class CommitRejectedError(TxLogError):
    """The transaction certainly did not and will not take effect."""

    code = "rejected"
    http_status = 422


class UnknownTableError(CommitRejectedError):
    """The table is not in the catalog at this node's position."""

    code = "unknown-table"
    http_status = 404


class SchemaMismatchError(CommitRejectedError):
    """Columns or types are not the table's."""

    code = "schema-mismatch"


class InvalidRowsError(CommitRejectedError):
    """Rows break a rule of the table: NULL or duplicate keys, no rows."""

    code = "invalid-rows"


class InvalidNameError(CommitRejectedError):
    """A name or path is outside the allowed pattern."""

    code = "invalid-name"
    http_status = 400


class InvalidRequestError(CommitRejectedError):
    """The request cannot be understood: wrong JSON, wrong field, wrong value."""

    code = "invalid-request"
    http_status = 400


class DuplicateTransactionError(CommitRejectedError):
    """The transaction id stands for another transaction."""

    code = "duplicate-transaction"
    http_status = 409


class ExpiredIdError(CommitRejectedError):
    """The transaction was ordered so long after it was accepted that its id may be a repeat."""

    code = "expired-id"
    http_status = 409


class ExpiredTransactionError(CommitRejectedError):
    """The transaction was ordered, or submitted, after the time that it was valid until."""

    code = "expired-transaction"
    http_status = 409


class OversizeError(CommitRejectedError):
    """A body, run or transaction is over its configured limit."""

    code = "oversize"
    http_status = 413


class UnsupportedTypeError(CommitRejectedError):
    """The body of a request has a type that no route takes."""

    code = "unsupported-type"
    http_status = 415


class HeadTooLongError(CommitRejectedError):
    """URL and headers of a request are longer than a node takes."""

    code = "head-too-long"
    http_status = 431


class SlowRequestError(CommitRejectedError):
    """A request did not arrive in time."""

    code = "slow-request"
    retryable = True
    http_status = 408


class ManifestMismatchError(CommitRejectedError):
    """A staged file is not what its manifest says: digest, size, rows or schema."""

    code = "manifest-mismatch"


class PayloadStoreError(CommitRejectedError):
    """The node cannot see staged files: node and executors do not share the payload store."""

    code = "payload-store"


class BusyError(CommitRejectedError):
    """A bounded queue is full; the same submit may succeed later."""

    code = "busy"
    retryable = True
    http_status = 503


class NotMemberError(CommitRejectedError):
    """The node is no member of the current epoch: it takes no transactions (P19).

    It asks by itself to be admitted, which takes seconds, so the same submit may succeed later.
    """

    code = "not-a-member"
    retryable = True
    http_status = 503
    way_out = (
        "Try again, since the node asks to be admitted, or submit at another site; `sparktxlog "
        "status` says why it is no member."
    )


class NoQuorumError(CommitRejectedError):
    """Too few nodes answer: the level cannot be reached before others return.

    Fields `waits_for` (nodes that are not heard) and `levels` (the highest one that is possible).
    """

    code = "no-quorum"
    retryable = True
    http_status = 503
    way_out = (
        "Try again, or submit at another site.  At level `accepted` the node keeps it, and "
        "it is ordered when the others are back."
    )


class PausedError(CommitRejectedError):
    """An operator paused the node: it takes no transactions."""

    code = "paused"
    retryable = True
    http_status = 503


class PositionNotReachedError(CommitRejectedError):
    """The node has not got to the position after which the request was to come.

    Fields `after`, and `position` that the node has got to.
    """

    code = "position-not-reached"
    retryable = True
    http_status = 503
    way_out = (
        "Try again, here or elsewhere; `sparktxlog status` names the nodes that are missing.  "
        "After a restore or `peer force` the log may end before it: then connect again."
    )


class CommitStateUnknownError(TxLogError):
    """The transaction may or may not take effect: ask for its id (field `transaction_id`)."""

    code = "unknown-outcome"
    definite = False
    retryable = True
    http_status = 504


class NotFoundError(TxLogError):
    """What was asked for is not there."""

    code = "not-found"
    http_status = 404


class StorageError(TxLogError):
    """The node's storage failed."""

    code = "storage"
    definite = False


class CorruptLogError(StorageError):
    """Stored bytes are damaged beyond what the node may repair by itself."""

    code = "corrupt-log"


class FrontLostError(CorruptLogError):
    """The journal lacks what the node's other files say it had: the node must not go on with it."""


class NewerReleaseError(CorruptLogError):
    """A newer release wrote this, and the one at hand would read it wrongly; nothing changed."""

    code = "newer-release"
    definite = True


class ExpiredError(StorageError):
    """The entry was pruned from the log."""

    code = "expired"
    definite = True
    http_status = 410


class LeaseGoneError(StorageError):
    """The lease of a copy was released, has expired, or is of an earlier start of the donor."""

    code = "lease-gone"
    definite = True
    http_status = 410


class FileChangedError(StorageError):
    """A pinned file is no longer what it was when it was pinned."""

    code = "file-changed"
    definite = True
    http_status = 410


class LockedError(StorageError):
    """Another process owns this directory."""

    code = "locked"
    definite = True


class DiskFullError(StorageError):
    """No space left: nothing of this act was kept."""

    code = "disk-full"
    definite = True
    retryable = True
    http_status = 507


class TransportError(TxLogError):
    """A node could not be reached or the link broke in the middle."""

    code = "transport"
    definite = False
    retryable = True
    http_status = 502


class UnreachableError(TransportError):
    """No connection to the node came about: nothing was sent."""

    code = "unreachable"
    definite = True


class PeerTimeoutError(TransportError):
    """A peer did not answer in time."""

    code = "peer-timeout"


class DonorYieldsError(TransportError):
    """A donor's own transactions go first for a while: ask again."""

    code = "donor-yields"
    definite = True
    http_status = 503


class DamagedChunkError(TransportError):
    """Bytes of a copy are not what the donor's digest says, twice in a row: they were not used."""

    code = "damaged-chunk"


class UnauthorizedError(TransportError):
    """Credentials are missing or wrong."""

    code = "unauthorized"
    definite = True
    retryable = False
    http_status = 401


class ForbiddenError(UnauthorizedError):
    """The credentials are good, and not for this: it takes an operator's (`admin-token`)."""

    code = "forbidden"
    http_status = 403


class ForeignPageError(UnauthorizedError):
    """The request comes from a page of another site, in somebody's browser."""

    code = "foreign-page"
    http_status = 403


class ForbiddenPeerError(UnauthorizedError):
    """The sender is no configured peer, or not the one it claims to be."""

    code = "forbidden-peer"
    http_status = 403


class WireVersionError(ForbiddenPeerError):
    """The two nodes speak no common wire version, or the log works by a later one (P31)."""

    code = "wire-version"


class ApplyError(TxLogError):
    """A worker could not apply a batch; the table keeps its last whole state."""

    code = "apply"


class DivergedError(ApplyError):
    """A replica's table is not what the log makes of it."""

    code = "diverged"
    http_status = 409


class ForeignLogError(DivergedError):
    """The replica is of another log than the node's: it is the wrong node, or the wrong lake."""

    code = "foreign"


class CopyConflictError(ApplyError):
    """Somebody wrote to a table while a copy replaced it; the table is as that writer left it."""

    code = "copy-conflict"
    retryable = True
    http_status = 409


class NotAppliedError(ApplyError):
    """The table or position asked for was not applied here yet."""

    code = "not-applied"
    retryable = True
    http_status = 409


class CommittedNotAppliedError(ApplyError):
    """The transaction has its position, and `apply="inline"` could not apply it here.

    Attribute `receipt`: what the commit would have returned, None where the error came as JSON.
    """

    code = "committed-not-applied"
    definite = False
    way_out = (
        "Do not commit it again: every site has it.  log.apply() tries once more; `sparktxlog "
        "status` says what keeps this site's tables."
    )

    def __init__(self, message: str, *, hint: str = "", receipt: Any = None, **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.receipt = receipt


class InternalError(TxLogError):
    """The node failed at a request in a way that nobody foresaw; its log has the trace."""

    code = "internal"
    definite = False


class InvariantViolation(TxLogError):
    """An invariant of the protocol does not hold: the node must stop and not guess."""

    code = "invariant"
    definite = False


class ContradictionError(InvariantViolation):
    """A node contradicts what it said itself: nothing more of it is believed (P10, P30)."""

    code = "contradiction"

    def __init__(self, message: str, *, peer: str = "", hint: str = "", **fields: object) -> None:
        super().__init__(message, hint=hint, **({"peer": peer} if peer else {}), **fields)
        self.peer = peer


class OtherQueueError(ContradictionError):
    """A node has another queue at a position that this one knows (I1)."""

    code = "diverged"


class OutdatedError(InvariantViolation):
    """Others hold what this node said and does not know of: its disk is an older image (P30)."""

    code = "outdated"


#: The way out for a node whose history is another one than that of the log which goes on (P28).
QUARANTINE_HINT = (
    "On the side that gives way, stop the node and run `sparktxlog peer quarantine --config FILE "
    "--from URL` (URL of a node that goes on). It keeps what only this node has, and lets it join."
)
