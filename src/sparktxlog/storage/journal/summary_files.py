"""Summaries of a queue as files, which a joining node gets in parts, with the ids of a whole day.

u32 length | msgpack QueueSummary without its ids
u32 length | msgpack (first position, ids), ascending, without gap; as often as need be
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from sparktxlog.errors import RemoteProtocolError
from sparktxlog.storage.interfaces import IdPieces, QueueSummary

_LENGTH = struct.Struct("<I")
#: Longest part of a file that is one value.
_MOST_BYTES = 1 << 30
_encode = msgspec.msgpack.Encoder().encode
_decode_summary = msgspec.msgpack.Decoder(QueueSummary).decode
_decode_ids = msgspec.msgpack.Decoder(tuple[int, bytes]).decode


def write_summary(summary: QueueSummary, path: Path) -> None:
    """Write a summary to a file; only one piece of its ids is in memory."""
    with path.open("wb") as file:
        _put(file, _encode(replace(summary, recent_ids=())))
        for piece in summary.recent_ids:
            _put(file, _encode(piece))


def open_summary(path: Path) -> QueueSummary:
    """Return the summary in a file; its ids are read from there whenever they are used.

    Raises:
        RemoteProtocolError: The file holds none (definite).
    """
    try:
        with path.open("rb") as file:
            summary = _decode_summary(_take(file) or b"")
        for _ in _ids(path):
            pass  # check all pieces now
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"no summary in these bytes: {error}") from error
    return replace(summary, recent_ids=IdPieces(lambda: _ids(path)))


def _ids(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        _take(file)
        while (value := _take(file)) is not None:
            yield _decode_ids(value)


def _put(file: BinaryIO, value: bytes) -> None:
    file.write(_LENGTH.pack(len(value)))
    file.write(value)


def _take(file: BinaryIO) -> bytes | None:
    head = file.read(_LENGTH.size)
    if not head:
        return None
    length = _LENGTH.unpack(head.ljust(_LENGTH.size, b"\xff"))[0]
    value = file.read(min(length, _MOST_BYTES))
    if len(value) != length:
        raise RemoteProtocolError("the summary is torn")
    return value
