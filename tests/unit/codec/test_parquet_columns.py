"""Files say of floats neither bounds nor distinct values; of all else they do."""

from __future__ import annotations

import io
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.codec.parquet_columns import exact_columns, hides_rows, leaves

PAIR = pa.struct([("f", pa.float32()), ("n", pa.int32())])
ODD = [1.0, math.nan, -0.0]
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", PAIR),
        ("l", pa.list_(PAIR)),
        ("m", pa.map_(pa.string(), pa.list_(pa.float64()))),
        ("d", pa.dictionary(pa.int32(), pa.float64())),
        # Its path is that of the field `f` of `s`.
        ("s.f", pa.int64()),
    ]
)
PAIRS: list[Any] = [{"f": value, "n": 1} for value in ODD]
ROWS = pa.table(
    [
        pa.array([1, 1, 1], pa.int64()),
        pa.array(ODD),
        pa.array(PAIRS, PAIR),
        pa.array([[pair] for pair in PAIRS], pa.list_(PAIR)),
        pa.array([[("k", [value])] for value in ODD], SCHEMA.field("m").type),
        pa.array(ODD).dictionary_encode(),
        pa.array([1, 1, 1], pa.int64()),
    ],
    schema=SCHEMA,
)


def written(dictionaries: list[str] | None) -> list[Any]:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA, **exact_columns(SCHEMA, dictionaries)) as writer:
        writer.write_table(ROWS)
    group = pq.read_metadata(sink).row_group(0)
    return [group.column(number) for number in range(group.num_columns)]


@pytest.mark.parametrize("dictionaries", [None, ["f", "n", "s", "l", "m", "d"]])
def test_floats_have_neither_bounds_nor_dictionaries(dictionaries: list[str] | None) -> None:
    chunks = written(dictionaries)
    assert len(chunks) == 10
    for chunk in chunks:
        is_exact = chunk.physical_type not in ("FLOAT", "DOUBLE") and chunk.path_in_schema != "s.f"
        assert chunk.is_stats_set is is_exact, chunk.path_in_schema
        assert chunk.has_dictionary_page is is_exact, chunk.path_in_schema


def test_only_the_columns_that_are_named_get_dictionaries() -> None:
    chunks = written(["s"])
    assert {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page} == {"s.n"}
    assert sum(chunk.is_stats_set for chunk in chunks) == 4


def test_leaves_have_the_paths_that_arrow_gives_them() -> None:
    paths = [path for field in SCHEMA for path, _ in leaves(field)]
    assert paths == [chunk.path_in_schema for chunk in written(None)]


def opened(rows: pa.Table) -> pq.ParquetFile:
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return pq.ParquetFile(sink)


@pytest.mark.parametrize("odd", [math.nan, -0.0])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_file_of_others_hides_odd_floats_at_any_depth(odd: float, depth: int) -> None:
    for value, hides in ((odd, True), (0.0, False), (None, False)):
        column: pa.Array = pa.array([1.0, value], pa.float32())
        for _ in range(depth):
            parts = [column, pa.array([1, 2])]
            column = pa.StructArray.from_arrays(parts, ["f", "n"])
        assert hides_rows(opened(pa.table({"n": [1, 2], "c": column}))) is hides


def test_no_filter_looks_into_lists() -> None:
    assert not hides_rows(opened(pa.table({"l": [[math.nan]], "m": pa.array([1])})))
