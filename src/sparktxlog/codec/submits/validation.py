"""Checks rows and operations against the tables, so that workers can apply all that is accepted.

All checks work on whole columns.  Their results hold at every site, because the log carries the
checked bytes; `runs.py` uses the same checks for runs that clients assembled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from sparktxlog.codec.arrow import arrow_schema, ddl_type, file_schema
from sparktxlog.codec.containers.sections import check_size, read_section
from sparktxlog.codec.partitions import check_partition_values
from sparktxlog.codec.rows import check_columns, nearest, type_name
from sparktxlog.codec.submits.column_values import (
    check_column_values,
    has_looked_at,
    has_null_key,
)
from sparktxlog.errors import (
    InvalidNameError,
    InvalidRequestError,
    InvalidRowsError,
    SchemaMismatchError,
    StaleSchemaError,
    UnknownTableError,
    first_lines,
)
from sparktxlog.lazy_arrow import np, pa, pc
from sparktxlog.model.ids import (
    RESERVED_PREFIX,
    check_new_name,
    table_name,
    without_case,
)
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.tables.table_properties import check_comment, check_properties
from sparktxlog.model.transactions.operation import OP_COLUMN, ROW_KINDS, TX_COLUMN, OperationKind

if TYPE_CHECKING:
    import numpy.typing as npt

#: A column, or one of its pieces.
_AnyArray: TypeAlias = "pa.ChunkedArray | pa.Array"
#: Transactions or operations of rows, int32.
IndexArray: TypeAlias = "npt.NDArray[np.int32]"

#: Fields of a table, those of nested types included.
_MAX_FIELDS = 10_000
#: Clustering columns of a Delta table, and fields from the first one that have statistics.
_MAX_CLUSTERING, _WITH_STATISTICS = 4, 32
_KEYED = frozenset({OperationKind.UPSERT, OperationKind.DELETE_KEYS})

#: The nearest name is searched for among so many tables at most.
_NAMED_TABLES = 1_000


def known_table(tables: Mapping[str, TableDefinition], name: str) -> TableDefinition:
    """Return the definition of a table that a user names: `default.Orders` may be `orders`.

    Raises:
        InvalidNameError: No table can have this name (definite).
        UnknownTableError: The log does not have it; the hint has the nearest one, unless there are
            very many (definite).
    """
    wanted = table_name(name)
    definition = Tables.of(tables).alike(wanted)
    if definition is None:
        names = sorted(tables) if len(tables) <= _NAMED_TABLES else ()
        raise UnknownTableError(
            f"there is no table {name!r}",
            hint=(nearest(wanted, names) or "Create it first with create_table.")
            + "  Commit tables are written by ordinary Spark SQL.",
            table=name,
        )
    return definition


def exact_table(tables: Mapping[str, TableDefinition], name: str) -> TableDefinition:
    """Return the definition of a table in bytes that are passed on: its name is that of the log.

    Raises:
        InvalidNameError: No table can have this name, or the log has another spelling (definite).
        UnknownTableError: As `known_table` (definite).
    """
    definition = known_table(tables, name)
    if definition.name != name:
        raise InvalidNameError(
            f"a run names table {name!r}, which the log calls {definition.name!r}",
            hint=f"Write {definition.name}.",
            table=definition.name,
            value=name,
        )
    return definition


def check_made_for(definition: TableDefinition, schema_version: int | None) -> None:
    """Compare a table with the schema version that an operation was made for (protocol P33).

    Args:
        definition: The table as it is at this node.
        schema_version: What the sender says; None = nothing, then only the content is checked.

    Raises:
        StaleSchemaError: It is another one; the table changed (definite).
    """
    if schema_version in (None, definition.schema_version):
        return
    raise StaleSchemaError(
        f"table {definition.name!r} has schema version {definition.schema_version} here, the "
        f"transaction was made for {schema_version}",
        table=definition.name,
        schema_version=definition.schema_version,
        made_for=schema_version,
    )


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
            f"{kind.value} needs keys, but table {definition.name!r} has none",
            hint="Create the table with keys, or use append and delete_where.",
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
    """Check the names of a new table, and what the types of its columns allow.

    Raises:
        InvalidNameError: A name that is not good everywhere (definite).
        SchemaMismatchError: Unknown type, or a key or partition column of a type that cannot be
            compared for equality at every site alike (definite).
    """
    for name in (definition.name, *(column.name for column in definition.columns)):
        check_new_name(name)
    check_comment(definition.name, definition.comment)
    for column in definition.columns:
        check_comment(definition.name, column.comment, column.name)
    check_properties(definition.name, dict(definition.properties))
    schema = arrow_schema(definition)
    _check_alike(definition.name, [column.name for column in definition.columns])
    for kind in schema.types:
        _check_nested(definition.name, kind)
    fields = sum(map(_fields, schema.types))
    if fields > _MAX_FIELDS:
        raise SchemaMismatchError(
            f"table {definition.name!r} has {fields:,} fields, those of nested types included; "
            f"{_MAX_FIELDS:,} are allowed",
            table=definition.name,
        )
    _check_clustering(definition, schema)
    for role, names in (
        ("key", definition.keys),
        ("partition", definition.partition_by),
        ("clustering", definition.cluster_by),
    ):
        if len(set(names)) != len(names):
            raise SchemaMismatchError(
                f"table {definition.name!r}: a {role} column is named twice",
                table=definition.name,
            )
        if role == "clustering":
            continue
        for name in names:
            kind = schema.field(name).type
            # Delta has no text of bytes.
            bytes_part = role == "partition" and pa.types.is_binary(kind)
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or bytes_part:
                raise SchemaMismatchError(
                    f"table {definition.name!r}: {role} column {name!r} of type "
                    f"{type_name(kind)} cannot be compared reliably",
                    hint="Use whole numbers, decimals, texts, dates or timestamps.",
                    table=definition.name,
                    column=name,
                )
            if role == "partition" and re.search(r"[.`]", name):
                raise SchemaMismatchError(
                    f"table {definition.name!r}: the name of partition column {name!r} has a dot "
                    "or a backtick, which Delta takes for something else when it merges",
                    hint="Give the column another name.",
                    table=definition.name,
                    column=name,
                )


def _check_clustering(definition: TableDefinition, schema: pa.Schema) -> None:
    """Refuse clustering columns that Delta cannot have.

    Raises:
        SchemaMismatchError: (definite).
    """
    names, reason = definition.cluster_by, ""
    if not names:
        return
    if definition.partition_by:
        reason = "a table is partitioned or clustered, not both"
    elif len(names) > _MAX_CLUSTERING:
        reason = f"{len(names)} are given, Delta takes {_MAX_CLUSTERING}"
    for name in names:
        kind, before = schema.field(name).type, schema.types[: schema.names.index(name)]
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
            reason = f"{name!r} of type {type_name(kind)} has no bounds in statistics"
        elif sum(map(_fields, before)) >= _WITH_STATISTICS:
            reason = f"{name!r} is not among the first {_WITH_STATISTICS} fields, which have "
            reason += "statistics"
    if reason:
        raise SchemaMismatchError(
            f"table {definition.name!r} cannot have the clustering columns {', '.join(names)}: "
            f"{reason}",
            hint="Take up to four of the first columns: numbers, texts, dates or timestamps.",
            table=definition.name,
            field="cluster_by",
        )


def _check_alike(table: str, names: Sequence[str]) -> None:
    """Refuse two names that Spark takes for one: it could not MERGE such a table."""
    known = dict[str, str]()
    for name in names:
        other = known.setdefault(without_case(name), name)
        if other != name:
            raise SchemaMismatchError(
                f"table {table!r}: Spark takes {name!r} for {other!r}, as it ignores case",
                hint="Choose another name for one of them.",
                table=table,
                column=name,
            )


def _check_nested(table: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind):
        _check_alike(table, [field.name for field in kind])
    for index in range(kind.num_fields):
        _check_nested(table, kind.field(index).type)


def _fields(kind: pa.DataType) -> int:
    return 1 + sum(_fields(kind.field(index).type) for index in range(kind.num_fields))


def read_rows(
    data: bytes,
    definition: TableDefinition,
    kind: OperationKind,
    limit_bytes: int,
    *,
    marks: Sequence[str] = (),
) -> pa.Table:
    """Read an Arrow IPC stream in exactly the schema the operation takes; casts without loss.

    The stream's schema is compared with the table's before a batch is read, and the memory that
    the rows take after all casts before the first cast.

    Args:
        data: The stream, from an untrusted sender.
        definition: The table.
        kind: The operation.
        limit_bytes: Most bytes that the rows may take in memory.
        marks: Further columns that may stand in the stream; they keep their types, which are
            whole numbers.

    Raises:
        SchemaMismatchError: Unknown or missing column, another type, or a value that does not
            fit; fields `table`, `column`, `expected` (definite).
        OversizeError: The rows take more memory (definite).
        InvalidRequestError: It is no sound Arrow stream (definite).
    """
    schema = row_schema(definition, kind)

    def wanted(given: pa.Schema) -> pa.Schema:
        fields = [given.field(name) for name in given.names if name in marks]
        return pa.schema([*schema, *fields])

    rows = read_section(
        data, limit_bytes, lambda given: _check_given(definition.name, given, wanted(given))
    )
    schema = wanted(rows.schema)
    check_size(cast_bytes(rows, schema), limit_bytes)
    return _cast_all(definition.name, rows, schema)


def align_rows(definition: TableDefinition, kind: OperationKind, rows: pa.Table) -> pa.Table:
    """Return the caller's own Arrow rows in the schema the operation takes, as `read_rows` does.

    Raises:
        SchemaMismatchError: As `read_rows` (definite).
    """
    schema = row_schema(definition, kind)
    _check_given(definition.name, rows.schema, schema)
    return _cast_all(definition.name, rows, schema)


def _check_given(table: str, given: pa.Schema, wanted: pa.Schema) -> None:
    """Raise SchemaMismatchError unless rows of the one schema can be cast to the other."""
    if given.equals(wanted):
        return
    if len(set(given.names)) != len(given.names):
        raise SchemaMismatchError(
            f"table {table!r}: a column occurs twice in the Arrow data", table=table
        )
    check_columns(table, given.names, wanted.names, "the Arrow data")
    for field in wanted:
        kind = given.field(field.name).type
        integer = not field.name.startswith(RESERVED_PREFIX) or pa.types.is_integer(kind)
        if not (integer and _lossless(kind, field.type)):
            part = _unfit_type(kind, field.type)
            raise _wrong_type(table, kind, field, "the types do not match", part)


def fitting_column(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray | None:
    """Return a column in the type of a field; None if such types cannot be cast.

    Raises:
        SchemaMismatchError: A value would lose something, as in `read_rows` (definite).
    """
    return _cast(table, column, field) if _lossless(column.type, field.type) else None


def _cast_all(table: str, rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    if rows.schema.equals(wanted):
        return rows
    arrays = [_cast(table, rows[field.name], field) for field in wanted]
    return pa.Table.from_arrays(arrays, schema=wanted)


def _cast(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    given, wanted = column.type, field.type
    if given.equals(wanted):
        return column
    if any(map(has_null_key, column.chunks)):
        raise _wrong_type(table, given, field, "a dictionary of keys of a map has NULL", "")
    try:
        return _whole_cast(column, wanted)
    except pa.ArrowException as error:
        part = next((name for chunk in column.chunks for name in _unfit_values(chunk, wanted)), "")
        raise _wrong_type(table, given, field, first_lines(error, 1), part) from error


def _whole_cast(column: _AnyArray, wanted: pa.DataType) -> _AnyArray:
    """Return values in another type.

    Raises:
        pyarrow.ArrowException: One of them does not fit.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(_with_room(column.type, wanted)).cast(wanted, safe=True)


def _with_room(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return the wanted type with room for each whole number that becomes a decimal.

    Arrow wants room for every number of 64 bits first; a second cast then checks the values.
    """
    types = pa.types
    if types.is_dictionary(given):
        return _with_room(given.value_type, wanted)
    if types.is_integer(given) and types.is_decimal(wanted):
        room = 20 + wanted.scale
        wide = pa.decimal128 if room <= 38 else pa.decimal256
        return wide(room, wanted.scale)
    parts = [_with_room(one, other) for _, one, other in _parts(given, wanted) or ()]
    if not parts:
        return wanted
    if types.is_struct(wanted):
        return pa.struct([f.with_type(kind) for f, kind in zip(wanted, parts, strict=True)])
    if types.is_map(wanted):
        return pa.map_(*parts)
    return pa.list_(wanted.value_field.with_type(parts[0]))


def _parts(
    given: pa.DataType, wanted: pa.DataType
) -> list[tuple[str, pa.DataType, pa.DataType]] | None:
    """Return name and both types of each field of two nested types; None where they differ."""
    types = pa.types
    if types.is_struct(given) and types.is_struct(wanted):
        if [f.name for f in given] == [f.name for f in wanted]:
            return [(a.name, a.type, b.type) for a, b in zip(given, wanted, strict=True)]
    elif types.is_map(given) and types.is_map(wanted):
        keys = ("key", given.key_type, wanted.key_type)
        return [keys, ("value", given.item_type, wanted.item_type)]
    elif types.is_list(wanted) and (
        types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    ):
        return [("element", given.value_type, wanted.value_type)]
    return None


def _unfit_type(given: pa.DataType, wanted: pa.DataType) -> str:
    """Return the path of the first nested field whose type cannot be cast: `.element.price`."""
    for name, one, other in _parts(given, wanted) or ():
        if not _lossless(one, other):
            return f".{name}{_unfit_type(one, other)}"
    return ""


def _unfit_values(array: pa.Array, wanted: pa.DataType) -> Iterator[str]:
    """Yield the path of the first nested field with a value that cannot be cast, or nothing."""
    parts = _parts(array.type, wanted)
    if not parts:
        return
    if pa.types.is_map(array.type):
        inside = [array.keys, array.items]
    else:  # values below a NULL are none
        inside = array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]
    for (name, _, kind), values in zip(parts, inside, strict=True):
        try:
            _whole_cast(values, kind)
        except pa.ArrowException:
            yield f".{name}{next(_unfit_values(values, kind), '')}"
            return


def _wrong_type(
    table: str, given: pa.DataType, field: pa.Field, reason: str, part: str
) -> SchemaMismatchError:
    shown, wanted = type_name(given)[:140], type_name(field.type)
    if shown == wanted:  # in a form that a table does not take, such as a dictionary of lists
        shown = str(given)[:140]
    where = f"{(field.name + part)[:300]}: " if part else ""
    return SchemaMismatchError(
        f"table {table!r}: column {field.name!r} is {shown}, expected {wanted}: {where}{reason}",
        hint="Cast the column yourself; nothing is rounded or guessed.",
        table=table,
        column=field.name,
        value=str(given)[:140],
        expected=wanted,
        **({"part": (field.name + part)[:300]} if part else {}),
    )


def cast_bytes(rows: pa.Table, wanted: pa.Schema) -> int:
    """Return about how many bytes rows take once they are cast, shared bytes counted each time.

    Nulls, dictionaries and views take next to nothing in a stream.
    """
    return sum(
        _array_bytes(chunk, field.type) for field in wanted for chunk in rows[field.name].chunks
    )


def _array_bytes(array: pa.Array, wanted: pa.DataType) -> int:
    given, types = array.type, pa.types
    count = len(array)
    if types.is_null(given):
        return count * _least_width(wanted)
    if types.is_dictionary(given):
        if types.is_string(wanted) or types.is_binary(wanted):
            lengths = pc.binary_length(array.dictionary).cast(pa.int64())
            return 4 * count + int(pc.sum(lengths.take(array.indices)).as_py() or 0)
        return count * _least_width(wanted)
    if types.is_string_view(given) or types.is_binary_view(given):
        end = array.offset + count
        views = np.frombuffer(array.buffers()[1] or b"", dtype="<i4", count=4 * end)
        lengths = views.reshape(-1, 4)[array.offset :, 0]
        return 4 * count + int(np.maximum(lengths, 0).sum(dtype=np.int64))
    if types.is_struct(given):
        return sum(
            _array_bytes(array.field(index), wanted.field(index).type)
            for index in range(given.num_fields)
        )
    if types.is_map(given):
        keys = _array_bytes(array.keys, wanted.key_type)
        return 4 * count + keys + _array_bytes(array.items, wanted.item_type)
    if types.is_nested(given):
        return 4 * count + _array_bytes(array.values, wanted.value_type)
    if types.is_fixed_size_binary(given):
        return count * (4 + int(given.byte_width))
    return max(int(array.nbytes), count * _least_width(wanted))


def _least_width(kind: pa.DataType) -> int:
    """Return how many bytes a NULL of a type takes at least."""
    if pa.types.is_struct(kind):
        return sum(_least_width(field.type) for field in kind)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return max(1, int(kind.bit_width) // 8)
    return 4


def _lossless(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a safe cast either keeps every value exactly or raises.

    Only the listed kinds pass: others, and parameters that no table has, can crash a cast.
    """
    types = pa.types
    if given.equals(wanted) or types.is_null(given):
        return True
    if types.is_dictionary(given):
        value = given.value_type
        plain = not (types.is_nested(value) or types.is_dictionary(value) or types.is_null(value))
        # Views could unfold once more.
        plain = plain and not (types.is_string_view(value) or types.is_binary_view(value))
        return plain and _lossless(value, wanted)
    if types.is_integer(given):
        targets = (types.is_integer, types.is_decimal, types.is_float32, types.is_float64)
        return any(target(wanted) for target in targets)
    if types.is_decimal(given):
        return bool(types.is_decimal(wanted) and 0 <= given.scale <= given.precision)
    if types.is_timestamp(given):
        return bool(types.is_timestamp(wanted) and (given.tz is None) == (wanted.tz is None))
    if types.is_nested(given):
        parts = _parts(given, wanted)
        return parts is not None and all(_lossless(one, other) for _, one, other in parts)
    return any(source(given) and target(wanted) for source, target in _casts())


@cache
def _casts() -> tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]:
    types = pa.types
    return (
        (types.is_float32, types.is_float64),
        (types.is_float16, types.is_floating),
        (types.is_large_string, types.is_string),
        (types.is_string_view, types.is_string),
        (types.is_large_binary, types.is_binary),
        (types.is_binary_view, types.is_binary),
        (types.is_fixed_size_binary, types.is_binary),
        (types.is_date64, types.is_date32),
    )


def check_rows(
    definition: TableDefinition,
    kind: OperationKind,
    rows: pa.Table,
    txs: IndexArray | None = None,
    ops: IndexArray | None = None,
) -> None:
    """Check rows of the right schema: not empty, NULLs, values of columns, distinct keys.

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
    required = required_columns(definition, kind)
    for name in required:
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
    if kind is not OperationKind.DELETE_KEYS:
        for name in looked_at_columns(definition):
            check_column_values(definition.name, name, rows[name])
        for name in definition.partition_by:
            takes_null = name not in required
            check_partition_values(definition.name, name, rows[name], takes_null=takes_null)
    if kind is OperationKind.UPSERT and rows.num_rows > 1:
        _check_distinct_keys(definition, rows, txs, ops)


def file_columns(definition: TableDefinition, kind: OperationKind) -> pa.Schema:
    """Return the columns a staged file holds: the operation's without the partition columns.

    Files of keys to delete are never placed in the table: they hold all keys as columns.
    """
    names = row_schema(definition, kind).names
    if kind is not OperationKind.DELETE_KEYS:
        names = [name for name in names if name not in definition.partition_by]
    return file_schema(definition, names)


def check_file_schema(
    path: str, definition: TableDefinition, kind: OperationKind, found: pa.Schema
) -> None:
    """Compare the schema of a Parquet file with what an operation's files hold.

    It may hold partition columns too, as Delta writes them: the manifest says their values, and
    nobody reads those of the file.

    Args:
        path: For the text.
        found: As `codec.arrow.schema_of_file` returns it.

    Raises:
        SchemaMismatchError: A column is missing, unknown or of another type (definite).
    """
    wanted = file_columns(definition, kind)
    where = f"the staged file {path!r}"
    partitions = definition.in_files(definition.partition_by)
    extra = () if kind is OperationKind.DELETE_KEYS else partitions
    names = [name for name in found.names if name not in extra]
    check_columns(definition.name, names, wanted.names, where)
    for field in wanted:
        given = found.field(field.name).type
        try:
            same = ddl_type(given) == ddl_type(field.type)
        except SchemaMismatchError:
            same = False
        if not same:
            raise SchemaMismatchError(
                f"table {definition.name!r}: column {field.name!r} of {where} is {given}, "
                f"expected {ddl_type(field.type)}",
                hint="Cast before writing; timestamps as TIMESTAMP_MICROS.",
                table=definition.name,
                column=field.name,
                path=path,
                expected=ddl_type(field.type),
            )


@lru_cache(maxsize=1024)
def looked_at_columns(definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns whose values `check_column_values` looks at."""
    return tuple(field.name for field in arrow_schema(definition) if has_looked_at(field.type))


@lru_cache(maxsize=1024)
def required_columns(definition: TableDefinition, kind: OperationKind) -> tuple[str, ...]:
    """Return the columns of an operation's rows that take no NULL."""
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
        hint="Keep one row per key.",
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
