"""HTTP client of one node, for all callers outside the cluster: kept connections, typed errors.

A request is a head and a body of bytes, the answer is one JSON document, and threads share the kept
connections.  A problem document is raised as the error class that it names.

Every request may be repeated safely: reads change nothing, submits carry their transaction ids, and
reports are idempotent.  So a kept connection that was closed meanwhile may be replaced.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from sparktxlog.codec.problems import error_of
from sparktxlog.codec.submits.arguments import text_given
from sparktxlog.errors import (
    CertificateError,
    InvalidRequestError,
    NotAppliedError,
    PositionNotReachedError,
    TransportError,
    TxLogError,
)
from sparktxlog.http.node_connection import NodeConnection
from sparktxlog.http.tokens import TOKEN_VARIABLE, local_token, token_in
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.tracing import current_trace

#: Least seconds for a call: a node that does not wait must still have time to answer.
LEAST_S = 1.0
#: Seconds of a call, at most a quarter of it, that remain for the answer of a node that waits.
_ANSWER_S = 0.5
_OPEN_S = 10.0
_MOST_IDLE = 16
_MAX_ANSWER_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20
_RUN_TYPE = "application/vnd.sparktxlog.run"


class GrowingPause:
    """Pauses between attempts at a node: each is twice as long as the one before, up to a bound.

    Not for attempts that lost to others: `api.writing.retry` says why.

    Args:
        first_s, longest_s: Seconds.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.next_s = first_s

    def wait(self, most_s: float | None = None) -> None:
        """Wait for the next pause, at most so many seconds."""
        threading.Event().wait(self.next_s if most_s is None else min(self.next_s, most_s))
        self.next_s = min(2 * self.next_s, self._longest_s)

    def begin_again(self) -> None:
        """Begin with the first pause: an attempt got on."""
        self.next_s = self._first_s


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Any if kind is object else kind)


def node_address(url: str) -> SplitResult:
    """Return the parts of a node's URL.

    Raises:
        InvalidRequestError: It is not a URL of a node (definite).
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), -1
    if "@" in parts.netloc:
        raise InvalidRequestError(
            f"the URL of a node at {parts.hostname} has a user or a password, and takes none",
            hint="Leave them out; the token comes from SPARKTXLOG_CLIENT_TOKEN, or from token= of "
            "a call. Replace the password: every user of this machine may have seen it.",
            field="url",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise InvalidRequestError(
            f"{url[:120]!r} is not a URL of a node", hint="Example: http://127.0.0.1:7070."
        )
    return parts


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    """Return a path, already quoted, with the parameters that are not None."""
    wanted = {name: value for name, value in (query or {}).items() if value is not None}
    for name, value in wanted.items():
        if isinstance(value, str):
            text_given(value, name)
    return f"{path}?{urlencode(wanted)}" if wanted else path


class Http:
    """Kept connections to one node; safe to share between threads.

    Args:
        url: The node's URL: scheme, host and port; a path, if it is after a reverse proxy.
        token: Client token; default: the variable `SPARKTXLOG_CLIENT_TOKEN`, or what the node of
            this machine and user noted.
        timeout_s: Seconds to wait for an answer, unless a call says otherwise.
        ca_file: Authority of the node's certificate, for https; default: see `http.authorities`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._address = node_address(self.url)
        self.timeout_s = timeout_s
        #: Token of every request that does not name another one.
        self.token = token or token_in(TOKEN_VARIABLE) or local_token(url)
        #: Absolute: processes of Spark may have other working directories.
        if not (ca_file is None or isinstance(ca_file, (str, os.PathLike))):
            text_given(ca_file, "ca_file")
        self.ca_file = None if ca_file is None else str(Path(ca_file).absolute())
        self._idle: list[NodeConnection] = []
        self._lock = threading.Lock()
        #: Set by `close`: ends pauses between attempts.
        self.closed = threading.Event()

    def close(self) -> None:
        """Close the idle connections, and end pauses between attempts."""
        self.closed.set()
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- requests -------------------------------------------------------------------------------

    def get(
        self,
        path: str,
        *,
        timeout_s: float | None = None,
        waits: bool = False,
        raw: bool = False,
        **query: Any,
    ) -> Any:
        """Return the decoded JSON answer of `GET path`.

        Args:
            path: Already quoted.
            timeout_s: Seconds for everything, `LEAST_S` at least; default: the link's.
            waits: The node may wait before it answers; the request says for how long.
            raw: Return the bytes of the answer, not decoded.
            query: Parameters; those that are None are left out.

        Raises:
            UnreachableError: No connection (definite).
            CertificateError: The node's certificate is not accepted (definite).
            TransportError: The connection broke, or what answered is no node (not definite).
            TxLogError: The node's own error, in its class.
        """
        wanted = self.timeout_s if timeout_s is None else timeout_s
        left = max(LEAST_S, wanted)
        end = time.monotonic() + left
        while True:
            if waits:
                query["timeout"] = min(wanted, node_patience(left))
            try:
                answer = self.request("GET", path, query=query, timeout_s=left)
            except (NotAppliedError, PositionNotReachedError):
                left = end - time.monotonic()
                if not waits or query["timeout"] < LONGEST_WAIT_S or left <= 0:
                    raise
            else:
                return answer if raw else self._decoded(answer)

    def _decoded(self, answer: bytes, kind: Any = object) -> Any:
        try:
            return _decoder(kind).decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | memoryview | None = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        token: str | None = None,
    ) -> bytes:
        """Return the bytes of a successful answer; as `get`, but without a least `timeout_s`."""
        target, headers = _target(path, query), self._headers(token)
        if body is not None:
            headers["content-type"] = content_type
        connection = self._connection()
        total_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            reply = connection.request(method, target, headers, body, total_s=total_s)
            answer = reply.read(_MAX_ANSWER_BYTES)
        except CertificateError:
            raise
        except TransportError as error:
            raise self._failed(method, path, error) from error.__cause__
        self._give_back(connection)
        if reply.status >= 400:
            raise self._refused(path, reply.status, answer)
        return answer

    def pieces(
        self,
        path: str,
        *,
        query: Mapping[str, Any],
        offset: int,
        silence_s: float,
        token: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of a file from an offset on; errors as `get`.

        What was yielded before an error may be kept, to go on there.

        Args:
            silence_s: Most seconds without a byte.
        """
        target, headers = _target(path, query), self._headers(token)
        if offset:
            headers["range"] = f"bytes={offset}-"
        wanted = 206 if offset else 200
        connection = self._connection()
        try:
            reply = connection.request(
                "GET", target, headers, total_s=math.inf, silence_s=silence_s
            )
            answer = b"" if reply.status < 400 else reply.read(_MAX_ANSWER_BYTES)
            if reply.status == wanted:
                yield from reply.blocks(_PIECE_BYTES)
            elif reply.status < 400:
                connection.close()  # a proxy that knows no ranges sends all of it again
        except CertificateError:
            raise
        except TransportError as error:
            raise self._failed("GET", path, error) from error.__cause__
        except BaseException:
            connection.close()  # its answer is not read
            raise
        self._give_back(connection)
        if reply.status >= 400:
            raise self._refused(path, reply.status, answer)
        if reply.status != wanted:
            raise self._unreadable(ValueError(f"it answered {reply.status} to {path}"))

    def _headers(self, token: str | None) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": "sparktxlog"}
        if shown := token or self.token:
            headers["authorization"] = f"Bearer {shown}"
        return headers | current_trace()

    def _connection(self) -> NodeConnection:
        """Return an idle connection, or another one."""
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        return kept or NodeConnection(self._address, ca_file=self.ca_file, connect_s=_OPEN_S)

    def _give_back(self, connection: NodeConnection) -> None:
        """Keep a connection whose answer was read."""
        with self._lock:
            is_wanted = len(self._idle) < _MOST_IDLE and not self.closed.is_set()
            if connection.is_open and is_wanted:
                self._idle.append(connection)
            else:
                connection.close()

    # -- errors; subclasses word them for their users --------------------------------------

    def _failed(self, method: str, path: str, error: TransportError) -> TransportError:
        """Return the error of a request without an answer; `UnreachableError`: it was not sent."""
        return error

    def _refused(self, path: str, status: int, answer: bytes) -> TxLogError:
        """Return the error that an unsuccessful answer means."""
        return error_of(answer, status, self.url)

    def _unreadable(self, error: Exception) -> TxLogError:
        """Return the error of an answer that a node of this release cannot have given."""
        return TransportError(
            f"{self.url} answers, but not as a sparktxlog node: {error}",
            hint="Check the URL.",
            url=self.url,
        )

    # -- submits --------------------------------------------------------------------------------

    def submit_once(
        self,
        body: bytes,
        *,
        is_run: bool,
        level: str,
        after: int | None,
        timeout_s: float,
        wait_s: float,
        first_wins: bool = False,
    ) -> Receipt:
        """Submit a transaction or a run, without a repeat.

        Args:
            timeout_s: Seconds for everything; the node may wait `wait_s` of them for the level.

        Raises:
            TransportError: The link broke (not definite, unless it is an UnreachableError).
            TxLogError: The node's own error, in its class.
        """
        answer = self.request(
            "POST",
            "/v1/runs" if is_run else "/v1/transactions",
            body=body,
            content_type=_RUN_TYPE if is_run else "application/json",
            query={
                "level": level,
                "timeout": round(wait_s, 3),
                "after": after,
                "first_wins": 1 if first_wins else None,
            },
            timeout_s=timeout_s,
        )
        receipt: Receipt = self._decoded(answer, Receipt)
        return receipt

    def receipt(self, transaction_id: str, *, timeout_s: float | None = None) -> Receipt:
        """Return what the node knows of a transaction.

        Raises:
            NotFoundError: The node never saw it (definite).
        """
        answer = self.request("GET", f"/v1/transactions/{transaction_id}", timeout_s=timeout_s)
        receipt: Receipt = self._decoded(answer, Receipt)
        return receipt


def node_patience(timeout_s: float) -> float:
    """Return how many seconds of a call a node may wait so that its answer arrives in time.

    A call of more than `LONGEST_WAIT_S` takes several requests.
    """
    return min(LONGEST_WAIT_S, timeout_s - min(_ANSWER_S, timeout_s / 4))
