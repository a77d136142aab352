"""Validated transactions, before they become a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from sparktxlog.codec.delta_catalog.catalog_requests import ProposedCommit
from sparktxlog.codec.submits.arguments import text_given
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import CommitOperation
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import ROW_KINDS, Mark, OperationKind, StagedFile

#: What takes a transaction along when it is withdrawn: an earlier one of its session, or none.
Rollback: TypeAlias = Literal["session", "transaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOperation:
    """One operation of a `PreparedTransaction`."""

    table: str
    kind: OperationKind
    schema_version: int = 1
    #: Inline rows: a pyarrow.Table with exactly the columns the kind needs (all, or the keys), or
    #: `PlainRows` of these.
    rows: Any = None
    files: tuple[StagedFile, ...] = ()
    definition: TableDefinition | None = None
    predicate: str | None = None
    claim: TableSignature | None = None
    change: TableChange | None = None
    #: For staged rows without a claim: what they are known by, whatever their files (`rows_text`).
    content: str = ""

    @property
    def carried(self) -> int:
        """Number of rows it carries."""
        inline: int = 0 if self.rows is None else self.rows.num_rows
        return inline + sum(file.rows for file in self.files)

    @property
    def is_nothing(self) -> bool:
        """Whether it changes no table: an append, upsert or delete of no rows."""
        kinds = ROW_KINDS - {OperationKind.OVERWRITE}
        return self.kind in kinds and not self.carried


class StagedCommitRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A staged commit that is to be the next version of its table, with its whole transaction."""

    #: UUID of the table.
    table_id: str
    proposed_version: int
    #: In-commit timestamp, milliseconds since 1970 UTC.
    timestamp: int
    #: `<version>.<UUID>.json` where writers of the table stage commits, at this site.
    file_name: str
    file_size: int

    @property
    def proposed(self) -> ProposedCommit:
        """The commit as the API for Delta tables says it."""
        return ProposedCommit(
            version=self.proposed_version,
            timestamp=self.timestamp,
            file_name=self.file_name,
            file_size=self.file_size,
            file_modification_timestamp=self.timestamp,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A validated transaction; several of them are assembled into one run (group commit).

    A transaction without operations is recorded too: its id is used (see `codec.requests.prepare`).
    """

    transaction_id: bytes
    operations: tuple[PreparedOperation, ...]
    session: str | None = None
    #: See `RunManifest.stands_alone`.
    stands_alone: bool = False
    #: Microseconds since 1970 UTC: no effect when ordered after that.
    valid_until: int | None = None
    #: Conditions under which it takes effect (P27).
    condition: Condition | None = None
    #: Its client wants it synchronous, whatever its tables are (P34).
    is_sync: bool = False
    #: The participants of a prepared transaction: each has to say YES (P35).
    participants: tuple[str, ...] = ()
    #: It does nothing but this (P35).
    mark: Mark | None = None
    #: Commits that its client asks for; the node makes `commits` of them.
    staged_commits: tuple[StagedCommitRequest, ...] = ()
    #: What it does to commit tables, at most one thing for each (P36).
    commits: tuple[CommitOperation, ...] = ()
    #: See `RunManifest.commit_files`.
    commit_files: tuple[StagedFile, ...] = ()
    #: Path → the bytes of those files that its run carries.
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def carried(self) -> int:
        """Number of rows it carries."""
        return sum(operation.carried for operation in self.operations)

    @property
    def size_bytes(self) -> int:
        """Bytes of its files and rows."""
        files = [file for one in self.operations for file in one.files]
        size = sum(file.size_bytes for file in (*files, *self.commit_files))
        for one in self.operations:
            size += 0 if one.rows is None else int(one.rows.nbytes)
        return size


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its transactions are ordered as they were submitted.

    Args:
        name: None = no session.
        rollback: See `sparktxlog.connect`.

    Raises:
        InvalidRequestError: No such `rollback`, or the name is no text (definite).
    """

    name: str | None
    rollback: Rollback = "session"

    def __post_init__(self) -> None:
        if self.name is not None:
            text_given(self.name, "session")
        allowed = get_args(Rollback)
        if self.rollback not in allowed:
            raise InvalidRequestError(
                f"rollback={self.rollback!r} is unknown",
                hint="Use rollback='session', the default: what a withdrawn transaction is "
                "followed by in its session is withdrawn too; or rollback='transaction'.",
                field="rollback",
                value=self.rollback,
                allowed=list(allowed),
            )

    @property
    def stands_alone(self) -> bool:
        """See `RunManifest.stands_alone`."""
        return self.rollback == "transaction"

    def takes(self, transaction: PreparedTransaction) -> PreparedTransaction:
        """Return a transaction as one of the session; a prepared one belongs to none."""
        if transaction.participants:
            return transaction
        return replace(transaction, session=self.name, stands_alone=self.stands_alone)


def is_synchronous(transaction: PreparedTransaction, tables: Mapping[str, TableDefinition]) -> bool:
    """Return whether all of a transaction is synchronous: by its own wish, or one table's (P34).

    Args:
        tables: Those of the log.
    """
    if transaction.is_sync:
        return True
    known = Tables.of(tables)
    for operation in transaction.operations:
        table = operation.definition or known.alike(operation.table)
        if (table is not None and table.is_sync) or (operation.change and operation.change.is_sync):
            return True
    return False
