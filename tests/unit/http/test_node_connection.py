"""One connection from a thread, against a server that follows a script."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from tests.support.certificates import Authority

from sparktxlog.errors import PeerTimeoutError, TransportError, UnreachableError
from sparktxlog.http.node_connection import NodeConnection, Reply

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
GOOD = HEAD % 4 + b"body"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"

#: Answers on one connection, which ends after the last one; None = silence.
Script = list[bytes | None]


class Server:
    """Answers by a script for each connection, and takes none after the last."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._listener, self._tls = socket.create_server(("127.0.0.1", 0)), tls
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.was_asked = threading.Event()
        #: One for each connection that ended here.
        self.ended = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(scripts,), daemon=True)
        self._thread.start()

    def _serve(self, scripts: tuple[Script, ...]) -> None:
        with self._listener:
            for number, script in enumerate(scripts, 1):
                connection, _ = self._listener.accept()
                if number == len(scripts):
                    self._listener.close()
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection, suppress(OSError):
                    for answer in script:
                        self.requests.append(connection.recv(1 << 16))
                        if self.requests[-1].endswith(b"ength: 4\r\n\r\n"):
                            connection.recv(4)  # else the answer may be lost: the rest is refused
                        self.was_asked.set()
                        if answer is None:
                            self._over.wait()
                        else:
                            connection.sendall(answer)
                self.ended.release()

    def end(self) -> None:
        self._over.set()
        with suppress(OSError):  # wakes `accept`
            socket.create_connection(("127.0.0.1", urlsplit(self.url).port or 0), 1).close()
        self._thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*scripts: Script, tls: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(*scripts, tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


Serve = Callable[..., Server]


def connect(server: Server) -> NodeConnection:
    return NodeConnection(urlsplit(server.url), node_id="A")


def ask(connection: NodeConnection, *, total_s: float = 10.0, silence_s: float = 10.0) -> Reply:
    return connection.request("GET", "/x", {"a": "b"}, total_s=total_s, silence_s=silence_s)


def test_it_is_kept_and_replaced_once_the_node_closed_it(serve: Serve) -> None:
    server = serve([GOOD, GOOD], [GOOD])
    with closing(connect(server)) as connection:
        assert not connection.is_open
        for _ in range(3):
            assert ask(connection).read(4) == b"body"
        assert len(server.requests) == 3
        assert not connection.overdue(time.monotonic() + 1e6)


@pytest.mark.parametrize("total_s", [math.inf, 1e300, 2**32 / 1000 + 0.05])
def test_a_request_without_an_end_waits_as_long_as_a_socket_can(
    serve: Serve, total_s: float
) -> None:
    """It does not keep the time for connecting, nor what is left of too large a number."""
    connection = NodeConnection(urlsplit(serve([GOOD]).url), connect_s=5.0)
    with closing(connection):
        assert ask(connection, total_s=total_s, silence_s=math.inf).read(4) == b"body"
        assert connection._socket is not None
        waits_s = connection._socket.gettimeout()
    assert waits_s is not None and 86_400 < waits_s < 2**31 / 1000


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """Return what a server speaks TLS with, and the file of its authority."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    context, pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority.issue("A")
    context.load_cert_chain(pair.cert, pair.key)
    return context, str(authority.ca_file)


def test_it_is_replaced_where_tls_is_spoken(
    serve: Serve, certified: tuple[ssl.SSLContext, str]
) -> None:
    """There a body that is written to a closed connection fails in another way."""
    context, ca_file = certified
    server = serve([GOOD], [GOOD], tls=context)
    with closing(NodeConnection(urlsplit(server.url), ca_file=ca_file)) as connection:
        for body in (None, b"rows"):
            reply = connection.request("POST", "/x", {}, body, total_s=10.0)
            assert reply.read(4) == b"body"
            assert server.ended.acquire(timeout=10)
    assert len(server.requests) == 2


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_of_ipv6_needs_no_port(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, int]]()

    def refuse(address: tuple[str, int], *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(UnreachableError):
        ask(NodeConnection(urlsplit(f"{scheme}://[::1]")))
    assert asked == [("::1", {"http": 80, "https": 443}[scheme])]


def test_what_a_kept_connection_sent_may_have_arrived(serve: Serve) -> None:
    """So it is no `UnreachableError`, which is definite, although no second one opens."""
    server = serve([GOOD])
    with closing(connect(server)) as connection:
        ask(connection).read(4)
        server.end()
        with pytest.raises(TransportError) as caught:
            ask(connection)
        assert type(caught.value) is TransportError and not caught.value.definite
        assert caught.value.fields == {"url": server.url, "node_id": "A"}
        with pytest.raises(UnreachableError, match="no node answers at") as nobody:
            ask(connection)
        assert nobody.value.definite and nobody.value.fields["node_id"] == "A"


@pytest.mark.parametrize(
    ("answer", "most"),
    [(GOOD, 3), (CHUNKED, 3), (HEAD % 5 + b"body", 9), (HEAD % (1 << 40), 1 << 30)],
)
def test_a_body_is_whole_and_bounded(serve: Serve, answer: bytes, most: int) -> None:
    server = serve([answer], [CHUNKED])
    with closing(connect(server)) as connection:
        reply = ask(connection)
        with pytest.raises(TransportError, match=f"ends early, or has more than {most:,} bytes"):
            reply.read(most)
        assert not connection.is_open
        assert ask(connection).read(4) == b"body"  # the rest is not taken for the next answer


def test_a_body_comes_into_a_buffer_or_in_blocks(serve: Serve) -> None:
    server = serve([GOOD, GOOD, HEAD % 9 + b"body"], [HEAD % 9 + b"body"])
    into = memoryview(bytearray(4))
    with closing(connect(server)) as connection:
        reply = ask(connection)
        assert reply.size == 4
        reply.fill(into)
        assert bytes(into) == b"body"
        assert list(ask(connection).blocks(3)) == [b"bod", b"y"]
        with pytest.raises(TransportError, match="broke off"):
            list(ask(connection).blocks(3))
        with pytest.raises(TransportError, match="broke off"):
            ask(connection).fill(memoryview(bytearray(9)))


@pytest.mark.parametrize("answer", [None, HEAD % 4])
@pytest.mark.parametrize(
    ("total_s", "silence_s", "text"),
    [(0.1, float("inf"), "did not answer within 0.1 s"), (9.0, 0.1, "was silent for 0.1 s")],
)
def test_time_ends_a_request(
    serve: Serve, answer: bytes | None, total_s: float, silence_s: float, text: str
) -> None:
    server = serve([answer, None])
    with closing(connect(server)) as connection:
        with pytest.raises(PeerTimeoutError, match=text):
            ask(connection, total_s=total_s, silence_s=silence_s).read(4)
        assert not connection.is_open


def test_another_thread_aborts_a_request(serve: Serve) -> None:
    """It is not sent again, although the connection was kept."""
    server, failed = serve([GOOD, None], [GOOD]), list[TransportError]()
    with closing(connect(server)) as connection:
        ask(connection).read(4)
        server.was_asked.clear()

        def work() -> None:
            try:
                ask(connection)
            except TransportError as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert server.was_asked.wait(10)
        now = time.monotonic()
        assert connection.overdue(now + 11) and not connection.overdue(now)
        connection.abort()
        thread.join(5)
    assert [type(error) for error in failed] == [TransportError]
    assert len(server.requests) == 2


def test_an_abort_counts_while_a_connection_opens(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, connect_line = serve([GOOD]), HTTPConnection.connect
    connection = connect(server)

    def connect_and_abort(line: HTTPConnection) -> None:
        connect_line(line)
        connection.abort()

    monkeypatch.setattr(HTTPConnection, "connect", connect_and_abort)
    with pytest.raises(TransportError, match="aborted"):
        ask(connection)
    assert server.ended.acquire(timeout=10) and server.requests == [b""]


def test_an_abort_ends_the_last_answer_of_a_connection(serve: Serve) -> None:
    """Its socket is let go of before the body is read."""
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    with closing(connect(serve([head, None]))) as connection:
        reply = ask(connection, total_s=2.0)
        connection.abort()
        with pytest.raises(TransportError) as caught:
            reply.read(4)
    assert type(caught.value) is TransportError


def test_an_aborted_connection_does_not_go_on_without_tls(
    serve: Serve, certified: tuple[ssl.SSLContext, str]
) -> None:
    """Else the thread would take what was encrypted for the body, or show its token to all."""
    context, ca_file = certified
    head, record, found = HEAD % 20_000, 1 << 14, b""
    server = serve([head + bytes(20_000)], tls=context)
    with closing(NodeConnection(urlsplit(server.url), ca_file=ca_file)) as connection:
        reply = connection.request("GET", "/x", {}, total_s=10.0)
        blocks = reply.blocks(record - len(head))
        found += next(blocks)
        assert server.ended.acquire(timeout=10)  # the next record is here, and not read yet
        connection.abort()
        with suppress(TransportError):
            for block in blocks:
                found += block
    assert found == bytes(len(found))


def test_an_answer_that_comes_before_the_end_of_the_body_counts(serve: Serve) -> None:
    refusal = b"HTTP/1.1 413 X\r\ncontent-length: 3\r\n\r\nbig"
    with closing(connect(serve([refusal]))) as connection:
        reply = connection.request("PUT", "/x", {}, bytes(64 << 20), total_s=20.0)
        assert reply.status == 413
