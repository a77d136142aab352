"""Routes between nodes: each request proves its sender (see `runtime.peering`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.codec import wire
from sparktxlog.errors import (
    ForbiddenPeerError,
    NotFoundError,
    OversizeError,
    SlowRequestError,
    TxLogError,
    UnauthorizedError,
    UnknownKindError,
)
from sparktxlog.model.copying import Lease, ReplicaSize
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.peering import Peering
from sparktxlog.service.connections.listener import SHOWN_NAMES
from sparktxlog.service.connections.places import Proof
from sparktxlog.service.routing.declared_route import MSGPACK, Route
from sparktxlog.service.routing.endpoints import Door, RouteHandlers, problem_response, take_place

#: Least limit of a peer's request, bytes; that of clients may be lower.
_LEAST_LIMIT = 64 << 20


class PeerDoor(Door):
    """Requests of peers: certified, or signed over method, target and digest of the body; msgpack.

    Args:
        peering: Knows the peers and their secrets.
        body_limit: Most bytes of one request, if it is more than `_LEAST_LIMIT`.
    """

    def __init__(self, peering: Peering, body_limit: int) -> None:
        self._peering = peering
        self._limit = max(body_limit, _LEAST_LIMIT)

    async def admit(self, request: Request, route: Route) -> dict[str, Any]:
        """Return sender and body of a request; a body is read only if a peer sends it."""
        peering, headers, greeting = self._peering, request.headers, route.name == "hello"
        shown = request.scope.get("extensions", {}).get(SHOWN_NAMES)
        try:
            peering.check_known(headers)
        except ForbiddenPeerError as error:
            names = None if shown is None else shown["names"]
            peering.note_stranger(headers, names, request.method, _target(request), error)
            raise
        verifier = peering.verifier()
        limit = self._limit if route.body_bytes is None else route.body_bytes
        if peering.is_certified(headers, None if shown is None else shown["names"]):
            sender = verifier.check_certified(headers, greeting=greeting)
            take_place(request, Proof.PEER)
            structlog.contextvars.bind_contextvars(peer=sender)
            return {"sender": sender, "body": await _read_body(request, limit)}
        claimed = verifier.claimed_digest(headers)
        sender = verifier.check(
            headers, request.method, _target(request), claimed, greeting=greeting
        )
        take_place(request, Proof.PEER)
        body, digest = await _read_signed(request, limit)
        if digest != claimed:
            raise UnauthorizedError(
                f"a body of node {sender!r} differs from the one that it signed"
            )
        structlog.contextvars.bind_contextvars(peer=sender)
        return {"sender": sender, "body": body}

    async def read_body(self, request: Request, route: Route, admitted: dict[str, Any]) -> Any:
        body = admitted["body"]
        return body if route.body is bytes else wire.decode(route.body, body)

    def encode(self, answer: Any) -> bytes:
        return wire.encode(answer)

    def refuse(self, request: Request, error: TxLogError) -> Response:
        """Return a problem document, with what a known peer needs; the refusal is logged."""
        client = request.client.host if request.client else ""
        self._peering.note_refusal(request.headers, request.url.path, client, error)
        response = problem_response(error)
        answer = bytes(response.body)
        response.headers.update(self._peering.refusal_headers(request.headers, error, answer))
        if error.http_status in (401, 403, SlowRequestError.http_status):
            response.headers["connection"] = "close"  # its place is for peers
        return response


async def _read_signed(request: Request, limit: int) -> tuple[bytes, str]:
    """Return the body and its SHA-256, which is computed while it arrives."""
    digest = hashlib.sha256()
    body = await _read_body(request, limit, digest.update)
    return body, digest.hexdigest()


async def _read_body(
    request: Request, limit: int, see: Callable[[bytes], object] = lambda chunk: None
) -> bytes:
    if request.method == "GET":
        return b""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise OversizeError(f"the body is larger than {limit} bytes")
        see(chunk)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class PeerRoutes(RouteHandlers):
    """One method per route.

    Args:
        peering: Processes messages of peers and answers their requests.
        files: Checks staged files before they are sent.
        donor: Gives peers leases on this node's replica.
        giver: Gives peers files of commit tables.
    """

    def __init__(
        self,
        peering: Peering,
        files: FileRepair,
        donor: Donor,
        giver: TableGiver,
    ) -> None:
        self._peering = peering
        self._files = files
        self._donor = donor
        self.table_versions = giver.versions
        self.watch, self.pushes = peering.watch, peering.on_push
        self.announcements, self.tails = peering.on_announcement, peering.on_tail
        self.queue_tail, self.run = peering.run_behind, peering.run_payload
        self.summary_offer = peering.summaries.offer

    async def hello(self, sender: str, body: wire.Hello, request: Request) -> Response:
        answer, headers = await self._peering.on_hello(sender, request.headers, body)
        return Response(answer, media_type=MSGPACK, headers=headers)

    async def posts(self, sender: str, body: wire.Envelope, request: Request) -> Response | None:
        answer = await self._peering.on_envelope(sender, body, request.headers)
        if not answer.kept and answer.post is None:
            return None
        encoded = wire.encode(answer)
        headers = self._peering.seal(request.headers, encoded)
        return Response(encoded, media_type=MSGPACK, headers=headers)

    async def epoch_message(self, sender: str, body: bytes) -> None:
        try:
            message = wire.decode_epoch(body)
        except UnknownKindError as error:
            # An unknown kind is ignored: peers repeat it, or it is asked for again (P31).
            self._peering.note_unknown(sender, error)
        else:
            await self._peering.on_epoch(sender, message)

    async def runs(self, body: wire.RunsRequest) -> wire.RunsAnswer:
        return wire.RunsAnswer(payloads=await self._peering.run_payloads(body.runs))

    async def announced(self, digest: str) -> bytes:
        try:
            wanted = bytes.fromhex(digest)
        except ValueError as error:
            raise NotFoundError("no such digest") from error
        return await self._files.announced_payload(wanted)

    async def lend(self, sender: str, body: wire.LeaseRequest) -> Lease:
        return await self._donor.lend(
            f"{body.worker_id[:80]} of {sender}",
            named=body.named,
            name=body.name,
            only=body.only,
            site=sender,
        )

    async def replica_size(self, replica: str) -> ReplicaSize:
        return await self._donor.size(replica)


def _target(request: Request) -> str:
    """Return path and query exactly as they were sent: the signature covers them."""
    scope = request.scope
    target = scope.get("raw_path", b"").decode("latin-1") or request.url.path
    query = scope.get("query_string", b"")
    return f"{target}?{query.decode('latin-1')}" if query else target
