"""The server in front of the application, and what a connection may take before it is somebody.

uvicorn with httptools limits neither URL nor headers, waits for ever, and takes every connection.
Here each has a limit: 64 KiB and 10 s for a head, 64 KiB for what stands between the bytes of a
body (extensions of chunks, trailers), `SILENCE_S` for a body that stopped, and places: clients have
`connections-limit` of them, peers have their own, and file descriptors remain for files.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import resource
import socket
import struct
import termios
from collections.abc import Iterator
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sparktxlog.errors import BusyError, HeadTooLongError, SlowRequestError, TxLogError
from sparktxlog.service.endpoints import problem_response

_log = structlog.get_logger("sparktxlog.service")

#: Most bytes of a head (request line and headers), and of all that a body carries beside its bytes.
HEAD_BYTES = 64 << 10
#: Seconds for a head; and of silence within a body, or while the other side reads no answer.
HEAD_S = 10.0
SILENCE_S = 30.0
#: Places of peers, and of connections that have not said yet who they are.
PEER_PLACES = 64
_NEW_PLACES = 256
#: Tells a peer, once a second, that bytes of its body came; any client passes over it.
_BODY_MOVES = b"HTTP/1.1 102 Processing\r\n\r\n"
#: File descriptors for everything but connections: journal, queue, payloads, lake, links to peers.
_FILES = 512
_MOST_FILES = 1 << 16
_FEWEST_PLACES = 16
#: Requests that one connection may send ahead of their answers; each is an object in memory.
_AHEAD = 16
#: Open requests get so long to end after a stop signal, seconds.
_GRACE_S = 3
#: Longer than peers keep idle connections, so that only they close them.
_KEEP_ALIVE_S = 75
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})


class Server(uvicorn.Server):
    """A server that leaves signals to its caller.

    Args:
        app: The application.
        places: Connections that clients may have.
        grace_s: Open requests get so long to end when it stops.
    """

    def __init__(self, app: ASGIApp, *, places: int, grace_s: int = _GRACE_S) -> None:
        doors = self._doors = Doors(places)

        def connection(**arguments: Any) -> asyncio.Protocol:
            return Connection(doors=doors, **arguments)

        super().__init__(
            uvicorn.Config(
                app,
                http=connection,  # type: ignore[arg-type]  # any factory does
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=grace_s,
                callback_notify=doors.sweep,
                timeout_notify=1,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; no connection outlives the server, also none that was being taken meanwhile.

        A node that starts again in its process would still answer there as the one before.
        """
        self._doors.shut = True
        await super().shutdown(sockets)
        self._doors.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def client_places(wanted: int) -> int:
    """Return how many connections clients may have, of so many wanted.

    The process's limit of open files is raised as far as the system lets it; what it does not
    give is taken from the clients' places.
    """
    others = PEER_PLACES + _NEW_PLACES + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < min(wanted + others, most):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= wanted + others:
        return wanted
    places = max(_FEWEST_PLACES, soft - others)
    _log.warning("few open files allowed", files=soft, wanted=wanted + others, clients=places)
    return places


class Doors:
    """Keeps the connections: places for peers, and an end for those that hold one for nothing.

    Args:
        places: Connections that clients may have.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        #: Connections that have not sent a head yet, in the order of arrival.
        self._new: dict[Connection, None] = {}
        self._clients: set[Connection] = set()
        self._peers: set[Connection] = set()
        #: True: the server stops, no connection is taken any more.
        self.shut = False

    def enter(self, connection: Connection) -> None:
        """Take in a connection; if there are too many, close the oldest one that sent nothing."""
        self._new[connection] = None
        if self.shut:
            connection.abort()
            return
        total = len(self._new) + len(self._clients) + len(self._peers)
        if total > self._places + PEER_PLACES + _NEW_PLACES:
            next(iter(self._new)).abort()

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._new.pop(connection, None)
        self._clients.discard(connection)
        self._peers.discard(connection)

    def place(self, connection: Connection, *, as_peer: bool) -> bool:
        """Give a connection whose head is complete its place; False if none is left.

        The routes of peers check signatures before all else, and close a connection without one.
        """
        mine, places = (self._peers, PEER_PLACES) if as_peer else (self._clients, self._places)
        if connection in mine:
            return True
        if len(mine) >= places:
            idle = [other for other in mine if other.is_idle]
            if not idle:
                return False
            min(idle, key=lambda other: other.heard).abort()
        self.leave(connection)
        mine.add(connection)
        return True

    def close(self) -> None:
        """Close all connections that are left."""
        for connection in (*self._new, *self._clients, *self._peers):
            connection.abort()

    async def sweep(self) -> None:
        """Close the connections that keep the node waiting; called once a second."""
        now = asyncio.get_running_loop().time()
        for group in (self._new, self._clients, self._peers):
            for connection in list(group):
                connection.check(now)


class Connection(HttpToolsProtocol):
    """One connection; counts what it sends before anything of it is parsed or kept."""

    def __init__(self, *, doors: Doors, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._doors = doors
        #: Time of the last bytes.
        self.heard = self.loop.time()
        #: When the head began that is not complete; None outside of heads.
        self._head_since: float | None = self.heard
        self._in_body = False
        #: Bytes that may still come before a head is complete or a body goes on.
        self._left = HEAD_BYTES
        #: Whether the parser got somewhere with the last bytes.
        self._moved = False
        self._bodiless = False
        self._is_peer = False
        #: When the peer was told last that its body moves.
        self._told = self.heard
        #: Bytes that the other side does not take, and since when.
        self._untaken = (0, self.heard)

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered here and no other one came."""
        return self.cycle is not None and self.cycle.response_complete and not self._in_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._doors.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._doors.leave(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without an answer."""
        self.transport.abort()

    # -- what comes in -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what came, in pieces that are no longer than what may come."""
        self.heard = self.loop.time()
        if self._head_since is None and not self._in_body:
            self._head_since = self.heard
        if len(data) <= self._left:
            self._feed(data)
            return
        view = memoryview(data)
        while view and not self.transport.is_closing():
            piece, view = view[: self._left], view[self._left :]
            self._feed(piece)

    def _feed(self, piece: bytes | memoryview) -> None:
        self._moved = False
        super().data_received(piece)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._moved:
            self._left = HEAD_BYTES
            return
        self._left -= len(piece)
        if self._left <= 0 and not self.transport.is_closing():
            self._refuse(_too_long())

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._head_since = self.heard
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers mean nothing to any route."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Give the connection its place and start the request."""
        self._moved, self._in_body, self._head_since = True, True, None
        self._bodiless = self.parser.get_method() in _BODILESS
        if len(self.pipeline) >= _AHEAD:
            self.abort()
            return
        self._is_peer, self._told = self.url.startswith(b"/peer/"), self.heard
        if not self._doors.place(self, as_peer=self._is_peer):
            self.app = _full  # for as long as it lasts: it is told to close
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take bytes of a body, unless the method has none."""
        self._moved = True
        if not self._bodiless:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._moved, self._in_body = True, False
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered as any other."""

    # -- silent connections ----------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close the connection if it has kept the node waiting for too long."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._is_peer and self._in_body:
            self._tell_that_it_moves()
        untaken = _untaken(self.transport)
        if untaken != self._untaken[0]:
            self._untaken = (untaken, now)
        if untaken and now - self._untaken[1] > SILENCE_S:
            self.abort()
        elif self._head_since is not None:
            if now - self._head_since > HEAD_S:
                self._refuse(_too_late())
        elif self._in_body and not self.flow.read_paused:
            if now - self.heard > SILENCE_S:
                self.abort()
        elif self.flow.read_paused:
            self.heard = now  # it is the node that does not read

    def _tell_that_it_moves(self) -> None:
        """Say that bytes came: a large body on a slow link takes longer than a peer is silent."""
        moves = self.heard > self._told or self.flow.read_paused
        if moves and not self.pipeline and not self.cycle.response_started:
            self._told = self.heard
            self.transport.write(_BODY_MOVES)

    def _refuse(self, error: TxLogError) -> None:
        """Answer with an error, if nothing else is being answered, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()
            return
        response = problem_response(error)
        head = [STATUS_LINE[response.status_code], b"connection: close\r\n"]
        head += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        self.transport.write(b"".join([*head, b"\r\n", bytes(response.body)]))
        self.transport.close()


def _untaken(transport: asyncio.Transport) -> int:
    """Return how many bytes wait, those included that only the kernel knows of.

    It makes room for more in large steps: on a slow link one takes longer than `SILENCE_S`.
    """
    waiting = transport.get_write_buffer_size()
    found = transport.get_extra_info("socket")
    if waiting and found is not None:
        held = bytearray(struct.calcsize("i"))
        with contextlib.suppress(OSError):  # not every system tells
            fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, held)
        waiting += struct.unpack("i", held)[0]
    return waiting


def _too_long() -> HeadTooLongError:
    return HeadTooLongError(
        f"the head of the request has more than {HEAD_BYTES:,} bytes",
        hint="Send less in URL and headers; rows and settings go into the body.",
        limit_bytes=HEAD_BYTES,
    )


def _too_late() -> SlowRequestError:
    return SlowRequestError(
        f"the head of a request did not come within {HEAD_S:g} s", hint="Send it in one go."
    )


async def _full(scope: Any, receive: Any, send: Any) -> None:
    response = problem_response(
        BusyError(
            "too many connections are open",
            hint="Close what you do not need, or raise connections-limit.",
        )
    )
    response.headers["connection"] = "close"
    await response(scope, receive, send)
