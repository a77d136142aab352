"""Signs what the library of buckets has no call for: requests to AWS by Signature Version 4.

Servers that speak S3's protocol take it as well.  A request is signed with the time, its headers
and the digest of its body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Credentials of S3; no text of it shows the secret or the token."""

    key: str
    secret: str = field(repr=False)
    #: Of credentials that end; empty = they do not.
    token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """What a log may say of them."""
        return self.key

    @property
    def catalog_config(self) -> Mapping[str, str]:
        """What the catalog says of them to Delta's clients."""
        return {
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.session-token": self.token,
        }


@dataclass(frozen=True, slots=True)
class AwsSigner:
    """Signs requests to one service of a region.

    Args:
        service: `s3` or `sts`.
    """

    keys: S3Keys
    region: str
    service: str

    def sign(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        now: datetime | None = None,
    ) -> dict[str, str]:
        """Return the headers of a request: those that are given, and what signs them.

        Args:
            url: Its path is not quoted twice: as it is sent, without the query.
            query: Names and values, unquoted; `query_text` sends them in the same order.
            now: None = the clock of this machine.
        """
        stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        parts, digest = urlsplit(url), hashlib.sha256(body).hexdigest()
        signed = {name.lower(): value.strip() for name, value in (headers or {}).items()}
        signed |= {"host": parts.netloc, "x-amz-date": stamp, "x-amz-content-sha256": digest}
        if self.keys.token:
            signed["x-amz-security-token"] = self.keys.token
        names = ";".join(sorted(signed))
        request = "\n".join(
            (
                method,
                parts.path or "/",
                query_text(query or {}),
                *(f"{name}:{signed[name]}" for name in sorted(signed)),
                "",
                names,
                digest,
            )
        )
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        to_sign = "\n".join(
            (_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest())
        )
        key = f"AWS4{self.keys.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={self.keys.key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        return signed


def query_text(query: Mapping[str, str]) -> str:
    """Return a query as it is sent and signed."""
    return "&".join(f"{quote(name, '-_.~')}={quote(query[name], '-_.~')}" for name in sorted(query))
