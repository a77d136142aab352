"""One segment of mutated requests: a node of its own and a generator of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from random import Random
from urllib.parse import quote

from tests.support.node_processes import MANUAL, SECRET, NodeProcess, call, free_ports
from tests.verification.fuzz.mutation import (
    mutated_bytes,
    mutated_json,
    mutated_msgpack,
    mutated_text,
)
from tests.verification.fuzz.samples import JSON, LAST, MSGPACK, TABLE, Sample, samples

from sparktxlog.codec import wire
from sparktxlog.config import load_config
from sparktxlog.runtime.node import build_node
from sparktxlog.transport import signing

PER_SEGMENT = 20_000
_LINES = 8
_ANSWER_S = 1.0
_HEADERS = (
    b"range: bytes=5-1", b"range: bytes=0-,9-99999999999999999999", b"expect: 100-continue",
    b"content-length: 7", b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked",
    b"content-type: text/plain", b"connection: upgrade\r\nupgrade: websocket", b"host: evil",
    b"authorization: Bearer \xff\xfe", b"x-request-id: " + b"a" * 70, b"accept: */*", b"x: \x01",
    b"transaction-id: x", b"x-txlog-node: \xe9", b": x", b"x", b"x-txlog-counter: 1",
    b"x-txlog-digest: x",
)  # fmt: skip
#: Refusals that only say that the node cannot now; all others of 500 and above are findings.
_FINE = frozenset({501, 502, 503, 504, 507})


class Finding(Exception):
    """What must not happen."""


class Peer:
    """Plays the peer B of the node."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.signer = signing.Signer(SECRET, "B", str(uuid.UUID(int=11)))
        self.to = ""

    async def greet(self, hello: wire.Hello) -> None:
        """Open a session; the node tells its start with the first refusal."""
        body = wire.encode(hello)
        for _ in range(2):
            request = self.sign(Sample(method="POST", path="/peer/v1/hello", body=body), "")
            answer = await Line(self.node).exchange(request)
            for line in answer.split(b"\r\n"):
                if line.lower().startswith(b"x-txlog-boot: "):
                    self.to = line[14:].decode()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        self.to = self.to.partition(".")[0]

    def sign(self, sample: Sample, query: str) -> bytes:
        """Return a signed request."""
        target = sample.path + query
        shown = self.signer.headers(sample.method, target, sample.body, self.to)
        lines = [f"{sample.method} {target} HTTP/1.1", "host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in shown.items()]
        lines.append(f"content-length: {len(sample.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + sample.body


class Line:
    """A connection that is opened anew when the node closed it."""

    def __init__(self, node: NodeProcess) -> None:
        self._port = int(node.url.rpartition(":")[2])
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, request: bytes, is_torn: bool = False) -> bytes:
        """Return what the node answers; nothing if it closes, or waits for more."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        answer = b""
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            writer.write(request)
            if is_torn:  # or the node waits for more
                writer.write_eof()
            async with asyncio.timeout(_ANSWER_S):
                answer = await reader.readuntil(b"\r\n\r\n")
                head = answer.lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                if not request.startswith(b"HEAD "):
                    answer += await reader.readexactly(int(length or 0))
                if not is_torn and b"connection: close" not in head and b" 100 " not in head[:16]:
                    return answer
        self.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


def mutated(draw: Random, sample: Sample, peer: Peer | None) -> tuple[bytes, bool]:
    """Return a request that was changed somewhere, or nowhere; and whether it may lack its end."""
    body, path, method = sample.body, sample.path, sample.method
    query = list(sample.query)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 4))):
        part = draw.randrange(10)
        if part <= 4 and body:
            structured = {JSON: mutated_json, MSGPACK: mutated_msgpack}.get(sample.kind)
            change = structured if structured and draw.random() < 0.8 else mutated_bytes
            body = change(draw, body)
        elif part <= 6 and query:
            at = draw.randrange(len(query))
            query[at] = (query[at][0], mutated_text(draw, query[at][1]))
        elif part == 7:
            path = mutated_text(draw, path)
        elif part == 8:
            method = draw.choice(("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"))
        elif query:
            query.append(draw.choice(query))
    asked = "?" + "&".join(f"{name}={quote(text)}" for name, text in query) if query else ""
    sent = Sample(method=method, path=path, body=body, kind=sample.kind)
    if peer is not None and path.startswith("/peer/"):
        raw = peer.sign(sent, asked)
        return (raw, False) if draw.random() < 0.95 else (mutated_bytes(draw, raw), True)
    lines = [f"{method} {path}{asked} HTTP/1.1".encode(), b"host: 127.0.0.1"]
    if sent.kind:
        lines.append(f"content-type: {sent.kind}".encode())
    if draw.random() < 0.1:
        lines.append(draw.choice(_HEADERS))
    if draw.random() < 0.05:
        lines.append(b"transfer-encoding: chunked")
        size = draw.choice((1, 7, 1000))
        parts = [body[at : at + size] for at in range(0, min(len(body), 50 * size), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    elif body or method != "GET":
        lines.append(b"content-length: %d" % len(body))
    raw = b"\r\n".join([*lines, b"", b""]) + body
    return (raw, False) if draw.random() < 0.97 else (mutated_bytes(draw, raw), True)


def answers_of(seed: int, segment: int, requests: int) -> Counter[int]:
    """Run one segment in a process of its own; return how often each status was answered."""
    seen: Counter[int] = Counter()
    asyncio.run(run_segment(seed, segment, requests, seen))
    return seen


async def run_segment(seed: int, segment: int, requests: int, seen: Counter[int]) -> None:
    """Send the requests of one segment to a fresh node."""
    draw = Random(f"{seed}/{segment}")
    with_peer = segment % 2 == 1
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        (port,) = free_ports(1)
        settings = (MANUAL, "start-timeout = 0", 'log-level = "warning"')
        peers = {"B": 1} if with_peer else {}
        node = NodeProcess(Path(name), "A", port, peers, settings)
        node.start()
        try:
            node.wait_ready()
            peer = None
            if with_peer:
                peer = Peer(node)
                await peer.greet(await _hello(node))
            else:
                node.commit({"operations": [TABLE]}, timeout=20)
            await _send_all(node, draw, requests, peer, seen)
            _check_log(node)
        except Finding as error:
            print(f"segment {segment}: {error}\nlog:\n{node.log_text()[-1500:]}", file=sys.stderr)
            raise
        finally:
            node.stop()


async def _hello(node: NodeProcess) -> wire.Hello:
    """Return how B greets A: as one that has the same configuration."""
    values = {
        "node-id": "B",
        "master-url": "http://127.0.0.1:1",
        "cluster-secret": SECRET,
        "data-dir": str(node.directory / "B"),
        "peer.1.id": "A",
        "peer.1.url": node.url,
    }
    running = build_node(load_config(None, values, {}))
    running.base.journal.close()
    return running.membership.greeter.own


async def _send_all(
    node: NodeProcess, draw: Random, requests: int, peer: Peer | None, seen: Counter[int]
) -> None:
    log_id = str(call(f"{node.url}/v1/info")["log_id"])
    lines = [Line(node) for _ in range(_LINES)]
    first = {route for route in samples(draw, log_id) if route not in LAST}
    done = 0
    while done < requests:
        valid = samples(draw, log_id)
        routes = sorted(first if done < 0.9 * requests else valid)
        batch = [mutated(draw, valid[draw.choice(routes)], peer) for _ in range(16 * _LINES)]
        queue = batch[: requests - done]

        async def work(line: Line, queue: list[tuple[bytes, bool]] = queue) -> None:
            while queue:
                request, is_torn = queue.pop()
                answer = await line.exchange(request, is_torn)
                status = int(answer[9:12] or 0) if answer.startswith(b"HTTP/1.1 ") else 0
                seen[status] += 1
                if not answer or (status >= 500 and status not in _FINE):
                    _check(node, request, answer)

        done += len(queue)
        await asyncio.gather(*(work(line) for line in lines))
        _check(node, b"", b"")
    for line in lines:
        line.close()


def _check(node: NodeProcess, request: bytes, answer: bytes) -> None:
    assert node.process is not None
    if node.process.poll() is not None:
        raise Finding(f"the node ended with {node.process.returncode}; last: {request[:2000]!r}")
    status = answer[9:12]
    if status >= b"500" and int(status) not in _FINE:
        raise Finding(f"answer {answer[:600]!r}\nto {request[:3000]!r}")


def _check_log(node: NodeProcess) -> None:
    """Look for failures whose answer nobody got."""
    lines = node.log_text().splitlines()
    for at, line in enumerate(lines):
        if "a request failed" in line or "Exception in ASGI" in line or "Traceback" in line:
            raise Finding("the log has:\n" + "\n".join(lines[max(0, at - 2) : at + 60]))
