"""Routes for the holder of a lease: files of this node's replica.

The lease's token gives access only to the pinned files that it lists.  Reading, hashing and
compressing happen in threads; large bodies are sent in slices, so that rounds of the protocol go
on between them.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.copying import CHUNK_DIGEST_HEADER, Lease
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.service.routing.declared_route import BINARY
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import DigestAnswer, DigestRequest

#: Content coding of compressed chunks.
ZSTD = "zstd"
#: Most files in one request for digests.
MAX_DIGESTS = 1_000
_SLICE_BYTES = 1 << 20


class ReplicaRoutes(RouteHandlers):
    """One method per route; the lease has been checked."""

    def __init__(self, donor: Donor) -> None:
        self._donor = donor

    def lease(self, lease: str, token: str) -> Lease:
        return self._donor.lease(lease, token)

    def renew(self, lease: str) -> None:
        """Do nothing more: each request extends the lease."""

    def release(self, lease: str, token: str) -> None:
        self._donor.release(lease, token)

    async def chunk(
        self,
        request: Request,
        lease: str,
        token: str,
        table: str,
        path: str,
        offset: int,
        length: int,
    ) -> Response:
        codings = request.headers.get("accept-encoding", "").split(",")
        packed = ZSTD in (coding.strip() for coding in codings)
        turn = await self._donor.turn(lease, token)
        try:
            chunk = await self._donor.chunk(
                lease, token, table, path, offset, length, packed=packed
            )
        except BaseException:
            turn.end()
            raise
        headers = {CHUNK_DIGEST_HEADER: chunk.digest}
        if chunk.packed:
            headers["content-encoding"] = ZSTD
        return _SlicedResponse(chunk.data, headers=headers, sent=turn.end)

    async def digests(self, lease: str, token: str, body: DigestRequest) -> DigestAnswer:
        if len(body.files) > MAX_DIGESTS:
            raise InvalidRequestError(
                f"files has {len(body.files):,} entries, {MAX_DIGESTS:,} are allowed",
                hint="Split the request.",
                field="files",
                value=len(body.files),
            )
        return {"digests": await self._donor.digests(lease, token, body.files)}


class _SlicedResponse(Response):
    """Sends its body in slices, each after the connection has taken the one before.

    Args:
        sent: Called when the connection has taken the last slice, or was lost.
    """

    def __init__(
        self, body: memoryview, *, headers: dict[str, str], sent: Callable[[], None]
    ) -> None:
        super().__init__(body, headers=headers, media_type=BINARY)
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            body = memoryview(self.body)
            for at in range(0, len(body), _SLICE_BYTES):
                part = body[at : at + _SLICE_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._sent()
