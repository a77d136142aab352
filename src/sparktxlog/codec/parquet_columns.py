"""The columns of a Parquet file, and how they are written so that no reader loses a row.

Readers that push a filter into a file skip the row groups that cannot match it.  For floating
numbers, what they look at disagrees with SQL:

* Arrow leaves NaN out of the bounds of a footer, and to SQL NaN is greater than all numbers;
* a dictionary distinguishes -0.0 from 0.0, and to SQL both are equal.

So files of the log have neither for floats.  Without them a reader looks at the rows.
See docs/decisions/0065-filters-see-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict

from sparktxlog.lazy_arrow import np, pa, pq

#: How the name of a writer begins if its bounds include NaN: Spark's.
_BOUNDS_WITH_NAN = "parquet-mr"


class ExactColumns(TypedDict):
    """Arguments of `pyarrow.parquet.ParquetWriter`."""

    write_statistics: list[str]
    use_dictionary: list[str]


def exact_columns(schema: pa.Schema, dictionaries: Iterable[str] | None = None) -> ExactColumns:
    """Return how a file is written so that a filter skips none of its rows.

    Args:
        schema: Of the file.
        dictionaries: Columns whose dictionaries are worth their time; None = all.
    """
    chosen = set(schema.names if dictionaries is None else dictionaries)
    found = [(field.name, path, kind) for field in schema for path, kind in leaves(field)]
    # A field `b` in a struct `a` has the path of a column `a.b`.
    floats = {path for _, path, kind in found if pa.types.is_floating(kind)}
    return {
        "write_statistics": [path for _, path, _ in found if path not in floats],
        "use_dictionary": [
            path for name, path, _ in found if path not in floats and name in chosen
        ],
    }


def leaves(field: pa.Field, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the Parquet paths of a column's leaves, each with its type."""
    path, kind = prefix + field.name, field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    parts: list[pa.Field] = []
    if pa.types.is_map(kind):
        path += ".key_value"
        parts = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    elif pa.types.is_struct(kind):
        parts = [kind.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_nested(kind):
        path += ".list"
        parts = [kind.value_field.with_name("element")]
    else:
        yield path, kind
    for part in parts:
        yield from leaves(part, f"{path}.")


def hides_rows(file: pq.ParquetFile) -> bool:
    """Return whether a filter that is pushed into another writer's file may miss rows of it.

    Reads its floats.  Filters look into structs, not into lists and maps.
    """
    metadata = file.metadata
    if str(metadata.created_by).startswith(_BOUNDS_WITH_NAN):
        return False
    kinds = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    paths = [
        kind.path
        for kind in kinds
        if kind.physical_type in ("FLOAT", "DOUBLE") and not kind.max_repetition_level
    ]
    if not paths:
        return False
    return any(
        _is_odd(column)
        for batch in file.iter_batches(columns=paths)
        for column in pa.Table.from_batches([batch]).flatten().columns
    )


def _is_odd(column: pa.ChunkedArray) -> bool:
    """Return whether there is a NaN or a -0.0."""
    if pa.types.is_struct(column.type):
        return any(_is_odd(inner) for inner in column.flatten())
    values = column.drop_null().to_numpy()
    if values.dtype.kind != "f":  # of another column with the same path
        return False
    return bool(np.any(np.isnan(values) | ((values == 0) & np.signbit(values))))
