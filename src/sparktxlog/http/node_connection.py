"""One kept connection to a node, for a thread: requests, answers, deadlines, typed errors.

All threads that ask a node do it here: clients (`http.link`), copies (`files.donor_link`), and what
fetches files of peers (`transport.exchange`).  The standard library's `http.client` is enough for
that.  Only the event loop has connections of its own (`transport.kept_connections`).
"""

from __future__ import annotations

import base64
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import (
    HTTP_PORT,
    HTTPS_PORT,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    IncompleteRead,
)
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from sparktxlog.errors import ConfigError, PeerTimeoutError, TransportError, UnreachableError
from sparktxlog.http.authorities import authorities, certificate_error

#: Most seconds of one step: a socket counts them as milliseconds in 32 bits.
_LONGEST_S = 2e6
#: How a connection ends that the node closed; where TLS is spoken, writing meets the others.
_ENDED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy of HTTP.

    Args:
        headers: Of the request to it; they may have its password.
    """

    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)


def proxy_to(address: SplitResult) -> Proxy | None:
    """Return the proxy that the environment names for a URL, as other libraries find it.

    Raises:
        ConfigError: It is no proxy of HTTP (definite); its text may have a password.
    """
    found = getproxies()
    named = found.get("https") or found.get("all")
    host = address.hostname or ""
    if address.scheme != "https" or not named or proxy_bypass(host):
        return None
    try:
        by = urlsplit(named if "://" in named else f"http://{named}")
        name, port = by.hostname, by.port
    except ValueError:
        name, port = None, None
    if not name or by.scheme != "http":
        raise ConfigError(
            "HTTPS_PROXY of the environment is no URL of http",
            hint="Write it as http://host:port, or name the host in NO_PROXY.",
            key="HTTPS_PROXY",
        )
    headers = dict[str, str]()
    if by.username is not None:
        said = f"{unquote(by.username)}:{unquote(by.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(said).decode()}"
    return Proxy(name, port or HTTP_PORT, headers)


class NodeConnection:
    """A kept connection.  Used by one thread at a time; `abort` and `overdue` by any.

    A kept connection that the node closed meanwhile is replaced, so a request may be sent twice.
    After an error the connection is closed; the next request opens another.

    Args:
        address: The node's URL; its path comes before that of each request.
        ca_file: Authority of the node's certificate, for https; default: see `http.authorities`.
        tls: Context (`ssl`) and name in the certificate (`server_hostname`), as
            `NodeCertificate.arguments` returns them; empty = `ca_file` and the URL's host.
        connect_s: Most seconds to open it.
        proxy: Carries the bytes of a connection with TLS (`CONNECT`); None = nothing does.
        late: What the error says of a request that takes longer than its `total_s`.
        fields: Further fields of errors.
    """

    def __init__(
        self,
        address: SplitResult,
        *,
        ca_file: str | None = None,
        tls: Mapping[str, Any] | None = None,
        connect_s: float = math.inf,
        proxy: Proxy | None = None,
        late: str = "",
        **fields: Any,
    ) -> None:
        self._address, self._ca_file, self._tls = address, ca_file, tls
        self._connect_s, self._late, self._url = connect_s, late, address.geturl()
        self._prefix, self._proxy = address.path.rstrip("/"), proxy
        self._fields = {"url": self._url, **fields}
        self._line: HTTPConnection | None = None
        #: Its socket, also after the line let go of it: the answer's body may still be read.
        self._socket: socket.socket | None = None
        #: Limits of the request under way; the last one in monotonic seconds, infinite if none is.
        self._silence_s = self._total_s = self._until = math.inf
        #: Whether `abort` was called.
        self.aborted = False

    @property
    def is_open(self) -> bool:
        """Whether the next request uses a connection that is open."""
        return self._line is not None and self._line.sock is not None

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | memoryview | None = None,
        *,
        total_s: float,
        silence_s: float = math.inf,
    ) -> Reply:
        """Send a request and return the head of its answer; read its body before the next one.

        Args:
            target: Path, below that of the address, and query.
            total_s: Most seconds of request and answer.  Bytes that trickle make one step longer:
                `overdue` says so to another thread.
            silence_s: Most seconds without a byte.

        Raises:
            ConfigError: The authority's file, or the token, cannot be used (definite).
            CertificateError: The node's certificate is not accepted (definite).
            UnreachableError: No connection, so nothing was sent (definite).
            PeerTimeoutError: No answer in time (not definite).
            TransportError: The connection broke (not definite).
        """
        shown = headers.get("authorization", "")
        if not (shown.isascii() and shown.isprintable()):
            # The library would show it.
            raise ConfigError(
                f"the token for {self._url} has a character that no request may have",
                hint="A token is one line of ASCII: look at the variable or file that has it.",
                key="token",
            )
        target = self._prefix + target
        self._silence_s, self._total_s = silence_s, total_s
        self._until = time.monotonic() + total_s
        lost: Exception | None = None
        try:
            while True:
                line, was_kept = self._line, True
                if line is None or line.sock is None:
                    line, was_kept = self._open(lost), False
                try:
                    return Reply(self, self._send(line, method, target, body, headers))
                except _ENDED as error:
                    if not was_kept or self.aborted:
                        raise
                    lost = error
                    line.close()
        except (OSError, HTTPException) as error:
            raise self.failure(error) from error
        except BaseException:
            self.close()
            raise

    def _open(self, lost: Exception | None) -> HTTPConnection:
        """Connect; `lost`: how a kept connection broke, from which the node may have read.

        Raises:
            ConnectionAbortedError: `abort` was called.
        """
        host, port = self._address.hostname or "", self._address.port
        # Without a port it would look for one at the end of an IPv6 address.
        line = HTTPConnection(host, port or HTTP_PORT)
        if self._address.scheme == "https":
            tls = self._tls or {"ssl": authorities(self._ca_file), "server_hostname": host}
            by = self._proxy
            line = _TlsConnection(by.host if by else host, by.port if by else port, tls)
            if by is not None:
                line.set_tunnel(host, port or HTTPS_PORT, dict(by.headers))
        self._line = line
        left = min(self._until - time.monotonic(), self._silence_s, self._connect_s, _LONGEST_S)
        line.timeout = max(0.001, left)
        try:
            line.connect()
        except OSError as error:
            if lost is not None:
                raise lost from error
            raise certificate_error(self._url, error) or UnreachableError(
                f"no node answers at {self._url}: {error}",
                hint="Start it with `sparktxlog serve`, or check the URL.",
                **self._fields,
            ) from error
        self._socket = line.sock
        if self.aborted:
            raise ConnectionAbortedError("it was aborted")
        return line

    def _send(self, line: HTTPConnection, *request: Any) -> HTTPResponse:
        """Return the head of the answer, even if it came before the request's end.

        A node that refuses a long body may answer and close while it is still being sent.
        """
        self._arm(line)
        try:
            line.request(*request)
            self._arm(line)
        except _ENDED as error:
            try:
                return line.getresponse()
            except (OSError, HTTPException):
                raise error from None
        response = line.getresponse()
        self._arm(line)
        return response

    def _arm(self, line: HTTPConnection) -> None:
        """Give the next step the time that is left; system calls for hardly less are spared.

        Raises:
            TimeoutError: None is left.
        """
        left = min(self._until - time.monotonic(), self._silence_s, _LONGEST_S)
        if left <= 0:
            raise TimeoutError
        sock = line.sock  # None: the answer said that the connection ends with it
        if sock is not None and abs((sock.gettimeout() or 0) - left) > left / 256:
            sock.settimeout(left)

    def overdue(self, now_s: float) -> bool:
        """Return whether the request under way takes longer than its `total_s`."""
        return now_s > self._until

    def abort(self) -> None:
        """Let the request under way fail, and all later ones; from another thread.

        It fails at once, but for one that waits for the other side to take its connection.
        """
        self.aborted = True
        if (sock := self._socket) is not None:
            with suppress(OSError):  # already closed
                # That of a socket with TLS would let the thread go on without TLS.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; the next request opens another."""
        self._until = math.inf
        if self._line is not None:
            self._line.close()

    def failure(self, error: Exception) -> TransportError:
        """Close it, and return the error of the request under way."""
        is_silent, is_late = isinstance(error, TimeoutError), self.overdue(time.monotonic())
        self.close()
        found = TransportError(
            f"the connection to {self._url} broke off: {str(error) or type(error).__name__}",
            **self._fields,
        )
        if is_silent or is_late:
            text = self._late or f"did not answer within {self._total_s:g} s"
            if is_silent and self._silence_s < math.inf:
                text = f"was silent for {self._silence_s:g} s"
            found = PeerTimeoutError(f"{self._url} {text}", hint="See its log.", **self._fields)
        found.__cause__ = error
        return found


class _TlsConnection(HTTPConnection):
    """Expects a certificate of a name, which need not be that of the host."""

    default_port = HTTPS_PORT

    def __init__(self, host: str, port: int | None, tls: Mapping[str, Any]) -> None:
        super().__init__(host, port or HTTPS_PORT)
        self._tls = tls

    def connect(self) -> None:
        """Connect."""
        super().connect()
        context: ssl.SSLContext = self._tls["ssl"]
        self.sock = context.wrap_socket(self.sock, server_hostname=self._tls["server_hostname"])


class Reply:
    """An answer: its head, and its body, which is read once; errors as `NodeConnection.request`."""

    def __init__(self, connection: NodeConnection, response: HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status, self.headers = response.status, response.headers

    @property
    def size(self) -> int | None:
        """Bytes of the body that are not read yet; None = the answer does not say."""
        return self._response.length

    def read(self, most: int) -> bytes:
        """Return the body; one of more than so many bytes is refused."""
        response = self._response
        data: bytes = b"" if (response.length or 0) > most else self._step(response.read, most + 1)
        if response.length or len(data) > most:
            why = f"the answer ends early, or has more than {most:,} bytes"
            raise self._connection.failure(HTTPException(why))
        return data

    def fill(self, into: memoryview) -> None:
        """Read the body into a buffer of its `size`."""
        if self._step(self._response.readinto, into) < len(into):
            raise self._connection.failure(IncompleteRead(b"", self.size))

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield the body in blocks of at most so many bytes."""
        while block := self._step(self._response.read, size):
            yield block
        if self.size:  # `read` takes a connection that ends for the end of the body
            raise self._connection.failure(IncompleteRead(b"", self.size))

    def _step(self, read: Callable[[Any], Any], given: Any) -> Any:
        try:
            found = read(given)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: closed by `abort`
            raise self._connection.failure(error) from error
        except BaseException:
            self._connection.close()
            raise
        if not self._response.length:
            self._connection._until = math.inf
        return found
