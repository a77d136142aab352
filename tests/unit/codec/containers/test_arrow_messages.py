"""Arrow streams that claim more than they hold, or what would crash a cast."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from sparktxlog.codec.containers import arrow_messages as messages
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.validation import read_rows
from sparktxlog.errors import InvalidRequestError, OversizeError, SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

LIMIT = 1 << 20
#: 2,000 texts that are one.
VIEWS = pa.Array.from_buffers(
    pa.string_view(),
    2000,
    [
        None,
        pa.py_buffer(struct.pack("<i4sii", 600, b"xxxx", 0, 0) * 2000),
        pa.py_buffer(b"x" * 600),
    ],
)


def read(data: bytes, kind: str) -> pa.Table:
    definition = TableDefinition(name="t", columns=(Column(name="c", type=kind),))
    return read_rows(data, definition, OperationKind.APPEND, LIMIT)


def stream(values: pa.Array) -> bytes:
    return write_section(pa.table({"c": values}), "zstd")


def test_no_flipped_bit_crashes_the_process_or_takes_its_memory() -> None:
    child = Path(__file__).with_name("flipped_streams.py")
    done = subprocess.run([sys.executable, child], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    refused, taken = map(int, done.stdout.split())
    assert refused > 20_000
    assert taken > 2_000


@pytest.mark.parametrize("scale", [-1, 11])
def test_a_scale_that_no_table_has_is_refused_before_the_cast(scale: int) -> None:
    data = bytearray(write_section(pa.table({"c": pa.array([None, 1], pa.decimal128(10, 2))})))
    (at,) = [
        at
        for at in range(0, len(data), 4)
        if data[at : at + 4] == struct.pack("<i", 2) and is_scale(data, at)
    ]
    data[at : at + 4] = struct.pack("<i", scale)
    with pytest.raises(SchemaMismatchError) as caught:
        read(bytes(data), "decimal(20,2)")
    assert caught.value.fields["column"] == "c"


def is_scale(data: bytearray, at: int) -> bool:
    other = data.copy()
    other[at : at + 4] = struct.pack("<i", 3)
    try:
        return bool(pa.ipc.open_stream(pa.py_buffer(bytes(other))).schema.types[0].scale == 3)
    except (pa.ArrowException, AttributeError):
        return False


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.nulls(LIMIT // 8 + 1), "bigint"),
        (pa.FixedSizeListArray.from_arrays(pa.nulls(9 << 20), 1 << 20), "array<int>"),
        (pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int8()), ["x" * 600]), "string"),
        (pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int8()), [b"x" * 600]), "binary"),
        (pa.DictionaryArray.from_arrays(pa.array([0] * 150_000, pa.int8()), [1]), "bigint"),
        (VIEWS, "string"),
        (
            pa.StructArray.from_arrays([pa.nulls(1 << 17)], fields=[pa.field("a", pa.null())]),
            "struct<a:decimal(38,0)>",
        ),
    ],
    ids=str,
)
def test_what_a_cast_would_unfold_is_refused_before(values: pa.Array, kind: str) -> None:
    data = stream(values)
    assert len(data) < 60_000
    before = pa.total_allocated_bytes()
    with pytest.raises(OversizeError) as caught:
        read(data, kind)
    assert caught.value.fields["limit_bytes"] == LIMIT
    assert pa.total_allocated_bytes() - before < LIMIT


@pytest.mark.parametrize("kind", ["string", "bigint", "struct<a:int>"])
def test_nulls_without_number_are_refused(kind: str) -> None:
    count = 0x123456
    data = stream(pa.nulls(count)).replace(struct.pack("<q", count), struct.pack("<q", 1 << 44))
    with pytest.raises(OversizeError) as caught:
        read(data, kind)
    assert caught.value.fields["size_bytes"] >= 1 << 46


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([[1]], pa.list_view(pa.int32())), "array<int>"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30]), pa.array([1])), "bigint"),
        (pa.array([1], pa.duration("us")), "bigint"),
        (pa.array([1], pa.time64("us")), "bigint"),
        (pa.array(["x"], pa.string_view()).dictionary_encode(), "string"),
    ],
    ids=str,
)
def test_encodings_that_no_table_has_are_refused(values: pa.Array, kind: str) -> None:
    with pytest.raises(SchemaMismatchError, match="the types do not match"):
        read(stream(values), kind)


def test_a_union_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(InvalidRequestError, match="unions"):
        read(write_section(pa.table({"c": union})), "bigint")


def test_dictionaries_that_grow_are_refused() -> None:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    schema = pa.schema([("c", pa.dictionary(pa.int8(), pa.string()))])
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for count in (1, 2):
            values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["a", "b"][:count])
            writer.write_batch(pa.record_batch([values], schema=schema))
    with pytest.raises(InvalidRequestError, match="extends a dictionary"):
        read(sink.getvalue().to_pybytes(), "string")


def test_fields_that_share_a_child_are_counted_each_time() -> None:
    kind = pa.int8()
    for _ in range(20):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    data = bytearray(write_section(pa.schema([("c", kind)]).empty_table()))
    metadata = memoryview(data)[8:]
    field = children(metadata, messages._table(metadata, messages._root(metadata), 2), 1)[0][1]
    for _ in range(20):
        (first, inner), (second, _) = children(metadata, field, 5)
        assert first < second < inner
        struct.pack_into("<I", metadata, second, inner - second)
        field = inner
    assert len(data) < 8_000
    with pytest.raises(OversizeError, match="more than 20,000 fields"):
        read(bytes(data), "int")


def test_entries_that_share_a_text_are_counted_each_time() -> None:
    entries = {"first": "x" * 10_000} | {str(number): "" for number in range(500)}
    schema = pa.schema([("c", pa.int32())], metadata=entries)
    data = bytearray(write_section(schema.empty_table()))
    metadata = memoryview(data)[8:]
    found = children(metadata, messages._table(metadata, messages._root(metadata), 2), 2)
    assert len(found) == 501
    for place, _ in found:
        struct.pack_into("<I", metadata, place, found[0][1] - place)
    with pytest.raises(OversizeError, match="names and entries"):
        read(bytes(data), "int")


def children(metadata: memoryview, table: int | None, number: int) -> list[tuple[int, int]]:
    """Return places of a vector's offsets, and of the tables they lead to."""
    assert table is not None
    start = messages._table(metadata, table, number)
    assert start is not None
    tables = list(messages._vector(metadata, table, number))
    return [(start + 4 + 4 * index, place) for index, place in enumerate(tables)]


def test_columns_that_share_their_bytes_count_each() -> None:
    definition = TableDefinition(
        name="t", columns=tuple(Column(name=f"c{i}", type="bigint") for i in range(40))
    )
    column = pa.array(range(4000), pa.int64())
    data = bytearray(write_section(pa.table({f"c{i}": column for i in range(40)})))
    # Every buffer of the batch becomes the first one.
    vector = struct.pack("<qqqq", 0, 0, 0, 32_000)
    at = data.index(vector)
    for index in range(40):
        data[at + 32 * index : at + 32 * index + 32] = vector
    del data[data.index(column.buffers()[1].to_pybytes()) + 64_000 : -8]
    with pytest.raises((OversizeError, InvalidRequestError)):
        read_rows(bytes(data), definition, OperationKind.APPEND, LIMIT)
