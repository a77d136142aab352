"""Who may call which route: every role at every route of a node, as the application has them.

The routes are taken from the application, so that a new one is asked as all others are.
What each role may is written down a second time, by rule.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from structlog.testing import capture_logs
from tests.service.local_nodes import SECRET, config_of, serving
from tests.service.test_peer_routes import Stranger

from sparktxlog.codec import wire
from sparktxlog.config import load_config
from sparktxlog.runtime import peering
from sparktxlog.runtime.node import Node, build_node
from sparktxlog.service.application import build_app
from sparktxlog.service.dashboard import dashboard_routes
from sparktxlog.service.routing.declared_route import Role
from sparktxlog.service.routing.routes import ROUTES

CLIENT, ADMIN = "a token of the clients", "a token of the operators"
NEXT = "a token that clients get next"
#: What a caller shows: no token, a wrong one, one of the four, or the signature of a peer.
SHOWN = ("nothing", "wrong", "client", "next client", "worker", "admin", "peer")
SCHEMA = "/api/2.1/unity-catalog/delta/v1/catalogs/{catalog}/schemas/{schema}"
#: All that clients send; whatever else is sent to `/v1` is an operator's act.
SENT_BY_CLIENTS = {
    "POST /v1/transactions",
    "POST /v1/transactions/{id}/marks",
    "PUT /v1/staged/{path:path}",
    "POST /v1/runs",
    "POST /v1/tables/{table}/rows",
    "POST /v1/restore-points",
    "DELETE /v1/restore-points/{name}",
    "PUT /v1/groups/{name}",
    "PATCH /v1/groups/{name}",
    "POST /v1/open-transactions",
    "POST /v1/open-transactions/{id}/operations",
    "POST /v1/open-transactions/{id}/commit",
    "DELETE /v1/open-transactions/{id}",
    "POST /api/2.1/unity-catalog/schemas",
    "POST /api/2.1/unity-catalog/temporary-table-credentials",
    "DELETE /api/2.1/unity-catalog/schemas/{full_name}",
    "DELETE /api/2.1/unity-catalog/tables/{full_name}",
    f"POST {SCHEMA}/staging-tables",
    f"POST {SCHEMA}/tables",
    f"POST {SCHEMA}/tables/{{table}}",
    f"DELETE {SCHEMA}/tables/{{table}}",
    f"POST {SCHEMA}/tables/{{table}}/metrics",
    f"POST {SCHEMA}/tables/{{table}}/rename",
}
#: Files of the site, for who does not see its disk.
READ_BY_WORKERS = {"/v1/worker/files/{where}/{path:path}"}
#: What only a worker of the node may tell it.
SENT_BY_WORKERS = {
    "POST /v1/worker/reports",
    "POST /v1/worker/copies",
    "POST /v1/worker/transfers",
    "POST /v1/worker/recounts",
    "POST /v1/worker/files",
    "POST /v1/worker/commit-tables/check",
}
#: The acts of operators, by name: whoever adds one must think of it twice.
OPERATORS_ACTS = {
    "POST /v1/peers",
    "PATCH /v1/peers/{id}",
    "DELETE /v1/peers/{id}",
    "POST /v1/peers/{id}/promote",
    "POST /v1/peers/{id}/demote",
    "POST /v1/peers/{id}/replace",
    "POST /v1/quorum",
    "POST /v1/void",
    "POST /v1/force",
    "PATCH /v1/settings",
    "POST /v1/maintenance",
    "DELETE /v1/replicas/{name}",
    "POST /v1/recounts",
}


def routes_of(app: Starlette) -> Iterator[tuple[str, str]]:
    """Return (method, path pattern) of everything that the application answers."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is no route, so it has no role"
        yield from ((method, route.path) for method in sorted(route.methods or ()))


def expected_role(method: str, path: str) -> Role:
    """Return who should be allowed to call a route, by rules that know nothing of the table."""
    if path.startswith("/peer/"):
        return Role.PEER
    if path.startswith("/replica/"):
        return Role.LEASE
    if path in ("/livez", "/readyz", "/openapi.json", "/docs") or "/static/" in path:
        return Role.ANYBODY
    if path == "/" or path.startswith("/dashboard/"):
        return Role.BROWSER
    reads = method in ("GET", "HEAD")
    if path in READ_BY_WORKERS or f"{method} {path}" in SENT_BY_WORKERS:
        return Role.WORKER
    return Role.CLIENT if reads or f"{method} {path}" in SENT_BY_CLIENTS else Role.ADMIN


def expected(role: Role, shown: str, client_set: bool, admin_set: bool, reads: bool) -> str:
    """Return what must come of a request: `may`, or how it is refused."""
    shown = "client" if shown == "next client" else shown
    if role is Role.PEER:
        return "may" if shown == "peer" else "no peer"
    if role is Role.LEASE:
        return "no lease"
    if role is Role.ANYBODY:
        return "may"
    if admin_set and shown == "admin":
        return "may"
    if role is Role.ADMIN and admin_set:
        return "forbidden" if client_set and shown == "client" else "unauthorized"
    if role is Role.WORKER and client_set:
        return {"client": "forbidden", "worker": "may"}.get(shown, "unauthorized")
    if client_set and shown == "worker":
        return "may" if reads else "forbidden"
    return "may" if not client_set or shown == "client" else "unauthorized"


def outcome(status: int, document: dict[str, Any], role: Role) -> str:
    """Return what came of a request, in the same words."""
    if role is Role.PEER and status in (401, 403):
        return "no peer"
    if role is Role.LEASE and status in (401, 410):
        return "no lease"
    if status in (401, 403):
        assert document.get("definite", True) is True
        if role is Role.BROWSER:  # a page says it
            return {401: "unauthorized", 403: "forbidden"}[status]
        # The catalog's API says it in its own shape.
        reasons = [detail["reason"] for detail in document.get("details", ())]
        return str(document.get("title") or reasons[0])
    # A log with several data nodes has no commit tables, and says so to who may ask.
    assert status < 500 or status == 501, document
    return "may"


def node_config(directory: Path, tokens: dict[str, str], port: int) -> Any:
    """Return the configuration of node A, whose peer B does not run."""
    return config_of(directory, "A", {"A": port, "B": 1}, **tokens)


@pytest.mark.parametrize("admin_set", [True, False])
@pytest.mark.parametrize("client_set", [True, False])
def test_every_role_at_every_route(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    client_set: bool,
    admin_set: bool,
) -> None:
    caplog.set_level("DEBUG")
    # These requests wait for nothing else.
    monkeypatch.setattr(peering, "WATCH_S", 0.01)
    monkeypatch.setattr(dashboard_routes, "TOLD_S", 0.0)
    tokens = {"client_token": CLIENT, "client_token_also": NEXT} if client_set else {}
    tokens |= {"admin_token": ADMIN} if admin_set else {}

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = node_config(tmp_path, tokens, listener.getsockname()[1])
        async with serving(config, listener) as a, Stranger(a, "B") as peer:
            assert (await peer.greet(greeting_of_b(tmp_path, config.listen[1])))[0] == 200
            a.membership.joining._knows_log = True  # as if its own greeting of B had been answered
            found = {
                (method, path, shown): await ask(peer, method, path, shown)
                for method, path in routes_of(build_app(a))
                for shown in SHOWN
            }
        assert len(found) > 60 * len(SHOWN)
        wrong = {
            (method, path, shown): what
            for (method, path, shown), what in found.items()
            if what
            != expected(
                expected_role(method, path),
                shown,
                client_set,
                admin_set,
                method in ("GET", "HEAD"),
            )
        }
        assert wrong == {}

    with capture_logs() as logged:
        asyncio.run(main())
    told = f"{logged}{caplog.text}"
    assert told and not [token for token in (CLIENT, NEXT, ADMIN, SECRET) if token in told]


def greeting_of_b(directory: Path, port: int) -> wire.Hello:
    """Return how the peer B greets A: as one that has the same configuration."""
    node = build_node(config_of(directory, "B", {"A": port, "B": 1}))
    node.base.journal.close()
    return node.membership.greeter.own


async def ask(peer: Stranger, method: str, path: str, shown: str) -> str:
    """Send a request that would change nothing if it were let in."""
    target = re.sub(r"{\w+:number}", "0", path)
    target = re.sub(r"{[\w:]+}", "x", target)
    body = b"" if method in ("GET", "HEAD") else b"{}"
    file = peer.target.config.data_dir / "worker.token"
    worker = file.read_text().strip() if file.exists() else "no such token"
    known = {"client": CLIENT, "next client": NEXT, "worker": worker, "admin": ADMIN}
    token = ({"wrong": "neither"} | known).get(shown)
    headers = (
        None if shown == "peer" else {} if token is None else {"authorization": f"Bearer {token}"}
    )
    if method == "HEAD":  # an answer without a document: its status alone tells
        url = peer.target.config.master_url + target
        signed = peer.headers(target, b"", method) if headers is None else headers
        async with peer.session.head(url, headers=signed) as response:
            status = response.status
        document = {"title": {401: "unauthorized", 403: "forbidden"}.get(status)}
    else:
        status, document = await peer.send(target, body, headers, method)
    return outcome(status, document, expected_role(method, path))


@pytest.mark.parametrize("name", ["A", "W"])
def test_what_is_declared_is_served_and_nothing_else(tmp_path: Path, name: str) -> None:
    async def main() -> set[tuple[str, str]]:
        running = built(tmp_path, name)
        return set(routes_of(build_app(running)))

    routes = asyncio.run(main())
    served = {f"{method} {path}" for method, path in routes if method != "HEAD"}
    assert served == {r.key for r in ROUTES if name == "A" or r.role is not Role.LEASE}
    assert {(r.method, r.path): r.role for r in ROUTES} == {
        (r.method, r.path): expected_role(r.method, r.path) for r in ROUTES
    }
    assert {r.key for r in ROUTES if r.role is Role.ADMIN} == OPERATORS_ACTS


def built(directory: Path, name: str) -> Node:
    """Return a node that is not started."""
    if name == "A":
        node = build_node(node_config(directory, {"admin_token": ADMIN}, 2))
    else:
        node = build_node(
            load_config(
                None,
                {
                    "node-id": "W",
                    "master-url": "http://127.0.0.1:9",
                    "roles": "witness",
                    "data-dir": str(directory / "W"),
                    "cluster-secret": "x" * 16,
                    "peer.1.id": "A",
                    "peer.1.url": "http://127.0.0.1:1",
                },
                {},
            )
        )
    node.base.journal.close()
    return node


def test_the_refusal_names_the_setting(tmp_path: Path) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        tokens = {"client_token": CLIENT, "admin_token": ADMIN}
        config = node_config(tmp_path, tokens, listener.getsockname()[1])
        async with serving(config, listener) as a, Stranger(a, "B") as other:
            shown = {"authorization": f"Bearer {CLIENT}"}
            status, document = await other.send("/v1/settings", b'{"paused":true}', shown, "PATCH")
            assert (status, document["title"]) == (403, "forbidden")
            assert document["fields"] == {"setting": "admin-token"}
            assert "admin-token-file" in document["hint"]
            assert "SPARKTXLOG_ADMIN_TOKEN" in document["hint"]
            assert (document["definite"], document["retryable"]) == (True, False)
            assert CLIENT not in str(document) and ADMIN not in str(document)
            assert not a.base.settings.in_force.paused
            shown = {"authorization": f"Bearer {ADMIN}"}
            assert (await other.send("/v1/settings", b'{"paused":true}', shown, "PATCH"))[0] == 200
            assert a.base.settings.in_force.paused

    asyncio.run(main())


def test_a_stranger_learns_whether_a_node_is_ready_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        ports = {"A": listener.getsockname()[1], "B": 1}
        config = config_of(tmp_path, "A", ports, client_token="a token of the clients")
        async with serving(config, listener) as node, aiohttp.ClientSession() as session:

            async def readyz(query: str, **headers: str) -> tuple[int, list[str]]:
                url = f"{node.config.master_url}/readyz{query}"
                async with session.get(url, headers=headers) as answer:
                    return answer.status, (await answer.text()).splitlines()

            token = {"authorization": "Bearer a token of the clients"}
            for query in ("", "?verbose", "?data"):
                assert await readyz(query) == (503, ["not ready"])
                status, lines = await readyz(query, **token)
                assert (status, lines[0]) == (503, "not ready") and len(lines) > 1
            for path, names in (("readyz", "verbose, data"), ("livez", "none")):
                async with session.get(f"{node.config.master_url}/{path}?datas") as answer:
                    assert answer.status == 400 and f"It has {names}." in await answer.text()

    asyncio.run(main())
