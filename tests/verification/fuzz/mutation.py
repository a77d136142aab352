"""Mutations of bytes, values and requests; every choice is drawn from one generator."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

_NUMBERS = (
    0, 1, -1, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 1e308, -0.0, 5e-324, 0.5,
)  # fmt: skip
_TEXTS = (
    "", "\x00", "..", "../../x", "CON", "ordered", "applied(999)", "1" * 400, "a" * 70_000,
    "\u2028", "'; DROP TABLE t", "%", "id = 1", "`", "t", "A", "é" * 50,
    "7d444840-9dc0-11d1-b245-5ffdce74fad2",
    "decimal(76,75)", "array<array<array<string>>>", "map<string,string>", "struct<a:int,a:int>",
    "1970-01-01T00:00:00Z", "99999-12-31", "http://127.0.0.1:1", "NaN", "1e999",
)  # fmt: skip
_BYTES = (
    b"\x00",
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\xc1",
    b"[" * 600,
    b"{",
    b'"',
    b"\xed\xa0\x80",
)


def mutated_bytes(draw: Random, data: bytes) -> bytes:
    """Return bytes with one change: a flip, a cut, a repeated or a foreign part."""
    changed = bytearray(data)
    at = draw.randrange(len(changed) + 1)
    to = min(len(changed), at + draw.choice((1, 2, 4, 8, 64, 1000)))
    kind = draw.randrange(6)
    if kind == 0 and changed:
        changed[min(at, len(changed) - 1)] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del changed[at:to]
    elif kind == 2:
        changed[at:at] = changed[at:to]
    elif kind == 3:
        changed[at:to] = draw.choice(_BYTES)
    elif kind == 4:
        changed[at:at] = draw.randbytes(draw.choice((1, 4, 16)))
    else:
        del changed[at:]
    return bytes(changed)


def mutated_value(draw: Random, value: Any) -> Any:
    """Return a value of JSON or msgpack with one part replaced, left out or repeated."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        name = draw.choice(list(value))
        kind = draw.randrange(8)
        if kind == 0:
            return {key: part for key, part in value.items() if key != name}
        if kind == 1:
            return {**value, draw.choice(_TEXTS)[:100]: _strange(draw)}
        return {**value, name: mutated_value(draw, value[name])}
    if isinstance(value, (list, tuple)) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        items = list(value)
        kind = draw.randrange(8)
        if kind == 0:
            del items[at]
        elif kind == 1:
            items = items[:100] * draw.choice((2, 50))
        else:
            items[at] = mutated_value(draw, items[at])
        return items
    return _strange(draw)


def _strange(draw: Random) -> Any:
    kind = draw.randrange(7)
    if kind == 0:
        return draw.choice(_NUMBERS)
    if kind <= 2:
        return draw.choice(_TEXTS)
    if kind == 3:
        return draw.choice((None, True, False, [], {}, [[]], {"": {}}))
    if kind == 4:
        return draw.randbytes(16).hex()
    if kind == 5:
        nested: Any = 1
        for _ in range(draw.choice((3, 100))):
            nested = [nested] if draw.random() < 0.5 else {"a": nested}
        return nested
    return draw.randrange(-(2**63), 2**63)


def mutated_json(draw: Random, body: bytes) -> bytes:
    """Return JSON of a changed value."""
    try:
        return msgspec.json.encode(mutated_value(draw, msgspec.json.decode(body)))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return mutated_bytes(draw, body)


def mutated_msgpack(draw: Random, body: bytes) -> bytes:
    """Return msgpack of a changed value."""
    try:
        return msgspec.msgpack.encode(mutated_value(draw, msgspec.msgpack.decode(body)))
    except (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError):
        return mutated_bytes(draw, body)


def mutated_text(draw: Random, text: str) -> str:
    """Return a part of a URL with one change."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.choice(
            ("%00", "%2e%2e%2f", "%ff", "%", "..", "9" * 30, "-1", "%F0%9F%98%80", "*")
        )
    if kind == 1:
        return text[:100] * draw.choice((2, 40, 2_000))
    if kind == 2:
        return text[: draw.randrange(len(text) + 1)]
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice("/?&=%;+,:@#~a0Z.") + text[at:]
