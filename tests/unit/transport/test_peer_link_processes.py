"""A new process is taken for a node only if it is certain that no other one is that node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

import pytest
from tests.support.greetings import make_greeter
from tests.unit.transport.test_peer_link_addresses import hello

from sparktxlog.errors import PeerTimeoutError, TransportError, UnreachableError
from sparktxlog.transport import peer_link as peers_module
from sparktxlog.transport.exchange import PeerAnswer, ask
from sparktxlog.transport.kept_connections import KeptConnections
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import BOOT, Signer

RESET, ORIGINAL, COPY = "reset", "original", "copy"


class Address:
    """Does with one connection after the other what it is told, the last for ever; [] refuses."""

    def __init__(self, *does: str) -> None:
        self._does = list(does)
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        if not self._does:
            self._server.close()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        does = self._does.pop(0) if len(self._does) > 1 else self._does[0]
        await reader.readuntil(b"\r\n\r\n")
        if does == RESET:
            writer.transport.abort()
            return
        writer.write(
            f"HTTP/1.1 409 Conflict\r\n{BOOT}: {does}.1\r\ncontent-length: 0\r\n"
            "connection: close\r\n\r\n".encode()
        )
        writer.close()


async def other_process(*addresses: Address) -> str:
    """Return which process a link finds at a peer's addresses instead of `COPY`."""
    urls = ",".join(one.url for one in addresses)
    greeter = make_greeter(hello("A", "http://a", "ia"), {"B": urls}, {}, lambda *_: None)
    link = PeerLink(
        "B", urls, greeter=greeter, signer=Signer("secret", "A", "1"), on_link=lambda *_: None
    )
    link._connections = connections = KeptConnections()
    try:
        return await link.other_process(COPY)
    finally:
        await connections.close()


def found(*does: Sequence[str]) -> str:
    async def main() -> str:
        async with AsyncExitStack() as stack:
            made = [await stack.enter_async_context(Address(*one)) for one in does]
            return await other_process(*made)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "_WHO_PAUSE_S", 0.0)


def test_one_broken_question_does_not_hide_the_process_that_lives() -> None:
    """The copy was let in for it, and the original had to join anew."""
    assert found([RESET, RESET, ORIGINAL]) == ORIGINAL


def test_resets_alone_say_nothing() -> None:
    with pytest.raises(TransportError):
        found([RESET])
    with pytest.raises(TransportError):
        found([], [RESET])


def test_where_nobody_listens_no_process_is() -> None:
    assert found([]) == ""
    assert found([], []) == ""


def test_one_address_of_several_is_enough_to_know() -> None:
    assert found([RESET], [COPY]) == ""
    assert found([RESET], [ORIGINAL]) == ORIGINAL
    assert found([], [ORIGINAL]) == ORIGINAL
    assert found([ORIGINAL], [COPY]) == ""


@pytest.mark.parametrize(
    "failure",
    [
        lambda url: PeerTimeoutError(url),
        lambda url: PeerAnswer(url=url, status=502, body=b"", boot="", sealed=False),
    ],
)
def test_silence_and_a_relays_answer_say_nothing(
    failure: Callable[[str], PeerAnswer | TransportError], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def fail(
        connections: object, signer: object, url: str, *_: object, **__: object
    ) -> object:
        asked.append(url)
        result = failure(url)
        if isinstance(result, PeerAnswer):
            return result
        raise result

    monkeypatch.setattr(peers_module, "ask", fail)
    with pytest.raises(TransportError):
        found([])
    assert len(asked) == 3


def test_only_a_refused_connection_is_told_as_one() -> None:
    async def main(*does: str) -> None:
        async with Address(*does) as there:
            connections, signer = KeptConnections(), Signer("secret", "A", "1")
            patience = peers_module._WHO_PATIENCE
            asked = (connections, signer, there.url, "GET", "/x", b"")
            await ask(*asked, to="", patience=patience, peer="B")

    with pytest.raises(UnreachableError, match="Connect"):
        asyncio.run(main())
    with pytest.raises(TransportError) as caught:
        asyncio.run(main(RESET))
    assert not isinstance(caught.value, UnreachableError)
