"""Routes below `/replica/v1`: what the holder of a lease reads of this node's replica.

The token of the lease is the only key: it opens the files that were pinned for it, by the names
that the grant lists, and nothing else.  Reading, hashing and compressing happen in threads; large
bodies are handed to the connection in slices, so that rounds of the protocol go on between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sparktxlog.errors import InvalidRequestError, OversizeError
from sparktxlog.model.copying import CHUNK_CODEC_HEADER, CHUNK_DIGEST_HEADER
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.service.auth import bearer_token
from sparktxlog.service.problems import guarded, json_response

#: Files whose digests are asked for at once.
MAX_DIGESTS = 1_000
_MAX_BODY_BYTES = 4 << 20
_SLICE_BYTES = 1 << 20
_BINARY = "application/octet-stream"


class _DigestRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Files as (table, path)."""

    files: list[tuple[str, str]]


_digest_decoder = msgspec.json.Decoder(_DigestRequest)


def replica_routes(donor: Donor) -> list[Route]:
    """Return the routes of a donor."""
    api = _ReplicaApi(donor)
    lease = "/replica/v1/leases/{lease}"
    return [
        Route(lease, guarded(api.lease), methods=["GET"]),
        Route(lease, guarded(api.release), methods=["DELETE"]),
        Route(f"{lease}/renew", guarded(api.renew), methods=["POST"]),
        Route(f"{lease}/chunks", guarded(api.chunk), methods=["GET"]),
        Route(f"{lease}/digests", guarded(api.digests), methods=["POST"]),
    ]


class _ReplicaApi:
    """One method per route."""

    def __init__(self, donor: Donor) -> None:
        self._donor = donor

    async def lease(self, request: Request) -> Response:
        return json_response(self._donor.lease(*_credentials(request)))

    async def renew(self, request: Request) -> Response:
        self._donor.lease(*_credentials(request))
        return Response(status_code=204)

    async def release(self, request: Request) -> Response:
        self._donor.release(*_credentials(request))
        return Response(status_code=204)

    async def chunk(self, request: Request) -> Response:
        lease_id, token = _credentials(request)
        self._donor.lease(lease_id, token)  # strangers learn nothing of what is well-formed
        table, path = _text(request, "table"), _text(request, "path")
        offset, length = _whole(request, "offset"), _whole(request, "length")
        turn = await self._donor.turn(lease_id, token)
        try:
            chunk = await self._donor.chunk(lease_id, token, table, path, offset, length)
        except BaseException:
            turn.end()
            raise
        headers = {CHUNK_DIGEST_HEADER: chunk.digest, CHUNK_CODEC_HEADER: chunk.codec}
        return _SlicedResponse(chunk.data, headers=headers, sent=turn.end)

    async def digests(self, request: Request) -> Response:
        lease_id, token = _credentials(request)
        self._donor.lease(lease_id, token)
        try:
            wanted = _digest_decoder.decode(await _body(request))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(
                f"the body cannot be read: {error}", hint='Send {"files": [[table, path], …]}.'
            ) from error
        if len(wanted.files) > MAX_DIGESTS:
            raise InvalidRequestError(
                f"files has {len(wanted.files):,} entries, {MAX_DIGESTS:,} are allowed",
                hint="Ask several times.",
                field="files",
                value=len(wanted.files),
            )
        return json_response({"digests": await self._donor.digests(lease_id, token, wanted.files)})


class _SlicedResponse(Response):
    """Sends its body in slices, each when the connection has taken the one before.

    Args:
        sent: Called when the connection has taken the last one, or was lost.
    """

    def __init__(
        self, body: memoryview, *, headers: dict[str, str], sent: Callable[[], None]
    ) -> None:
        super().__init__(body, headers=headers, media_type=_BINARY)
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


def _credentials(request: Request) -> tuple[str, str]:
    return request.path_params["lease"], bearer_token(request).decode("latin-1")


def _text(request: Request, name: str) -> str:
    text = request.query_params.get(name)
    if not text:
        raise InvalidRequestError(f"{name} is missing in the query", field=name, value=text)
    return text


def _whole(request: Request, name: str) -> int:
    text = request.query_params.get(name)
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        shown = None if text is None else text[:40]
        raise InvalidRequestError(
            f"{name} is {shown!r}, a whole number of bytes is wanted", field=name, value=shown
        )
    return int(text)


async def _body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            raise OversizeError(
                f"the body is larger than {_MAX_BODY_BYTES:,} bytes", limit_bytes=_MAX_BODY_BYTES
            )
        chunks.append(chunk)
    return b"".join(chunks)
