"""One signed request to a peer and its answer: a message, or a file.

A request may take as long as bytes move; only silence ends it.  While a body is sent, the peer
answers every second that bytes arrive (`102 Processing`, see `service.listener`): bytes that the
kernel or a relay took do not prove that the peer is alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sparktxlog.errors import (
    CertificateError,
    PeerTimeoutError,
    RemoteProtocolError,
    TransportError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.http.node_connection import NodeConnection
from sparktxlog.transport import signing
from sparktxlog.transport.kept_connections import KeptConnections, Patience
from sparktxlog.transport.node_certificate import certificate_error
from sparktxlog.transport.signing import ReplacedStartError, Signer, StaleSessionError

#: Bytes of a file that are read at once.
_BLOCK_BYTES = 1 << 20


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
    except OSError as error:
        if found := certificate_error(url, node_id, error):
            raise found from error
        refused = isinstance(error, ConnectionRefusedError)
        kind = UnreachableError if refused else TransportError
        raise kind(f"{url}: {str(error) or type(error).__name__}") from error


async def ask(
    connections: KeptConnections,
    signer: Signer,
    url: str,
    method: str,
    target: str,
    body: bytes,
    *,
    to: str,
    patience: Patience,
    peer: str,
) -> PeerAnswer:
    """Send a request for the start `to` of a peer at `url`, and return the answer.

    Raises:
        CertificateError: One side does not accept the other one's certificate, or the address is a
            one with http and only TLS is spoken (definite).
        PeerTimeoutError: No answer in time (not definite).
        UnreachableError: The connection was refused: nobody listens there (definite).
        TransportError: The connection failed in another way, or broke (not definite).
    """
    headers, tls = signer.headers(method, target, body, to, url), signer.tls(url, peer)
    signature = headers.get(signing.SIGNATURE, "")
    headers["content-type"] = "application/msgpack"
    with talking_to(url, peer):
        received = await connections.request(
            method, url, target, headers=headers, body=body, patience=patience, tls=tls
        )
    seal = received.headers.get(signing.SIGNATURE, "")
    return PeerAnswer(
        url=url,
        status=received.status,
        body=received.body,
        boot=received.headers.get(signing.BOOT, "")[:64],
        sealed=signer.certified(url)
        or (bool(seal) and signer.is_sealed(signature, received.body, seal)),
    )


def stream_file(
    url: str,
    target: str,
    headers: Mapping[str, str],
    offset: int,
    timeout_s: float,
    tls: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    """Yield the bytes of a peer's file from `offset` on, by a blocking socket, in a thread.

    Args:
        url: The peer's URL.
        target: Path of the request, below that of the URL.
        headers: Signature headers.
        offset: Bytes that are already here.
        timeout_s: Longest silence of the socket.
        tls: What `NodeCertificate.arguments` returned, empty = nothing but the URL counts.

    Raises:
        TransportError: The transfer broke; yielded bytes may be kept, to resume there.
        StaleSessionError: The peer must be greeted first.
    """
    with closing(NodeConnection(urlsplit(url), tls=tls)) as connection:
        sent = {**headers, "Range": f"bytes={offset}-"} if offset else headers
        try:
            reply = connection.request("GET", target, sent, total_s=math.inf, silence_s=timeout_s)
        except (CertificateError, UnreachableError) as error:
            kind = PeerTimeoutError if isinstance(error.__cause__, TimeoutError) else TransportError
            raise kind(f"fetching a file broke off: {error.message}") from error
        check_file_status(reply.status, url, target, offset)
        yield from reply.blocks(_BLOCK_BYTES)


def check_file_status(status: int, url: str, target: str, offset: int) -> None:
    """Raise unless a file comes, from an offset on; errors as `stream_file`."""
    if status == 409:
        raise StaleSessionError(f"{url} wants to be greeted first")
    if status in (401, 403):
        raise UnauthorizedError(f"{url} refused {target}", status=status)
    if status != (206 if offset else 200):
        raise TransportError(f"{url} answered {status} to {target}", status=status)


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
