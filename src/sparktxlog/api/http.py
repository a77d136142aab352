"""HTTP to one node for everything that calls it from Python: kept connections, typed errors.

The standard library's `http.client` is enough: a request is a head and a body of bytes, the answer
one JSON document, and connections are kept and shared between threads.  An answer that
is a problem document comes back as the error class it names.

Every request here may be repeated without harm: questions change nothing, and submits carry their
transaction ids.  So a kept connection that turns out to be closed is replaced without asking.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import stamina

from sparktxlog import errors
from sparktxlog.errors import (
    CommitRejectedError,
    CommitStateUnknownError,
    InvalidRequestError,
    NotFoundError,
    PeerTimeoutError,
    TransportError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.receipt import Receipt

TOKEN_VARIABLE = "SPARKTXLOG_CLIENT_TOKEN"  # noqa: S105 - a name, no secret
#: Seconds that an answer may come later than the timeout the node was given.
_GRACE_S = 5.0
_CONNECT_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 256 << 20

_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_receipt_decoder = msgspec.json.Decoder(Receipt)

#: Code → class of error.
ERROR_CLASSES: dict[str, type[TxLogError]] = {
    found.code: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, TxLogError)
}


class Http:
    """Kept connections to one node; safe to share between threads.

    Args:
        url: The node's URL: scheme, host and port.
        token: Client token; default: the variable `SPARKTXLOG_CLIENT_TOKEN`.
        timeout_s: Seconds to wait for an answer where a call says nothing else.
        kept: Most idle connections kept.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 30.0, kept: int = 16
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InvalidRequestError(
                f"{url[:120]!r} is no URL of a node", hint="Give one such as http://127.0.0.1:7070."
            )
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port
        self._prefix = parts.path.rstrip("/")
        token = token or os.environ.get(TOKEN_VARIABLE)
        self._headers = {"accept": "application/json", "user-agent": "sparktxlog"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=kept)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # -- requests -------------------------------------------------------------------------------

    def get(self, path: str, *, wait_s: float | None = None, **query: Any) -> Any:
        """Return the decoded JSON answer of `GET path`.

        Args:
            path: Safe as it is.
            wait_s: Seconds that the node may take; default: the link's.
            query: Parameters; those of None are left out.

        Raises:
            UnreachableError: No connection (definite).
            TransportError: The link broke, or no node answered (not definite).
            TxLogError: The node's own error, in its class.
        """
        return self._decoded(self.request("GET", path, query=query, wait_s=wait_s))

    def get_below(self, path: str, name: str, **query: Any) -> Any:
        """Return the answer of `GET path/name`, whatever characters the name has; as `get`."""
        return self.get(f"{path}/{quote(name, safe='')}", **query)

    def post(
        self,
        path: str,
        body: bytes,
        *,
        content_type: str = "application/json",
        wait_s: float | None = None,
        **query: Any,
    ) -> Any:
        """Return the decoded JSON answer of `POST path`; errors as `get`."""
        answer = self.request(
            "POST", path, body=body, content_type=content_type, query=query, wait_s=wait_s
        )
        return self._decoded(answer)

    def _decoded(self, answer: bytes, decoder: msgspec.json.Decoder[Any] = _any_decoder) -> Any:
        try:
            return decoder.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransportError(
                f"{self.url} answers, but not as a sparktxlog node: {error}",
                hint="Check the URL.",
                url=self.url,
            ) from error

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
        query: dict[str, Any] | None = None,
        wait_s: float | None = None,
    ) -> bytes:
        """Return the bytes of a good answer; errors as `get`."""
        target = self._prefix + path
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        if wanted:
            target += f"?{urlencode(wanted)}"
        headers = dict(self._headers)
        if content_type is not None:
            headers["content-type"] = content_type
        timeout = (self.timeout_s if wait_s is None else wait_s) + _GRACE_S
        lost: Exception | None = None
        while True:
            try:
                connection, kept = self._connection()
            except UnreachableError:
                if lost is None:
                    raise
                # The request went out on a kept connection: the node may have died of it, later.
                raise _broken(self.url, lost, timeout) from lost
            try:
                self._arm(connection, timeout)
                response = _exchange(connection, method, target, body, headers)
                if (response.length or 0) > _MAX_ANSWER_BYTES:
                    raise http.client.HTTPException("the answer is too long")
                answer = response.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                if kept and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    lost = error
                    continue
                raise _broken(self.url, error, timeout) from error
            except BaseException:
                connection.close()
                raise
            if response.will_close:
                connection.close()
            else:
                self._keep(connection)
            if response.status >= 400:
                raise error_of(answer, response.status, self.url)
            return answer

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was used before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        timeout = _CONNECT_TIMEOUT_S
        connection: http.client.HTTPConnection
        if self._secure is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._secure
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise UnreachableError(
                f"no node answers at {self.url}: {error}",
                hint="Start it with `sparktxlog serve`, or check the URL.",
                url=self.url,
            ) from error
        return connection, False

    @staticmethod
    def _arm(connection: http.client.HTTPConnection, timeout: float) -> None:
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < (self._idle.maxlen or 0):
                self._idle.append(connection)
                return
        connection.close()

    # -- submits --------------------------------------------------------------------------------

    def submit(
        self,
        path: str,
        body: bytes,
        content_type: str,
        first_id: bytes,
        *,
        level: str = "ordered",
        timeout_s: float | None = None,
        **query: Any,
    ) -> Receipt:
        """Submit until answered or the time is over; the ids in the body make it one transaction.

        Args:
            path: `/v1/transactions`, `/v1/runs` or `/v1/tables/…/rows`.
            body: Holds the transaction ids.
            content_type: Of the body.
            first_id: Id of the transaction, the first one of a run.
            level: How far it must get.
            timeout_s: Seconds for everything, repeats included.
            query: Further parameters.

        Raises:
            CommitStateUnknownError: The level was not reached in time, or the link broke and no
                repeat got through (not definite; fields `transaction_id`, `reached`).
            CommitRejectedError: Nothing happened (definite).
            UnreachableError: The node could not be reached; nothing was sent (definite).
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        maybe: TransportError | None = None

        def attempt() -> Receipt:
            nonlocal maybe
            left = max(0.0, deadline - time.monotonic())
            try:
                return self.submit_once(
                    path, body, content_type, level=level, timeout_s=left, **query
                )
            except TransportError as error:
                if not error.definite:
                    maybe = error
                raise

        try:
            return _repeated(attempt, deadline)
        except CommitStateUnknownError:
            raise
        except TxLogError as error:
            if maybe is None:
                raise
            return self._settled(first_id, maybe, error)

    def submit_once(
        self,
        path: str,
        body: bytes,
        content_type: str,
        *,
        level: str,
        timeout_s: float,
        **query: Any,
    ) -> Receipt:
        """Submit without a repeat; arguments as `submit`.

        Raises:
            TransportError: The link broke (not definite, unless it is an UnreachableError).
            TxLogError: The node's own error, in its class.
        """
        answer = self.request(
            "POST",
            path,
            body=body,
            content_type=content_type,
            query={"level": level, "timeout": round(timeout_s, 3), **query},
            wait_s=timeout_s,
        )
        receipt: Receipt = self._decoded(answer, _receipt_decoder)
        return receipt

    def _settled(self, first_id: bytes, maybe: TransportError, error: TxLogError) -> Receipt:
        """Find out what became of a submit whose first try broke and whose repeat failed."""
        text = transaction_id_to_text(first_id)
        unknown = CommitStateUnknownError(
            f"the link to {self.url} broke while transaction {text} was submitted: {maybe.message}",
            hint="Submit it again with the same id, or ask for it when the node answers.",
            transaction_id=text,
            reached=None,
        )
        if not isinstance(error, CommitRejectedError):
            raise unknown from maybe
        try:
            return self.receipt(text)
        except NotFoundError:
            raise error from None
        except TxLogError:
            raise unknown from maybe

    def receipt(self, transaction_id: str, *, wait_s: float | None = None) -> Receipt:
        """Return what the node knows of a transaction.

        Raises:
            NotFoundError: It was never seen there (definite).
        """
        answer = self.request("GET", f"/v1/transactions/{transaction_id}", wait_s=wait_s)
        receipt: Receipt = self._decoded(answer, _receipt_decoder)
        return receipt


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | None,
    headers: dict[str, str],
) -> http.client.HTTPResponse:
    """Send a request and return the head of its answer, also one that came before its body's end.

    A node that refuses a long body may answer and close while it is still being sent.
    """
    try:
        connection.request(method, target, body, headers)
    except ConnectionError as error:
        try:
            return connection.getresponse()
        except (http.client.HTTPException, OSError):
            raise error from None
    return connection.getresponse()


def _repeated(attempt: Callable[[], Receipt], deadline: float) -> Receipt:
    """Repeat while the error says that a repeat may help and time is left."""

    def may_help(error: Exception) -> bool:
        return (
            isinstance(error, TxLogError)
            and error.retryable
            and not isinstance(error, CommitStateUnknownError)
            and time.monotonic() < deadline
        )

    for trial in _trials(may_help, deadline):
        with trial:
            return attempt()
    raise AssertionError("unreachable: the last trial raises or returns")


def _trials(may_help: Callable[[Exception], bool], deadline: float) -> Iterator[stamina.Attempt]:
    left = max(0.05, deadline - time.monotonic())
    yield from stamina.retry_context(
        on=may_help, attempts=None, timeout=left, wait_initial=0.05, wait_max=1.0, wait_jitter=0.1
    )


def _broken(url: str, error: Exception, timeout: float) -> TransportError:
    if isinstance(error, TimeoutError):
        return PeerTimeoutError(
            f"{url} did not answer within {timeout:.0f} s", hint="See its log.", url=url
        )
    text = str(error) or type(error).__name__
    return TransportError(f"the link to {url} broke: {text}", url=url)


def error_of(body: bytes, status: int, url: str) -> TxLogError:
    """Return the error that a problem document stands for, in its class."""
    try:
        problem = msgspec.json.decode(body)
        code, detail = str(problem["title"]), str(problem["detail"])
        fields = dict(problem.get("fields") or {})
        definite = bool(problem.get("definite", False))
        hint = str(problem.get("hint", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return TransportError(
            f"{url} answered with HTTP status {status}, but not as a sparktxlog node",
            hint="Check the URL.",
            url=url,
            status=status,
        )
    kind = ERROR_CLASSES.get(code)
    if kind is None:  # a newer node knows more codes
        kind = CommitRejectedError if definite else TransportError
        fields["code"] = code
    fields.pop("message", None)
    fields.pop("hint", None)
    return kind(detail, hint=hint, **fields)


def error_of_rejection(receipt: Receipt) -> TxLogError:
    """Return the error that stands for a transaction whose ordered outcome is `rejected`."""
    reason = receipt.rejections[0]
    kind = ERROR_CLASSES.get(reason.code, CommitRejectedError)
    if not issubclass(kind, CommitRejectedError):
        kind = CommitRejectedError
    return kind(
        f"transaction {receipt.transaction_id} was rejected at position {receipt.position}: "
        f"{reason.text}",
        hint="Every site rejects it alike; nothing of it takes effect.",
        transaction_id=receipt.transaction_id,
        position=receipt.position,
        reason=reason.code,
    )
