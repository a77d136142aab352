"""Requests to AWS end in time, whatever comes."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from sparktxlog.errors import PeerTimeoutError
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
