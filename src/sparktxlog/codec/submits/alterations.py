"""Changes of tables in requests: checked against the tables, and written again (P33)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sparktxlog.codec.arrow import arrow_type, normal_type
from sparktxlog.codec.submits.transactions import PreparedOperation
from sparktxlog.codec.submits.validation import check_definition
from sparktxlog.errors import InvalidRequestError, SchemaMismatchError
from sparktxlog.lazy_arrow import pa
from sparktxlog.model.ids import check_new_name
from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.groups import GROUPS, check_change
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

#: Columns of a table.
MAX_COLUMNS = 2_000
_OfColumns = msgspec.Meta(max_length=MAX_COLUMNS)
Names = Annotated[list[str], _OfColumns]

_WIDER = (
    "Possible are: whole numbers to wider ones; tinyint, smallint, int and float to double; "
    "tinyint, smallint and int to decimal(10+n,n), bigint to decimal(20+n,n); decimals to more "
    "digits before and after the point; date to timestamp_ntz.  For another type add a column, "
    "and copy the values."
)


class AddedColumnRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A column to add; it takes NULL."""

    name: str
    type: str
    comment: str = ""


class ChangeRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The part of an operation that says what becomes of its table, or how a new one is."""

    kind: OperationKind
    table: str
    add: Annotated[list[AddedColumnRequest], _OfColumns] | None = None
    #: Column → its new name.
    rename: Annotated[dict[str, str], _OfColumns] | None = None
    drop: Names | None = None
    #: Column → its new, wider type.
    widen: Annotated[dict[str, str], _OfColumns] | None = None
    keys: Names | None = None
    #: Of a table: whether its transactions are synchronous.
    is_sync: bool | None = None
    #: Of a table; of a change: from then on, [] = by none.
    cluster_by: Names | None = None
    #: Of a table.
    comment: str | None = None
    #: Column → its comment from then on.
    comments: Annotated[dict[str, str], _OfColumns] | None = None
    #: Of a table; of a change null = without it from then on.  A new table without the field takes
    #: those of an equal one that is there.
    properties: Annotated[dict[str, str | None], _OfColumns] | None = None


#: Fields of a change.
CHANGE_FIELDS = frozenset(ChangeRequest.__struct_fields__) - {"kind", "table"}


def prepare_change(operation: ChangeRequest, table: TableDefinition) -> PreparedOperation:
    """Check a change of a table, or its drop, against the table as it is.

    Raises:
        CommitRejectedError: As `TableChange.applied_to`, and `check_definition` of what comes out
            (definite).
    """
    change = DROPPED
    if operation.kind is OperationKind.ALTER_TABLE:
        change = _asked(operation)
        check_change(table, dict(change.properties))
        check_definition(change.applied_to(table))
    elif table.name == GROUPS:
        raise InvalidRequestError(
            f"table {GROUPS!r} cannot be dropped: the tables of groups need it",
            hint="Leave it; without tables a group holds nothing up.",
            table=GROUPS,
        )
    for name, wanted in change.widen:
        column = table.column(name)
        assert column is not None
        _check_widening(table, column, wanted)
    return PreparedOperation(
        table=table.name,
        kind=operation.kind,
        schema_version=table.schema_version,
        change=change,
    )


def _asked(operation: ChangeRequest) -> TableChange:
    return TableChange(
        add=tuple(
            Column(
                name=check_new_name(column.name),
                type=normal_type(column.type),
                comment=column.comment,
            )
            for column in operation.add or ()
        ),
        rename=tuple((name, check_new_name(new)) for name, new in (operation.rename or {}).items()),
        drop=tuple(operation.drop or ()),
        widen=tuple((name, normal_type(kind)) for name, kind in (operation.widen or {}).items()),
        keys=None if operation.keys is None else tuple(operation.keys),
        is_sync=operation.is_sync,
        comment=operation.comment,
        comments=tuple((operation.comments or {}).items()),
        properties=tuple((operation.properties or {}).items()),
        cluster_by=None if operation.cluster_by is None else tuple(operation.cluster_by),
    )


def _check_widening(table: TableDefinition, column: Column, wanted: str) -> None:
    """Refuse another type unless Delta reads the values that are there as the same ones."""
    if column.name in table.partition_by:
        reason = "it is a partition column"
    elif widens(arrow_type(column.type), arrow_type(wanted)):
        return
    else:
        reason = f"{column.type} does not become {wanted} without loss"
    raise SchemaMismatchError(
        f"table {table.name!r}: the type of column {column.name!r} cannot be changed: {reason}",
        hint=_WIDER,
        table=table.name,
        column=column.name,
        value=wanted,
    )


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Delta's type widening leads from one type to another one."""
    types = pa.types
    if types.is_decimal(wanted):
        if types.is_decimal(given):
            least, scale = given.precision - given.scale, given.scale
        elif types.is_integer(given):
            least, scale = 20 if types.is_int64(given) else 10, 0
        else:
            return False
        room = wanted.precision - wanted.scale
        return bool(given != wanted and room >= least and wanted.scale >= scale)
    if types.is_integer(given):
        small = given.bit_width < 64
        return bool(
            (types.is_integer(wanted) and wanted.bit_width > given.bit_width)
            or (types.is_float64(wanted) and small)
        )
    return bool(
        (types.is_float32(given) and types.is_float64(wanted))
        or (types.is_date(given) and wanted == pa.timestamp("us"))
    )


def put_change(change: TableChange | None, request: ChangeRequest) -> None:
    """Write a change into the fields of a request."""
    if change is None or change.is_dropped:
        return
    request.add = [
        AddedColumnRequest(name=c.name, type=c.type, comment=c.comment) for c in change.add
    ] or None
    request.rename = dict(change.rename) or None
    request.drop = list(change.drop) or None
    request.widen = dict(change.widen) or None
    request.keys = None if change.keys is None else list(change.keys)
    request.is_sync = change.is_sync
    request.comment = change.comment
    request.comments = dict(change.comments) or None
    request.properties = dict(change.properties) or None
    request.cluster_by = None if change.cluster_by is None else list(change.cluster_by)
