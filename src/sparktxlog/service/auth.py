"""Checks the tokens of clients, workers and operators; `routes` says which route needs which."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request

from sparktxlog.config import ClientGrant
from sparktxlog.errors import ForbiddenError, UnauthorizedError
from sparktxlog.runtime.audit_trail import ANYBODY, OPERATOR

_SCHEME, _BASIC = b"bearer ", b"basic "


class Tokens:
    """Checks the bearer token of clients, workers and operators.

    Args:
        client: Token of clients; None = clients need none, which the configuration allows only
            when the node listens on loopback.
        admin: Token of operators, who may also do all that clients may; None = clients may do
            what operators may.
        worker: Token of this node's workers, if clients need a token.
        worker_file: The file that holds it.
        grants: Clients with tokens of their own.
        client_also: Another token of clients, while theirs is replaced.
    """

    def __init__(
        self,
        client: str | None,
        admin: str | None,
        worker: str | None = None,
        worker_file: Path | None = None,
        grants: Sequence[ClientGrant] = (),
        client_also: str | None = None,
    ) -> None:
        self._client = None if client is None else client.encode()
        self._client_also = None if client_also is None else client_also.encode()
        self._admin = None if admin is None else admin.encode()
        self._worker = None if worker is None else worker.encode()
        self._worker_file = worker_file
        self._grants = tuple((one.token.encode(), one) for one in grants)

    def grant(self, request: Request) -> ClientGrant | None:
        """Return the grant of a request's client; None = its token is no client's of its own."""
        if not self._grants:
            return None
        shown = bearer_token(request)
        found = [one for token, one in self._grants if _equal(shown, token)]
        return found[0] if found else None

    def name(self, request: Request, grant: ClientGrant | None) -> str:
        """Return the requester, once that was checked: a role, or the name of a grant."""
        if grant is not None:
            return f"client {grant.name}"
        if self._client is None and self._admin is None:
            return ANYBODY
        shown = bearer_token(request)
        if _equal(shown, self._admin):
            return OPERATOR
        return "worker" if _equal(shown, self._worker) else "client"

    def _is_client(self, shown: bytes) -> bool:
        own = tuple(_equal(shown, token) for token, _ in self._grants)
        both = (_equal(shown, one) for one in (self._client, self._client_also))
        return any((*own, *both))

    def check_client(self, request: Request) -> None:
        """Let a request of a client or an operator pass, or raise.

        Raises:
            ForbiddenError: The token is that of a worker; nothing happened (definite).
            UnauthorizedError: No token, or a wrong one; nothing happened (definite).
        """
        if self._client is not None and _equal(bearer_token(request), self._worker):
            raise ForbiddenError(
                "the token of a worker is not enough: it asks and reports, and only clients may "
                "submit",
                hint="Send the token of the node's client-token or client-token-file; commands and "
                "jobs take it from SPARKTXLOG_CLIENT_TOKEN.",
                setting="client-token",
            )
        self.check_reader(request)

    def check_reader(self, request: Request) -> None:
        """Let a request of a client, an operator or a worker pass, or raise.

        Raises:
            UnauthorizedError: No token, or a wrong one; nothing happened (definite).
        """
        if self._client is None:
            return
        shown = bearer_token(request)
        # All are compared, so that the time shows nothing.
        known = tuple(_equal(shown, one) for one in (self._admin, self._worker))
        if not any((*known, self._is_client(shown))):
            raise UnauthorizedError(
                "this node requires a client token" if not shown else "the client token is wrong",
                hint="Send 'Authorization: Bearer <token>' with the token of the node's "
                "client-token or client-token-file; commands and clients take it from "
                "SPARKTXLOG_CLIENT_TOKEN, or `token=`.",
            )

    def check_admin(self, request: Request) -> None:
        """Let a request of an operator pass, or raise.

        Raises:
            ForbiddenError: The token is that of clients; nothing happened (definite).
            UnauthorizedError: No token, or a wrong one; nothing happened (definite).
        """
        if self._admin is None and self.grant(request) is None:
            return self.check_client(request)
        shown = bearer_token(request)
        is_admin, is_client = _equal(shown, self._admin), self._is_client(shown)
        if is_admin:
            return None
        if is_client:
            raise ForbiddenError(
                "the client token is not enough: only operators may do this",
                hint="Send the token of the node's admin-token or admin-token-file; commands take "
                "it from SPARKTXLOG_ADMIN_TOKEN.",
                setting="admin-token",
            )
        raise UnauthorizedError(
            "this node requires the admin token here" if not shown else "the admin token is wrong",
            hint="Send 'Authorization: Bearer <token>' with the token of the node's admin-token "
            "or admin-token-file; commands take it from SPARKTXLOG_ADMIN_TOKEN.",
        )

    def check_worker(self, request: Request) -> None:
        """Let a request of a worker of this node, or of an operator, pass, or raise.

        Raises:
            ForbiddenError: The token is that of clients; nothing happened (definite).
            UnauthorizedError: No token, or a wrong one; nothing happened (definite).
        """
        if self._client is None or self._worker is None:
            self.check_client(request)
            return
        shown = bearer_token(request)
        known = (_equal(shown, self._worker), _equal(shown, self._admin))
        if self._is_client(shown):
            raise ForbiddenError(
                "the client token is not enough: only a worker of this node may do this, with the "
                f"token in {self._worker_file}",
                hint="A worker that runs on the node's machine as the node's user finds it; "
                "another one takes it from SPARKTXLOG_WORKER_TOKEN.  Operators may do it with the "
                "token of the node's admin-token.",
                path=str(self._worker_file),
            )
        if not any(known):
            raise UnauthorizedError(
                "this node requires the token of its worker"
                if not shown
                else "the token is not that of a worker of this node",
                hint=f"A worker of this node reads it in {self._worker_file}, or takes it from "
                "SPARKTXLOG_WORKER_TOKEN.",
            )


def _equal(shown: bytes, token: bytes | None) -> bool:
    return token is not None and hmac.compare_digest(shown, token)


def take_password(request: Request) -> None:
    """Let the password of HTTP Basic, which browsers ask people for, be a request's bearer token.

    Only for what is read: a browser also shows it to requests that a page of another site makes.
    """
    headers = request.scope["headers"]
    for number, (name, value) in enumerate(headers):
        if name == b"authorization" and value[: len(_BASIC)].lower() == _BASIC:
            try:
                shown = base64.b64decode(value[len(_BASIC) :], validate=True)
            except ValueError:
                return
            headers[number] = (name, _SCHEME + shown.partition(b":")[2])


def bearer_token(request: Request) -> bytes:
    """Return the bearer token of a request, empty for none."""
    header = b""
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            header = value
    shown: bytes = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else b""
    return shown.strip()
