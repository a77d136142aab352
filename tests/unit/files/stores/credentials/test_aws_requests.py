"""Requests to AWS end in time, whatever comes, and take the proxy of the environment."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.support.certificates import Authority

from sparktxlog.errors import ConfigError, PeerTimeoutError, UnreachableError
from sparktxlog.files.stores.credentials import aws_requests
from sparktxlog.files.stores.credentials.aws_requests import AwsService
from sparktxlog.files.stores.credentials.aws_signature import S3Keys


def test_an_answer_that_trickles_ends_with_its_time() -> None:
    """S3 sends blanks while it copies."""
    given_up = Event()

    class Trickles(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(50):
                    if given_up.wait(0.1):
                        return
                    self.wfile.write(b" ")
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Trickles) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        service = AwsService(url, "us-east-1", "s3", lambda: S3Keys("key", "secret"))
        with pytest.raises(PeerTimeoutError) as late:
            service.ask("PUT", "/a", total_s=0.5)
        given_up.set()
        server.shutdown()
    assert not late.value.definite


class _Proxied(ThreadingHTTPServer):
    """A proxy that is itself the server behind it: after CONNECT it speaks TLS.

    Args:
        tls: What it speaks TLS with; None = it takes no CONNECT.
    """

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tls = tls
        #: Where to, and the credentials that came with it.
        self.asked: list[tuple[str, str | None]] = []


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxied

    def do_CONNECT(self) -> None:
        self.server.asked.append((self.path, self.headers["Proxy-Authorization"]))
        if self.server.tls is None:
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        self.request = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.setup()
        self.handle_one_request()
        self.close_connection = True

    def do_GET(self) -> None:
        answer = f"{self.headers['Host']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _proxy(tls: ssl.SSLContext | None) -> Iterator[_Proxied]:
    with _Proxied(tls) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> AwsService:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return AwsService("https://sts.example", "us-east-1", "sts", lambda: S3Keys("key", "secret"))


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: AwsService, name: str
) -> None:
    """STS and copies go the way that the library of buckets goes."""
    authority = Authority(tmp_path)
    pair = authority.issue("sts.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    trust = ssl.create_default_context(cafile=authority.ca_file)
    monkeypatch.setattr(aws_requests, "_trust", lambda: trust)
    with _proxy(context) as proxy:
        address = f"127.0.0.1:{proxy.server_port}"
        given = address if name == "ALL_PROXY" else f"http://me:a%3Ab@{address}/"
        monkeypatch.setenv(name, given)
        answer = service.ask("GET", "/x", total_s=30.0)
    assert (answer.status, answer.text) == (200, "sts.example /x")
    shown = f"Basic {base64.b64encode(b'me:a:b').decode()}"
    assert proxy.asked == [("sts.example:443", None if name == "ALL_PROXY" else shown)]


def test_a_proxy_that_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, service: AwsService
) -> None:
    with _proxy(None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:word@127.0.0.1:{proxy.server_port}")
        with pytest.raises(UnreachableError, match="403") as caught:
            service.ask("GET", "/x", total_s=30.0)
    assert caught.value.definite and "word" not in str(caught.value)


def test_hosts_without_a_proxy_are_asked_themselves(
    monkeypatch: pytest.MonkeyPatch, service: AwsService
) -> None:
    with _proxy(None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("NO_PROXY", "other.example,.invalid")
        direct = AwsService("https://sts.invalid", "us-east-1", "sts", service.keys)
        with pytest.raises(UnreachableError):
            direct.ask("GET", "/x", total_s=30.0)
        assert proxy.asked == []


@pytest.mark.parametrize("given", ["https://proxy:1", "socks5://me:word@proxy:1", "http://h:port"])
def test_another_kind_of_proxy_is_refused(
    monkeypatch: pytest.MonkeyPatch, service: AwsService, given: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", given)
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        service.ask("GET", "/x", total_s=30.0)
    assert "word" not in str(caught.value)
