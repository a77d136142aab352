"""Rows and operations against the catalog: nothing is accepted that a worker could not apply.

All checks work on whole columns.  What is checked here holds at every site for ever, for the log
carries the checked bytes; `runs.py` repeats the same checks on runs that clients assembled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.rows import check_columns, nearest, type_name
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    UnknownTableError,
)
from sparktxlog.model.ids import check_table_name
from sparktxlog.model.operation import OP_COLUMN, ROW_KINDS, TX_COLUMN, OperationKind
from sparktxlog.model.table import TableDefinition

#: Transactions or operations of rows, int32.
IndexArray = npt.NDArray[np.int32]

_KEYED = frozenset({OperationKind.UPSERT, OperationKind.DELETE_KEYS})


def known_table(tables: Mapping[str, TableDefinition], name: str) -> TableDefinition:
    """Return the definition of a table.

    Raises:
        InvalidNameError: The name can name no table (definite).
        UnknownTableError: It is not in the catalog; the hint has the nearest (definite).
    """
    definition = tables.get(check_table_name(name))
    if definition is None:
        raise UnknownTableError(
            f"there is no table {name!r}",
            hint=nearest(name, sorted(tables)) or "Create it first, with create_table.",
            table=name,
        )
    return definition


@lru_cache(maxsize=1024)
def row_schema(definition: TableDefinition, kind: OperationKind) -> pa.Schema:
    """Return the Arrow schema of the rows an operation takes: all columns, or only the keys.

    Raises:
        InvalidRequestError: A kind that takes no rows, or one that needs keys on a table
            without (definite).
    """
    if kind not in ROW_KINDS:
        raise InvalidRequestError(f"{kind.value} takes no rows", table=definition.name)
    if kind in _KEYED and not definition.keys:
        raise InvalidRequestError(
            f"{kind.value} needs keys, and table {definition.name!r} has none",
            hint="Give create_table the argument keys, or use append and delete_where.",
            table=definition.name,
        )
    wanted = definition.keys if kind is OperationKind.DELETE_KEYS else None
    return arrow_schema(definition, wanted)


@lru_cache(maxsize=1024)
def run_schema(definition: TableDefinition, kind: OperationKind) -> pa.Schema:
    """Return the Arrow schema of an inline section: the rows', then TX and OP, both int32."""
    marks = [pa.field(name, pa.int32(), nullable=False) for name in (TX_COLUMN, OP_COLUMN)]
    return pa.schema([*row_schema(definition, kind), *marks])


def check_definition(definition: TableDefinition) -> None:
    """Check what the types of a new table's columns allow.

    Raises:
        SchemaMismatchError: Unknown type, or a key or partition column of a type that cannot be
            compared for equality at every site alike (definite).
    """
    schema = arrow_schema(definition)
    for role, names in (("key", definition.keys), ("partition", definition.partition_by)):
        if len(set(names)) != len(names):
            raise SchemaMismatchError(
                f"table {definition.name!r}: a {role} column stands twice",
                table=definition.name,
            )
        for name in names:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise SchemaMismatchError(
                    f"table {definition.name!r}: {role} column {name!r} of type "
                    f"{type_name(kind)} has no equality to rely on",
                    hint="Use whole numbers, decimals, texts, dates or timestamps.",
                    table=definition.name,
                    column=name,
                )


def align_rows(definition: TableDefinition, kind: OperationKind, rows: pa.Table) -> pa.Table:
    """Return Arrow rows in exactly the schema the operation takes; casts only without loss.

    Raises:
        SchemaMismatchError: Unknown or missing column, another type, or a value that does not
            fit; fields `table`, `column`, `expected` (definite).
    """
    schema = row_schema(definition, kind)
    if rows.schema.equals(schema):
        return rows
    names = rows.column_names
    if len(set(names)) != len(names):
        raise SchemaMismatchError(
            f"table {definition.name!r}: a column stands twice in the Arrow data",
            table=definition.name,
        )
    check_columns(definition.name, names, schema.names, "the Arrow data")
    arrays = [_cast(definition.name, rows[field.name], field) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    given, wanted = column.type, field.type
    if given.equals(wanted):
        return column
    reason = "it is of another kind"
    if _lossless(given, wanted):
        try:
            if pa.types.is_dictionary(given):
                column = column.cast(given.value_type)
            if pa.types.is_integer(column.type) and pa.types.is_decimal(wanted):
                # Arrow wants room for every bigint first; the second cast checks the values.
                column = column.cast(pa.decimal128(min(38, 19 + wanted.scale), wanted.scale))
            return column.cast(wanted, safe=True)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
    raise SchemaMismatchError(
        f"table {table!r}: column {field.name!r} is {type_name(given)}, "
        f"{type_name(wanted)} is wanted: {reason}",
        hint="Cast the column yourself; nothing is rounded or guessed.",
        table=table,
        column=field.name,
        value=str(given),
        expected=type_name(wanted),
    )


def _lossless(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a safe cast either keeps every value exactly or raises."""
    types = pa.types
    if types.is_dictionary(given):
        return _lossless(given.value_type, wanted)
    if given.equals(wanted) or types.is_null(given):
        return True
    if types.is_integer(given):
        targets = (types.is_integer, types.is_decimal, types.is_float64)
        return any(target(wanted) for target in targets)
    if types.is_timestamp(given):
        return bool(types.is_timestamp(wanted) and (given.tz is None) == (wanted.tz is None))
    if types.is_struct(given):
        return (
            types.is_struct(wanted)
            and [f.name for f in given] == [f.name for f in wanted]
            and all(_lossless(a.type, b.type) for a, b in zip(given, wanted, strict=True))
        )
    if types.is_map(given):
        return (
            types.is_map(wanted)
            and _lossless(given.key_type, wanted.key_type)
            and _lossless(given.item_type, wanted.item_type)
        )
    if types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given):
        return bool(types.is_list(wanted)) and _lossless(given.value_type, wanted.value_type)
    return any(source(given) and target(wanted) for source, target in _CASTS)


_CASTS = (
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_float16, pa.types.is_floating),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_large_string, pa.types.is_string),
    (pa.types.is_string_view, pa.types.is_string),
    (pa.types.is_large_binary, pa.types.is_binary),
    (pa.types.is_binary_view, pa.types.is_binary),
    (pa.types.is_fixed_size_binary, pa.types.is_binary),
    (pa.types.is_date64, pa.types.is_date32),
)


def check_rows(
    definition: TableDefinition,
    kind: OperationKind,
    rows: pa.Table,
    txs: IndexArray | None = None,
    ops: IndexArray | None = None,
) -> None:
    """Check rows of the right schema: some there, no NULL where none may be, keys distinct.

    Args:
        definition: The table's.
        kind: The operation's.
        rows: In the schema of `row_schema`, further columns allowed.
        txs: For runs: each row's transaction, ascending; None = all rows are one operation.
        ops: For runs: each row's operation in its transaction.

    Raises:
        InvalidRowsError: With fields `table`, `column` or `keys`, `row` (definite).
    """
    if rows.num_rows == 0:
        raise InvalidRowsError(
            f"table {definition.name!r}: {kind.value} without rows",
            hint="Leave the operation out; to empty a table use delete_where with TRUE.",
            table=definition.name,
        )
    for name in _required(definition, kind):
        column = rows[name]
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise InvalidRowsError(
                f"table {definition.name!r}: row {row} has NULL in {name!r}, which takes none",
                hint="Key columns and columns declared NOT NULL need a value.",
                table=definition.name,
                column=name,
                row=row,
            )
    if kind is OperationKind.UPSERT and rows.num_rows > 1:
        _check_distinct_keys(definition, rows, txs, ops)


@lru_cache(maxsize=1024)
def _required(definition: TableDefinition, kind: OperationKind) -> tuple[str, ...]:
    if kind is OperationKind.DELETE_KEYS:
        return definition.keys
    return tuple(c.name for c in definition.columns if not c.nullable or c.name in definition.keys)


def _check_distinct_keys(
    definition: TableDefinition,
    rows: pa.Table,
    txs: IndexArray | None,
    ops: IndexArray | None,
) -> None:
    keys = rows.select(definition.keys)
    by: list[str] = list(definition.keys)
    if txs is not None and ops is not None:
        if bool(np.all((txs[1:] != txs[:-1]) | (ops[1:] != ops[:-1]))):
            return  # one row per operation
        keys = keys.append_column(TX_COLUMN, pa.array(txs)).append_column(OP_COLUMN, pa.array(ops))
        by += [TX_COLUMN, OP_COLUMN]
    groups = keys.group_by(by, use_threads=False).aggregate([([], "count_all")])
    if groups.num_rows == rows.num_rows:
        return
    row, shown = _first_repeated(keys, by, definition.keys)
    raise InvalidRowsError(
        f"table {definition.name!r}: row {row} repeats the key {shown} of an earlier row of "
        "the same upsert",
        hint="Keep one row per key; which one should win is yours to say.",
        table=definition.name,
        keys=list(definition.keys),
        row=row,
        value=shown,
    )


def _first_repeated(
    rows: pa.Table, by: Sequence[str], keys: Sequence[str]
) -> tuple[int | None, str]:
    seen = set()
    columns = [rows[name].to_pylist() for name in by]
    for index, values in enumerate(zip(*columns, strict=True)):
        if values in seen:
            shown = ", ".join(
                f"{name}={value!r}" for name, value in zip(keys, values, strict=False)
            )
            return index, shown[:200]
        seen.add(values)
    return None, ""
