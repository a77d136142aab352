"""Problem documents as errors, and what a submit makes of a broken link."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import msgspec
import pytest

from sparktxlog import errors
from sparktxlog.codec.problems import ERROR_CLASSES, error_of
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.errors import (
    CommitRejectedError,
    ForbiddenError,
    InvalidRequestError,
    JournalLostError,
    OtherQueueError,
    TransportError,
    TxLogError,
    UnknownKindError,
    UnknownTableError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

#: They have the code of their base, and never leave a node.
INNER = {JournalLostError, OtherQueueError, UnknownKindError}
ALL = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not TxLogError),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, TxLogError)])
def test_every_error_comes_back_in_its_class(kind: type[TxLogError]) -> None:
    sent = kind("what is wrong", hint="do this", table="t", row=3)
    body = msgspec.json.encode(sent.to_problem())
    found = error_of(body, sent.http_status, "http://x")
    assert type(found) is ERROR_CLASSES[kind.code]
    assert type(found) is kind or kind in INNER
    assert str(found) == str(sent)
    assert found.fields == {"table": "t", "row": 3}
    if type(found) is kind:
        assert found.definite == sent.definite


def test_codes_of_newer_nodes_keep_what_they_mean() -> None:
    document = UnknownTableError("x").to_problem() | {"title": "new-code"}
    found = error_of(msgspec.json.encode(document), 422, "http://x")
    assert type(found) is CommitRejectedError and found.fields["code"] == "new-code"
    document["definite"] = False
    found = error_of(msgspec.json.encode(document), 500, "http://x")
    assert type(found) is TransportError and not found.definite


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"title": "x"}', b"\xff"])
def test_answers_of_something_else(body: bytes) -> None:
    found = error_of(body, 502, "http://x")
    assert type(found) is TransportError and found.fields["status"] == 502


@pytest.mark.parametrize(
    "url", ["", "localhost:7070", "ftp://x", "http://", "http://x:99999", "http://[::1"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        Http(url)


def test_a_link_that_is_closed_meanwhile_keeps_no_connection() -> None:
    """It would hold one of the places that the node has for the token."""
    ended = Event()

    class Closes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            link.close()
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def finish(self) -> None:
            super().finish()
            ended.set()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Closes) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        link = Http(f"http://127.0.0.1:{server.server_port}")
        try:
            assert link.get("/v1/info") == {}
            assert ended.wait(5)
        finally:
            link.close()
            server.shutdown()


def test_a_rejected_outcome_is_an_error_of_its_class() -> None:
    receipt = Receipt(
        transaction_id="x",
        n=1,
        level=Level.ORDERED,
        position=7,
        outcome="rejected",
        rejections=(ReceiptRejection(index=0, code="unknown-table", text="no table 't'"),),
    )
    with pytest.raises(UnknownTableError) as caught:
        committed(receipt)
    assert caught.value.fields["position"] == 7
    # Of an old one the node keeps that it was rejected, and not why.
    with pytest.raises(CommitRejectedError, match="why is no longer kept") as caught_later:
        committed(replace(receipt, rejections=()))
    assert caught_later.value.definite and caught_later.value.fields["position"] == 7


class _Files(BaseHTTPRequestHandler):
    """Sends ten bytes, from an offset on where it is asked for by a range."""

    protocol_version = "HTTP/1.1"
    connections = set[int]()

    def do_GET(self) -> None:
        self.connections.add(self.client_address[1])
        begin = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        status, body = (206 if begin else 200), b"0123456789"[begin:]
        if self.path.startswith("/refused"):
            problem = ForbiddenError("a worker's token is needed").to_problem()
            status, body = 403, msgspec.json.encode(problem)
        if self.path.startswith("/no-ranges"):
            status, body = 200, b"0123456789"
        self.send_response(status)
        self.send_header("content-length", str(len(body) + self.path.startswith("/cut")))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path.startswith("/cut")

    def log_message(self, *_: object) -> None: ...


def test_a_file_comes_from_an_offset_on_and_what_goes_wrong_has_its_class() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    Thread(target=server.serve_forever, daemon=True).start()
    link = Http(f"http://127.0.0.1:{server.server_port}", token="t")

    def get(path: str, offset: int = 0) -> bytes:
        found = link.pieces(path, query={"size": 10}, offset=offset, silence_s=9.0)
        return b"".join(found)

    try:
        assert (get("/file"), get("/file", 4)) == (b"0123456789", b"456789")
        with pytest.raises(ForbiddenError, match="token is needed"):
            get("/refused")
        assert get("/file", 9) == b"9"
        assert len(_Files.connections) == 1, "one connection did for all"
        with pytest.raises(TransportError, match="200 to /no-ranges"):
            get("/no-ranges", 4)
        with pytest.raises(TransportError) as caught:
            get("/cut")
        assert caught.value.retryable
        assert get("/file", 9) == b"9"
    finally:
        link.close()
        server.shutdown()
        server.server_close()
