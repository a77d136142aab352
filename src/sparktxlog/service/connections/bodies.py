"""Reads bodies of requests: each has a limit, and all together have a budget of memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import Request

from sparktxlog.errors import OversizeError
from sparktxlog.runtime.tokens.budgets import Budget

#: Most parts of a JSON body; an empty list of 3 bytes takes 64 bytes once it is decoded.
_MAX_OBJECTS = 250_000
_MAX_COMMAS = 1_000_000
#: Hint for rows that would take too much memory as JSON.
_OTHER_WAYS = "Send the rows as Arrow, or stage them as Parquet files."
#: Most bytes that the rows of a transaction in JSON may take once they are decoded, and the
#: estimate for each kind of value: measured for the most expensive value of each kind.
ROWS_UNFOLDED_BYTES = 32 << 20
_VALUE_BYTES = 100
_OBJECT_BYTES = 150
#: For each byte of text, as Python has it and as Arrow does: beyond ASCII a character of any text
#: may make all of it as wide.
_TEXT_BYTES, _WIDE_TEXT_BYTES = 3, 10


class _Rows(msgspec.Struct):
    rows: msgspec.Raw = msgspec.Raw()


class _Transaction(msgspec.Struct):
    operations: list[_Rows] = []


_rows_decoder = msgspec.json.Decoder(_Transaction)


class Bodies:
    """Reads the bodies that clients and workers send.

    Args:
        limit: Most bytes of one body.
        memory: Has the bytes of all that are being read or decoded.
    """

    def __init__(self, limit: int, memory: Budget) -> None:
        self.limit, self._memory = limit, memory

    async def read(self, request: Request, limit: int | None = None) -> bytes:
        """Return a body that is decoded immediately; as `of`."""
        async with self.of(request, limit) as body:
            return body

    @asynccontextmanager
    async def of(self, request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
        """Give a body; its bytes count until the block is left.

        Args:
            request: The request whose body it is.
            limit: Most bytes of it; default: that of all bodies.

        Raises:
            OversizeError: It is longer; nothing happened (definite).
            BusyError: The memory for requests is used up; nothing happened (definite).
        """
        async with self.pieces_of(request, limit) as pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            yield body

    @asynccontextmanager
    async def pieces_of(
        self, request: Request, limit: int | None = None
    ) -> AsyncIterator[list[bytes]]:
        """Give a body in the pieces in which it came; as `of`."""
        limit = self.limit if limit is None else min(limit, self.limit)
        taken, size, holder = 0, 0, ""
        pieces: list[bytes] = []
        try:
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    holder = self._memory.take(len(piece))
                    taken += len(piece)
                    pieces.append(piece)
                elif size <= 2 * limit:
                    # Read on for a while: a client that still writes does not read the answer.
                    pieces.clear()
                else:
                    break
            if size > limit:
                raise _too_long(size, limit)
            yield pieces
        finally:
            if taken:
                self._memory.give(holder, taken)


def _too_long(size: int, limit: int) -> OversizeError:
    return OversizeError(
        f"the body has at least {size:,} bytes, {limit:,} are allowed",
        hint="Split it, or stage the rows as Parquet files.",
        size_bytes=size,
        limit_bytes=limit,
    )


def check_parts(body: bytes) -> None:
    """Refuse JSON that would take many times its size when it is decoded.

    Raises:
        OversizeError: It would (definite).
    """
    if len(body) <= _MAX_OBJECTS:
        return
    for what, count, most in (
        ("objects and lists", body.count(b"{") + body.count(b"["), _MAX_OBJECTS),
        ("commas", body.count(b","), _MAX_COMMAS),
    ):
        if count > most:
            raise OversizeError(
                f"the JSON has {count:,} {what}, {most:,} are allowed",
                hint=_OTHER_WAYS,
                count=count,
                limit=most,
            )


def check_unfolding(body: bytes) -> None:
    """Refuse a transaction in JSON whose rows would take too much memory when they are decoded.

    Raises:
        OversizeError: They would take more than `ROWS_UNFOLDED_BYTES` (definite).
    """
    if len(body) <= _MAX_OBJECTS:
        return
    try:
        operations = _rows_decoder.decode(body).operations
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return  # the decoder will say what is wrong
    size = sum(_unfolded(memoryview(operation.rows)) for operation in operations)
    if size > ROWS_UNFOLDED_BYTES:
        raise OversizeError(
            f"the rows take about {size:,} bytes once the JSON is decoded, "
            f"{ROWS_UNFOLDED_BYTES:,} are allowed",
            hint=_OTHER_WAYS,
            size_bytes=size,
            limit_bytes=ROWS_UNFOLDED_BYTES,
        )


def _unfolded(rows: memoryview) -> int:
    """Return an estimate of the memory that decoded rows take."""
    if _TEXT_BYTES * len(rows) > ROWS_UNFOLDED_BYTES:
        return _TEXT_BYTES * len(rows)
    text = bytes(rows)
    wide = b"\\u" in text or not text.isascii()
    return (
        len(text) * (_WIDE_TEXT_BYTES if wide else _TEXT_BYTES)
        + text.count(b",") * _VALUE_BYTES
        + (text.count(b"{") + text.count(b"[")) * _OBJECT_BYTES
    )
