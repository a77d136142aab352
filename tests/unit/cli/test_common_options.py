"""Which token commands and jobs show: an operator's only for what takes one."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.errors import ForbiddenError
from sparktxlog.http.tokens import client_token

CLIENT, ADMIN = "SPARKTXLOG_CLIENT_TOKEN", "SPARKTXLOG_ADMIN_TOKEN"


class Node(ThreadingHTTPServer):
    """Notes the token of each request; a refusing one answers as a node does to clients."""

    daemon_threads = True
    shown: list[tuple[str, str | None]]
    refuses = False


class Handler(BaseHTTPRequestHandler):
    server: Node

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.shown.append((self.command, self.headers.get("Authorization")))
        error = ForbiddenError("not this one", hint="Set it.", setting="admin-token")
        content = json.dumps(error.to_problem() if self.server.refuses else {}).encode()
        self.send_response(403 if self.server.refuses else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def node() -> Iterator[Node]:
    server = Node(("127.0.0.1", 0), Handler)
    server.shown = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("variables", "asks", "acts"),
    [
        ({}, None, None),
        ({CLIENT: "c"}, "Bearer c", "Bearer c"),
        ({ADMIN: "a"}, "Bearer a", "Bearer a"),
        ({CLIENT: "c", ADMIN: "a"}, "Bearer c", "Bearer a"),
    ],
)
def test_questions_show_the_clients_token_and_acts_the_operators(
    node: Node,
    variables: dict[str, str],
    asks: str | None,
    acts: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (CLIENT, ADMIN):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url = f"http://127.0.0.1:{node.server_address[1]}"
    api = NodeApi(url)
    api.get("/v1/status")
    for method in ("POST", "PATCH", "DELETE"):
        api.send(method, "/v1/peers", {})
    assert node.shown == [("GET", asks), ("POST", acts), ("PATCH", acts), ("DELETE", acts)]
    assert client_token() == (None if asks is None else asks.removeprefix("Bearer "))

    node.shown.clear()
    with closing(JobContext(arguments=Namespace(url=url)).open_source()) as source:
        source._call(object, "POST", "/v1/worker/transfers", body=b"{}")
        source.maintain_log()
    assert node.shown == [("POST", asks), ("POST", acts)]


def test_a_token_that_is_given_is_the_only_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN, "a")
    api = NodeApi(f"http://127.0.0.1:{node.server_address[1]}", token="given")
    api.get("/v1/status")
    api.send("POST", "/v1/force", {})
    assert node.shown == [("GET", "Bearer given"), ("POST", "Bearer given")]


def test_the_refusal_keeps_its_class_and_hint(node: Node) -> None:
    node.refuses = True
    url = f"http://127.0.0.1:{node.server_address[1]}"
    with pytest.raises(ForbiddenError, match="Set it"):
        NodeApi(url).send("POST", "/v1/force", {})
    with (
        closing(JobContext(arguments=Namespace(url=url)).open_source()) as source,
        pytest.raises(ForbiddenError, match="Set it"),
    ):
        source.maintain_log()
