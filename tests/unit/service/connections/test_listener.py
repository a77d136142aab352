"""Connections: none is left when the server stops, and no answer waits for its caller's system."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections.listener import Connection, _Together
from sparktxlog.service.connections.places import Places, Proof


class Caller:
    """A connection."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_who_is_let_in_while_the_server_stops_is_closed() -> None:
    doors = Places(Budget("connections", 4, ""))
    early: Any = Caller()
    late: Any = Caller()
    doors.enter(early)
    doors.shut = True
    doors.enter(late)
    assert (early.aborted, late.aborted) == (False, True), "an open request may end"
    doors.close()
    assert early.aborted


def test_the_second_packet_of_an_answer_does_not_wait_for_the_first() -> None:
    """As the listener of a node accepts it: the system's default would cost 40 ms an answer."""

    async def main() -> None:
        budget = Budget("connections", 4, "")
        places, config = Places(budget), uvicorn.Config(None, ws="none", lifespan="off")  # type: ignore[arg-type]
        config.load()
        ours, made = socket.create_server(("127.0.0.1", 0)), []

        def connection() -> Connection:
            made.append(
                Connection(places=places, config=config, server_state=ServerState(), app_state={})
            )
            return made[-1]

        server = await asyncio.get_running_loop().create_server(connection, sock=ours)
        reader, writer = await asyncio.open_connection(*ours.getsockname())
        while not made:
            await asyncio.sleep(0)
        accepted = made[0].transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert made[0]._prove(Proof.CLIENT)
        assert budget.used == 1
        writer.close()
        made[0].abort()
        server.close()
        await reader.read()
        # A request of it that begins only now takes no place: nobody would give it back.
        assert made[0]._prove(Proof.CLIENT)
        assert budget.used == 0

    asyncio.run(main())


def test_the_head_of_an_answer_goes_with_the_first_part_of_its_body() -> None:
    written: list[bytes] = []
    closing = False
    transport: Any = SimpleNamespace(write=written.append, close=None, is_closing=lambda: closing)
    answer = _Together(transport)
    for part in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"one", b"two"):
        answer.write(part)
    assert written == [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\none", b"two"]
    empty = _Together(transport)
    empty.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    empty.write(b"")
    assert written[3:] == [b"HTTP/1.1 204 No Content\r\n\r\n"]
    # Garbage after a request closes the connection between head and body.
    late = _Together(transport)
    late.write(b"HTTP/1.1 200 OK\r\n\r\n")
    closing = True
    late.write(b"nobody reads it")
    assert len(written) == 4
