"""The audit of a real cluster: acts of operators, members, drops; over a restart.

Every declared route that changes something leaves an entry, as does every refusal.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.service.local_nodes import cluster, config_of, serving, until
from tests.service.test_replica_routes import create

from sparktxlog.config import NodeConfig
from sparktxlog.errors import BusyError, UnauthorizedError
from sparktxlog.model.administration_answers import AuditEntry
from sparktxlog.runtime import audit_trail
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.node import Node
from sparktxlog.service import application
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.routes import ROUTES

CLIENT, ADMIN = "a token of the clients", "a token of the operators"


async def ask(node: Node, method: str, path: str, body: Any = None, shown: str = ADMIN) -> Any:
    headers = {"authorization": f"Bearer {shown}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, node.config.master_url + path, json=body) as response,
    ):
        return response.status, await response.json()


async def entries(node: Node) -> list[tuple[str, str, str, str]]:
    _, found = await ask(node, "GET", "/v1/audit", shown=CLIENT)
    assert all(one["node"] == node.config.node_id and one["at"] > 0 for one in found)
    return [(one["who"], one["action"], one["detail"], one["outcome"]) for one in found]


def test_who_changed_what_is_kept(tmp_path: Path) -> None:
    async def main() -> NodeConfig:
        async with cluster(tmp_path, "AB", client_token=CLIENT, admin_token=ADMIN) as nodes:
            a, b = nodes["A"], nodes["B"]
            change = {"FullReplicationTimeFactor": 2}
            assert (await ask(a, "PATCH", "/v1/settings", change))[0] == 200
            assert (await ask(a, "PATCH", "/v1/settings", {"no": 1}))[0] == 400
            assert (await ask(a, "PATCH", "/v1/settings", change, CLIENT))[0] == 403
            await create(a)
            drop = {"operations": [{"kind": "drop_table", "table": "t"}]}
            assert (await ask(a, "POST", "/v1/transactions", drop, CLIENT))[0] == 200
            dropped = ("site A", "drop_table", "t at position 2", "done")
            await until(lambda: "t" not in b.tables())
            assert dropped in await entries(b)
            path = "/v1/peers/B?timeout=60"
            assert (await ask(a, "DELETE", path))[0] == 200
            found = await entries(a)
            operator = [entry for entry in found if entry[0] == "operator"]
            assert [entry[1:3] for entry in operator] == [
                ("remove_peer", "id B"),
                ("change_settings", "no: unknown → 1"),
                ("change_settings", "FullReplicationTimeFactor: 1.3 → 2"),
            ]
            done, refused, changed = (entry[3] for entry in operator)
            assert (done, changed) == ("done", "done")
            assert refused.startswith("[invalid-request] 'no' cannot be set")
            assert dropped in found
            assert ("client", "submit_transaction", "drop_table t", "done") in found
            (refused_one,) = (entry for entry in found if entry[3].startswith("[forbidden]"))
            assert refused_one[:3] == ("client", "change_settings", "")
            (evicted,) = (entry for entry in found if entry[1] == "evicted")
            assert evicted[0] == "vote" and evicted[2].endswith(": B, with its place")
            assert not any(CLIENT in str(entry) or ADMIN in str(entry) for entry in found)
            return a.config

    async def again(config: NodeConfig) -> None:
        port = int(config.master_url.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)) as listener:
            async with serving(config, listener) as node:
                found = await entries(node)
                assert ("operator", "remove_peer", "id B", "done") in found
                assert ("client", "submit_transaction", "drop_table t", "done") in found
                assert node.settings()["FullReplicationTimeFactor"]["value"] == 2

    asyncio.run(again(asyncio.run(main())))


WORKER, OWN = "a token of this node's worker", "a token of the reports"
SHOWN = {Role.ADMIN: ADMIN, Role.CLIENT: OWN, Role.WORKER: WORKER, Role.LEASE: "of the lease"}
WHO = {Role.ADMIN: "operator", Role.CLIENT: "client reports", Role.WORKER: "worker"}


async def _stub(request: Request) -> Response:
    """Stand in for any handler: what the door, the endpoint and the audit do is real."""
    if "x-full" in request.headers:
        raise BusyError(f"{request.headers['x-full']} has no place left")
    return Response()


async def _settings_stub(asked: dict[str, Any]) -> Response:
    if asked:
        raise BusyError("the node has no place left")
    return Response()


def _with_grant(directory: Path, port: int) -> NodeConfig:
    token, grants = directory / "reports.token", directory / "grants.toml"
    token.touch(0o600)
    token.write_text(OWN)
    grants.write_text(f'[reports]\ntoken-file = "{token}"\nwrite = ["default.*"]\n')
    more = {"client_token": CLIENT, "admin_token": ADMIN, "grants_file": str(grants)}
    return config_of(directory, "A", {"A": port}, **more)


def test_every_declared_act_and_refusal_leaves_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lease(self: Donor, name: str, token: str) -> None:
        if token != SHOWN[Role.LEASE]:
            raise UnauthorizedError("the token is not that of this lease")

    monkeypatch.setattr(Donor, "lease", lease)
    monkeypatch.setattr(audit_trail, "MOST_A_SECOND", 1_000)
    stubs = dict.fromkeys((route.name for route in ROUTES), _stub)
    stubs["change_settings"] = _settings_stub
    monkeypatch.setattr(application, "_handlers", lambda *_: stubs)
    monkeypatch.setattr(application, "make_worker_token", lambda _: WORKER)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = _with_grant(tmp_path, listener.getsockname()[1])
            async with serving(config, listener) as node, aiohttp.ClientSession() as session:

                async def noted(route: Route, shown: str, **headers: str) -> AuditEntry | None:
                    """Send a request; return the entry that it left, None = none."""
                    before = {json.dumps(one) for one in node.audit.latest(3_000)}
                    path = re.sub(r"{[\w:]+}", "7", route.path)
                    if shown:
                        headers["authorization"] = f"Bearer {shown}"
                    url = config.master_url + path
                    body = {"paused": True} if "x-full" in headers else {}
                    async with session.request(route.method, url, headers=headers, json=body):
                        pass
                    new = [e for e in node.audit.latest(3_000) if json.dumps(e) not in before]
                    assert len(new) <= 1, (route.key, new)
                    assert all(e["address"] == "127.0.0.1" and e["until"] for e in new)
                    return new[0] if new else None

                async def outcome_of(route: Route, shown: str, **headers: str) -> tuple[str, str]:
                    found = await noted(route, shown, **headers)
                    assert found is not None and found["action"] == route.name, (route.key, found)
                    return found["who"], found["outcome"].partition("]")[0].removeprefix("[")

                for route in ROUTES:
                    if route.role is Role.ANYBODY:
                        assert await noted(route, "") is None, route.key
                        continue
                    who, code = await outcome_of(route, "")
                    assert who == "nobody" and code.startswith(("unauth", "forbidden")), route.key
                    if route.is_act:
                        who, shown = WHO.get(route.role, "lease"), SHOWN[route.role]
                        assert await outcome_of(route, shown) == (who, "done"), route.key
                        full = await outcome_of(route, shown, **{"x-full": "the node"})
                        assert full == (who, "busy"), route.key
                    elif route.role is Role.CLIENT:
                        assert await noted(route, OWN) is None, route.key
                        full = await outcome_of(route, OWN, **{"x-full": "the node"})
                        assert full == ("client reports", "busy"), route.key
                    if route.role in (Role.ADMIN, Role.WORKER):
                        refused = await outcome_of(route, OWN)
                        assert refused == ("client reports", "forbidden"), route.key
                assert not any(
                    secret in json.dumps(node.audit.latest(3_000))
                    for secret in (CLIENT, ADMIN, WORKER, OWN)
                )

    asyncio.run(main())
