"""`HttpLogSource` over a real socket on loopback, and what a node's refusals become."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.worker_log import LogBuilder, table

from sparktxlog.errors import (
    ConfigError,
    RemoteProtocolError,
    TransportError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.model.copying import CatchUpKind, Transfer
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.replica.source import HttpLogSource


class Node(ThreadingHTTPServer):
    """Answers what a test puts into `answers`; remembers what it was asked."""

    daemon_threads = True
    answers: dict[str, tuple[int, bytes]]
    asked: list[tuple[str, str, bytes, str | None]]
    close_after: bool


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Node

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization")
        self.server.asked.append((self.command, self.path, body, token))
        status, content = self.server.answers[self.path.split("?")[0]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.server.close_after

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def node() -> Iterator[Node]:
    server = Node(("127.0.0.1", 0), Handler)
    server.answers, server.asked, server.close_after = {}, [], False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def source_of(node: Node, token: str | None = None) -> HttpLogSource:
    return HttpLogSource(f"http://127.0.0.1:{node.server_address[1]}/", token)


def test_segments_and_reports_survive_the_wire(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(table("t", "id bigint", keys=["id"]))
    log.inline("append", "t", [(1,)]).staged("upsert", "t", [(2,)], claim="x")
    segment = log.publish()
    tail = {"position": 1, "log_id": "l", "epoch": 3, "segments": [segment]}
    node.answers["/v1/worker/segments"] = (200, msgspec.json.encode(tail))
    answer = {"verdict": "IN_SYNC", "plan": "replay", "reason": "", "more": 1}
    node.answers["/v1/worker/reports"] = (200, json.dumps(answer).encode())
    report = WorkerReport(
        worker_id="w",
        node_id="a",
        log_id="l",
        epoch=3,
        position=1,
        chain_hash="h",
        tables={"t": TableState(version=1, signature=TableSignature(lane0=2**64 - 1), schema="s")},
    )
    info = {
        "node_id": "a",
        "log_id": "l",
        "payload_root": "/p",
        "lake_root": "/l",
        "signature_interval": 10,
        "worker_token_file": str(tmp_path / "worker.token"),
    }
    node.answers["/v1/info"] = (200, json.dumps(info).encode())
    (tmp_path / "worker.token").write_text("of its worker\n")
    with closing(source_of(node, "secret")) as source:
        assert source.segments(0, wait_s=0.5).segments == (segment,)
        assert source.report(report).plan == "replay"
    assert node.asked[0][1] == "/v1/worker/segments?after=0&wait=0.5&limit=500"
    # What only a worker of the node may tell, it shows the node's own token for.
    assert [asked[3] for asked in node.asked] == ["Bearer secret"] * 2 + ["Bearer of its worker"]
    assert msgspec.json.decode(node.asked[2][2], type=WorkerReport) == report
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPARKTXLOG_WORKER_TOKEN", "from the environment")
        with closing(source_of(node, "secret")) as source:
            source.report(report)
    assert node.asked[-1][3] == "Bearer from the environment"
    (tmp_path / "worker.token").unlink()
    with closing(source_of(node, "secret")) as source:
        source.report(report)
    assert node.asked[-1][3] == "Bearer secret"


def test_a_kept_connection_that_was_closed_is_opened_again(node: Node) -> None:
    node.answers["/v1/status"] = (200, b"{}")
    node.close_after = True
    with closing(source_of(node)) as source:
        assert [source.document("/v1/status") for _ in range(3)] == [{}, {}, {}]
    assert len(node.asked) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthorizedError),
        (403, UnauthorizedError),
        (429, TransportError),
        (503, TransportError),
        # Without the node's code nobody knows that it means the log.
        (410, RemoteProtocolError),
    ],
)
def test_refusals_keep_the_nodes_words(node: Node, status: int, kind: type[Exception]) -> None:
    problem = {"title": "of-a-newer-node", "detail": "what is wrong", "hint": "what to do"}
    node.answers["/v1/info"] = (status, json.dumps(problem).encode())
    with closing(source_of(node)) as source, pytest.raises(kind) as caught:
        source.info()
    assert "what is wrong  what to do" in str(caught.value)


def test_other_words_are_shown_as_they_are(node: Node) -> None:
    node.answers["/v1/info"] = (500, b"<h1>proxy</h1>")
    with closing(source_of(node)) as source, pytest.raises(TransportError, match="proxy"):
        source.info()
    node.answers["/v1/info"] = (200, b'{"node_id": 1}')
    with (
        closing(source_of(node)) as source,
        pytest.raises(RemoteProtocolError, match="one release"),
    ):
        source.info()


def test_an_absent_node_is_a_transport_error() -> None:
    # As clients and commands say it: one fact has one code.
    with pytest.raises(UnreachableError, match="did not answer") as caught:
        HttpLogSource("http://127.0.0.1:9").info()
    assert caught.value.definite
    with pytest.raises(ConfigError, match="not a URL"):
        HttpLogSource("127.0.0.1:7070")


def test_a_node_takes_the_record_of_a_copy_without_a_word(node: Node) -> None:
    node.answers["/v1/worker/transfers"] = (204, b"")
    transfer = Transfer(
        transfer_id="t",
        worker_id="w",
        node_id="A",
        kind=CatchUpKind.COPY,
        from_position=0,
        to_position=9,
        started_at=1,
        finished_at=2,
        estimated_s=None,
        actual_s=1.0,
    )
    with closing(source_of(node)) as source:
        source.record_transfer(transfer)
    assert node.asked[-1][:2] == ("POST", "/v1/worker/transfers")
