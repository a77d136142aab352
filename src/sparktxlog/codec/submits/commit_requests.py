"""Transactions of one commit table: each creates it, commits a version, drops or renames it (P36).

The id of a commit is the UUID in the name of its staged file, so to ask again is to repeat it
(P25c).  Where it is ordered, every site decides alike whether it takes effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.model.ids import check_new_name
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.transactions.operation import StagedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredFiles:
    """What a checked commit brings: files that nobody can change any more."""

    files: tuple[StagedFile, ...] = ()
    #: Path → bytes, if they are small; the payload store has large ones.
    contents: Mapping[str, bytes] = field(default_factory=dict)
    #: Whether its table is synchronous, before or after it (P34).
    is_sync: bool = False


NO_FILES = SecuredFiles()


def creating(
    transaction_id: bytes,
    uuid: str,
    name: str,
    timestamp: int,
    version: int = 0,
    *,
    files: SecuredFiles = NO_FILES,
) -> PreparedTransaction:
    """Return the transaction that creates a commit table.

    Args:
        uuid: Of the table, in any usual form; no table ever had it.
        name: `schema.table`; no table has it now, case ignored.
        timestamp: In-commit timestamp of its first version, milliseconds since 1970 UTC.
        version: Its first version.
        files: The commit file, and all that it adds.

    Raises:
        InvalidRequestError, InvalidNameError: A value cannot be (definite).
    """
    for part in name.split("."):
        check_new_name(part)
    commit = CommitOperation(
        kind=CommitKind.CREATE, uuid=as_uuid(uuid), name=name, version=version, timestamp=timestamp
    )
    return _transaction(transaction_id, commit, files)


def committing(
    transaction_id: bytes,
    uuid: str,
    version: int,
    timestamp: int,
    *,
    files: SecuredFiles = NO_FILES,
) -> PreparedTransaction:
    """Return the transaction that commits a version of a commit table.

    Args:
        transaction_id: The UUID in the name of the staged file, 16 bytes.
        uuid: Of the table, in any usual form.
        version: The one after the version that its writer has read.
        timestamp: Its in-commit timestamp, milliseconds since 1970 UTC.
        files: The commit file, and all that it adds.

    Raises:
        InvalidRequestError: A value cannot be (definite).
    """
    commit = CommitOperation(
        kind=CommitKind.COMMIT, uuid=as_uuid(uuid), version=version, timestamp=timestamp
    )
    return _transaction(transaction_id, commit, files)


def dropping(transaction_id: bytes, uuid: str) -> PreparedTransaction:
    """Return the transaction that drops a commit table, whatever its version is.

    Raises:
        InvalidRequestError: That is no UUID (definite).
    """
    return _transaction(transaction_id, CommitOperation(kind=CommitKind.DROP, uuid=as_uuid(uuid)))


def renaming(transaction_id: bytes, uuid: str, name: str) -> PreparedTransaction:
    """Return the transaction that gives a commit table another name, whatever its version is.

    Args:
        name: `schema.table`; no other table has it now, case ignored.

    Raises:
        InvalidRequestError, InvalidNameError: A value cannot be (definite).
    """
    for part in name.split("."):
        check_new_name(part)
    commit = CommitOperation(kind=CommitKind.RENAME, uuid=as_uuid(uuid), name=name)
    return _transaction(transaction_id, commit)


def as_uuid(text: str) -> str:
    """Return the UUID of a table as the log keeps it: lower case, with hyphens if it has none."""
    lower = text.lower()
    if len(lower) != 32:
        return lower
    return "-".join((lower[:8], lower[8:12], lower[12:16], lower[16:20], lower[20:]))


def _transaction(
    transaction_id: bytes, commit: CommitOperation, files: SecuredFiles = NO_FILES
) -> PreparedTransaction:
    return PreparedTransaction(
        transaction_id=transaction_id,
        operations=(),
        commits=(commit.checked(),),
        commit_files=files.files,
        contents=files.contents,
        is_sync=files.is_sync,
    )
