"""Conditions of transactions in requests and manifests: their form, and what is refused (P27).

"conditions": {"read_position": 41, "reads": ["orders"], "versions": {"customers": 7}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from sparktxlog.codec.problems import ERROR_CLASSES
from sparktxlog.codec.submits.validation import exact_table, known_table
from sparktxlog.errors import (
    CommitRejectedError,
    ConflictError,
    IdTakenError,
    InvalidRequestError,
    PositionNotReachedError,
    StaleSchemaError,
    TxLogError,
    VersionConflictError,
)
from sparktxlog.model.ids import LARGEST
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import RunManifest
from sparktxlog.model.transactions.receipt import Receipt, ReceiptRejection

#: Tables that one condition may name.
_MOST_TABLES = 1_000
#: Rejections of transactions that lost to another one.
_CONFLICTS = {kind.code: kind for kind in (ConflictError, StaleSchemaError, VersionConflictError)}


class ConditionsRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions under which a transaction takes effect; else the answer is `conflict`."""

    #: Position up to which the reader had seen the log.
    read_position: int | None = None
    #: Tables that it read there: nobody may have written to them since.
    reads: Annotated[list[str], msgspec.Meta(max_length=_MOST_TABLES)] | None = None
    #: Table → version that it must have: the number of transactions that wrote to it.
    versions: Annotated[dict[str, int], msgspec.Meta(max_length=_MOST_TABLES)] | None = None


def condition_of(
    request: ConditionsRequest | None, tables: Mapping[str, TableDefinition]
) -> Condition | None:
    """Return the condition that a request states, checked against the tables.

    Raises:
        InvalidRequestError: It names nothing, or what cannot be (definite).
        UnknownTableError: The log has no such table (definite).
    """
    if request is None:
        return None
    condition = Condition(
        read_position=request.read_position,
        reads=tuple(dict.fromkeys(request.reads or ())),
        versions=tuple((request.versions or {}).items()),
    )
    check_condition(condition, tables)
    versions = [(known_table(tables, name).name, n) for name, n in condition.versions]
    if len(dict(versions)) < len(versions):
        raise _refused("versions", list(condition.versions)[:20], "each table once")
    reads = dict.fromkeys(known_table(tables, name).name for name in condition.reads)
    return replace(condition, reads=tuple(reads), versions=tuple(versions))


def request_of_condition(condition: Condition | None) -> ConditionsRequest | None:
    """Return a condition as a request states it."""
    if condition is None:
        return None
    return ConditionsRequest(
        read_position=condition.read_position,
        reads=list(condition.reads) or None,
        versions=dict(condition.versions) or None,
    )


def check_run_conditions(manifest: RunManifest, tables: Mapping[str, TableDefinition]) -> None:
    """Check the conditions of a run that a client assembled; errors as `condition_of`."""
    indices = [index for index, _ in manifest.conditions]
    if indices != sorted(set(indices) & set(range(manifest.n))):
        raise InvalidRequestError(
            "conditions name transactions of the run, each once, ascending", field="conditions"
        )
    for _, condition in manifest.conditions:
        if len(set(condition.tables)) > 2 * _MOST_TABLES:
            raise _refused("reads", len(condition.tables), f"{_MOST_TABLES} tables at most")
        check_condition(condition, tables)
        for name in condition.tables:
            exact_table(tables, name)


def check_condition(condition: Condition, tables: Mapping[str, TableDefinition]) -> None:
    """Check what a condition says; errors as `condition_of`."""
    read, versions = condition.read_position, dict(condition.versions)
    if not condition.tables:
        raise InvalidRequestError(
            "the conditions name no table",
            hint="Give 'reads' with 'read_position', or 'versions'; without either leave "
            "'conditions' out.",
            field="conditions",
        )
    if (read is None) is bool(condition.reads):
        raise InvalidRequestError(
            "conditions: 'reads' and 'read_position' belong together",
            hint="'read_position' is the position that the tables in 'reads' were read at.",
            field="conditions.read_position" if read is None else "conditions.reads",
            value=read,
        )
    if read is not None and not 0 <= read <= LARGEST:
        raise _refused("read_position", read, "a position is 0 or more")
    if len(set(condition.reads)) < len(condition.reads):
        raise _refused("reads", list(condition.reads[:20]), "each table once")
    if len(versions) < len(condition.versions):
        raise _refused("versions", list(versions)[:20], "each table once")
    for table, version in versions.items():
        known_table(tables, table)
        if not 0 <= version <= LARGEST:
            raise _refused("versions", version, f"table {table!r}: a version is 0 or more")
    for table in condition.reads:
        known_table(tables, table)


def is_conflict(rejection: ReceiptRejection) -> bool:
    """Return whether a transaction lost to another one, and a new attempt may win."""
    return rejection.code in _CONFLICTS


def conflict_of(receipt: Receipt, rejection: ReceiptRejection) -> ConflictError:
    """Return the error that says to a client that its transaction lost to another one."""
    more: dict[str, Any] = {}
    if rejection.code == VersionConflictError.code:
        more = {"version": rejection.version, "winner_id": rejection.winner_id}
    return _CONFLICTS[rejection.code](
        f"transaction {receipt.transaction_id} was rejected at position {receipt.position}: "
        f"{rejection.text}" + (f", by node {rejection.origin!r}" if rejection.origin else ""),
        transaction_id=receipt.transaction_id,
        position=receipt.position,
        table=rejection.table,
        winner=rejection.winner,
        origin=rejection.origin,
        **more,
    )


def _refused(name: str, value: object, text: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"conditions: {name!r} is {value!r}; {text}",
        hint="GET /v1/tables/{name} says a table's version; GET /v1/info the position.",
        field=f"conditions.{name}",
        value=value,
    )


def is_ordered(error: TxLogError) -> bool:
    """Return whether an error says that a transaction was rejected at its position.

    Other sites may still ask for its staged files; what is not asked for any more, nodes remove.
    """
    # These name the position of another transaction, and of a node.
    of_others = isinstance(error, (IdTakenError, PositionNotReachedError))
    is_rejected = isinstance(error, CommitRejectedError) and not of_others
    return is_rejected and error.fields.get("position") is not None


def committed(receipt: Receipt) -> Receipt:
    """Return the receipt of a transaction that takes effect, or is not ordered yet.

    Raises:
        CommitRejectedError: It was rejected at its position; the class says why (definite).
    """
    if receipt.outcome != "rejected":
        return receipt
    if not receipt.rejections:
        raise CommitRejectedError(
            f"transaction {receipt.transaction_id} was rejected at position {receipt.position}; "
            "why is no longer kept",
            hint="Every site rejects it; nothing of it takes effect.",
            transaction_id=receipt.transaction_id,
            position=receipt.position,
        )
    reason = receipt.rejections[0]
    if is_conflict(reason):
        raise conflict_of(receipt, reason)
    kind = ERROR_CLASSES.get(reason.code, CommitRejectedError)
    if not issubclass(kind, CommitRejectedError):
        kind = CommitRejectedError
    raise kind(
        f"transaction {receipt.transaction_id} was rejected at position {receipt.position}: "
        f"{reason.text}",
        hint="Every site rejects it; nothing of it takes effect.",
        transaction_id=receipt.transaction_id,
        position=receipt.position,
        reason=reason.code,
    )
