"""What messages say of themselves: the bytes that a chain hash covers."""

from __future__ import annotations

import hashlib

from tests.support.run_headers import header

from sparktxlog.protocol.messages.posts import chain_hash


def test_chain_hash_covers_the_documented_bytes() -> None:
    previous = b"p" * 32
    data = previous
    for number, width in ((1, 8), (77, 8), (1, 8), (5, 8), (3, 4), (1, 2)):
        data += number.to_bytes(width, "big")
    data += b"a" + (5).to_bytes(32, "big")
    assert chain_hash(previous, header(5, 77, n=3)) == hashlib.sha256(data).digest()
