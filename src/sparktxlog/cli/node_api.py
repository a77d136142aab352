"""How commands call a node."""

from __future__ import annotations

from typing import Any

from sparktxlog.errors import TransportError
from sparktxlog.http.link import Http
from sparktxlog.http.tokens import admin_token, client_token


class NodeApi(Http):
    """Reads and changes one node's `/v1` resources.

    Args:
        url: The node's URL, scheme, host and port.
        token: Bearer token of all requests; default: `client_token` for questions and, because
            all that commands send is an operator's act, `admin_token` for the rest; else the one
            that a node of this machine and user noted.
        timeout_s: Seconds to wait for one answer.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 10.0) -> None:
        super().__init__(url, token=token or client_token(), timeout_s=timeout_s)
        self._admin_token = token or admin_token() or self.token

    def send(self, method: str, path: str, value: Any, *, token: str | None = None) -> Any:
        """Send a value as JSON, as an operator; see `Http.send`."""
        return super().send(method, path, value, token=token or self._admin_token)

    def _failed(
        self, method: str, path: str, error: Exception, timeout_s: float, *, sent: bool
    ) -> TransportError:
        return TransportError(
            f"no node answers at {self.url}: {error}",
            hint="Start it with `sparktxlog serve`, or name another one with --url.",
            url=self.url,
        )
