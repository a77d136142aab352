"""One signed request to a peer and its answer, for links and for checks of addresses.

A request may take as long as bytes move; only silence ends it.  While a body is sent, the peer
answers every second that bytes arrive (`102 Processing`, see `service.listener`): bytes that the
kernel or a relay took do not prove that the peer is alive.
"""

from __future__ import annotations

import errno
import hmac
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from sparktxlog.errors import (
    PeerTimeoutError,
    RemoteProtocolError,
    TransportError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.transport import signing
from sparktxlog.transport.node_certificate import certificate_error
from sparktxlog.transport.signing import ReplacedStartError, Signer

#: Opens the session for all requests of one node's links.
OpenSession = Callable[[], aiohttp.ClientSession]
#: Larger bodies are streamed.
STREAMED_BYTES = 1 << 20
#: Longest silence of a peer, seconds.
SILENCE_S = 10.0
_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """The answer of a peer."""

    #: Address that was asked.
    url: str
    status: int
    body: bytes
    #: Boot id of the peer, if the answer has one.
    boot: str
    #: Whether it is proved to be the peer's answer to this very request: by the peer's certificate,
    #: or sealed with the cluster's secret.
    sealed: bool

    def check_status(self, target: str, node_id: str) -> None:
        """Raise the error of an answer, unless it is a success.

        Raises:
            ReplacedStartError: The peer proves that it took another process for this node since
                it took this start (definite).
            UnauthorizedError: The peer does not accept this node (definite).
            RemoteProtocolError: It does not understand the request (definite).
            TransportError: Any other refusal.
        """
        if self.status < 400:
            return
        title, reason = _problem(self.body)
        message = f"{self.url} answered {self.status} to {target}: {reason}"
        if self.sealed and title == ReplacedStartError.code:
            raise ReplacedStartError(message, peer=node_id)
        if self.status in (401, 403):
            raise UnauthorizedError(message, peer=node_id)
        if self.status in (400, 413, 422):
            raise RemoteProtocolError(message, peer=node_id)
        raise TransportError(message, peer=node_id, status=self.status)


def patience(silence_s: float = SILENCE_S) -> aiohttp.ClientTimeout:
    """Return the timeout of a request that may take as long as the peer is not silent."""
    return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)


class _Request(aiohttp.ClientRequest):
    """A request in which silence counts from its beginning, not from the end of its body."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        response = await super().send(conn)
        assert conn.protocol is not None
        conn.protocol.start_timeout()
        return response


class _Handler(ResponseHandler):
    """Receives an answer; any message, also `102 Processing`, restarts its timeout."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if data.endswith(b"\r\n\r\n") and data.startswith(b"HTTP/1.1 102"):
            self.start_timeout()


class _Connector(aiohttp.TCPConnector):
    """Makes connections that accept `102 Processing`."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=60)
        handler: type[ResponseHandler] = _Handler
        self._factory = partial(handler, loop=self._loop)


def open_session() -> aiohttp.ClientSession:
    """Return a session for all requests of one node's links; **after calling** close it."""
    return aiohttp.ClientSession(
        connector=_Connector(),
        auto_decompress=False,
        trust_env=False,
        request_class=_Request,
        # Nodes neither send cookies nor choose by such headers: each costs time at both ends.
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
    )


@contextmanager
def talking_to(url: str, node_id: str) -> Iterator[None]:
    """Convert failures of a request to a peer into errors of this project.

    Raises:
        CertificateError: One side does not accept the other one's certificate (definite).
        PeerTimeoutError: No answer in time (not definite).
        UnreachableError: The connection was refused: nobody listens there (definite).
        TransportError: The connection failed in another way, or broke (not definite).
    """
    try:
        yield
    except TimeoutError as error:
        raise PeerTimeoutError(f"{url} did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        if found := certificate_error(url, node_id, error):
            raise found from error
        refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        kind = UnreachableError if refused else TransportError
        raise kind(f"{url}: {str(error) or type(error).__name__}") from error


async def ask(
    session: aiohttp.ClientSession,
    signer: Signer,
    url: str,
    method: str,
    target: str,
    body: bytes,
    *,
    to: str,
    timeout: aiohttp.ClientTimeout,
    peer: str,
) -> PeerAnswer:
    """Send a request for the start `to` of a peer at `url`, and return the answer.

    Raises:
        CertificateError: One side does not accept the other one's certificate, or the address is a
            plain one and only TLS is spoken (definite).
        PeerTimeoutError: No answer in time (not definite).
        UnreachableError: The connection was refused: nobody listens there (definite).
        TransportError: The connection failed in another way, or broke (not definite).
    """
    headers, tls = signer.headers(method, target, body, to, url), signer.tls(url, peer)
    signature = headers.get(signing.SIGNATURE, "")
    headers["Content-Type"] = "application/msgpack"
    data = body if len(body) <= STREAMED_BYTES else io.BytesIO(body)
    with talking_to(url, peer):
        async with session.request(
            method,
            url + target,
            headers=headers,
            timeout=timeout,
            data=data,
            allow_redirects=False,
            **tls,
        ) as response:
            answer = await response.read()
            status = response.status
            seal = response.headers.get(signing.SIGNATURE, "")
            boot = response.headers.get(signing.BOOT, "")[:64]
    expected = signer.answer_signature(signature, answer)
    sealed = signer.certified(url) or hmac.compare_digest(seal.encode(), expected.encode())
    return PeerAnswer(url=url, status=status, body=answer, boot=boot, sealed=sealed)


class _Problem(msgspec.Struct):
    detail: str
    title: str = ""


def _problem(answer: bytes) -> tuple[str, str]:
    """Return code and text of a problem document, or the beginning of whatever else it is."""
    try:
        problem = msgspec.json.decode(answer, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", answer[:500].decode(errors="replace")
    return problem.title, problem.detail[:500]
