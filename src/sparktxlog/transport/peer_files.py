"""Reading a peer's files in a thread: blocking sockets, large blocks, no event loop involved."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from sparktxlog.errors import PeerTimeoutError, TransportError, UnauthorizedError
from sparktxlog.transport.signing import StaleSessionError

_BLOCK_BYTES = 1 << 20


def stream_file(
    url: str, target: str, headers: Mapping[str, str], offset: int, timeout_s: float
) -> Iterator[bytes]:
    """Yield the bytes of a peer's file from `offset` on.

    Args:
        url: The peer's URL, without path.
        target: Path of the request.
        headers: Signature headers.
        offset: Bytes that are here already.
        timeout_s: Longest silence of the socket.

    Raises:
        TransportError: The transfer broke off; what was yielded may be kept and resumed.
        StaleSessionError: The peer must be greeted first.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        sent = dict(headers)
        if offset:
            sent["Range"] = f"bytes={offset}-"
        connection.request("GET", target, headers=sent)
        response = connection.getresponse()
        _check_status(response.status, url, target, offset)
        while block := response.read(_BLOCK_BYTES):
            yield block
    except TimeoutError as error:
        raise PeerTimeoutError(f"{url} was silent for {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise TransportError(f"fetching a file from {url} broke off: {error!r}") from error
    finally:
        connection.close()


def _check_status(status: int, url: str, target: str, offset: int) -> None:
    if status == 409:
        raise StaleSessionError(f"{url} wants to be greeted first")
    if status in (401, 403):
        raise UnauthorizedError(f"{url} refused {target}", status=status)
    if status != (206 if offset else 200):
        raise TransportError(f"{url} answered {status} to {target}", status=status)
