"""A donor for tests: the routes of `/replica/v1` on threads, with faults at will.

python tests/support/stand_in_donor.py DIRECTORY [zstd|none] [CHUNK_BYTES]   serves, prints lease
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import zstandard
from tests.support.replica_lakes import chunk_digests

from sparktxlog.model.copying import CHUNK_DIGEST_HEADER, Lease, OfferedFile, OfferedTable
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.table import Column, TableDefinition

#: Gets path and offset of a chunk; returns the fault: corrupt, short, long, hang, cut, or a
#: status with a problem's title (`410 file-changed`); empty for none.
Fault = Callable[[str, int], str]


class StandInDonor(ThreadingHTTPServer):
    """Serves the tables of a directory, one directory each."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        lake: Path,
        *,
        node_id: str = "A",
        compression: str = "none",
        chunk_bytes: int = 65_536,
        lease_s: float = 60.0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lake = lake
        self.node_id = node_id
        self.compression = compression
        self.chunk_bytes = chunk_bytes
        self.lease_s = lease_s
        self.lease_id = f"lease{node_id}"
        self.token = f"secret{node_id}"
        self.fault: Fault = lambda path, offset: ""
        self.lock = threading.Lock()
        #: What was asked for: (path, offset) of chunks, in the order of their ends.
        self.chunks: list[tuple[str, int]] = []
        #: Sizes of requests for digests.
        self.asked: list[int] = []
        self.renewals = 0
        self.released = False
        self.gone = False
        self.hanging = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> StandInDonor:
        self._thread.start()
        return self

    def process_request(self, request, client_address):  # type: ignore[no-untyped-def]
        self._sockets.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):  # type: ignore[no-untyped-def]
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def die(self) -> None:
        """Break all connections and take no more."""
        self.hanging.set()
        self.shutdown()
        self.server_close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        self.socket.close()

    def lease(self) -> Lease:
        return Lease(
            lease_id=self.lease_id,
            token=self.token,
            node_id=self.node_id,
            url=f"http://127.0.0.1:{self.server_address[1]}",
            log_id="l",
            epoch=1,
            position=10,
            chain_hash="00",
            chunk_bytes=self.chunk_bytes,
            lease_s=self.lease_s,
            tables=tuple(
                self._offer(entry) for entry in sorted(self.lake.iterdir()) if entry.is_dir()
            ),
        )

    def _offer(self, directory: Path) -> OfferedTable:
        files = [
            OfferedFile(
                path=path.relative_to(directory).as_posix(),
                size_bytes=path.stat().st_size,
                modified_at=path.stat().st_mtime_ns // 1000,
            )
            for path in directory.rglob("*")
            if path.is_file()
        ]
        return OfferedTable(
            definition=TableDefinition(
                name=directory.name, columns=(Column(name="k", type="bigint"),)
            ),
            version=1,
            signature=TableSignature(),
            files=tuple(sorted(files, key=lambda file: file.path)),
        )

    def digest(self, table: str, path: str) -> str:
        return chunk_digests((self.lake / table / path).read_bytes(), self.chunk_bytes)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StandInDonor

    def setup(self) -> None:
        super().setup()
        self._buffer = bytearray(self.server.chunk_bytes)

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes | memoryview = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _problem(self, text: str) -> None:
        status, _, title = text.partition(" ")
        self._answer(int(status), msgspec.json.encode({"title": title, "detail": f"fault {title}"}))

    def _allowed(self) -> bool:
        donor = self.server
        if self.headers.get("Authorization") != f"Bearer {donor.token}":
            self._problem("401 unauthorized")
        elif donor.gone:
            self._problem("410 lease-gone")
        else:
            return True
        return False

    def do_GET(self) -> None:
        if not self._allowed():
            return
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        donor = self.server
        table, path, offset = query["table"], query["path"], int(query["offset"])
        fault = donor.fault(path, offset)
        if fault == "hang":
            donor.hanging.wait()
            self.close_connection = True
            return
        if fault == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault[:1].isdigit():
            self._problem(fault)
            return
        descriptor = os.open(donor.lake / table / path, os.O_RDONLY)
        try:
            plain = memoryview(self._buffer)[: int(query["length"])]
            plain = plain[: os.preadv(descriptor, [plain], offset)]
        finally:
            os.close(descriptor)
        digest = hashlib.sha256(plain).hexdigest()
        if fault == "corrupt":
            plain[0] ^= 1
        elif fault == "short":
            plain = plain[:-1]
        elif fault == "long":
            plain = memoryview(bytes(plain) + b"x")
        headers = {CHUNK_DIGEST_HEADER: digest}
        body: bytes | memoryview = plain
        if donor.compression == "zstd" and self.headers.get("Accept-Encoding") == "zstd":
            packed = zstandard.ZstdCompressor(level=1).compress(plain)
            if len(packed) <= 0.9 * len(plain):
                headers["Content-Encoding"], body = donor.compression, packed
        with donor.lock:
            donor.chunks.append((path, offset))
        self._answer(200, body, **headers)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._allowed():
            return
        donor = self.server
        if self.path.endswith("/renew"):
            with donor.lock:
                donor.renewals += 1
            self._answer(204)
            return
        files = msgspec.json.decode(body)["files"]
        with donor.lock:
            donor.asked.append(len(files))
        try:
            found = [donor.digest(table, path) for table, path in files]
        except FileNotFoundError:
            self._problem("410 file-changed")
            return
        self._answer(200, msgspec.json.encode({"digests": found}))

    def do_DELETE(self) -> None:
        if self._allowed():
            self.server.released = True
            self._answer(204)


def main(argv: list[str]) -> None:
    donor = StandInDonor(
        Path(argv[0]),
        compression=argv[1] if len(argv) > 1 else "none",
        chunk_bytes=int(argv[2]) if len(argv) > 2 else 65_536,
    )
    sys.stdout.write(msgspec.json.encode(donor.lease()).decode() + "\n")
    sys.stdout.flush()
    donor.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
