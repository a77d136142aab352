"""The HTTP layer against a server that misbehaves on purpose."""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from sparktxlog.api.nodes import Nodes
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    NotAppliedError,
    NotFoundError,
    NotMemberError,
    OversizeError,
    PeerTimeoutError,
    TransportError,
    TxLogError,
    UnreachableError,
)
from sparktxlog.http import link as module
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt

ID = uuid.uuid4().bytes
RECEIPT = Receipt(transaction_id="x", n=1, level=Level.ORDERED, position=1, outcome="committed")

#: What the server does with one request: sends these bytes, then keeps or closes the connection.
Answer = tuple[bytes, bool]


def good(value: object = RECEIPT) -> Answer:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), True


def problem(error: TxLogError) -> Answer:
    body = msgspec.json.encode(error.to_problem())
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (error.http_status, len(body))
    return head + body, True


BREAK: Answer = (b"", False)
TORN: Answer = (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", False)


class Server:
    """Answers requests by a script, the last answer for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        #: Number of the request with which the server dies; 0 = none.
        self._last = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while self._serve(connection):
                    pass

    def _serve(self, connection: socket.socket) -> bool:
        data = b""
        while not _is_whole(data):
            piece = connection.recv(65536)
            if not piece:
                return False
            data += piece
        self.requests.append(data)
        if len(self.requests) == self._last:
            self.close()
        answer, keep = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        connection.sendall(answer)
        return keep

    def close_after(self, requests: int) -> None:
        self._last = requests

    def close(self) -> None:
        if self._listener.fileno() != -1:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()


def _is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: ([0-9]+)", head.lower())
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*answers: Answer) -> Server:
        servers.append(Server(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def submit(server: Server, timeout_s: float = 2.0) -> Receipt:
    link = Nodes(server.url, timeout_s=timeout_s)
    try:
        return link.submit(b"{}", ID)
    finally:
        link.close()


def test_connections_are_kept(serve: Callable[..., Server]) -> None:
    server = serve(good({"a": 1}))
    link = Http(server.url, token="t0")
    for _ in range(5):
        assert link.get("/v1/info", after=3, left_out=None) == {"a": 1}
    link.close()
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /v1/info?after=3 HTTP/1.1\r\n")
    assert b"authorization: Bearer t0" in server.requests[0]


def test_a_kept_connection_that_was_closed_is_replaced(serve: Callable[..., Server]) -> None:
    server = serve((good({"a": 1})[0], False))
    link = Http(server.url)
    assert [link.get("/v1/info") for _ in range(3)] == [{"a": 1}] * 3
    link.close()
    assert server.connections == 3


def test_names_are_quoted(serve: Callable[..., Server]) -> None:
    server = serve(good({"name": "t", "columns": [{"name": "id", "type": "bigint"}]}))
    link = Nodes(server.url)
    link.table("a/../b c")
    link.close()
    assert server.requests[0].startswith(b"GET /v1/tables/a%2F..%2Fb%20c?")


def test_nobody_there_is_definite() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    link = Nodes(url, timeout_s=0.2)
    with pytest.raises(UnreachableError) as caught:
        link.submit(b"{}", ID)
    assert caught.value.definite and "sparktxlog serve" in caught.value.hint


@pytest.mark.parametrize("refusal", [BusyError("full"), NotMemberError("evicted")])
def test_a_node_that_takes_nothing_for_a_while_is_asked_again(
    serve: Callable[..., Server], refusal: TxLogError
) -> None:
    server = serve(problem(refusal), problem(refusal), good())
    assert submit(server) == RECEIPT
    assert len(server.requests) == 3


def test_a_client_of_a_node_that_stays_out_is_told_to_try_again(
    serve: Callable[..., Server],
) -> None:
    server = serve(problem(NotMemberError("this node is JOINING")))
    with pytest.raises(NotMemberError, match="Try again") as caught:
        submit(server)
    assert caught.value.definite and caught.value.retryable
    assert len(server.requests) > 1


def test_a_node_that_stays_busy_is_a_definite_refusal(serve: Callable[..., Server]) -> None:
    server = serve(problem(BusyError("full")))
    began = time.monotonic()
    with pytest.raises(BusyError):
        submit(server, 0.4)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("broken", [BREAK, TORN])
def test_a_broken_link_is_repeated(serve: Callable[..., Server], broken: Answer) -> None:
    server = serve(broken, broken, good())
    assert submit(server) == RECEIPT
    assert server.connections == 3
    bodies = {request.partition(b"\r\n\r\n")[2] for request in server.requests}
    assert len(bodies) == 1  # the same transaction each time


def test_a_link_that_stays_broken_leaves_the_outcome_unknown(
    serve: Callable[..., Server],
) -> None:
    with pytest.raises(CommitStateUnknownError) as caught:
        submit(serve(BREAK), 0.4)
    assert caught.value.fields["transaction_id"] == str(uuid.UUID(bytes=ID))
    assert not caught.value.definite


def test_a_node_that_dies_with_a_request_of_a_kept_connection_may_have_taken_it(
    serve: Callable[..., Server],
) -> None:
    server = serve(good({}), BREAK)
    link = Nodes(server.url, timeout_s=2)
    link.get("/v1/info")
    server.close_after(2)
    with pytest.raises(CommitStateUnknownError):
        link.submit(b"{}", ID)
    assert len(server.requests) == 2


def test_unknown_from_the_node_is_final(serve: Callable[..., Server]) -> None:
    server = serve(problem(CommitStateUnknownError("late", transaction_id="x", reached="accepted")))
    with pytest.raises(CommitStateUnknownError) as caught:
        submit(server)
    assert caught.value.fields["reached"] == "accepted"
    assert len(server.requests) == 1


def test_a_refusal_is_final(serve: Callable[..., Server]) -> None:
    server = serve(problem(OversizeError("large", limit_bytes=5)))
    with pytest.raises(OversizeError) as caught:
        submit(server)
    assert caught.value.fields == {"limit_bytes": 5}
    assert len(server.requests) == 1


def test_a_refusal_after_a_break_is_looked_into(serve: Callable[..., Server]) -> None:
    refusal = problem(OversizeError("large"))
    assert submit(serve(BREAK, refusal, good())) == RECEIPT
    with pytest.raises(OversizeError):
        submit(serve(BREAK, refusal, problem(NotFoundError("never seen"))))
    with pytest.raises(CommitStateUnknownError):
        submit(serve(BREAK, refusal, BREAK), 0.5)


def test_a_silent_node_is_given_up_when_the_time_is_over(serve: Callable[..., Server]) -> None:
    """Retries, connections and the node's own wait have one deadline between them."""
    server = serve((b"", True))
    with pytest.raises(PeerTimeoutError):
        Http(server.url).get("/v1/info", timeout_s=0.1)
    began = time.monotonic()
    with pytest.raises(CommitStateUnknownError):
        submit(server, 1.5)
    assert 1 < time.monotonic() - began < 1.5 + 5  # it took five seconds more
    query = parse_qs(urlsplit(server.requests[-1].split()[1].decode()).query)
    assert 1 < float(query["timeout"][0]) <= 1.25


def test_a_node_that_stays_busy_is_not_asked_beyond_the_time(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(problem(BusyError("full")))
    with pytest.raises(BusyError):
        submit(server, 2.0)
    first, *_, last = (
        float(parse_qs(urlsplit(request.split()[1].decode()).query)["timeout"][0])
        for request in server.requests
    )
    assert 0 <= last < first <= 2


def test_an_answer_that_is_none(serve: Callable[..., Server]) -> None:
    server = serve((b"SSH-2.0-x\r\n\r\n", False))
    with pytest.raises(TransportError) as caught:
        Http(server.url).get("/v1/info")
    assert not caught.value.definite


def test_a_long_wait_is_several_requests(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT_S", 1.5)
    behind = problem(NotAppliedError("behind"))
    server = serve(behind, behind, good({"position": 7}))
    assert Http(server.url).get("/v1/snapshot", timeout_s=9, waits=True) == {"position": 7}
    asked = [
        parse_qs(urlsplit(one.split()[1].decode()).query)["timeout"] for one in server.requests
    ]
    assert asked == [["1.5"]] * 3
    # Without more time it is the answer.
    server = serve(behind, good())
    with pytest.raises(NotAppliedError):
        Http(server.url).get("/v1/snapshot", timeout_s=1, waits=True)
    assert len(server.requests) == 1
