"""HTTP connections to peers, kept from one request to the next.

A commit at three sites takes some ten requests, so a request must cost little: its bytes are one
write, and only status, headers and body are made of the answer.  As the peer may need long for an
answer, or the link for a body, only silence ends a request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools

#: Longest silence of a peer, seconds.
SILENCE_S = 10.0
#: Seconds that an idle connection is kept; nodes keep theirs longer, so that only one side ends it.
_KEPT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a request may take."""

    connect_s: float = 2.0
    #: Longest time in which nothing comes from the peer; it begins with the request.
    silence_s: float = SILENCE_S
    #: All of it; None = any time.
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """An answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class KeptConnections:
    """Connections of one node to its peers.  **After calling** `request`: `close` in the end."""

    def __init__(self) -> None:
        #: URL and TLS → those that wait for a request; the last one was used last.
        self._idle: dict[tuple[Any, ...], list[_Connection]] = {}

    async def request(
        self,
        method: str,
        url: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        patience: Patience,
        tls: Mapping[str, Any],
    ) -> Received:
        """Send a request and return its answer.

        Args:
            url: Of the peer.
            target: Path, below that of the URL, and query.
            tls: See `NodeCertificate.arguments`.

        Raises:
            TimeoutError: No connection, or no answer, in time.
            OSError: The connection failed or broke.
        """
        async with asyncio.timeout(patience.total_s):
            key = (url, *tls.values())
            connection = self._take(key) or await self._open(key, url, patience.connect_s, tls)
            try:
                received = await connection.exchange(
                    method, target, headers, body, patience.silence_s
                )
            except BaseException:
                connection.close()
                raise
        if connection.may_be_kept:
            self._idle.setdefault(key, []).append(connection)
        else:
            connection.close()
        return received

    def _take(self, key: tuple[Any, ...]) -> _Connection | None:
        idle = self._idle.get(key, [])
        while idle:
            connection = idle.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        return None

    async def _open(
        self, key: tuple[Any, ...], url: str, connect_s: float, tls: Mapping[str, Any]
    ) -> _Connection:
        parts, loop = urlsplit(url), asyncio.get_running_loop()
        port, failed = parts.port or (443 if parts.scheme == "https" else 80), OSError(url)
        if parts.scheme == "https":
            tls = tls or {"ssl": True, "server_hostname": parts.hostname}
        async with asyncio.timeout(connect_s):
            for *_, address in await loop.getaddrinfo(
                parts.hostname, port, type=socket.SOCK_STREAM
            ):
                try:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(parts, lambda lost: self._forget(key, lost)),
                        *address[:2],
                        **tls,
                    )
                except OSError as error:
                    failed = error
                else:
                    return connection
        raise failed

    def _forget(self, key: tuple[Any, ...], lost: _Connection) -> None:
        idle = self._idle.get(key, [])
        if lost in idle:
            idle.remove(lost)
        if not idle:
            self._idle.pop(key, None)

    async def close(self) -> None:
        """Close all idle connections; the others end with their requests."""
        for connection in [one for idle in self._idle.values() for one in idle]:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, address: SplitResult, on_lost: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._host, self._prefix = address.netloc, address.path.rstrip("/")
        self._on_lost = on_lost
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._answer: asyncio.Future[Received] | None = None
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        #: When bytes came, or a request began.
        self._heard = self._loop.time()
        self._silence_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.may_be_kept = False

    @property
    def is_fresh(self) -> bool:
        """Whether the peer still keeps it."""
        return not self._transport.is_closing() and self._loop.time() - self._heard < _KEPT_S

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, silence_s: float
    ) -> Received:
        """Send a request and return its answer; errors as `KeptConnections.request`."""
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\nhost: {self._host}"
        head += f"\r\ncontent-length: {len(body)}"
        more = "".join([f"\r\n{name}: {value}" for name, value in headers.items()])
        self.may_be_kept = False
        self._heard, self._silence_s = self._loop.time(), silence_s
        self._answer = answer = self._loop.create_future()
        self._timer = self._loop.call_later(silence_s, self._look)
        self._transport.writelines([f"{head}{more}\r\n\r\n".encode("latin-1"), body])
        try:
            received: Received = await answer
            return received
        finally:
            self._timer.cancel()
            self._answer = None

    def _look(self) -> None:
        """Fail if the peer is silent."""
        left = self._heard + self._silence_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        """Close it at once."""
        self._transport.abort()

    # -- what the event loop calls -----------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._fail(exc or ConnectionResetError("the connection was closed before an answer"))
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(OSError(f"no HTTP answer: {error}"))
            self.close()

    # -- what the parser calls ---------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Take bytes of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Give the answer to its waiter, unless it only says that the body arrives."""
        status, parts = self._parser.get_status_code(), self._parts
        received = Received(status, self._headers, parts[0] if len(parts) == 1 else b"".join(parts))
        self._headers, self._parts = {}, []
        if status < 200:
            return
        self.may_be_kept = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(received)
        else:
            self.close()  # nobody asked
