"""Speaks to a node over its client API; the standard library is enough for a command line."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from sparktxlog import errors
from sparktxlog.errors import InvalidRequestError, TransportError, TxLogError
from sparktxlog.http.tokens import local_token

DEFAULT_URL = "http://127.0.0.1:7070"
TOKEN_VARIABLE = "SPARKTXLOG_CLIENT_TOKEN"  # noqa: S105 - a name, no secret
ADMIN_TOKEN_VARIABLE = "SPARKTXLOG_ADMIN_TOKEN"  # noqa: S105 - a name, no secret
_MAX_ANSWER_BYTES = 64 << 20


def client_token() -> str | None:
    """Return the token to ask with; an operator's is good for that, too."""
    return os.environ.get(TOKEN_VARIABLE) or os.environ.get(ADMIN_TOKEN_VARIABLE)


def admin_token() -> str | None:
    """Return the token to change something with; a client's, where operators have none."""
    return os.environ.get(ADMIN_TOKEN_VARIABLE) or os.environ.get(TOKEN_VARIABLE)


class NodeApi:
    """Reads and changes one node's `/v1` resources.

    Args:
        url: The node's URL, scheme, host and port.
        token: Bearer token of all requests; default: `client_token` for questions and, because
            all that commands send is an operator's act, `admin_token` for the rest; else the one
            that a node of this machine and user noted.
        timeout_s: Seconds to wait for one answer.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(
                f"{url[:120]!r} is no URL of a node", hint="Give one such as http://127.0.0.1:7070."
            )
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._client_token = token or client_token() or local_token(url)
        self._admin_token = token or admin_token() or local_token(url)

    def get(self, path: str, **query: Any) -> Any:
        """Return the decoded JSON answer of `GET path`.

        Raises:
            TransportError: The node cannot be reached or sent no JSON.
            TxLogError: The node's own error, in its class.
        """
        wanted = {name: value for name, value in query.items() if value is not None}
        target = f"{self.url}{path}" + (f"?{urlencode(wanted)}" if wanted else "")
        return self._answer(Request(target, headers={"accept": "application/json"}))  # noqa: S310

    def send(self, method: str, path: str, body: Any) -> Any:
        """Send JSON and return the decoded answer, None for an empty one; errors as `get`."""
        request = Request(  # noqa: S310 - the scheme was checked
            f"{self.url}{path}",
            data=json.dumps(body).encode(),
            method=method,
            headers={"accept": "application/json", "content-type": "application/json"},
        )
        return self._answer(request)

    def _answer(self, request: Request) -> Any:
        asks = request.get_method() == "GET"
        token = self._client_token if asks else self._admin_token
        if token:
            request.add_header("authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310
                body = answer.read(_MAX_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                raise _error_of(error.read(_MAX_ANSWER_BYTES), error.code, self.url) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise TransportError(
                f"no node answers at {self.url}: {reason}",
                hint="Start it with `sparktxlog serve`, or name another one with --url.",
                url=self.url,
            ) from error
        return _decode(body, self.url) if body else None


def _decode(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise TransportError(
            f"{url} answers, but not as a sparktxlog node", hint="Check --url.", url=url
        ) from error


def _error_of(body: bytes, status: int, url: str) -> TxLogError:
    try:
        problem = json.loads(body)
        code, detail = str(problem["title"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return TransportError(f"{url} answered with HTTP status {status}", url=url, status=status)
    cls = _classes().get(code, TxLogError)
    return cls(detail, hint=str(problem.get("hint", "")), **dict(problem.get("fields") or {}))


def _classes() -> dict[str, type[TxLogError]]:
    return {
        found.code: found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, TxLogError)
    }
