"""Keeps web pages in a browser from calling a node on the same machine.

A page may send simple requests to any address, and needs no token if the node requires none.  It is
recognised by its `Origin`, by a body of a type that a page may send without a preflight request,
and, if its own host name points at this machine, by a `Host` that is not a name of the node.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from sparktxlog.config import NodeConfig
from sparktxlog.errors import ForeignPageError, UnsupportedTypeError
from sparktxlog.model.values import is_loopback, split_urls

#: Media types that a page may send without a preflight request, and none at all.
_SIMPLE = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
_HOST = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]+)?|([^:\[\]]+)(?::[0-9]+)?")


class PageGuard:
    """Refuses requests of web pages.

    Args:
        config: Of the node.  If it listens on loopback, `Host` must be an address, `localhost`, or
            a name in `master-url`; otherwise it requires a token, which no page knows.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._names: frozenset[str] | None = None
        if is_loopback(config.listen[0]):
            names = (urlsplit(url).hostname or "" for url in split_urls(config.master_url))
            self._names = frozenset({"localhost", *names})

    def check(self, request: Request) -> None:
        """Refuse a request that a page may send without its reader's consent.

        Raises:
            ForeignPageError: `Origin` or `Host` belongs to another site (definite).
            UnsupportedTypeError: The body has a type that no route accepts (definite).
        """
        host = origin = kind = ""
        has_body = False
        for name, value in request.scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1").lower()
            elif name == b"origin":
                origin = value.decode("latin-1").lower()
            elif name == b"content-type":
                kind = value.decode("latin-1").partition(";")[0].strip().lower()
            elif name == b"content-length":
                has_body = has_body or value != b"0"
            elif name == b"transfer-encoding":
                has_body = True
        if self._names is not None and host and not self._is_own(host):
            raise ForeignPageError(
                f"Host is {host[:80]!r}, which is not a name of this node",
                hint="Call it by its address, or by the name in its master-url.",
                value=host[:80],
            )
        if origin and _authority(origin) != host:
            raise ForeignPageError(
                f"the web page {origin[:80]!r} may not call this node",
                hint="Web pages of other sites have no access; call the node from a program.",
                value=origin[:80],
            )
        if has_body and kind in _SIMPLE:
            raise UnsupportedTypeError(
                f"the body's type is {kind[:80]!r}",
                hint="Send the header Content-Type: application/json for JSON, the type in /docs "
                "for all else.",
                value=kind[:80],
            )

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1] or match[2]
        assert self._names is not None
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _authority(origin: str) -> str | None:
    """Return host and port of an `Origin`, None = it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # brackets that hold no address
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
