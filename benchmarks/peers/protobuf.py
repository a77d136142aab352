"""The few messages of etcd that its client needs, as bytes of protobuf."""

from __future__ import annotations

from collections.abc import Iterator


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes, or of a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def put(key: bytes, value: bytes) -> bytes:
    """Return a `PutRequest`."""
    return field(1, key) + field(2, value)


def transaction(puts: Iterator[bytes]) -> bytes:
    """Return a `TxnRequest` without conditions that does all of some puts."""
    return b"".join(field(2, field(2, one)) for one in puts)


def numbers(message: bytes) -> dict[int, int]:
    """Return the numbers of a message by field; what is not a number is passed over."""
    found: dict[int, int] = {}
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 0:
            found[tag >> 3], at = _number(message, at)
        elif kind == 2:
            size, at = _number(message, at)
            at += size
        else:
            at += 8 if kind == 1 else 4
    return found


def first_message(message: bytes) -> bytes:
    """Return the content of the first field, which is a message."""
    _, at = _number(message, 0)
    size, at = _number(message, at)
    return message[at : at + size]


def _number(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
