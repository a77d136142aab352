"""Splits rows by the values of partition columns, which Delta keeps as text outside the files."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.errors import InvalidRowsError, SchemaMismatchError
from sparktxlog.lazy_arrow import np, pa, pc
from sparktxlog.model.tables.table import Column

#: What Spark writes for NULL into the name of a directory, and reads as NULL.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: What Spark writes with three characters.
_ESCAPED = re.compile("[\\x01-\\x1f\"#%'*/:=?\\\\\\x7f{\\[\\]^]")
#: Bytes of a file name, on the file systems of today.
_LONGEST = 255


def split_by_partition(
    rows: pa.Table, names: tuple[str, ...]
) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Return (partition values as Delta writes them, rows without these columns) per partition.

    The order of rows inside a partition is kept; partitions are ordered by their first row.
    """
    code = np.zeros(rows.num_rows, np.int64)
    texts = {name: partition_texts(rows.column(name)) for name in names}
    for column in texts.values():
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Renumbered each time, so that many partition columns cannot overflow.
        _, code = np.unique(code, return_inverse=True)
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.concatenate(([True], np.diff(code[order]) != 0)))
    ends = np.append(starts[1:], len(code))
    sorted_rows = rows.drop_columns(list(names)).take(pa.array(order))
    pieces = []
    for start, end in sorted(zip(starts, ends, strict=True), key=lambda item: order[item[0]]):
        row = int(order[start])
        values = {name: texts[name][row].as_py() for name in names}
        pieces.append((values, sorted_rows.slice(int(start), int(end - start))))
    return pieces


def partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return partition values in Delta's text form; timestamps end in `Z`, so their zone is clear.

    An empty string becomes NULL, because Delta reads it as NULL.

    Raises:
        SchemaMismatchError: Delta has no text form for the type (definite).
    """
    kind = column.type
    types = pa.types
    if types.is_string(kind):
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    if types.is_timestamp(kind):
        plain = column.cast(pa.timestamp("us"))
        form = "%Y-%m-%dT%H:%M:%SZ" if kind.tz else "%Y-%m-%d %H:%M:%S"
        return pc.strftime(plain, format=form)
    if types.is_floating(kind):
        texts = [None if value is None else _float_text(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind):
        return column.cast(pa.string())
    if types.is_decimal(kind):
        texts = [None if value is None else f"{value:f}" for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    raise SchemaMismatchError(f"a column of type {kind} cannot partition a table")


def _float_text(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def canonical_value(table: str, column: Column, value: str | None) -> str | None:
    """Return a partition value as the log has it: in the form that all readers read alike.

    Spark takes 1.5 for a decimal(10,2), delta-rs opens no table with it; moments in UTC say so; an
    empty text is NULL.

    Raises:
        SchemaMismatchError: It is no value of the column's type (definite).
        InvalidRowsError: Some site could not write it, or would read it as another (definite).
    """
    if value is None or value == "":
        return None
    kind = arrow_type(column.type)
    if pa.types.is_string(kind):
        check_partition_text(table, column.name, value)
        return value
    found = next((read(value, kind) for check, read in _readers() if check(kind)), None)
    if found is None:
        raise SchemaMismatchError(
            f"table {table!r}: {value[:80]!r} is no {column.type} for the partition column "
            f"{column.name!r}",
            hint="Write the value as Delta does: 1.50 for a decimal(10,2), 2024-01-31, "
            "2024-01-31 10:00:00, true.",
            table=table,
            column=column.name,
            value=value[:80],
            expected=column.type,
        )
    return found


def _boolean(value: str, kind: pa.DataType) -> str | None:
    return value if value in ("true", "false") else None


def _integer(value: str, kind: pa.DataType) -> str | None:
    return str(int(value)) if _INTEGER.fullmatch(value) and _casts(value, kind) else None


def _decimal(value: str, kind: pa.DataType) -> str | None:
    if not _DECIMAL.fullmatch(value):
        return None
    try:
        found = Decimal(value).quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    except DecimalException:  # digits after its scale, or far too many
        return None
    # Zero is written without a sign: as a text, -0.00 would be a partition of its own.
    return f"{found or abs(found):f}" if len(found.as_tuple().digits) <= kind.precision else None


def _date(value: str, kind: pa.DataType) -> str | None:
    return value if _DATE.fullmatch(value) and _casts(value, kind) else None


def _timestamp(value: str, kind: pa.DataType) -> str | None:
    plain = value.removesuffix("Z").replace("T", " ", 1)
    if not _TIMESTAMP.fullmatch(plain) or not _casts(plain, pa.timestamp("us")):
        return None
    if kind.tz is None:  # delta-rs takes no other form of it, and Spark ignores a zone
        return plain
    return value if value.endswith("Z") else plain.replace(" ", "T", 1) + "Z"


def _casts(value: str, kind: pa.DataType) -> bool:
    try:
        pa.array([value]).cast(kind)
    except pa.ArrowException:
        return False
    return True


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?([eE][-+]?[0-9]{1,2})?")
# delta-rs knows the years 1 to 9999.
_DATE = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(_DATE.pattern + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
#: Where nothing is rounded away.
_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation])


@cache
def _readers() -> tuple[tuple[Callable[[pa.DataType], bool], Callable[..., str | None]], ...]:
    """Return kinds of types, each with its function of a text and the type.

    That gives the form in the log, None = it is no value.
    """
    types = pa.types
    return (
        (types.is_boolean, _boolean),
        (types.is_integer, _integer),
        (types.is_decimal, _decimal),
        (types.is_date, _date),
        (types.is_timestamp, _timestamp),
    )


def check_partition_values(
    table: str, column: str, values: pa.ChunkedArray, *, takes_null: bool
) -> None:
    """Refuse texts of a partition column that no site can write.

    Args:
        takes_null: The column may be NULL, as the empty text is there.

    Raises:
        InvalidRowsError: As `check_partition_text`, or it is NULL (definite).
    """
    for value in pc.unique(values).to_pylist() if pa.types.is_string(values.type) else ():
        if value == "" and not takes_null:
            raise InvalidRowsError(
                f"table {table!r}: '' is NULL in partition column {column!r}, which takes none",
                hint="Write another value, or declare the column without NOT NULL.",
                table=table,
                column=column,
            )
        if value is not None:
            check_partition_text(table, column, value)


def check_partition_text(table: str, column: str, value: str) -> None:
    """Refuse a text that cannot be the name of a partition's directory.

    Each site writes the partition in a directory of this name.

    Raises:
        InvalidRowsError: (definite).
    """
    reason = ""
    if value == NULL_PARTITION:
        reason = "it is what Spark writes for NULL"
    elif "\x00" in value or any(unicodedata.category(char) in ("Zl", "Zp") for char in value):
        reason = "no directory can have its name"
    else:
        size = len(_directory(column, value).encode())
        if size > _LONGEST:
            reason = f"the name of its directory would have {size} bytes, {_LONGEST} are allowed"
    if reason:
        raise InvalidRowsError(
            f"table {table!r}: {value[:60]!r} cannot be a value of partition column {column!r}: "
            f"{reason}",
            hint="Partition by another column, or write another value.",
            table=table,
            column=column,
            value=value[:60],
        )


def partition_directories(partition: Mapping[str, str | None]) -> str:
    """Return where Spark puts the files of a partition, with a slash at the end.

    Some readers take a partition's values from there, and not from the table's log.  A value that
    cannot be a directory's name, of a log from before `check_partition_text`, has no directory.

    Args:
        partition: Partition column, as in files → value as Delta writes it.

    **Shape:** `day=2026-01-01/place=a%2Fb/`, "" if there are no partition columns.
    """
    names = [_directory(column, value or NULL_PARTITION) for column, value in partition.items()]
    if any("\x00" in name or len(name.encode()) > _LONGEST for name in names):
        return ""
    return "".join(f"{name}/" for name in names)


def _directory(column: str, value: str) -> str:
    return f"{_escaped(column)}={_escaped(value)}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
