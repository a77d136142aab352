"""Peer routes: what members say to each other, signed (see `runtime.peering`).

Plain Starlette routes with msgpack bodies: a post costs no validation framework.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from sparktxlog.codec import wire
from sparktxlog.errors import (
    NotFoundError,
    OversizeError,
    SlowRequestError,
    TxLogError,
    UnauthorizedError,
    UnknownKindError,
)
from sparktxlog.model.operation import StagedFile
from sparktxlog.protocol.words.messages import Announcement, Tail
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.peering import Peering
from sparktxlog.service.listener import HEAD_S
from sparktxlog.service.problems import problem_response
from sparktxlog.service.queries import whole
from sparktxlog.storage.payloads.payload_store import PayloadStore

_BINARY = "application/msgpack"
_RUN = "application/vnd.sparktxlog.run"
_RUN_PATH = "/peer/v1/runs/{origin}/{incarnation:number}/{seq:number}"
#: Bytes of a request that are always enough: clients are bounded by less.
_LEAST_LIMIT = 64 << 20
#: Bytes of a greeting, which also older releases send, without a digest.
_HELLO_BYTES = 64 << 10


class _Number(IntegerConvertor):
    """A number that fits in 63 bits; other paths are unknown."""

    regex = "[0-9]{1,18}"


register_url_convertor("number", _Number())

Handler = Callable[[str, Request, bytes], Awaitable[Response]]


class PeerRoutes:
    """Routes below `/peer/v1`.

    Args:
        peering: Admits peers, takes in what they say and gives what they ask.
        payloads: Whose files they may fetch.
        donor: Grants them leases on this node's replica.
        body_limit: Most bytes of one request, if that is more than what peers may always send.
    """

    def __init__(
        self, peering: Peering, payloads: PayloadStore, donor: Donor, body_limit: int
    ) -> None:
        self._peering = peering
        self._payloads = payloads
        self._donor = donor
        self._limit = max(body_limit, _LEAST_LIMIT)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._route("/peer/v1/hello", "POST", self._hello, greeting=True),
            self._route("/peer/v1/watch", "GET", self._watch),
            self._route("/peer/v1/posts", "POST", self._posts),
            self._route("/peer/v1/pushes", "POST", self._pushes),
            self._route("/peer/v1/announcements", "POST", self._announcements),
            self._route("/peer/v1/tails", "POST", self._tails),
            self._route("/peer/v1/epochs", "POST", self._epochs),
            self._route("/peer/v1/snapshot", "GET", self._snapshot),
            self._route("/peer/v1/snapshots/{name}", "GET", self._snapshot_offer),
            self._route("/peer/v1/snapshots/{name}/{offset:number}", "GET", self._snapshot_part),
            self._route("/peer/v1/queue/{position:number}", "GET", self._run_behind),
            self._route(
                "/peer/v1/runs/{origin}/{incarnation:number}/{seq:number}", "GET", self._run
            ),
            self._route("/peer/v1/runs", "POST", self._runs),
            self._route("/peer/v1/announced/{digest}", "GET", self._announced),
            self._route("/peer/v1/files/{path:path}", "GET", self._file),
            self._route("/peer/v1/leases", "POST", self._lease),
            self._route("/peer/v1/replica/size", "GET", self._replica_size),
        ]

    def _route(self, path: str, method: str, handler: Handler, *, greeting: bool = False) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                sender, body = await self._read(request, greeting)
                return await handler(sender, request, body)
            except TxLogError as error:
                return self._refuse(request, error)
            except ClientDisconnect:
                return Response(status_code=499)

        return Route(path, endpoint, methods=[method])

    async def _read(self, request: Request, greeting: bool) -> tuple[str, bytes]:
        """Return sender and body of a request; nothing is read of what no peer has signed."""
        peering, headers = self._peering, request.headers
        peering.check_known(headers)
        claimed = peering.claimed_digest(headers, greeting=greeting)

        def check(digest: str) -> str:
            return peering.check_signed(
                headers, request.method, _target(request), digest, greeting=greeting
            )

        sender = check(claimed) if claimed else ""
        try:
            # What is signed may take as long as it moves, else it is nobody's yet.
            async with asyncio.timeout(None if claimed else HEAD_S):
                limit = _HELLO_BYTES if greeting else self._limit
                body, digest = await self._read_body(request, limit)
        except TimeoutError:
            raise SlowRequestError("a body without a digest did not come in time") from None
        if not claimed:
            sender = check(digest)
        elif digest != claimed:
            raise UnauthorizedError(f"a body of node {sender!r} is not the one that was signed")
        return sender, body

    @staticmethod
    async def _read_body(request: Request, limit: int) -> tuple[bytes, str]:
        """Return the body and its SHA-256, which is taken while it arrives."""
        digest = hashlib.sha256()
        if request.method == "GET":
            return b"", digest.hexdigest()
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise OversizeError(f"the body is larger than {limit} bytes")
            digest.update(chunk)
            chunks.append(chunk)
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return body, digest.hexdigest()

    def _refuse(self, request: Request, error: TxLogError) -> Response:
        client = request.client.host if request.client else ""
        self._peering.note_refusal(request.headers, request.url.path, client, error)
        response = problem_response(error)
        response.headers.update(self._peering.refusal_headers(request.headers))
        if error.http_status in (401, 403, SlowRequestError.http_status):
            response.headers["connection"] = "close"  # places of peers are for peers
        return response

    # -- routes ------------------------------------------------------------------------------------

    async def _hello(self, sender: str, request: Request, body: bytes) -> Response:
        hello = wire.decode(wire.Hello, body)
        answer, headers = await self._peering.on_hello(sender, request.headers, hello)
        return Response(answer, media_type=_BINARY, headers=headers)

    async def _watch(self, sender: str, request: Request, body: bytes) -> Response:
        await self._peering.watch()
        return Response(status_code=204)

    async def _posts(self, sender: str, request: Request, body: bytes) -> Response:
        answer = await self._peering.on_envelope(sender, wire.decode(wire.Envelope, body))
        if not answer.kept:
            return Response(status_code=204)
        return Response(wire.encode(answer), media_type=_BINARY)

    async def _pushes(self, sender: str, request: Request, body: bytes) -> Response:
        await self._peering.on_push(sender, body)
        return Response(status_code=204)

    async def _announcements(self, sender: str, request: Request, body: bytes) -> Response:
        await self._peering.on_announcement(sender, wire.decode(Announcement, body))
        return Response(status_code=204)

    async def _tails(self, sender: str, request: Request, body: bytes) -> Response:
        await self._peering.on_tail(sender, wire.decode(Tail, body))
        return Response(status_code=204)

    async def _epochs(self, sender: str, request: Request, body: bytes) -> Response:
        try:
            message = wire.decode_epoch(body)
        except UnknownKindError as error:
            # All that travels here is repeated, or asked for again, until it is of use (P31).
            self._peering.note_unknown(sender, error)
        else:
            await self._peering.on_epoch(sender, message)
        return Response(status_code=204)

    async def _snapshot(self, sender: str, request: Request, body: bytes) -> Response:
        return Response(await self._peering.snapshots.whole(), media_type=_BINARY)

    async def _snapshot_offer(self, sender: str, request: Request, body: bytes) -> Response:
        offer = await self._peering.snapshot_offer(request.path_params["name"])
        return Response(wire.encode(offer), media_type=_BINARY)

    async def _snapshot_part(self, sender: str, request: Request, body: bytes) -> Response:
        params = request.path_params
        part = await self._peering.snapshots.part(params["name"], params["offset"])
        return Response(part, media_type=_RUN)

    async def _run_behind(self, sender: str, request: Request, body: bytes) -> Response:
        tail = await self._peering.run_behind(request.path_params["position"])
        return Response(wire.encode(tail), media_type=_BINARY)

    async def _run(self, sender: str, request: Request, body: bytes) -> Response:
        params = request.path_params
        payload = await self._peering.run_payload(
            params["origin"], params["incarnation"], params["seq"]
        )
        return Response(payload, media_type=_RUN)

    async def _runs(self, sender: str, request: Request, body: bytes) -> Response:
        wanted = wire.decode(wire.RunsRequest, body)
        payloads = await self._peering.run_payloads(wanted.runs)
        return Response(wire.encode(wire.RunsAnswer(payloads=payloads)), media_type=_BINARY)

    async def _announced(self, sender: str, request: Request, body: bytes) -> Response:
        text = request.path_params["digest"]
        try:
            digest = bytes.fromhex(text)
        except ValueError as error:
            raise NotFoundError("no such digest") from error
        payload = await self._peering.announced_payload(digest)
        return Response(payload, media_type=_RUN)

    async def _file(self, sender: str, request: Request, body: bytes) -> Response:
        path = Path(self._payloads.path(request.path_params["path"]))
        if "digest" in request.query_params:  # older nodes do not say what they want
            await self._peering.check_file(_wanted_file(request))
        if not path.is_file():
            raise NotFoundError("no such file in the payload store", path=path.name)
        return FileResponse(path, media_type="application/octet-stream")

    async def _lease(self, sender: str, request: Request, body: bytes) -> Response:
        wanted = wire.decode(wire.LeaseRequest, body)
        grant = await self._donor.grant(f"{wanted.worker_id[:80]} of {sender}", named=wanted.named)
        return Response(wire.encode(grant), media_type=_BINARY)

    async def _replica_size(self, sender: str, request: Request, body: bytes) -> Response:
        return Response(wire.encode(await self._donor.size()), media_type=_BINARY)


def _wanted_file(request: Request) -> StagedFile:
    """Return what a peer says that a file is; once found so, it costs a look at its inode."""
    return StagedFile(
        path=request.path_params["path"],
        size_bytes=whole(request, "size", 0, 0, 1 << 62),
        rows=whole(request, "rows", 0, 0, 1 << 62),
        digest=request.query_params["digest"],
    )


def _target(request: Request) -> str:
    """Return path and query exactly as they were sent: they are signed."""
    scope = request.scope
    target = scope.get("raw_path", b"").decode("latin-1") or request.url.path
    query = scope.get("query_string", b"")
    return f"{target}?{query.decode('latin-1')}" if query else target
