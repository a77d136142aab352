"""All errors of sparktxlog, in one tree.

`definite` says for each class whether it is certain that **nothing** happened (`True`), or whether
something may have happened (`False`: ask for the transaction id before you repeat the call).  Each
instance carries a stable `code`, the fields of the case and a `hint` that says what to do.  HTTP
(RFC 9457), the command line and Python show the same text.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, TypedDict, Unpack


class _Facts(TypedDict, total=False):
    """Arguments of the class statement of an error; the rest is inherited."""

    code: str
    definite: bool
    retryable: bool
    http_status: int


class TxLogError(Exception):
    """Base of all errors of sparktxlog.

    Args:
        message: What is wrong, with the value that is.
        hint: What to do about it.
        fields: The case as data, shown with the text in JSON.
    """

    #: Stable identifier, part of the public interface.
    code: ClassVar[str] = "error"
    #: True: it is certain that nothing happened.  False: something may have happened.
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
        if fields:
            # A traceback ends with it: all that Spark keeps of an error of a Python process.
            self.add_note(f"fields: {json.dumps(self.to_problem()['fields'])}")

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


class LyingStoreError(ConfigError, code="lying-store", http_status=400):
    """A store of bytes does not keep what it promises, so the log would lose or mix up bytes.

    Fields `url`, `check` (what was tried), `header` (what it ignored; empty = none).
    """

    way_out = (
        "Use another store, or a later release of this one; docs/store-access.md names stores that "
        "passed.  `sparktxlog doctor --store URL` tries it again."
    )


class CertificateTimeError(ConfigError, code="certificate-time", http_status=400):
    """The node's certificate has expired, or is not valid yet: a later start may find another."""


class MissingDependencyError(TxLogError, code="missing-dependency"):
    """An optional library is not installed: the hint is the command that installs it."""


#: Library that an extra installs → the extra.
EXTRAS = {
    "delta": "spark",
    "deltalake": "node",
    "fastapi": "node",
    "httptools": "node",
    "jinja2": "node",
    "numpy": "arrow",
    "obstore": "s3",
    "pandas": "spark",
    "prometheus_client": "node",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "rich": "node",
    "starlette": "node",
    "structlog": "node",
    "typer": "node",
    "uvicorn": "node",
    "uvloop": "node",
}


def missing_extra(
    what: str, error: ModuleNotFoundError, extra: str = ""
) -> MissingDependencyError | None:
    """Return the error that names the command for a library of an extra; None = it is of none.

    Args:
        what: What needs the library, such as `sparktxlog.connect`.
        error: Of its import.
        extra: What brings all that is needed; empty = the extra of the library.
    """
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        return None
    extra = extra or EXTRAS[library]
    return MissingDependencyError(
        f"{what} needs {library}, which is not installed",
        hint=f"Run: pip install 'sparktxlog[{extra}]'",
        library=library,
        extra=extra,
    )


class ProtocolError(TxLogError, code="protocol"):
    """The sync protocol was broken, here or by a peer."""


class LocalProtocolError(ProtocolError, code="protocol-local", http_status=409):
    """A call that the present state of the node or client does not allow."""


class RemoteProtocolError(ProtocolError, code="protocol-remote", http_status=400):
    """A peer sent what the protocol does not allow; its message changed nothing."""


class UnknownKindError(RemoteProtocolError):
    """A peer of a later release sent a kind of message that this release does not know."""


class CommitRejectedError(TxLogError, code="rejected", http_status=422):
    """The transaction did not take effect, and will not."""


class UnknownTableError(CommitRejectedError, code="unknown-table", http_status=404):
    """The log has no such table at this node's position."""


class UnknownGroupError(CommitRejectedError, code="unknown-group", http_status=404):
    """The log has no such group at this node's position."""


class SchemaMismatchError(CommitRejectedError, code="schema-mismatch"):
    """The columns or types differ from those of the table."""


class UnknownColumnError(CommitRejectedError, code="unknown-column", http_status=404):
    """A change names a column that the table does not have."""


class ColumnInUseError(CommitRejectedError, code="column-in-use", http_status=409):
    """A key or partition column cannot be dropped."""


class NameTakenError(CommitRejectedError, code="name-taken", http_status=409):
    """A new name is that of another column or table."""


class SchemaTakenError(NameTakenError, code="schema-taken", http_status=409):
    """A new schema has the name of another one."""


class InvalidRowsError(CommitRejectedError, code="invalid-rows"):
    """Rows break a rule of the table: NULL, a key twice in an upsert, no rows."""


class InvalidNameError(CommitRejectedError, code="invalid-name", http_status=400):
    """A name or path is outside the allowed pattern."""


class InvalidRequestError(CommitRejectedError, code="invalid-request", http_status=400):
    """The request cannot be understood: wrong JSON, wrong field, wrong value."""


class DuplicateTransactionError(CommitRejectedError, code="duplicate-transaction", http_status=409):
    """Another transaction has this transaction id."""


class IdTakenError(CommitRejectedError, code="id-taken", http_status=409):
    """The log has other content under this transaction id.

    Fields `transaction_id`, `position` (where that stands; None = it is under way).
    """

    way_out = (
        "Give other content another id.  If whatever was first under the id counts, as for a batch "
        "of a stream, submit with first_wins."
    )


class ExpiredIdError(CommitRejectedError, code="expired-id", http_status=409):
    """The transaction was ordered so long after it was accepted that its id may be a repeat."""


class ExpiredTransactionError(CommitRejectedError, code="expired-transaction", http_status=409):
    """The transaction was submitted or ordered after its `valid_until`."""


class RolledBackError(CommitRejectedError, code="rolled-back", http_status=409):
    """A participant of the prepared transaction said NO (P35)."""


class NotPreparedError(CommitRejectedError, code="not-prepared", http_status=409):
    """A mark names a transaction that is not prepared and undecided here (P35).

    Fields `transaction_id`, `outcome` (what became of it, None = not known here).
    """


class NotParticipantError(CommitRejectedError, code="not-a-participant", http_status=409):
    """A mark is of somebody that the prepared transaction does not wait for (P35).

    Fields `transaction_id`, `participant`, `participants`.
    """


class TooManyPreparedError(
    CommitRejectedError, code="too-many-prepared", retryable=True, http_status=503
):
    """As many prepared transactions as the log allows are undecided (P35)."""

    way_out = "Decide some of them, or wait until they expire; see `sparktxlog tx prepared`."


class ConflictError(CommitRejectedError, code="conflict", retryable=True, http_status=409):
    """A condition of the transaction does not hold where it takes effect (P27).

    Fields `table`, `winner` (position of the write that it lost to), `origin` (node where that was
    committed); None = not known.  The same id gets the same answer: do it again under a new one.
    """

    way_out = "Read again, and commit as a new transaction: this one took no effect at any site."


class StaleSchemaError(ConflictError, code="stale-schema", retryable=True, http_status=409):
    """A table changed before the transaction was ordered, which was made for its old schema (P33).

    Fields as in `ConflictError`; `winner` is the last write to the table, at or after the change.
    """

    way_out = (
        "Read the table's definition again, and commit as a new transaction: this one took no "
        "effect at any site."
    )


class VersionConflictError(ConflictError, code="version-conflict", retryable=True, http_status=409):
    """A commit is not the next version of its commit table where it is ordered (P36).

    Fields `table` (its name), `version` (its newest one there), `winner` (position of the commit
    that has that version), `winner_id` (the id of that one), `origin` as in `ConflictError`,
    `position` (where this one lost).
    """

    way_out = (
        "Read the table's newest version, and commit the next one as a new transaction: this one "
        "took no effect at any site."
    )


class StaleTimestampError(CommitRejectedError, code="stale-timestamp", http_status=409):
    """A commit has the next version, and its in-commit timestamp is not later (P36)."""

    way_out = "Stage the commit again, under a new UUID and with a later in-commit timestamp."


class StagedCommitError(InvalidRequestError, code="staged-commit", http_status=400):
    """A commit file, or a file that it adds, is not as its writer or the catalog says.

    Fields `field`, `value`; the version that it asked for is still free.
    """

    way_out = "Nothing was committed. Stage the commit again, under a new UUID."


class RowTableError(CommitRejectedError, code="row-table", http_status=403):
    """The catalog was asked to change a row table, which it only shows.  Field `table`."""

    way_out = (
        "Change it through the log: log.append, log.transaction, log.alter_table, log.drop_table, "
        "or format('txlog'); `sparktxlog maintain` compacts it.  To read it, ask for READ only: "
        "DuckDB does so after ATTACH with READ_ONLY."
    )


class UnknownSchemaError(CommitRejectedError, code="unknown-schema", http_status=404):
    """The schema holds no commit table, and was not created at this node."""


class SchemaInUseError(CommitRejectedError, code="schema-in-use", http_status=409):
    """A schema that holds commit tables cannot be dropped."""


class RequirementError(CommitRejectedError, code="requirement", retryable=True, http_status=409):
    """A requirement of an update does not hold: the table is another one, or was changed."""

    way_out = "Load the table again, and ask for what is to be done with it now."


class NotOfferedError(TxLogError, code="not-offered", http_status=501):
    """This release or this log does not do what was asked for."""


class TransactionNotOpenError(CommitRejectedError, code="transaction-not-open", http_status=404):
    """A request names an open transaction that this node does not have (any more)."""

    way_out = (
        "It is open at one node only, until its lease ends or the node does.  If its commit was "
        "asked for, ask for the id (GET /v1/transactions/{id}); else it has no effect: begin again."
    )


class KeyConditionError(CommitRejectedError, code="key-condition", http_status=409):
    """A key is in a table where it should not be, or is not where it should be.

    Fields `table`, `key` and `position`, at which that was read.  To repeat it alone does not help.
    """


class OversizeError(CommitRejectedError, code="oversize", http_status=413):
    """A body, run or transaction is over its configured limit."""


class UnsupportedTypeError(CommitRejectedError, code="unsupported-type", http_status=415):
    """The body of a request has a media type that no route accepts."""


class HeadTooLongError(CommitRejectedError, code="head-too-long", http_status=431):
    """URL and headers of a request are longer than a node accepts."""


class SlowRequestError(CommitRejectedError, code="slow-request", retryable=True, http_status=408):
    """A request did not arrive in time."""


class ManifestMismatchError(CommitRejectedError, code="manifest-mismatch"):
    """A staged file differs from its manifest: digest, size, rows or schema."""


class PayloadStoreError(CommitRejectedError, code="payload-store"):
    """The node cannot see staged files: node and executors do not share the payload store."""


class BusyError(CommitRejectedError, code="busy", retryable=True, http_status=503):
    """A bounded queue is full; the same submit may succeed later."""


class ShareUsedUpError(BusyError, code="share-used-up", http_status=429):
    """A token has its share of one of the node's budgets; others go on.

    Fields `budget`, `client`, `held`, `limit`.
    """


class SynchroTimeoutError(
    CommitRejectedError, code="synchro-timeout", retryable=True, http_status=504
):
    """Too few members were there for a synchronous transaction within `synchro-timeout` (P34).

    It was withdrawn before it had a timestamp, so it took no effect at any site.
    """

    way_out = "Submit it again once the missing nodes are back; see `sparktxlog status`."


class GroupAwayError(CommitRejectedError, code="group-away", retryable=True, http_status=504):
    """Too few sites of a group held what a transaction writes within `synchro-timeout` (P41).

    It was withdrawn before it had a timestamp, so it took no effect at any site.
    """

    way_out = "Submit it again once the group's sites are back; see `sparktxlog group show`."


class SessionRolledBackError(CommitRejectedError, code="session-rolled-back", http_status=409):
    """An earlier transaction of the session was withdrawn, and this one may rest on it (P34).

    It waited for that one, so it has no timestamp either and took no effect at any site.  Field
    `rests_on`: id of the withdrawn one.
    """

    way_out = (
        "Submit the withdrawn transaction again, then this one; or let each transaction of the "
        "session stand alone: rollback='transaction'."
    )


class NotMemberError(CommitRejectedError, code="not-a-member", retryable=True, http_status=503):
    """The node is not a member of the current epoch, so it takes no transactions (P19).

    It asks to be admitted, which takes seconds.  The same submit may succeed later.
    """

    way_out = (
        "Try again in a few seconds: the node is asking to be admitted.  Or submit at another "
        "site.  `sparktxlog status` says why it is not a member."
    )


class FollowerError(NotMemberError, code="follower", retryable=False):
    """The node is a follower: it answers questions, and takes nothing that changes the log (P38).

    Field `members`: URLs of the members, to ask one of them.
    """

    way_out = "Submit at a member; a client that is given several URLs does so by itself."


class NoQuorumError(CommitRejectedError, code="no-quorum", retryable=True, http_status=503):
    """Too few nodes answer: the level cannot be reached before others return.

    Fields: `waits_for` (missing nodes) and `levels` (the highest possible level).
    """

    way_out = (
        "Try again, or submit at another site.  Or submit at level `accepted`: the node keeps the "
        "transaction and it is ordered when the others are back."
    )


class MembersMissingError(
    CommitRejectedError, code="members-missing", retryable=True, http_status=503
):
    """A large transaction is refused while a site is missing, by `whole-cluster-above-bytes`.

    Fields: `waits_for` (missing nodes), `size_bytes`, `limit_bytes`.
    """

    way_out = (
        "Submit it again once all sites are members; `sparktxlog status` names who is missing.  Or "
        "load it in smaller transactions."
    )


class PausedError(CommitRejectedError, code="paused", retryable=True, http_status=503):
    """An operator paused the node: it takes no transactions."""


class PositionNotReachedError(
    CommitRejectedError, code="position-not-reached", retryable=True, http_status=503
):
    """The node has not reached the position that the request has to come after.

    Fields: `after`, and the node's `position`.
    """

    way_out = (
        "Try again, at this node or another one.  `sparktxlog status` names missing nodes.  After "
        "a restore or `peer force` the log may end before that position: then connect again."
    )


class CommitStateUnknownError(
    TxLogError, code="unknown-outcome", definite=False, retryable=True, http_status=504
):
    """The transaction may or may not take effect: ask for its id (field `transaction_id`)."""


class NotFoundError(TxLogError, code="not-found", http_status=404):
    """What was asked for does not exist here."""


class StorageError(TxLogError, code="storage", definite=False):
    """The node's storage failed."""


class CorruptLogError(StorageError, code="corrupt-log"):
    """Stored bytes are damaged, and the node cannot repair them itself."""


class NotPlacedError(StorageError, code="not-placed"):
    """A site lacks versions of a commit table, or their files."""


class JournalLostError(CorruptLogError):
    """The journal lacks what other files of the node show that it had: the node must not start."""


class NewerReleaseError(CorruptLogError, code="newer-release", definite=True):
    """A newer release wrote this, and this release would misread it; nothing changed."""


class ExpiredError(StorageError, code="expired", definite=True, http_status=410):
    """The entry was pruned from the log."""


class NotHeldHereError(StorageError, code="not-held-here", definite=True, http_status=409):
    """The table is of a group, and this site holds none of its rows (P41)."""

    way_out = "Read it at one of the sites of its group; see `sparktxlog group show`."


class LeaseGoneError(StorageError, code="lease-gone", definite=True, http_status=410):
    """The lease of a copy was released or has expired, or the donor was restarted."""


class FileChangedError(StorageError, code="file-changed", definite=True, http_status=410):
    """A pinned file has changed since it was pinned, or an object while it was read."""


class LockedError(StorageError, code="locked", definite=True):
    """Another process owns this directory."""


class DiskFullError(StorageError, code="disk-full", definite=True, retryable=True, http_status=507):
    """No space left on the disk: nothing of this call was kept."""


class ObjectMissingError(StorageError, code="object-missing", definite=True, http_status=404):
    """A store of bytes has nothing under a key: fields `url`, `action`."""


class BucketMissingError(StorageError, code="bucket-missing", definite=True):
    """The bucket of a store does not exist there: fields `url`, `action`, `answer`."""


class StoreForbiddenError(StorageError, code="store-forbidden", definite=True):
    """A store of bytes does not let this node do that: fields `url`, `action`, `answer`."""


class StoreUnavailableError(
    StorageError, code="store-unavailable", retryable=True, http_status=503
):
    """A store of bytes is throttled, down or out of reach: fields `url`, `action`, `answer`."""

    way_out = "The node tries again.  Look at the store, and at the way to it."


class StoreNotReadyError(
    StorageError, code="store-not-ready", definite=True, retryable=True, http_status=503
):
    """The node has not proved its bucket since it started, so it changes nothing there: `url`."""

    way_out = (
        "Try again: the node asks its bucket every 10 s.  `sparktxlog status` says why it does not "
        "answer.  Other sites take the write meanwhile."
    )


#: The store of bytes as a whole: they say nothing of what it has under a key.
STORE_AWAY = (BucketMissingError, StoreForbiddenError, StoreNotReadyError, StoreUnavailableError)


class StuckFilesError(
    StorageError, code="files-stuck", definite=True, retryable=True, http_status=503
):
    """A disk or mount of the node does not answer: nothing that waited for it was accepted."""


class TransportError(TxLogError, code="transport", definite=False, retryable=True, http_status=502):
    """A node could not be reached, or the connection broke during the call."""


class UnreachableError(TransportError, code="unreachable", definite=True):
    """No connection to the node was possible: nothing was sent."""


class CertificateError(TransportError, code="certificate", definite=True, retryable=False):
    """One side does not accept the other one's certificate, or does not speak TLS: nothing sent."""


class PeerTimeoutError(TransportError, code="peer-timeout"):
    """A peer did not answer in time."""


class DonorYieldsError(TransportError, code="donor-yields", definite=True, http_status=503):
    """A donor serves its own transactions first at the moment: ask again."""


class DamagedChunkError(TransportError, code="damaged-chunk"):
    """Bytes of a copy differed from the donor's digest twice in a row; they were not used."""


class UnauthorizedError(
    TransportError, code="unauthorized", definite=True, retryable=False, http_status=401
):
    """Credentials are missing or wrong."""


class ForbiddenError(UnauthorizedError, code="forbidden", http_status=403):
    """The credentials are valid, but this call needs those of an operator (`admin-token`)."""


class ForeignPageError(UnauthorizedError, code="foreign-page", http_status=403):
    """The request comes from a web page of another site, in a browser."""


class ForbiddenPeerError(UnauthorizedError, code="forbidden-peer", http_status=403):
    """The sender is not a configured peer, or not the peer that it claims to be."""


class WireVersionError(ForbiddenPeerError, code="wire-version"):
    """The two nodes have no common wire version, or the log uses a later one (P31)."""


class ApplyError(TxLogError, code="apply"):
    """A worker could not apply a batch; the table keeps its last whole state."""


class PayloadLostError(ApplyError, code="payload-lost"):
    """A file that a batch needs is damaged here, and no other site could supply it."""


class DivergedError(ApplyError, code="diverged", http_status=409):
    """A table of a replica differs from what the log says it must be."""


class ForeignLogError(DivergedError, code="foreign"):
    """A replica, a receipt or a stream's checkpoint is of another log than the node: wrong node."""


class CopyConflictError(ApplyError, code="copy-conflict", retryable=True, http_status=409):
    """Another writer changed a table while a copy replaced it; that writer's table stays."""


class NotAppliedError(ApplyError, code="not-applied", retryable=True, http_status=409):
    """The requested table or position is not applied here yet."""


class OutsideWindowError(NotAppliedError, code="outside-window", definite=True):
    """Upkeep may not run now; a later run does it."""


class CommittedNotAppliedError(ApplyError, code="committed-not-applied", definite=False):
    """The transaction has its position, but `apply="inline"` could not apply it here.

    Attribute `receipt`: what the commit would have returned; None if the error came as JSON.
    """

    way_out = (
        "Do not commit it again: every site has it.  log.apply() tries again; `sparktxlog "
        "status` says why this site's tables are behind."
    )

    def __init__(self, message: str, *, hint: str = "", receipt: Any = None, **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.receipt = receipt


class InternalError(TxLogError, code="internal", definite=False):
    """An unexpected failure of the node during a request; its log has the trace."""


class InvariantViolation(TxLogError, code="invariant", definite=False):
    """An invariant of the protocol does not hold: the node must stop and not guess."""


class ContradictionError(InvariantViolation, code="contradiction"):
    """A node contradicts what it said before: nothing more that it says is used (P10, P30)."""

    def __init__(self, message: str, *, peer: str = "", hint: str = "", **fields: object) -> None:
        super().__init__(message, hint=hint, **({"peer": peer} if peer else {}), **fields)
        self.peer = peer


class OtherQueueError(ContradictionError, code="diverged"):
    """Another node's queue differs from this node's at a position that both have (I1)."""


class OutdatedError(InvariantViolation, code="outdated"):
    """Others hold what this node sent but does not have: its disk is an older image (P30)."""


#: Errors of Delta about values, and those of Spark by their SQLSTATE: data exceptions.
_WRONG_VALUE = re.compile(
    r"\[(?:DELTA_NOT_NULL_CONSTRAINT_VIOLATED|DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"
    r"|DELTA_EXCEED_CHAR_VARCHAR_LIMIT|DELTA_CAST_OVERFLOW_IN_TABLE_WRITE)\] (.{1,300})"
    r"|\[[A-Z_.]+\] ([^\n]{1,300}) SQLSTATE: 22"
)
#: The innermost cause in a trace of Java is the last one.
_CAUSED_BY = re.compile(r"^\s*Caused by: (?:[\w.$]+\.)?(\w+: .+)$", re.MULTILINE)


def first_lines(error: BaseException, most: int = 3) -> str:
    """Return the first lines of an error's text as one, and the cause that they hide."""
    text = " ".join(str(error).strip().split("\n")[:most])[:600]
    cause = java_cause(error)
    return f"{text}  Caused by {cause}" if cause else text


def java_cause(error: BaseException) -> str:
    """Return the innermost cause of an error of Java; empty if its text begins with that.

    Spark wraps what data sources raise in an error that does not say why.
    """
    causes = _CAUSED_BY.findall(java_trace(error))
    if not causes or causes[-1].partition(": ")[2][:60] in str(error).partition("\n\tat ")[0]:
        return ""
    return str(causes[-1])[:600]


def wrong_value(error: BaseException) -> str:
    """Return what Spark and Delta say of a value that fits no column, constraint or function.

    Empty: the error is another one.
    """
    found = _WRONG_VALUE.search(f"{error}\n{java_cause(error)}")
    return "" if found is None else str(found[1] or found[2])


def java_trace(error: BaseException) -> str:
    """Return the trace of an error of Java, or the error's text if there is none."""
    # Where PySpark keeps it: with a JVM, with Spark Connect; Py4J has it in the text.
    traces = (getattr(error, name, None) for name in ("_stackTrace", "_stacktrace"))
    return next((one for one in traces if isinstance(one, str)), str(error))


#: Hint for a node whose history differs from that of the log (P28).
QUARANTINE_HINT = (
    "On the side that is to leave its fork, stop the node and run `sparktxlog peer quarantine "
    "--config FILE --from URL` (URL of a node whose log is kept). What only this node has goes to "
    "quarantine, and the node can join."
)
