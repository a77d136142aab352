"""Checks the sizes that an Arrow IPC stream declares, before Arrow allocates memory for them.

Arrow allocates what a stream declares, and in flatbuffers many offsets may point at the same bytes.
So a kilobyte may declare gigabytes: a thousand fields that share one child, a key in ten thousand
entries, a compressed frame.  `weigh` walks the metadata of each message and stops at the first
declaration over the limits.  It follows offsets, which only lead forward, and counts each visit; a
torn stream raises `struct.error` or IndexError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache

from sparktxlog.errors import InvalidRequestError, OversizeError
from sparktxlog.lazy_arrow import pa

#: Most fields of a stream, those of nested types included; a table has half as many.
MAX_FIELDS = 20_000
#: Most messages of a stream.
_MAX_MESSAGES = 20_000
#: Most bytes of names and other texts in a message's metadata, repeats included.
_MAX_TEXT = 4 << 20
#: Schema messages up to this size are remembered as sound, bytes.
_REMEMBERED_BYTES = 16_384
#: Numbers of message headers and of types in Arrow's flatbuffers.
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_TIMESTAMP, _UNION = 10, 14


def weigh(source: pa.Buffer) -> int:
    """Return the sum of the sizes that the stream's buffers have in memory.

    Raises:
        InvalidRequestError: No stream of one schema and its batches, or more fields, messages or
            text than any table needs (definite).
        struct.error, IndexError: The stream is torn.
    """
    total = 0
    for number, (metadata, body) in enumerate(_messages(memoryview(source))):
        if number >= _MAX_MESSAGES:
            raise InvalidRequestError(
                f"the Arrow stream has more than {_MAX_MESSAGES:,} messages",
                hint="Write larger batches.",
            )
        message = _root(metadata)
        kind = _scalar(metadata, message, 1, "<B")
        if (kind == _SCHEMA) != (number == 0):
            raise InvalidRequestError("an Arrow stream is one schema and its batches")
        if kind == _SCHEMA:
            check = _check_schema if len(metadata) > _REMEMBERED_BYTES else _check_small_schema
            check(bytes(metadata))
        else:
            _Text(metadata).take_entries(message, 4)
            total += _declared_bytes(metadata, message, kind, body)
    return total


def _messages(stream: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield metadata and body of each message."""
    at = 0
    while at < len(stream):
        (size,) = struct.unpack_from("<i", stream, at)
        at += 4
        if size == -1:  # since Arrow 0.15 a mark stands before the size
            (size,) = struct.unpack_from("<i", stream, at)
            at += 4
        if size == 0:
            return
        if size < 0 or at + size > len(stream):
            raise IndexError("a message is longer than the stream")
        metadata = stream[at : at + size]
        at += size
        length = _scalar(metadata, _root(metadata), 3, "<q")
        if length < 0 or at + length > len(stream):
            raise IndexError("a body is longer than the stream")
        yield metadata, stream[at : at + length]
        at += length


class _Text:
    """Counts what names and entries of a message unfold to."""

    def __init__(self, metadata: memoryview) -> None:
        self._metadata = metadata
        self._bytes = 0

    def take(self, table: int, number: int) -> None:
        """Count a field of text."""
        place = _table(self._metadata, table, number)
        if place is not None:
            self._bytes += int(struct.unpack_from("<I", self._metadata, place)[0])
        if self._bytes > _MAX_TEXT:
            raise OversizeError(
                f"names and entries of the Arrow schema have more than {_MAX_TEXT:,} bytes",
                hint="Send the stream without metadata: schema.remove_metadata().",
                limit_bytes=_MAX_TEXT,
            )

    def take_entries(self, table: int, number: int) -> None:
        """Count a vector of keys and values."""
        for entry in _vector(self._metadata, table, number):
            self._bytes += 64
            self.take(entry, 0)
            self.take(entry, 1)


def _check_schema(message_bytes: bytes) -> None:
    """Refuse a schema message that unfolds to more than a table's schema can have."""
    metadata = memoryview(message_bytes)
    message = _root(metadata)
    text = _Text(metadata)
    text.take_entries(message, 4)
    schema = _table(metadata, message, 2)
    if schema is None:
        return
    text.take_entries(schema, 2)
    fields = 0
    # The rest of each list of fields that is open, outermost first.
    lists = [_vector(metadata, schema, 1)]
    while lists:
        field = next(lists[-1], None)
        if field is None:
            lists.pop()
            continue
        fields += 1
        if fields > MAX_FIELDS:
            raise OversizeError(
                f"the Arrow stream has more than {MAX_FIELDS:,} fields", limit=MAX_FIELDS
            )
        text.take(field, 0)
        text.take_entries(field, 6)
        kind = _scalar(metadata, field, 2, "<B")
        if kind == _UNION:
            raise InvalidRequestError("tables cannot hold unions")
        details = _table(metadata, field, 3)
        if kind == _TIMESTAMP and details is not None:
            text.take(details, 1)
        lists.append(_vector(metadata, field, 5))


#: Writers repeat their schemas, and a walk costs more than the rest of a small stream.
_check_small_schema = lru_cache(maxsize=256)(_check_schema)


def _declared_bytes(metadata: memoryview, message: int, kind: int, body: memoryview) -> int:
    """Return the declared size of one batch's buffers.

    Compressed buffers start with their inflated size as a little-endian int64, -1 = not compressed.
    """
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        raise InvalidRequestError("an Arrow stream is one schema and its batches")
    batch = _table(metadata, message, 2)
    if kind == _DICTIONARY_BATCH and batch is not None:
        if _scalar(metadata, batch, 2, "<B"):
            # Each batch after one would get a copy of the whole dictionary.
            raise InvalidRequestError(
                "the Arrow stream extends a dictionary",
                hint="Send whole dictionaries, or plain columns.",
            )
        batch = _table(metadata, batch, 1)
    if batch is None:
        return 0
    if _field(metadata, batch, 3) is None:  # no compression: what it is
        return len(body)
    vector = _table(metadata, batch, 2)
    if vector is None:
        return 0
    (count,) = struct.unpack_from("<I", metadata, vector)
    total = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)
        if offset < 0:
            raise IndexError("a buffer begins before its message")
        if length >= 8:
            (inflated,) = struct.unpack_from("<q", body, offset)
            total += length if inflated < 0 else inflated
    return total


# -- flatbuffers ----------------------------------------------------------------------------------


def _root(buffer: memoryview) -> int:
    return int(struct.unpack_from("<I", buffer, 0)[0])


def _field(buffer: memoryview, table: int, number: int) -> int | None:
    """Return the place of a flatbuffers field, None if absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise IndexError("a table's layout lies before the message")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    at = 4 + 2 * number
    if at + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + at)
    return table + offset if offset else None


def _scalar(buffer: memoryview, table: int, number: int, form: str) -> int:
    place = _field(buffer, table, number)
    return 0 if place is None else int(struct.unpack_from(form, buffer, place)[0])


def _table(buffer: memoryview, table: int, number: int) -> int | None:
    place = _field(buffer, table, number)
    return None if place is None else place + int(struct.unpack_from("<I", buffer, place)[0])


def _vector(buffer: memoryview, table: int, number: int) -> Iterator[int]:
    """Yield the places of the tables of a vector."""
    start = _table(buffer, table, number)
    if start is None:
        return
    (count,) = struct.unpack_from("<I", buffer, start)
    for place in range(start + 4, start + 4 + 4 * count, 4):
        yield place + int(struct.unpack_from("<I", buffer, place)[0])
