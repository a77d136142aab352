"""Which certificates clients accept, with a throw-away authority; nothing is sent before that."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.certificates import Authority, Pair
from tests.support.command_line import invoke

from sparktxlog.api.nodes import Nodes
from sparktxlog.errors import CertificateError, ConfigError, TransportError, UnreachableError
from sparktxlog.files.donor_link import DonorLink
from sparktxlog.http.authorities import CA_VARIABLE, trust
from sparktxlog.http.link import Http
from sparktxlog.model.copying import Lease


class Answers(BaseHTTPRequestHandler):
    """Answers everything with an empty JSON object, and notes what it was asked."""

    protocol_version = "HTTP/1.1"
    server: Node

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class Node(ThreadingHTTPServer):
    """A stand-in for a node, with TLS if it has a certificate."""

    daemon_threads = True

    def __init__(self, pair: Pair | None) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._context: ssl.SSLContext | None = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.cert, pair.key)
            self.url = self.url.replace("http", "https")
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def finish_request(self, request: object, client_address: object) -> None:
        with suppress(OSError):  # the client refuses the certificate
            if self._context is not None:
                request = self._context.wrap_socket(request, server_side=True)  # type: ignore[arg-type]
            super().finish_request(request, client_address)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def serve() -> Iterator[Callable[[Pair | None], Node]]:
    nodes: list[Node] = []

    def start(pair: Pair | None) -> Node:
        nodes.append(Node(pair))
        return nodes[-1]

    yield start
    for node in nodes:
        node.shutdown()
        node.server_close()


Serve = Callable[[Pair | None], Node]


def ask(url: str, ca_file: Path | None = None) -> object:
    with closing(Http(url, ca_file=ca_file, timeout_s=5)) as link:
        return link.get("/v1/info")


def test_the_named_authority_is_believed(
    serve: Serve, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve(authority.issue("A"))
    assert ask(node.url, authority.ca_file) == {}
    monkeypatch.setenv(CA_VARIABLE, str(authority.ca_file))
    assert ask(node.url) == {}
    assert node.asked == ["/v1/info"] * 2


def test_other_authorities_are_not(serve: Serve, authority: Authority, tmp_path: Path) -> None:
    node = serve(authority.issue("A"))
    other = Authority(tmp_path, "other")
    for ca_file in (other.ca_file, None):  # None: those of the system
        with pytest.raises(CertificateError, match="not accepted") as caught:
            ask(node.url, ca_file)
        assert caught.value.definite and not caught.value.retryable
        assert caught.value.code == "certificate" and CA_VARIABLE in caught.value.hint
    assert node.asked == []


def test_what_is_wrong_with_a_certificate_is_said(serve: Serve, authority: Authority) -> None:
    expired, elsewhere = authority.issue("A", days=-1), authority.issue("A", addresses=())
    for pair, text, hint in (
        (expired, "expired", "new certificate"),
        (elsewhere, "IP address mismatch", "subjectAltName"),
    ):
        with pytest.raises(CertificateError, match=text) as caught:
            ask(serve(pair).url, authority.ca_file)
        assert hint in caught.value.hint


def test_a_node_without_tls_is_not_unreachable(serve: Serve, authority: Authority) -> None:
    url = serve(None).url.replace("http", "https")
    with pytest.raises(CertificateError, match="does not speak TLS"):
        ask(url, authority.ca_file)


def test_the_next_node_is_asked(serve: Serve, authority: Authority) -> None:
    bad, good = serve(authority.issue("A", days=-1)), serve(authority.issue("B"))
    with closing(Nodes([bad.url, good.url], ca_file=authority.ca_file)) as link:
        assert link.get("/v1/info") == {}
    assert (bad.asked, good.asked) == ([], ["/v1/info"])


def test_a_file_that_is_no_authority(serve: Serve, authority: Authority, tmp_path: Path) -> None:
    url, empty = serve(authority.issue("A")).url, tmp_path / "empty"
    empty.write_text("no certificate")
    for path in (tmp_path / "missing", empty):
        with pytest.raises(ConfigError, match="ca-file") as caught:
            ask(url, path)
        assert caught.value.fields == {"key": "ca-file", "value": str(path)}


def test_a_replaced_file_is_read_again(serve: Serve, authority: Authority, tmp_path: Path) -> None:
    other, used = Authority(tmp_path, "other"), tmp_path / "ca.crt"
    node = serve(other.issue("A"))
    used.write_bytes(authority.ca_file.read_bytes())
    with pytest.raises(CertificateError):
        ask(node.url, used)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(other.ca_file.read_bytes())
    fresh.replace(used)
    assert ask(node.url, used) == {}


def test_copies_are_fetched_from_certified_donors_only(
    serve: Serve, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve(authority.issue("A"))
    lease = Lease(
        url=node.url,
        node_id="A",
        lease_id="x",
        token="t",
        log_id="log",
        epoch=1,
        position=0,
        chain_hash="",
        chunk_bytes=1,
        lease_s=1.0,
    )
    monkeypatch.setenv(CA_VARIABLE, "")
    with closing(DonorLink(lease)) as link, pytest.raises(CertificateError):
        link.release()
    assert node.asked == []
    monkeypatch.setenv(CA_VARIABLE, str(authority.ca_file))
    with closing(DonorLink(lease)) as link, pytest.raises(TransportError) as caught:
        link.release()  # it does not know the method, but it was asked
    assert type(caught.value) is not UnreachableError


def test_commands_take_the_authority(
    serve: Serve,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = serve(authority.issue("A"))
    monkeypatch.setenv(CA_VARIABLE, "")
    assert invoke(monkeypatch, "epochs", "--url", node.url) == 6
    assert "[certificate]" in capsys.readouterr().err and node.asked == []
    ca_file = str(authority.ca_file)
    with suppress(KeyError, TypeError):  # what a stand-in answers is no list of epochs
        invoke(monkeypatch, "--ca-file", ca_file, "epochs", "--url", node.url)
    assert node.asked
    with pytest.raises(ConfigError):
        trust("/no/such/file")
