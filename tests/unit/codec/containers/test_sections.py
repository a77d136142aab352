"""Arrow streams of untrusted senders."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from sparktxlog.codec.containers.sections import read_section, write_section
from sparktxlog.errors import InvalidRequestError, OversizeError


def any_schema(_: pa.Schema) -> None:
    """Nothing is refused for its schema."""


ROWS = pa.table({"id": pa.array(range(2000), pa.int64()), "text": ["x" * 50] * 2000})


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_is_written_is_read(compression: str | None) -> None:
    assert read_section(write_section(ROWS, compression), 1 << 20, any_schema).equals(ROWS)


def test_several_batches_are_read() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS, max_chunksize=100)
    assert read_section(memoryview(sink.getvalue()), 1 << 20, any_schema).equals(ROWS)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_stream_that_inflates_beyond_the_limit_is_refused(compression: str | None) -> None:
    data = write_section(ROWS, compression)
    with pytest.raises(OversizeError) as caught:
        read_section(data, 100_000, any_schema)
    assert caught.value.fields["limit_bytes"] == 100_000
    assert caught.value.fields["size_bytes"] >= 116_000


def test_a_dictionary_that_inflates_beyond_the_limit_is_refused() -> None:
    values = pa.array(["y" * 100 + str(i) for i in range(3000)]).dictionary_encode()
    data = write_section(pa.table({"d": values}), "zstd")
    assert len(data) < 50_000
    with pytest.raises(OversizeError):
        read_section(data, 200_000, any_schema)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xff\xff\xff\x00\x00\x00\x00", b"a" * 1000])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_section(data, 1 << 20, any_schema)


def test_torn_streams_are_refused() -> None:
    data = write_section(ROWS, "zstd")
    for size in range(8, len(data) - 8, 97):
        with pytest.raises(InvalidRequestError):
            read_section(data[:size], 1 << 20, any_schema)


def test_offsets_that_point_outside_are_refused() -> None:
    data = bytearray(write_section(pa.table({"text": ["aaaa", "bbbb"]})))
    at = data.index(struct.pack("<iii", 0, 4, 8))
    data[at : at + 12] = struct.pack("<iii", 0, 4, 1 << 30)
    with pytest.raises(InvalidRequestError):
        read_section(bytes(data), 1 << 20, any_schema)


def test_text_that_is_no_utf8_is_refused() -> None:
    data = write_section(pa.table({"text": ["abcdefgh"]})).replace(b"abcdefgh", b"\xff\xfe" * 4)
    with pytest.raises(InvalidRequestError):
        read_section(data, 1 << 20, any_schema)
