"""Few rows that came as JSON: checked, and kept as Python has them until their run is made.

Arrow takes as long for the arrays of one row as for those of a thousand.  So each transaction's
values are checked when it comes, and the arrays are made once for all transactions of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sparktxlog.codec.rows import converter_of
from sparktxlog.codec.submits.validation import required_columns, row_schema
from sparktxlog.lazy_arrow import pa
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

#: Most rows of an operation that are kept so.
MOST_ROWS = 64
#: Bytes of a value in addition to those of a text: numbers, offsets.
_VALUE_BYTES = 9
#: Plans that are remembered.
_MOST_PLANS = 16_384


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows of one operation, as checked as a `pyarrow.Table` of `schema` is."""

    schema: pa.Schema
    #: Of each column its values, in the form that `pa.array` takes exactly.
    columns: tuple[list[Any], ...]
    #: About as many as Arrow needs.
    nbytes: int

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0])


def table_of(parts: Sequence[pa.Table | PlainRows]) -> pa.Table:
    """Return the rows of some operations, all of one schema, in their order."""
    if len(parts) == 1 and isinstance(parts[0], pa.Table):
        return parts[0]
    tables: list[pa.Table] = []
    for kind, group in groupby(parts, type):
        some = list(group)
        tables += [_made(some)] if kind is PlainRows else some
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _made(parts: Sequence[PlainRows]) -> pa.Table:
    schema = parts[0].schema
    columns = (
        [value for part in parts for value in part.columns[place]] for place in range(len(schema))
    )
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the rows of one kind of operation on one table are checked."""

    definition: TableDefinition
    schema: pa.Schema
    names: Collection[str]
    #: Name, whether it takes NULL, converter, whether it is a text; None = other rows than these.
    columns: tuple[tuple[str, bool, Callable[[Any], Any], bool], ...] | None


_plans: dict[tuple[str, OperationKind], _Plan] = {}


def plain_rows(
    definition: TableDefinition, kind: OperationKind, rows: Sequence[Any]
) -> PlainRows | None:
    """Return decoded JSON rows, checked as `rows_to_arrow` and `check_rows` do.

    None: they are many, of other types, or not right; then those say what they are.

    Raises:
        InvalidRequestError: As `row_schema` (definite).
    """
    plan = _plans.get((definition.name, kind))
    if plan is None or plan.definition is not definition:
        plan = _remembered(definition, kind)
    if plan.columns is None or not 0 < len(rows) <= MOST_ROWS:
        return None
    if kind is OperationKind.UPSERT and len(rows) > 1:
        return None  # their keys are compared
    for row in rows:
        if type(row) is not dict or row.keys() != plan.names:
            return None
    found, size = [], _VALUE_BYTES * len(rows) * len(plan.columns)
    try:
        for name, takes_null, convert, is_text in plan.columns:
            values = [None if row[name] is None else convert(row[name]) for row in rows]
            if not takes_null and None in values:
                return None
            if is_text:
                size += sum(len(value.encode()) for value in values if value is not None)
            found.append(values)
    except (ValueError, TypeError, OverflowError):
        return None
    return PlainRows(plan.schema, tuple(found), size)


def _remembered(definition: TableDefinition, kind: OperationKind) -> _Plan:
    schema = row_schema(definition, kind)
    required = required_columns(definition, kind)
    columns = None
    if not definition.partition_by and all(map(_is_plain, schema.types)):
        columns = tuple(
            (
                field.name,
                field.nullable and field.name not in required,
                converter_of(field.type),
                pa.types.is_string(field.type),
            )
            for field in schema
        )
    if len(_plans) >= _MOST_PLANS:
        _plans.clear()
    plan = _Plan(definition, schema, frozenset(schema.names), columns)
    _plans[definition.name, kind] = plan
    return plan


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a value of a type that its converter takes is one for `pa.array`, too."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )
