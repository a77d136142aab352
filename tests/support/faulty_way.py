"""A way to a server of a bucket that throttles, delays, loses and cuts answers, by choice."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Fault(Enum):
    """What happens to a request."""

    NONE = "none"
    #: It gets 503 with `Retry-After`, and does not reach the server.
    THROTTLED = "throttled"
    #: The server carries it out, and its answer is lost.
    LOST = "lost"
    #: The server carries it out, and answers 500 from the caller's view.
    FAILED = "failed"
    #: Half of the answer's body comes.
    CUT = "cut"
    #: It reaches the server late.
    DELAYED = "delayed"
    #: A list is that of an earlier moment, as of a store whose lists come after its writes.
    STALE = "stale"
    #: The way is cut: it does not reach the server, or its answer does not come back.
    AWAY = "away"


@dataclass(frozen=True)
class Answer:
    """What a request gets that does not reach the server: the status and the code of a store."""

    status: int
    code: str


#: Returns what happens to a request, by its method.
Choice = Callable[[str], Fault | Answer]
#: How long a request is delayed, seconds.
_DELAY_S = 0.1


def by_chance(share: float, seed: int, *, stale: bool = False) -> Choice:
    """Return a choice: any fault, for a share of all requests.

    Args:
        stale: Lists may be old, too.
    """
    chance, choosing = random.Random(seed), threading.Lock()

    def choose(method: str) -> Fault:
        with choosing:
            if chance.random() >= share:
                return Fault.NONE
            faults = [Fault.THROTTLED, Fault.LOST, Fault.FAILED, Fault.DELAYED]
            faults += [Fault.CUT] * (method in ("GET", "POST"))
            return chance.choice(faults + [Fault.STALE] * (stale and method == "GET"))

    return choose


#: A connection to the server that was idle for so long is not used again, seconds.
_KEPT_S = 2.0
#: For how long a list may be old, seconds.
_STALE_S = 10.0
#: Status, body, headers and length of an answer.
Listed = tuple[int, bytes, dict[str, str], str]


class FaultyWay(ThreadingHTTPServer):
    """Listens at a free port of loopback.

    Args:
        endpoint: Of the server, `http://host:port`.
        choose: What happens to each request.
        prefix: Path below which it has the server, as a reverse proxy does; all else is 404.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, endpoint: str, choose: Choice, prefix: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        to = urlsplit(endpoint)
        assert to.hostname is not None
        self.to = (to.hostname, to.port)
        self.choose, self.prefix = choose, prefix
        #: What happened so far.
        self.happened: Counter[Fault | Answer] = Counter()
        #: Target of a list → the first answer to it of the last ten seconds.
        self.lists: dict[str, tuple[float, Listed]] = {}
        self._whole = threading.Event()
        self._whole.set()
        self._silent = False

    @property
    def url(self) -> str:
        """What a store takes as its endpoint."""
        return f"http://127.0.0.1:{self.server_port}{self.prefix}"

    def cut(self, *, silently: bool = False) -> None:
        """Let nothing pass from now on, requests that are under way included.

        Args:
            silently: Connections stay open until `heal`, as with a dead cable; else they break.
        """
        self._silent = silently
        self._whole.clear()

    def heal(self) -> None:
        """Let requests pass again."""
        self._whole.set()

    def passes(self) -> bool:
        """Return whether the way is whole; if it is cut silently, only once it is healed."""
        if self._whole.is_set():
            return True
        self.happened[Fault.AWAY] += 1
        if self._silent:
            self._whole.wait()
        return False

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients close connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyWay
    #: To the server, for one request after the other of a client's connection.
    _onward: http.client.HTTPConnection | None = None
    _used_s = 0.0

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.server.passes():
            return self._break_off()
        if not self.path.startswith(f"{self.server.prefix}/"):
            return self._answer(404, b"no such site", {})
        self.path = self.path.removeprefix(self.server.prefix)
        fault = self.server.choose(self.command)
        if fault is Fault.STALE:
            fault = Fault.NONE if (old := self._old_list()) is None else Fault.STALE
        self.server.happened[fault] += 1
        if fault is Fault.STALE and old is not None:
            return self._answer(*old)
        if fault is Fault.DELAYED:
            time.sleep(_DELAY_S)
        if fault is Fault.THROTTLED:
            return self._answer(503, b"<Error><Code>SlowDown</Code></Error>", {"Retry-After": "0"})
        if isinstance(fault, Answer):
            return self._answer(
                fault.status, f"<Error><Code>{fault.code}</Code></Error>".encode(), {}
            )
        answer, content = self._asked(body)
        if fault is Fault.LOST or not self.server.passes():
            return self._break_off()
        if fault is Fault.FAILED:
            return self._answer(500, b"<Error><Code>InternalError</Code></Error>", {})
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length")
        }
        length = answer.getheader("content-length") or str(len(content))
        if "list-type=2" in self.path and answer.status == 200:
            self._keep_list((answer.status, content, headers, length))
        if fault is Fault.CUT and len(content) > 1:
            self._answer(answer.status, content[: len(content) // 2], headers, length)
            return self._break_off()
        return self._answer(answer.status, content, headers, length)

    def _asked(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Pass a request on; its answer, and the body of that."""
        way, self._onward = self._onward, None
        if way is None or time.monotonic() - self._used_s > _KEPT_S:
            way = http.client.HTTPConnection(*self.server.to, timeout=60)
        try:
            # The signature covers the host that the client sees.
            way.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                way.putheader(name, value)
            way.endheaders(body)
            answer = way.getresponse()
            content = answer.read()
        except BaseException:
            way.close()
            raise
        self._onward, self._used_s = way, time.monotonic()
        return answer, content

    def finish(self) -> None:
        """Close the connection to the server with that of the client."""
        if self._onward is not None:
            self._onward.close()
        super().finish()

    def _old_list(self) -> Listed | None:
        found = self.server.lists.get(self.path)
        return None if found is None else found[1]

    def _keep_list(self, answer: Listed) -> None:
        now, (kept, _) = time.monotonic(), self.server.lists.get(self.path, (0.0, None))
        if now - kept > _STALE_S:
            self.server.lists[self.path] = (now, answer)

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str], length: str | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.wfile.flush()

    def _break_off(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def faulty_way(endpoint: str, choose: Choice, prefix: str = "") -> Iterator[FaultyWay]:
    """Give a way to a server."""
    with FaultyWay(endpoint, choose, prefix) as way:
        thread = threading.Thread(target=way.serve_forever, daemon=True)
        thread.start()
        try:
            yield way
        finally:
            way.shutdown()
            thread.join()
