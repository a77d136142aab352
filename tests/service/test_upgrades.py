"""Requests that offer another protocol are answered as if they did not.

Java's HTTP client offers HTTP/2 with the first request of each connection, also with a POST.  What
is sent goes through plain sockets to one real node.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.service.test_hostile_requests import GET, HEAD, POST, node

#: What Java 17 sends besides.
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
)
#: A body that is refused by its last word, so the answer shows that all of it was read.
BODY = json.dumps({"operations": [{"kind": "drop_table", "table": "t"}], "unheard-of": 1}).encode()
LENGTH = f"content-length: {len(BODY)}\r\n".encode()


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_the_body_of_an_offer_is_read_however_it_is_sent(tmp_path: Path, size: int) -> None:
    sent = POST + OFFER + LENGTH + b"\r\n" + BODY
    in_chunks = POST + OFFER + b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY, 20)

    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            line = await connect()
            for request in (sent, in_chunks):
                for at in range(0, len(request), size):
                    await line.send(request[at : at + size])
                status, _, body = await line.answer()
                assert (status, b"unheard-of" in body) == (400, True), body

    asyncio.run(main())


def test_requests_after_an_offer_are_answered_in_their_order(tmp_path: Path) -> None:
    missing = b"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n"

    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            line = await connect()
            await line.send(
                POST + OFFER + LENGTH + b"\r\n" + BODY + missing + OFFER + b"\r\n" + GET + b"\r\n"
            )
            assert [(await line.answer())[0] for _ in range(3)] == [400, 404, 200]
            await line.send(missing + b"connection: close, upgrade\r\nupgrade: tls\r\n\r\n")
            assert b" 404 " in await line.ended()  # the other options of the header hold

    asyncio.run(main())


def test_an_offer_has_the_limits_of_all_heads(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as (_, connect):
            line = await connect()
            status, problem = await line.ask(GET + OFFER + b"x: " + b"y" * HEAD)
            assert (status, problem["title"]) == (431, "head-too-long")
            # Who wants a tunnel gets an answer, and the node goes on.
            await (await connect()).send(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
            assert (await (await connect()).ask(GET + b"\r\n"))[0] == 200

    asyncio.run(main())
