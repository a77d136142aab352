"""The node's application: every declared route with its handler, on one listener."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparktxlog import __version__
from sparktxlog.codec.delta_catalog.catalog_requests import CATALOG_API
from sparktxlog.config import NodeConfig
from sparktxlog.errors import (
    InvalidRequestError,
    NotFoundError,
    NotMemberError,
    TxLogError,
    UnauthorizedError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.model.values import split_urls
from sparktxlog.runtime.audit_trail import asks, asks_from
from sparktxlog.runtime.membership.epochs import Epochs
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.tokens.worker_token import make_worker_token, worker_token_file
from sparktxlog.service.auth import Tokens, bearer_token
from sparktxlog.service.connections.bodies import Bodies
from sparktxlog.service.connections.pages import PageGuard
from sparktxlog.service.dashboard.dashboard_routes import DashboardRoutes, PageDoor, Pages
from sparktxlog.service.granted import set_client
from sparktxlog.service.handlers.administration import AdministrationRoutes, audited, noting
from sparktxlog.service.handlers.catalog_api import CatalogRoutes
from sparktxlog.service.handlers.catalog_errors import CatalogErrors, catalog_failure
from sparktxlog.service.handlers.group_routes import GroupRoutes
from sparktxlog.service.handlers.members import MemberRoutes
from sparktxlog.service.handlers.open_routes import OpenRoutes
from sparktxlog.service.handlers.peer import PeerDoor, PeerRoutes
from sparktxlog.service.handlers.point_routes import RestorePointRoutes
from sparktxlog.service.handlers.replica import ReplicaRoutes
from sparktxlog.service.handlers.sent_files import SentFiles
from sparktxlog.service.handlers.staged_uploads import StagedUploads
from sparktxlog.service.handlers.state_routes import StateRoutes
from sparktxlog.service.handlers.submit_routes import SubmitRoutes
from sparktxlog.service.handlers.view_routes import ViewRoutes
from sparktxlog.service.routing.declared_route import PLAIN, Role, Route
from sparktxlog.service.routing.endpoints import (
    Door,
    Endpoint,
    Handler,
    RouteHandlers,
    address_of,
    endpoint,
    problem_response,
)
from sparktxlog.service.routing.openapi import document_bytes, document_page
from sparktxlog.service.routing.routes import ROUTES

_REQUEST_ID = b"x-request-id"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class _Application(FastAPI):
    """FastAPI, whose layers most requests do not need.

    Requests between nodes, and requests of the catalog, are small and many.  So the endpoints of
    routes without parameters, and of the catalog, are called directly: an endpoint checks, answers
    and catches all by itself.  What is not found here goes the usual way.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._fixed: dict[tuple[str, str], Endpoint] = {}
        self._catalog: list[tuple[str, re.Pattern[str], Endpoint]] = []
        self._with_id = RequestIds(self._answer)

    def call_directly(self, route: Route, answer: Endpoint) -> None:
        """Call a route's endpoint directly from now on, if its path allows it."""
        if "{" not in route.path:
            self._fixed[route.method, route.path] = answer
        elif route.path.startswith(CATALOG_API):
            pattern, _, convertors = compile_path(route.path)
            if all(isinstance(one, StringConvertor) for one in convertors.values()):
                self._catalog.append((route.method, pattern, answer))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not self._found(scope):
            await super().__call__(scope, receive, send)
        elif scope["path"].startswith("/peer/"):
            await self._answer(scope, receive, send)
        else:
            await self._with_id(scope, receive, send)

    def _found(self, scope: Scope) -> bool:
        """Note in a request's scope which endpoint answers it, if that is called directly."""
        method, path = scope["method"], scope["path"]
        answer, values = self._fixed.get((method, path)), dict[str, str]()
        if answer is None and path.startswith(CATALOG_API):
            for wanted, pattern, found in self._catalog:
                if wanted == method and (match := pattern.match(path)) is not None:
                    answer, values = found, match.groupdict()
                    break
        scope["endpoint"], scope["path_params"] = answer, values
        return answer is not None

    @staticmethod
    async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await scope["endpoint"](Request(scope, receive, send))
        await response(scope, receive, send)


class _RawRoute(APIRoute):
    """A route whose endpoint takes the raw request: `endpoints` decodes and checks it."""

    def get_route_handler(self) -> Endpoint:  # type: ignore[override]  # it is a coroutine
        """Return the endpoint."""
        if self.methods == {"GET"}:
            self.methods = {"GET", "HEAD"}
        return self.endpoint


def build_app(running: Node) -> FastAPI:
    """Return the application of a started node."""
    app = _Application(
        title="sparktxlog",
        version=__version__,
        openapi_url=None,  # `openapi` serves it, and `docs` a page that works offline
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(RequestIds)],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.route_class = _RawRoute
    config = running.config
    bodies = Bodies(config.body_limit, running.base.budgets.memory)
    pages, tokens = Pages(), _tokens(config)
    doors = _doors(running, bodies, pages, tokens)
    handlers = _handlers(running, bodies, pages, tokens)
    catalog = CatalogErrors(doors[Role.CLIENT].as_known, doors[Role.CLIENT].check, bodies)
    for route in sorted(ROUTES, key=_rank):
        if not config.is_witness or route.at_witness:
            handler = audited(route, handlers[route.name], running)
        elif route.role is Role.LEASE:
            continue
        else:
            handler = _refusal_of_a_witness(config.node_id)
        door = catalog if route.path.startswith(CATALOG_API) else doors[route.role]
        answer = endpoint(route, handler, door, noting(route, running))
        app.add_api_route(route.path, answer, methods=[route.method], name=route.name)
        app.call_directly(route, answer)
    return app


def _rank(route: Route) -> int:
    """Return the place of a route: each request is compared with the routes before its own.

    A commit at three sites takes some ten requests of peers, and one of a catalog.
    """
    if route.hot:
        return 0
    if route.role is Role.PEER:
        return 1
    return 2 if route.path.startswith(CATALOG_API) else 3


def _tokens(config: NodeConfig) -> Tokens:
    # If clients need no token, workers cannot be distinguished from them.
    worker = None if config.client_token is None else make_worker_token(config.data_dir)
    return Tokens(
        config.client_token,
        config.admin_token,
        worker,
        worker_token_file(config.data_dir),
        config.grants,
        config.client_token_also,
    )


class _LogDoor(Door):
    """The door of what is answered from the log, of which only a member knows the end."""

    def __init__(self, epochs: Epochs, *args: Any) -> None:
        super().__init__(*args)
        self._epochs = epochs

    def as_known(self, error: TxLogError) -> TxLogError:
        is_unknown = isinstance(error, UnknownTableError | UnknownSchemaError)
        if not is_unknown or self._epochs.takes_part:
            return error
        phase = self._epochs.phase.value
        return NotMemberError(
            f"this node is {phase} and hears of nothing new; in what it knows {error.message}",
            hint="Ask another node; `sparktxlog status` says why this one is no member.",
        )


def _doors(running: Node, bodies: Bodies, pages: Pages, tokens: Tokens) -> Mapping[Role, Door]:
    """Return the access check and body reader of each role."""
    config, donor = running.config, running.donor
    guard, traces, joining = PageGuard(config), running.base.traces, running.membership.joining
    epochs = running.membership.epochs
    checks = {
        Role.CLIENT: tokens.check_client,
        Role.WORKER: tokens.check_worker,
        Role.ADMIN: tokens.check_admin,
    }

    def check_token(request: Request, route: Route) -> dict[str, str]:
        grant = tokens.grant(request)
        asks.set(tokens.name(request, grant))  # also for the entry of a refusal
        asks_from.set(address_of(request))
        if route.role is Role.BROWSER or (route.role is Role.CLIENT and route.method == "GET"):
            tokens.check_reader(request)
        else:
            checks[route.role](request)
        set_client(grant)
        guard.check(request)
        if route.role in (Role.CLIENT, Role.WORKER) and not route.before_log:
            joining.check_knows_log()
        if route.at_member:
            epochs.check_no_follower()
        if traces is not None:
            traces.note_client(request.headers)
        return {}

    def check_lease(request: Request, route: Route) -> dict[str, str]:
        # First of all: strangers must not learn whether a request is well-formed.
        token = bearer_token(request).decode("latin-1")
        donor.lease(request.path_params["lease"], token)
        return {"token": token}

    return {
        **dict.fromkeys(checks, _LogDoor(running.membership.epochs, check_token, bodies)),
        Role.BROWSER: PageDoor(check_token, bodies, pages),
        Role.ANYBODY: Door(lambda request, route: {}, bodies),
        Role.PEER: PeerDoor(running.peering, config.body_limit),
        Role.LEASE: Door(check_lease, bodies),
    }


def _handlers(running: Node, bodies: Bodies, pages: Pages, tokens: Tokens) -> Mapping[str, Handler]:
    """Return the handler of each route, by its name."""
    donor, submits = running.donor, SubmitRoutes(running, bodies)
    owners = (
        submits,
        StagedUploads(running),
        OpenRoutes(running, bodies, submits),
        StateRoutes(running),
        ViewRoutes(running),
        MemberRoutes(running),
        AdministrationRoutes(running),
        RestorePointRoutes(running),
        GroupRoutes(running),
        CatalogRoutes(running),
        PeerRoutes(running.peering, running.files, donor, running.catalog.giver),
        SentFiles(running.files, running.catalog.giver, running.peering.summaries),
        ReplicaRoutes(donor),
        DashboardRoutes(running, pages),
        _Health(running, tokens),
    )
    return {
        route.name: getattr(owner, route.name)
        for route in ROUTES
        for owner in owners
        if hasattr(owner, route.name)
    }


def _refusal_of_a_witness(witness: str) -> Handler:
    """Return the handler that a witness has for routes of masters."""

    def refuse(request: Request) -> Response:
        path = request.url.path[:200]
        raise NotFoundError(
            f"node {witness!r} is a witness, which only votes: it does not serve {path}",
            hint="Ask another node; `sparktxlog peer list` says which ones are no witnesses.",
            path=path,
            witness=witness,
        )

    return refuse


class _Health(RouteHandlers):
    """Liveness, readiness, metrics, and the description of the interface."""

    def __init__(self, running: Node, tokens: Tokens) -> None:
        self._running, self._tokens = running, tokens
        url = split_urls(running.config.master_url)[0]
        self._document, self._page = document_bytes(), document_page(url)

    def livez(self) -> bytes:
        return b"ok\n"

    def readyz(self, request: Request) -> Response:
        asked = request.query_params
        checks = self._running.ready(data="data" in asked or "verbose" in asked)
        good = all(one.good for one in checks if one.name != "data" or "data" in asked)
        lines = ["ok" if good else "not ready"]
        # The reasons name nodes, addresses and tables: they are for those that may read them.
        if ("verbose" in asked or not good) and self._may_read(request):
            lines += [f"[{'+' if ok else '-'}] {name}: {text}" for name, ok, text in checks]
        return Response("\n".join(lines) + "\n", 200 if good else 503, media_type=PLAIN)

    def _may_read(self, request: Request) -> bool:
        try:
            self._tokens.check_reader(request)
        except UnauthorizedError:
            return False
        return True

    def metrics(self) -> bytes:
        text = self._running.base.metrics.text()
        return text if isinstance(text, bytes) else text.encode()

    def openapi(self) -> bytes:
        return self._document

    def docs(self) -> bytes:
        return self._page


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer a request without a route with a problem document."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 404:
        failure: TxLogError = NotFoundError(f"there is nothing at {path}", path=path)
        if path.startswith(CATALOG_API):
            return catalog_failure(failure)
    else:
        failure = InvalidRequestError(f"{request.method} {path}: {error.detail}", path=path)
    response = problem_response(failure, error.status_code)
    response.headers.update(error.headers or {})
    return response


class RequestIds:
    """Gives each request an id, the client's own if it sent one, and returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._start, self._numbers = uuid.uuid4().hex[:12].encode(), itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"].startswith("/peer/"):
            await self._app(scope, receive, send)
            return
        request_id = b""
        for name, value in scope["headers"]:
            if name == _REQUEST_ID and _GOOD_ID.fullmatch(value):
                request_id = value
        request_id = request_id or b"%s-%d" % (self._start, next(self._numbers))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (_REQUEST_ID, request_id)]
            await send(message)

        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id.decode())
        await self._app(scope, receive, send_with_id)
