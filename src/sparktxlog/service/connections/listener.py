"""The HTTP server, and the limits of a connection before its caller is known.

uvicorn with httptools limits neither URL nor headers, waits for ever, and takes every connection.
This server has limits: 64 KiB and 10 s for a head, 64 KiB for what a body carries in addition to
its bytes (extensions of chunks, trailers), `SILENCE_S` for a body that stops or trickles, and
`DRAIN_S` for one that nobody reads because its request was answered.  Connections are limited too:
`places` says which belong to clients, peers and strangers, and file descriptors remain for files.

A node with a certificate speaks TLS here (`entrance`), and refuses what comes without it, unless
its `tls-mode` says otherwise.

No request is upgraded to another protocol.  One that offers it, as the first request of Java's
HTTP client does, is answered as if it did not.
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
from typing import Any, Protocol, cast

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sparktxlog.config import TlsContexts, names_of
from sparktxlog.errors import (
    HeadTooLongError,
    InvalidRequestError,
    SlowRequestError,
    TxLogError,
)
from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections.places import (
    NEW_PLACES,
    PEER_PLACES,
    PROBE_PLACES,
    PROVE,
    Places,
    Proof,
)
from sparktxlog.service.connections.tls_or_http import Entrance
from sparktxlog.service.routing.endpoints import problem_response

_log = structlog.get_logger("sparktxlog.service")

#: Extension of an ASGI scope: which names the caller's certificate has.
SHOWN_NAMES = "sparktxlog.certificate"
#: Most bytes of a head (request line, headers), and of what a body carries in addition to its
#: bytes.
HEAD_BYTES = 64 << 10
#: Seconds for a head; seconds of silence within a body, or while the caller reads no answer.
HEAD_S = 10.0
SILENCE_S = 30.0
#: Bytes of a client's body that must come within each `SILENCE_S`: a KiB/s.
LEAST_BYTES = 30 << 10
#: Seconds in which the rest of a body is thrown away after its request was answered.
DRAIN_S = 2.0
#: Health checks: they need no proof, and have places of their own.
_PROBES = frozenset({b"/livez", b"/readyz"})
#: Tells a peer, once a second, that bytes of its body arrive; other clients ignore it.
_BODY_MOVES = b"HTTP/1.1 102 Processing\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: File descriptors for everything but connections: journal, queue, payloads, lake, links to peers.
_FILES = 512
_MOST_FILES = 1 << 16
_FEWEST_PLACES = 16
#: Requests that one connection may send before their answers; each is an object in memory.
_AHEAD = 16
#: Seconds that open requests have to end after a stop signal.
_GRACE_S = 3
#: Longer than peers keep idle connections, so that only they close them.
_KEEP_ALIVE_S = 75
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})
#: Options of `Connection` that offer another protocol.
_OFFERS = frozenset({b"upgrade", b"http2-settings"})


class ServerCertificate(Protocol):
    """The node's certificate, as its listener uses it."""

    #: Whether requests without TLS are refused.
    only_tls: bool
    #: What new connections use at the moment.
    contexts: TlsContexts


class Server(uvicorn.Server):
    """A server that leaves signals to its caller.

    Args:
        app: The application.
        places: Connections that clients may have, by token.
        grace_s: Seconds that open requests have to end when it stops.
        certificate: Of the node, None = it does not speak TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        places: Budget,
        grace_s: int = _GRACE_S,
        certificate: ServerCertificate | None = None,
    ) -> None:
        only_tls = certificate is not None and certificate.only_tls
        kept = self._places = Places(places, only_tls=only_tls)
        self._certificate = certificate
        self._entrances: list[Entrance] = []

        def connection(**arguments: Any) -> asyncio.Protocol:
            return Connection(places=kept, **arguments)

        super().__init__(
            uvicorn.Config(
                app,
                http=connection,  # type: ignore[arg-type]  # any factory does
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=grace_s,
                callback_notify=kept.sweep,
                timeout_notify=1,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        certificate = self._certificate
        if certificate is None:
            await super().startup(sockets)
            return
        await super().startup([])
        self._entrances = [
            Entrance(
                listener,
                self._connection,
                lambda: certificate.contexts.server,
                patience_s=HEAD_S,
                places=NEW_PLACES,
            )
            for listener in sockets or ()
        ]
        for entrance in self._entrances:
            entrance.start()

    def _connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; no connection outlives the server, not even one that is just being accepted.

        Otherwise the stopped node would still answer there after a restart in this process.
        """
        self._places.shut = True
        for entrance in self._entrances:
            await entrance.close()
        await super().shutdown(sockets)
        self._places.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def client_places(wanted: int) -> int:
    """Return how many of the wanted connections clients may have.

    The process's limit of open files is raised as far as the system allows; if that is not enough,
    clients get fewer places.
    """
    others = PEER_PLACES + NEW_PLACES + PROBE_PLACES + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < min(wanted + others, most):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY or soft >= wanted + others:
        return wanted
    places = max(_FEWEST_PLACES, soft - others)
    _log.warning(
        "the limit of open files is low", files=soft, wanted=wanted + others, clients=places
    )
    return places


class _Parser(httptools.HttpRequestParser):
    """Parses a request that offers another protocol a second time, without the offer.

    httptools ends such a request with its head, and what follows belongs to the other protocol: the
    body would be lost.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def feed_data(self, data: Any) -> None:
        """Parse bytes; the connection gets what is in them."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head = self._connection.declined()
            if head is None:
                raise
            # This parser reads nothing more if the head also says that the connection ends.
            fresh = self._connection.parser = _Parser(self._connection)
            fresh.feed_data(head)
            # What is left: the body of this request, and others after it, which may offer again.
            fresh.feed_data(data[upgrade.args[0] :])


class Connection(HttpToolsProtocol):
    """One connection; counts the bytes that it sends before they are parsed or kept."""

    def __init__(self, *, places: Places, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.parser = _Parser(self)
        self._places = places
        #: Whether the head that was parsed last offers another protocol.
        self._offers = False
        #: Time of the last bytes.
        self.heard = self.loop.time()
        #: When the incomplete head began; None outside of heads.
        self._head_since: float | None = self.heard
        self._in_body = False
        #: Bytes that may still come before a head is complete or a body goes on.
        self._left = HEAD_BYTES
        #: Whether the parser made progress with the last bytes.
        self._moved = False
        self._bodiless = False
        #: When the body that arrives began, or was measured last, and its bytes since then.
        self._body_since, self._body_bytes = self.heard, 0
        #: When the last request was answered.
        self._answered = self.heard
        self._is_peer = False
        self._proof = Proof.NOTHING
        #: When the peer was last informed that its body arrives.
        self._told = self.heard
        #: Bytes that the caller does not read, and since when.
        self._untaken = (0, self.heard)
        #: DNS names of the certificate that the caller showed; None = it does not speak TLS.
        self._names: tuple[str, ...] | None = None

    @property
    def address(self) -> str:
        """Address of the caller, empty = unknown."""
        return self.client[0] if self.client else ""

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other one came."""
        return self.cycle is not None and self.cycle.response_complete and not self._in_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._places.enter(self)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._names = names_of(secured.getpeercert())
        # Parts of an answer are several packets, and the second one must not wait until the caller
        # confirms the first, 40 ms later.  asyncio sets this only where the listening socket names
        # its protocol.
        found = transport.get_extra_info("socket")
        if found is not None and found.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # it may be closed already
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._places.leave(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close without an answer."""
        self.transport.abort()

    # -- what comes in -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, in pieces no longer than the limit."""
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
        """Take a header; trailers are ignored."""
        if not self._in_body:
            super().on_header(name, value)

    def declined(self) -> bytes | None:
        """Return the head that was parsed last without its offer of another protocol.

        None: it offers none that can be declined (CONNECT).
        """
        if not self._offers:
            return None
        self._offers = False
        version = self.parser.get_http_version().encode()
        lines = [b" ".join((self.parser.get_method(), self.url, b"HTTP/" + version))]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(o for o in options if o.lower() not in _OFFERS)
            if value and name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        """Give the connection its place and start the request."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._moved = self._offers = True
            return
        self._moved, self._in_body, self._head_since = True, True, None
        self._bodiless = self.parser.get_method() in _BODILESS
        if len(self.pipeline) >= _AHEAD:
            self.abort()
            return
        self._is_peer, self._told = self.url.startswith(b"/peer/"), self.heard
        self._body_since, self._body_bytes = self.heard, 0
        if self.url.partition(b"?")[0] in _PROBES:
            self._places.probe(self)
        extensions: dict[str, Any] = {PROVE: {"prove": self._prove}}
        if self._names is not None:
            extensions[SHOWN_NAMES] = {"names": self._names}
        elif self._places.only_tls:
            self.app = _without_tls
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self.parser.get_method() != b"HEAD":  # which gets a head and nothing else
            self.cycle.transport = cast(asyncio.Transport, _Together(self.transport))

    def on_body(self, body: bytes) -> None:
        """Take bytes of a body, unless the method has none."""
        self._moved = True
        self._body_bytes += len(body)
        if not self._bodiless:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._offers:
            return
        self._moved, self._in_body = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note that a request was answered."""
        self._answered = self.loop.time()
        super().on_response_complete()

    def _prove(self, proof: Proof) -> bool:
        """Take the place that the caller has a right to; False if none is left."""
        if self.transport.is_closing():
            return True  # it has left: nobody would give its place back
        found = self._places.prove(self, proof)
        if found:
            self._proof = proof
        return found

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is answered as any other."""

    # -- silent connections ----------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close the connection if it has been silent too long."""
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
        elif self.flow.read_paused:
            self.heard = self._body_since = now  # the node itself does not read
        elif self._in_body:
            self._check_body(now)

    def _check_body(self, now: float) -> None:
        """Close the connection if its body stands still, trickles, or was not asked for."""
        if now - self.heard > SILENCE_S:
            self.abort()
        elif self.cycle.response_complete:
            if now - self._answered > DRAIN_S:
                self.abort()
        elif now - self._body_since > SILENCE_S:
            if self._body_bytes < LEAST_BYTES and self._proof is not Proof.PEER:
                self.abort()
            self._body_since, self._body_bytes = now, 0

    def _tell_that_it_moves(self) -> None:
        """Tell the peer that bytes arrive: a slow link may need longer than the peer's timeout."""
        moves = self.heard > self._told or self.flow.read_paused
        if moves and not self.pipeline and not self.cycle.response_started:
            self._told = self.heard
            self.transport.write(_BODY_MOVES)

    def _refuse(self, error: TxLogError) -> None:
        """Answer with an error, unless another answer is under way, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()
            return
        response = problem_response(error)
        head = [STATUS_LINE[response.status_code], b"connection: close\r\n"]
        head += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        self.transport.write(b"".join([*head, b"\r\n", bytes(response.body)]))
        self.transport.close()


class _Together:
    """Writes the head of an answer with the first part of its body: the waiter wakes up once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.close, self.is_closing = transport.close, transport.is_closing

    def write(self, data: bytes) -> None:
        """Write a part of an answer; the first one is the head, after which a body comes."""
        if self._transport.is_closing():
            return  # the caller sent garbage after its request, or is gone: uvloop would raise
        if data == _CONTINUE:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)


def _untaken(transport: asyncio.Transport) -> int:
    """Return how many bytes wait to be sent, including those in the kernel's buffer.

    The kernel frees its buffer in large steps: on a slow link one takes longer than `SILENCE_S`.
    """
    waiting = transport.get_write_buffer_size()
    found = transport.get_extra_info("socket")
    if waiting and found is not None:
        held = bytearray(struct.calcsize("i"))
        with contextlib.suppress(OSError):  # not every system reports it
            fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, held)
        waiting += struct.unpack("i", held)[0]
    return waiting


def _too_long() -> HeadTooLongError:
    return HeadTooLongError(
        f"the request line and headers have more than {HEAD_BYTES:,} bytes",
        hint="Shorten URL and headers; rows and settings belong in the body.",
        limit_bytes=HEAD_BYTES,
    )


def _too_late() -> SlowRequestError:
    return SlowRequestError(
        f"the headers of a request did not arrive within {HEAD_S:g} s", hint="Send them at once."
    )


async def _without_tls(scope: Any, receive: Any, send: Any) -> None:
    response = problem_response(
        InvalidRequestError(
            "this node speaks only https",
            hint="Write https:// in the URL, and name the authority of its certificate: --ca-file, "
            "ca_file or SPARKTXLOG_CA_FILE.",
        )
    )
    response.headers["connection"] = "close"
    await response(scope, receive, send)
