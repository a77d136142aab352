"""Changes of tables in requests: checked against the catalog, and written again (P33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparktxlog.codec.arrow import normal_type
from sparktxlog.codec.transactions import PreparedOperation
from sparktxlog.codec.validation import check_definition
from sparktxlog.model.alteration import AddedColumn, TableChange
from sparktxlog.model.ids import check_new_name
from sparktxlog.model.table import TableDefinition

if TYPE_CHECKING:
    from sparktxlog.codec.requests import OperationRequest

#: Fields of an operation that say what becomes of its table.
CHANGE_FIELDS = frozenset({"add", "rename", "drop", "keys"})
_MAX_COMMENT = 1_000


class AddedColumnRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A column to add; it takes NULL."""

    name: str
    type: str
    comment: str = ""


def prepare_change(operation: OperationRequest, table: TableDefinition) -> PreparedOperation:
    """Check a change against the table as it is.

    Raises:
        CommitRejectedError: As `TableChange.applied_to`, and `check_definition` of what comes out
            (definite).
    """
    change = TableChange(
        add=tuple(
            AddedColumn(
                name=check_new_name(column.name),
                type=normal_type(column.type),
                comment=column.comment[:_MAX_COMMENT],
            )
            for column in operation.add or ()
        ),
        rename=tuple((name, check_new_name(new)) for name, new in (operation.rename or {}).items()),
        drop=tuple(operation.drop or ()),
        keys=None if operation.keys is None else tuple(operation.keys),
    )
    check_definition(change.applied_to(table))
    return PreparedOperation(
        table=table.name,
        kind=operation.kind,
        schema_version=table.schema_version,
        change=change,
    )


def put_change(change: TableChange | None, request: OperationRequest) -> None:
    """Write a change into the fields of a request."""
    if change is None:
        return
    request.add = [
        AddedColumnRequest(name=c.name, type=c.type, comment=c.comment) for c in change.add
    ] or None
    request.rename = dict(change.rename) or None
    request.drop = list(change.drop) or None
    request.keys = None if change.keys is None else list(change.keys)
