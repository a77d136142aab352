"""Who may call which route: each route of the listener stands in the table below.

    anybody   health and the description of the interface: they tell nothing of the log
    client    submits, questions and what workers ask: client-token, or the admin token
    worker    what a worker tells its node: the token that the node put into its data directory, or
              the admin token; where there is no client token everybody
    admin     whatever changes the cluster or the node: admin-token; the client token where none is
              configured
    peer      what members say to each other: each request is signed with cluster-secret
    lease     files of a replica that were pinned for one copy: the token of its lease

What is not in the table nobody may call: a new route is closed until it is written down here.
Peers and leases prove themselves to the routes' own handlers, by what `app` builds them from.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sparktxlog.service.auth import Tokens
from sparktxlog.service.pages import PageGuard
from sparktxlog.service.problems import Handler, guarded


class Role(Enum):
    """What a caller must prove to be."""

    ANYBODY = "anybody"
    CLIENT = "client"
    WORKER = "worker"
    ADMIN = "admin"
    PEER = "peer"
    LEASE = "lease"
    #: Of a route that nobody classified.
    NOBODY = "nobody"


_LEASE = "/replica/v1/leases/{lease}"

#: Role → its routes.
_TABLE: dict[Role, tuple[str, ...]] = {
    Role.ANYBODY: ("GET /livez", "GET /readyz", "GET /openapi.json", "GET /docs"),
    Role.CLIENT: (
        "GET /metrics",
        "POST /v1/transactions",
        "POST /v1/runs",
        "POST /v1/tables/{table}/rows",
        "GET /v1/transactions/{id}",
        "GET /v1/info",
        "GET /v1/status",
        "GET /v1/tables",
        "GET /v1/tables/{table}",
        "GET /v1/queue",
        "GET /v1/published",
        "GET /v1/snapshot",
        "GET /v1/probe/{name}",
        "GET /v1/transfers",
        "GET /v1/signatures",
        "GET /v1/settings",
        "GET /v1/epochs",
        "GET /v1/epochs/history",
        "GET /v1/worker/segments",
        "GET /v1/worker/tables",
        "GET /v1/worker/plan",
    ),
    Role.WORKER: (
        "POST /v1/worker/reports",
        "POST /v1/worker/recounts",
        "POST /v1/worker/copies",
        "POST /v1/worker/transfers",
    ),
    Role.ADMIN: (
        "POST /v1/peers",
        "PATCH /v1/peers/{id}",
        "DELETE /v1/peers/{id}",
        "POST /v1/peers/{id}/promote",
        "POST /v1/peers/{id}/demote",
        "POST /v1/peers/{id}/replace",
        "POST /v1/quorum",
        "POST /v1/force",
        "POST /v1/void",
        "PATCH /v1/settings",
        "POST /v1/maintenance",
    ),
    Role.PEER: (
        "POST /peer/v1/hello",
        "GET /peer/v1/watch",
        "POST /peer/v1/posts",
        "POST /peer/v1/pushes",
        "POST /peer/v1/announcements",
        "POST /peer/v1/tails",
        "POST /peer/v1/epochs",
        "GET /peer/v1/snapshot",
        "GET /peer/v1/snapshots/{name}",
        "GET /peer/v1/snapshots/{name}/{offset:number}",
        "GET /peer/v1/queue/{position:number}",
        "GET /peer/v1/runs/{origin}/{incarnation:number}/{seq:number}",
        "POST /peer/v1/runs",
        "GET /peer/v1/announced/{digest}",
        "GET /peer/v1/files/{path:path}",
        "POST /peer/v1/leases",
        "GET /peer/v1/replica/size",
    ),
    Role.LEASE: (
        f"GET {_LEASE}",
        f"DELETE {_LEASE}",
        f"POST {_LEASE}/renew",
        f"GET {_LEASE}/chunks",
        f"POST {_LEASE}/digests",
    ),
}
_ROLES = {route: role for role, routes in _TABLE.items() for route in routes}


def role_of(method: str, path: str) -> Role:
    """Return who may call a route, by the pattern of its path; HEAD is GET without the body."""
    method = "GET" if method == "HEAD" else method
    return _ROLES.get(f"{method} {path}", Role.NOBODY)


def guarded_routes(
    routes: Iterable[BaseRoute], tokens: Tokens, pages: PageGuard
) -> list[BaseRoute]:
    """Return routes, each behind the check of its role; those with a token shut pages out."""
    return [_behind_its_role(route, tokens, pages) for route in routes]


def _behind_its_role(route: BaseRoute, tokens: Tokens, pages: PageGuard) -> Route:
    assert isinstance(route, Route), "mounts and sockets have no role: write routes"
    handler: Handler = route.endpoint
    path, methods = route.path, route.methods or set()
    # A route of several methods is as closed as the one that wants most.
    roles = {role_of(method, path) for method in methods} or {Role.NOBODY}
    if roles <= {Role.ANYBODY} or roles <= {Role.PEER} or roles <= {Role.LEASE}:
        return route
    check = tokens.refuse
    if roles <= {Role.CLIENT}:
        check = tokens.check_client
    elif roles <= {Role.WORKER}:
        check = tokens.check_worker
    elif roles <= {Role.CLIENT, Role.ADMIN}:
        check = tokens.check_admin

    async def checked(request: Request) -> Response:
        check(request)
        pages.check(request)
        return await handler(request)

    return Route(path, guarded(checked), methods=sorted(methods))
