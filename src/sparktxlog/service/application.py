"""The node's application: every declared route with its handler, on one listener."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from sparktxlog.codec.delta_catalog.catalog_requests import CATALOG_API
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.worker_token import make_worker_token, worker_token_file
from sparktxlog.service.administration import AdministrationRoutes, audited
from sparktxlog.service.auth import Tokens, bearer_token
from sparktxlog.service.bodies import Bodies
from sparktxlog.service.catalog_api import CatalogRoutes
from sparktxlog.service.catalog_door import CatalogDoor
from sparktxlog.service.dashboard.dashboard_routes import DashboardRoutes, PageDoor, Pages
from sparktxlog.service.declared_route import PLAIN, Role, Route
from sparktxlog.service.endpoints import (
    Door,
    Endpoint,
    Handler,
    RouteHandlers,
    endpoint,
    problem_response,
)
from sparktxlog.service.granted import set_client
from sparktxlog.service.members import MemberRoutes
from sparktxlog.service.open_routes import OpenRoutes
from sparktxlog.service.openapi import document_bytes, document_page
from sparktxlog.service.pages import PageGuard
from sparktxlog.service.peer import PeerDoor, PeerRoutes
from sparktxlog.service.questions import QuestionRoutes
from sparktxlog.service.replica import ReplicaRoutes
from sparktxlog.service.routes import ROUTES
from sparktxlog.service.staged_uploads import StagedUploads
from sparktxlog.service.submit_routes import SubmitRoutes
from sparktxlog.service.view_routes import ViewRoutes

_REQUEST_ID = b"x-request-id"
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Paths with parameters, and who answers them."""

    #: What the paths begin with: most are another one's, which this tells at once.
    prefix: str
    whole: re.Pattern[str]
    convertors: Mapping[str, Convertor[Any]]
    #: Method → endpoint.
    answers: dict[str, Endpoint]

    @classmethod
    def of(cls, path: str) -> _Pattern:
        """Return the pattern that a declared path is."""
        whole, _, convertors = compile_path(path)
        return cls(path.partition("{")[0], whole, convertors, {})

    def values(self, path: str) -> dict[str, Any] | None:
        """Return the parameters' values in a path, None = it is not of this pattern."""
        match = self.whole.match(path) if path.startswith(self.prefix) else None
        if match is None:
            return None
        found = match.groupdict().items()
        return {name: self.convertors[name].convert(text) for name, text in found}


class Application:
    """Calls the endpoint of the declared route that a request names.

    An endpoint checks, answers and catches all by itself, so a request needs no other layer: those
    between nodes and of the catalog are small and many.  Each request gets an id, the client's own
    if it sent one, and returns it.
    """

    def __init__(self) -> None:
        #: (Method, path with parameters) of all that is answered.
        self.served: list[tuple[str, str]] = []
        #: Path without parameters → method → endpoint.
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._patterns: dict[str, _Pattern] = {}
        self._start, self._numbers = uuid.uuid4().hex[:12].encode(), itertools.count(1)

    def add(self, route: Route, answer: Endpoint) -> None:
        """Answer a route's requests by an endpoint."""
        if "{" in route.path:
            pattern = self._patterns.setdefault(route.path, _Pattern.of(route.path))
            answers = pattern.answers
        else:
            answers = self._fixed.setdefault(route.path, {})
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            answers[method] = answer
            self.served.append((method, route.path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = self._found(scope)
        request = Request(scope, receive, send)
        if scope["path"].startswith("/peer/"):
            response = await answer(request)
        else:
            request_id = self._id_of(scope)
            structlog.contextvars.clear_contextvars()
            structlog.contextvars.bind_contextvars(request_id=request_id.decode())
            response = await answer(request)
            response.raw_headers.append((_REQUEST_ID, request_id))
        await response(scope, receive, send)

    def _found(self, scope: Scope) -> Endpoint:
        """Return who answers a request, and note the values of its path."""
        method, path = scope["method"], scope["path"]
        scope["path_params"] = {}
        answers = self._fixed.get(path, {})
        if method in answers:
            return answers[method]
        allowed = set(answers)
        for pattern in self._patterns.values():
            values = pattern.values(path)
            if values is not None:
                if method in pattern.answers:
                    scope["path_params"] = values
                    return pattern.answers[method]
                allowed |= pattern.answers.keys()
        return _not_allowed(sorted(allowed)) if allowed else _nothing_there

    def _id_of(self, scope: Scope) -> bytes:
        request_id = b""
        for name, value in scope["headers"]:
            if name == _REQUEST_ID and _GOOD_ID.fullmatch(value):
                request_id = value
        return request_id or b"%s-%d" % (self._start, next(self._numbers))


async def _nothing_there(request: Request) -> Response:
    path = request.url.path[:200]
    return problem_response(NotFoundError(f"there is nothing at {path}", path=path))


def _not_allowed(methods: Sequence[str]) -> Endpoint:
    async def answer(request: Request) -> Response:
        path = request.url.path[:200]
        failure = InvalidRequestError(
            f"{request.method[:20]} {path}: this path takes {', '.join(methods)}", path=path
        )
        response = problem_response(failure, 405)
        response.headers["allow"] = ", ".join(methods)
        return response

    return answer


def build_app(running: Node) -> Application:
    """Return the application of a started node."""
    app = Application()
    config = running.config
    bodies = Bodies(config.body_limit)
    pages = Pages()
    doors, handlers = _doors(running, bodies, pages), _handlers(running, bodies, pages)
    catalog = CatalogDoor(doors[Role.CLIENT].check, bodies)
    for route in ROUTES:
        if not config.is_witness or route.at_witness:
            handler = audited(route, handlers[route.name], running)
        elif route.role is Role.LEASE:
            continue
        else:
            handler = _refusal_of_a_witness(config.node_id)
        door = catalog if route.path.startswith(CATALOG_API) else doors[route.role]
        app.add(route, endpoint(route, handler, door))
    return app


def _doors(running: Node, bodies: Bodies, pages: Pages) -> Mapping[Role, Door]:
    """Return the access check and body reader of each role."""
    config, donor = running.config, running.donor
    # If clients need no token, workers cannot be distinguished from them.
    worker = None if config.client_token is None else make_worker_token(config.data_dir)
    tokens = Tokens(
        config.client_token,
        config.admin_token,
        worker,
        worker_token_file(config.data_dir),
        config.grants,
    )
    guard = PageGuard(config)
    checks = {
        Role.CLIENT: tokens.check_client,
        Role.WORKER: tokens.check_worker,
        Role.ADMIN: tokens.check_admin,
    }

    def check_token(request: Request, route: Route) -> dict[str, str]:
        if route.role is Role.BROWSER or (route.role is Role.CLIENT and route.method == "GET"):
            tokens.check_reader(request)
        else:
            checks[route.role](request)
        grant = tokens.grant(request)
        set_client(grant)
        asks.set(tokens.name(grant, is_admin=route.role is Role.ADMIN))
        guard.check(request)
        return {}

    def check_lease(request: Request, route: Route) -> dict[str, str]:
        # First of all: strangers must not learn whether a request is well-formed.
        token = bearer_token(request).decode("latin-1")
        donor.lease(request.path_params["lease"], token)
        return {"token": token}

    return {
        **dict.fromkeys(checks, Door(check_token, bodies)),
        Role.BROWSER: PageDoor(check_token, bodies, pages),
        Role.ANYBODY: Door(lambda request, route: {}, bodies),
        Role.PEER: PeerDoor(running.peering, config.body_limit),
        Role.LEASE: Door(check_lease, Bodies(config.body_limit)),
    }


def _handlers(running: Node, bodies: Bodies, pages: Pages) -> Mapping[str, Handler]:
    """Return the handler of each route, by its name."""
    donor, submits = running.donor, SubmitRoutes(running, bodies)
    owners = (
        submits,
        StagedUploads(running.payloads),
        OpenRoutes(running, bodies, submits),
        QuestionRoutes(running),
        ViewRoutes(running),
        MemberRoutes(running),
        AdministrationRoutes(running),
        CatalogRoutes(running),
        PeerRoutes(running.peering, running.files, running.payloads, donor, running.catalog.giver),
        ReplicaRoutes(donor),
        DashboardRoutes(running, pages),
        _Health(running),
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

    def __init__(self, running: Node) -> None:
        self._running = running
        self._document, self._page = document_bytes(), document_page()

    def livez(self) -> bytes:
        return b"ok\n"

    def readyz(self, request: Request) -> Response:
        checks = self._running.ready()
        good = all(check[1] for check in checks)
        lines = ["ok" if good else "not ready"]
        if "verbose" in request.query_params or not good:
            lines += [f"[{'+' if ok else '-'}] {name}: {text}" for name, ok, text in checks]
        return Response("\n".join(lines) + "\n", 200 if good else 503, media_type=PLAIN)

    def metrics(self) -> bytes:
        text = self._running.base.metrics.text()
        return text if isinstance(text, bytes) else text.encode()

    def openapi(self) -> bytes:
        return self._document

    def docs(self) -> bytes:
        return self._page
