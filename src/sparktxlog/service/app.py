"""The node's application: client and peer routes, health and metrics on one listener."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparktxlog.errors import InvalidRequestError, NotFoundError, TxLogError
from sparktxlog.runtime.parts import Parts
from sparktxlog.runtime.running import RunningNode
from sparktxlog.runtime.worker_token import make_worker_token, worker_token_file
from sparktxlog.service.access import guarded_routes
from sparktxlog.service.auth import Tokens
from sparktxlog.service.client import client_routes
from sparktxlog.service.openapi import document_routes
from sparktxlog.service.pages import PageGuard
from sparktxlog.service.peer import PeerRoutes
from sparktxlog.service.problems import problem_response
from sparktxlog.service.replica import replica_routes

_REQUEST_ID = b"x-request-id"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def build_app(running: RunningNode, extra: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application of a started node; `extra` routes come first.

    Every route stands behind the check of its role (`access`), those of `extra` too.
    """
    config = running.node.config
    # Where clients show nothing, workers cannot be told from them.
    worker = None if config.client_token is None else make_worker_token(config.data_dir)
    routes: list[BaseRoute] = [
        *extra,
        *_peer_routes(running),
        *([] if running.node.config.is_witness else replica_routes(running.parts.donor)),
        *client_routes(running.node),
        *_health_routes(running),
        *document_routes(),
    ]
    return Starlette(
        routes=guarded_routes(
            routes,
            Tokens(
                config.client_token, config.admin_token, worker, worker_token_file(config.data_dir)
            ),
            PageGuard(config),
        ),
        middleware=[Middleware(RequestIds)],
        exception_handlers={HTTPException: _http_error},
    )


def _peer_routes(running: RunningNode) -> list[Route]:
    config = running.node.config
    return PeerRoutes(
        running.peering, running.node.payloads, running.parts.donor, config.body_limit
    ).routes()


def _health_routes(running: RunningNode) -> list[Route]:
    parts: Parts = running.parts

    async def live(request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        checks = running.node.ready()
        good = all(check[1] for check in checks)
        lines = ["ok" if good else "not ready"]
        if "verbose" in request.query_params or not good:
            lines += [f"[{'+' if ok else '-'}] {name}: {text}" for name, ok, text in checks]
        return Response(
            "\n".join(lines) + "\n", status_code=200 if good else 503, media_type="text/plain"
        )

    async def metrics(request: Request) -> Response:
        return Response(parts.metrics.text(), media_type="text/plain; version=0.0.4")

    return [
        Route("/livez", live),
        Route("/readyz", ready),
        Route("/metrics", metrics),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what no route answers in the form of all other errors."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 404:
        failure: TxLogError = NotFoundError(f"there is nothing at {path}", path=path)
    else:
        failure = InvalidRequestError(f"{request.method} {path}: {error.detail}", path=path)
    document = failure.to_problem() | {"status": error.status_code}
    response = problem_response(failure)
    return Response(
        msgspec.json.encode(document), error.status_code, dict(error.headers or {}),
        response.media_type,
    )  # fmt: skip


class RequestIds:
    """Gives each request an id, the client's own if it sent one, and returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"].startswith("/peer/"):
            await self._app(scope, receive, send)
            return
        request_id = b""
        for name, value in scope["headers"]:
            if name == _REQUEST_ID and _GOOD_ID.fullmatch(value):
                request_id = value
        request_id = request_id or uuid.uuid4().hex.encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (_REQUEST_ID, request_id)]
            await send(message)

        structlog.contextvars.bind_contextvars(request_id=request_id.decode())
        await self._app(scope, receive, send_with_id)
