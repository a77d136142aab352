"""Reads bodies of requests: each has a limit, and all together have a budget of memory."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import msgspec
from starlette.requests import ClientDisconnect, Request

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

    def of(self, request: Request, limit: int | None = None) -> AbstractAsyncContextManager[bytes]:
        """Give a body; its bytes count until the block is left.

        Args:
            request: The request whose body it is.
            limit: Most bytes of it; default: that of all bodies.

        Raises:
            OversizeError: It is longer; nothing happened (definite).
            BusyError: The memory for requests is used up; nothing happened (definite).
        """
        return _Whole(self.pieces_of(request, limit))

    def pieces_of(self, request: Request, limit: int | None = None) -> _Pieces:
        """Give a body in the pieces in which it came; as `of`."""
        limit = self.limit if limit is None else min(limit, self.limit)
        return _Pieces(request, self._memory, limit)


class _Pieces(AbstractAsyncContextManager[list[bytes]]):
    """A body in pieces: a class, because each post of one row has one."""

    __slots__ = ("_holder", "_limit", "_memory", "_pieces", "_request", "_taken")

    def __init__(self, request: Request, memory: Budget, limit: int) -> None:
        self._request, self._memory, self._limit = request, memory, limit
        self._pieces: list[bytes] = []
        self._taken, self._holder = 0, ""

    async def __aenter__(self) -> list[bytes]:
        try:
            await self._read()
        except BaseException:
            self._give()
            raise
        return self._pieces

    async def __aexit__(self, *_: object) -> None:
        self._give()

    def _give(self) -> None:
        if self._taken:
            self._memory.give(self._holder, self._taken)
            self._taken = 0

    async def _read(self) -> None:
        receive, limit, size, more = self._request.receive, self._limit, 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if not piece:
                continue
            if size <= limit:
                self._holder = self._memory.take(len(piece))
                self._taken += len(piece)
                self._pieces.append(piece)
            elif size <= 2 * limit:
                # Read on for a while: a client that still writes does not read the answer.
                self._pieces.clear()
            else:
                break
        if size > limit:
            raise _too_long(size, limit)


class _Whole(AbstractAsyncContextManager[bytes]):
    """A body as a whole."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: _Pieces) -> None:
        self._pieces = pieces

    async def __aenter__(self) -> bytes:
        pieces = await self._pieces.__aenter__()
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    async def __aexit__(self, *_: object) -> None:
        await self._pieces.__aexit__()


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
