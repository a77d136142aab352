"""Requests to AWS, or a server like it, that the library of buckets has no call for."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import monotonic
from urllib.parse import urlsplit

from sparktxlog.files.stores.credentials.aws_signature import AwsSigner, S3Keys
from sparktxlog.http.node_connection import NodeConnection, proxy_to

#: Bytes of an answer that is read; what is longer is refused.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AwsAnswer:
    """What a service said."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class AwsService:
    """A service of a region.

    Args:
        endpoint: Its URL; a path stands before that of each request.
        name: As signatures name it, `s3` or `sts`.
        keys: Returns the credentials that sign.
    """

    endpoint: str
    region: str
    name: str
    keys: Callable[[], S3Keys]

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        total_s: float,
    ) -> AwsAnswer:
        """Send a request, over a connection of its own; blocks.

        Args:
            path: Quoted, with `/` before it.
            total_s: Most seconds until the answer is whole.

        Raises:
            TransportError: No answer came; nobody knows whether anything happened.
            ConfigError: There are no credentials, or they cannot be read; or HTTPS_PROXY is no URL
                of http (definite).
            StorageError: The file that has them cannot be read.
        """
        url = self.endpoint.rstrip("/") + path
        signer = AwsSigner(self.keys(), self.region, self.name)
        signed = signer.sign(method, url, headers=headers, body=body)
        parts = urlsplit(url)
        until = monotonic() + total_s
        connection = NodeConnection(
            parts._replace(path=""),
            # Not the authority of the cluster's nodes.
            tls={"ssl": _trust(), "server_hostname": parts.hostname},
            proxy=proxy_to(parts),
        )
        try:
            reply = connection.request(method, parts.path, signed, body or None, total_s=total_s)
            said = bytearray()
            # S3 sends blanks while it copies, and each would give a longer read its time again.
            for byte in reply.blocks(1):
                said += byte
                if len(said) > _MOST_BYTES:
                    raise connection.failure(OSError("the answer is too long"))
                if monotonic() > until:
                    raise connection.failure(TimeoutError())
            return AwsAnswer(reply.status, said.decode(errors="replace"))
        finally:
            connection.close()


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def aws_url(service: str, region: str) -> str:
    """Return the URL of a service of AWS; China's regions have a domain of their own."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://{service}.{region}.{domain}"
