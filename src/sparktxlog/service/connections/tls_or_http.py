"""Takes connections of a node that speaks TLS, before it is known how each of them speaks.

The first byte decides: a TLS handshake begins with its own.  A connection without TLS gets an
answer too, so that its caller reads what is wrong, or goes on where `tls-mode` allows it.
Handshakes have as long as heads have, and as many places as connections that sent no head yet.

Each connection is made with the certificate of its time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from sparktxlog.service.connections.places import too_many

_log = structlog.get_logger("sparktxlog.service")

#: First byte of a TLS handshake.
_HANDSHAKE = b"\x16"
#: Seconds to wait if the process has no file descriptor left.
_PAUSE_S = 1.0
#: Of so many failed handshakes for one reason, one is logged.
_LOG_EVERY = 100


class Entrance:
    """Accepts the connections of one listening socket.  **After calling** `start`: `close`.

    Args:
        listener: The socket; its owner closes it.
        connection: Makes the protocol of a connection.
        context: Returns the TLS context for a new connection.
        patience_s: Seconds for the first byte, and for a handshake.
        places: Most connections whose handshake is not complete.
    """

    def __init__(
        self,
        listener: socket.socket,
        connection: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        *,
        patience_s: float,
        places: int,
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._context = context
        self._patience_s = patience_s
        self._places = places
        self._accepting: asyncio.Task[None] | None = None
        #: Connections that are not complete, in the order of arrival, and where they come from.
        self._entering: dict[asyncio.Task[None], str] = {}
        self._failures: dict[str, int] = {}

    def start(self) -> None:
        """Begin to accept on the running event loop."""
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(), name="accepting connections")

    async def close(self) -> None:
        """Accept nothing more; connections that are not complete are closed."""
        tasks = [*self._entering, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                found, address = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # it was closed before it was accepted
            except OSError as error:
                _log.error("connections cannot be accepted", reason=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            task = asyncio.create_task(self._enter(found), name="handshake")
            self._entering[task] = str(address[0]) if address else ""
            if len(self._entering) > self._places:
                oldest = too_many(self._entering)
                del self._entering[oldest]
                oldest.cancel()
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._entering.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection was not taken", exc_info=error)

    async def _enter(self, found: socket.socket) -> None:
        """Give a connection its protocol; close it if its handshake fails."""
        loop, client = asyncio.get_running_loop(), ""
        try:
            client = str(found.getpeername()[0])
            first = await self._first_byte(found)
            secured = first == _HANDSHAKE
            await loop.connect_accepted_socket(
                self._connection,
                found,
                ssl=self._context() if secured else None,
                ssl_handshake_timeout=self._patience_s if secured else None,
            )
        except (OSError, TimeoutError) as error:  # an SSLError is an OSError
            found.close()
            self._note(client, error)
        except BaseException:
            found.close()
            raise

    async def _first_byte(self, found: socket.socket) -> bytes:
        """Return the first byte of a connection, which is read again later; empty = it ended."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        found.setblocking(False)
        loop.add_reader(found, readable.set)
        try:
            async with asyncio.timeout(self._patience_s):
                await readable.wait()
        finally:
            loop.remove_reader(found)
        return found.recv(1, socket.MSG_PEEK)

    def _note(self, client: str, error: Exception) -> None:
        """Log a failed handshake, the first one of a kind and then a few."""
        if not isinstance(error, ssl.SSLError):
            return  # it ended, or was silent
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        count = self._failures.get(reason, 0)
        self._failures[reason] = count + 1  # OpenSSL's reasons are a short list
        if count % _LOG_EVERY == 0:
            _log.warning("TLS handshake failed", client=client, reason=reason, times=count + 1)
