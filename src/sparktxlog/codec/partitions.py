"""Splits rows by the values of partition columns, which Delta keeps as text beside the files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparktxlog.errors import SchemaMismatchError


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
