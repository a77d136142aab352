"""How the columns of a file in `log/` are written: for little CPU, and the same to every reader.

Most columns of the queue have one value a run.  A dictionary makes them small; to compress what is
left costs half of the whole file's time, because each column has a compressor of its own.  So only
columns are compressed whose values differ, each with its dictionary or without.  Readers skip rows
by bounds of top-level columns; inside a list nobody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparktxlog.codec.parquet_columns import exact_columns, leaves

#: Rows looked at to see whether a column's values repeat.
_SAMPLE_ROWS = 256


@dataclass(frozen=True, slots=True)
class ColumnForms:
    """How columns are written, for rows like those that were looked at; right for any others."""

    #: Top-level columns that get a dictionary.
    dictionaries: tuple[str, ...]
    #: Parquet paths of leaves that are compressed.
    compressed: tuple[str, ...]

    @classmethod
    def for_rows(cls, rows: pa.Table) -> ColumnForms:
        """Return what is good for rows, by the first of them."""
        sample = rows.slice(0, _SAMPLE_ROWS).combine_chunks()
        dictionaries, compressed = list[str](), list[str]()
        for field in sample.schema:
            column = sample.column(field.name)
            values = pa.concat_arrays(column.chunks) if column.chunks else pa.nulls(0, field.type)
            found = [path for path, _ in leaves(field)]
            repeated = [_repeats(leaf) for leaf in _leaves_of(values)]
            if len(found) != len(repeated):  # a map, whose leaves are not looked at
                repeated = [False] * len(found)
            compressed += [path for path, one in zip(found, repeated, strict=True) if not one]
            if pa.types.is_nested(field.type) or all(repeated):
                dictionaries.append(field.name)
        return cls(tuple(dictionaries), tuple(compressed))

    def writer(self, sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
        """Return a writer of a file with these forms.

        Args:
            sink: A path, or an Arrow stream.
            schema: Of the rows.
        """
        exact = exact_columns(schema, self.dictionaries)
        nested = {
            path for field in schema if pa.types.is_nested(field.type) for path, _ in leaves(field)
        }
        return pq.ParquetWriter(
            sink,
            schema,
            version="2.6",
            compression=dict.fromkeys(self.compressed, "zstd"),
            compression_level=dict.fromkeys(self.compressed, 1),
            store_schema=False,
            use_dictionary=exact["use_dictionary"],
            write_statistics=[path for path in exact["write_statistics"] if path not in nested],
        )


def _leaves_of(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the leaves of lists and structs, in the order of `leaves`; other values as they are."""
    if pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _leaves_of(part)
    elif pa.types.is_list(values.type):
        yield from _leaves_of(values.flatten())
    else:
        yield values


def _repeats(values: pa.Array) -> bool:
    if pa.types.is_nested(values.type):
        return False
    return 2 * int(pc.count_distinct(values).as_py()) <= len(values)
