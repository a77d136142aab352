"""NATS JetStream: a stream with three copies, and a small client of our own over a socket."""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, Self

from benchmarks.cluster import free_port
from benchmarks.peers.peer import OPEN, RECORD_BYTES, SENDERS, Peer, Records, at_once
from benchmarks.peers.places import PACKAGES, PeerMissingError, found
from benchmarks.peers.processes import Servers

#: Messages of a batch that is stored as one, at most.
_MOST = 1_000
_PROGRAM = PACKAGES / "bin" / "nats-server"
_MESSAGE = re.compile(rb"H?MSG \S+ \d+ (?:\S+ )?(?:(\d+) )?(\d+)\r\n")
_HELLO: dict[str, Any] = {
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
}
_HELLO |= {"lang": "sparktxlog-benchmarks", "version": "1", "protocol": 1}


class NatsWire:
    """A connection with an inbox; answers come in the order of what was published."""

    def __init__(self, port: int, timeout_s: float = 60) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._line()  # INFO
        hello = f"CONNECT {json.dumps(_HELLO)}\r\nSUB {self.inbox} 1\r\nPING\r\n"
        self._socket.sendall(hello.encode())
        while self._line() != b"PONG":
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _more(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("NATS closed the connection")
        self._buffer += data

    def send(self, frames: bytes) -> None:
        """Send what was framed."""
        self._socket.sendall(frames)

    def answers(self, number: int) -> list[bytes]:
        """Wait for so many messages to the inbox; return their bodies.

        Raises:
            RuntimeError: The server says that something failed.
        """
        bodies: list[bytes] = []
        while len(bodies) < number:
            line = self._line() + b"\r\n"
            if message := _MESSAGE.fullmatch(line):
                head, size = int(message[1] or 0), int(message[2])
                while len(self._buffer) < size + 2:
                    self._more()
                bodies.append(self._buffer[head:size])
                self._buffer = self._buffer[size + 2 :]
            elif line.startswith(b"PING"):
                self.send(b"PONG\r\n")
            elif not line.startswith((b"INFO", b"PONG", b"+OK")):
                raise RuntimeError(f"NATS: {line.decode(errors='replace')}")
        return bodies

    def ask(self, subject: str, body: Any) -> dict[str, Any]:
        """Return the JSON that a request is answered with."""
        raw = json.dumps(body).encode()
        self.send(f"PUB {subject} {self.inbox} {len(raw)}\r\n".encode() + raw + b"\r\n")
        answer: dict[str, Any] = json.loads(self.answers(1)[0] or b"{}")
        return answer


class Nats(Peer):
    """Servers with one stream; a batch is NATS's own atomic one, of 1,000 at most.

    Args:
        synced: Each write is synced before it is acknowledged, else every two minutes.
        shown: Server → port by which the others reach it; see `delays`.
        ports: Server → port at which it listens for the others.
    """

    def __init__(
        self,
        directory: Path,
        number: int = 3,
        shown: Mapping[str, int] | None = None,
        ports: Mapping[str, int] | None = None,
        *,
        synced: bool = True,
    ) -> None:
        self.name = "NATS JetStream, fsync" if synced else "NATS JetStream, no fsync"
        self.servers = Servers(directory)
        names = [f"n{i}" for i in range(number)]
        own = dict(ports or {name: free_port() for name in names})
        shown = dict(shown or own)
        self._ports = {name: free_port() for name in names}
        for name in names:
            config = directory / f"{name}.conf"
            routes = ", ".join(f'"nats-route://127.0.0.1:{shown[o]}"' for o in names if o != name)
            config.write_text(
                f"server_name: {name}\nlisten: 127.0.0.1:{self._ports[name]}\n"
                f'jetstream {{ store_dir: "{directory / name}", max_file_store: 64G\n'
                f"  sync_interval: {'always' if synced else '2m'} }}\n"
                f"cluster {{ name: bench, listen: 127.0.0.1:{own[name]}\n"
                f"  no_advertise: true, pool_size: 3, routes: [{routes}] }}\n"
            )
            self.servers.start(name, [found(_PROGRAM), "-c", config])
        self.stream = "bench"
        self._copies = min(3, number)
        self._records = Records()
        self.leader = ""
        self.servers.wait(self._made, "NATS JetStream")
        self._wires = {name: NatsWire(port) for name, port in self._ports.items()}

    @property
    def pids(self) -> Sequence[int]:
        return self.servers.pids

    def _made(self) -> bool:
        """Create the stream, once the servers have a leader; find its own."""
        stream = {
            "name": self.stream,
            "subjects": [self.stream],
            "storage": "file",
            "retention": "limits",
            "num_replicas": self._copies,
            "allow_atomic": True,
        }
        # Servers without a leader do not answer at all.
        with NatsWire(next(iter(self._ports.values())), timeout_s=3) as wire:
            answer = wire.ask(f"$JS.API.STREAM.CREATE.{self.stream}", stream)
            if "error" in answer or "cluster" not in answer:
                return False
            info = wire.ask(f"$JS.API.STREAM.INFO.{self.stream}", {})
        followers = info.get("cluster", {}).get("replicas", [])
        self.leader = info.get("cluster", {}).get("leader", "")
        current = [one for one in followers if one.get("current")]
        return bool(self.leader) and len(current) == self._copies - 1

    def _bodies(self, number: int) -> list[bytes]:
        return [key + rest for key, rest in self._records.take(number)]

    def _batch(self, wire: NatsWire, number: int) -> bytes:
        """Return the frames of one atomic batch; the last asks for an answer."""
        ident, frames = uuid.uuid4().hex, []
        for place, body in enumerate(self._bodies(number), start=1):
            last = place == number
            head = f"NATS/1.0\r\nNats-Batch-Id: {ident}\r\nNats-Batch-Sequence: {place}\r\n"
            head += "Nats-Batch-Commit: 1\r\n\r\n" if last else "\r\n"
            reply = f"{wire.inbox} " if last else ""
            sizes = f"{len(head)} {len(head) + len(body)}"
            frames.append(f"HPUB {self.stream} {reply}{sizes}\r\n{head}".encode() + body + b"\r\n")
        return b"".join(frames)

    def _plain(self, wire: NatsWire, number: int) -> list[bytes]:
        head = f"PUB {self.stream} {wire.inbox} {RECORD_BYTES}\r\n".encode()
        return [head + body + b"\r\n" for body in self._bodies(number)]

    def batches(self, total: int, batch: int) -> None:
        if batch > _MOST:
            raise PeerMissingError(f"{self.name}: a batch has at most {_MOST} messages")
        left = count(total, -batch)
        frames = self._batch if batch > 1 else self._one

        def send(port: int, failed: list[Exception]) -> None:
            with NatsWire(port) as wire:
                while next(left) >= batch and not failed:
                    wire.send(frames(wire, batch))
                    _checked(wire.answers(1))

        ports = [*islice(cycle(self._ports.values()), SENDERS)]
        at_once(send, ports, (OSError, RuntimeError))

    def _one(self, wire: NatsWire, number: int) -> bytes:
        return b"".join(self._plain(wire, number))

    def singles(self, total: int) -> None:
        wire = self._wires[self.leader]
        frames = self._plain(wire, total)
        sent = min(OPEN, total)
        wire.send(b"".join(frames[:sent]))
        for frame in frames[sent:]:
            _checked(wire.answers(1))
            wire.send(frame)
        _checked(wire.answers(sent))

    def lone(self, total: int, pause_s: float, server: str = "") -> list[float]:
        wire, spent = self._wires[server or self.leader], []
        for frame in self._plain(wire, total):
            begin = time.perf_counter()
            wire.send(frame)
            _checked(wire.answers(1))
            spent.append(time.perf_counter() - begin)
            time.sleep(pause_s)
        return spent

    def close(self) -> None:
        for wire in self._wires.values():
            wire.__exit__()
        self.servers.stop()


def _checked(answers: Sequence[bytes]) -> None:
    """Look whether what was published is stored.

    Raises:
        RuntimeError: It is not.
    """
    for answer in answers:
        if b'"seq"' not in answer or b'"error"' in answer:
            raise RuntimeError(f"NATS: {answer.decode(errors='replace')}")
