"""The client token: who may submit, read and report (constant-time comparison)."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from sparktxlog.errors import UnauthorizedError

_SCHEME = b"bearer "


class ClientAuth:
    """Checks the bearer token of clients and workers.

    Args:
        token: What they must show; None = everybody may, which the configuration allows only
            when the node listens on loopback.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, request: Request) -> None:
        """Let the request pass or raise.

        Raises:
            UnauthorizedError: No token, or a wrong one; nothing happened (definite).
        """
        if self._token is None:
            return
        shown = bearer_token(request)
        if not hmac.compare_digest(shown, self._token):
            raise UnauthorizedError(
                "this node wants a client token" if not shown else "the client token is wrong",
                hint="Send 'Authorization: Bearer <token>' with the token of the node's "
                "client-token or client-token-file.",
            )


def bearer_token(request: Request) -> bytes:
    """Return the bearer token that a request shows, empty for none."""
    header = b""
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            header = value
    shown: bytes = header[len(_SCHEME) :] if header[: len(_SCHEME)].lower() == _SCHEME else b""
    return shown.strip()
