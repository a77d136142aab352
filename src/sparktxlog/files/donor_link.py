"""One kept-alive connection to a donor, with the lease's token: chunks, digests, the lease.

Bytes go from the socket into the caller's buffer; a compressed chunk needs one more buffer.  So a
donor cannot make this side hold more than two chunks.

A donor that is silent for `silence_s` is given up even if its socket is open.  To notice one that
is too slow, another thread must check `overdue`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import zstandard

from sparktxlog.codec.problems import error_of
from sparktxlog.errors import (
    DamagedChunkError,
    DonorYieldsError,
    FileChangedError,
    LeaseGoneError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.files.tasks import DIGEST_CHARS, FileKey, FileTask, chunk_count, split_digests
from sparktxlog.http.link import node_address
from sparktxlog.http.node_connection import NodeConnection, Reply
from sparktxlog.model.copying import CHUNK_DIGEST_HEADER, Lease
from sparktxlog.supervision import foreseen

_logger = logging.getLogger(__name__)

#: Seconds of a donor's silence after which it is given up.
SILENCE_S = 30.0
#: Lowest useful rate of a donor, bytes per second.
SLOWEST_BYTES_PER_S = 32 << 10
#: Seconds that a donor may delay a chunk for its own transactions; it answers meanwhile.
YIELDING_S = 1_800.0
#: Lowest rate at which a donor hashes its files, bytes per second.
SLOWEST_HASH_BYTES_PER_S = 20 << 20
#: Most files in one request for digests, and their bytes if it is more than one file.
MAX_DIGESTS = 1_000
_DIGEST_BYTES = 256 << 20
_MAX_REPLY_BYTES = 1 << 20
#: zstd's window grows with the chunk; no donor makes a chunk that needs more.
_MAX_WINDOW_BYTES = 1 << 28


class _Digests(msgspec.Struct):
    digests: list[str]


class DonorLink(NodeConnection):
    """A connection to a donor under one lease.  Used by one thread; `abort` and `overdue` by any.

    Args:
        lease: The lease; its file lists are not used.
        silence_s: Longest silence of the donor, seconds.
    """

    def __init__(self, lease: Lease, *, silence_s: float = SILENCE_S) -> None:
        late = f"sends less than {SLOWEST_BYTES_PER_S:,} bytes/s"
        super().__init__(node_address(lease.url), late=late, node_id=lease.node_id)
        self._lease = lease
        self._patience_s = silence_s
        self._base = f"/replica/v1/leases/{quote(lease.lease_id, safe='')}"
        self._headers = {"Authorization": f"Bearer {lease.token}", "Accept-Encoding": "zstd"}
        self._packed: memoryview | None = None
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)

    # -- chunks ------------------------------------------------------------------------------------

    def fetch(self, table: str, path: str, offset: int, into: memoryview) -> int:
        """Fetch a chunk that fills the buffer; if its digest is wrong it is fetched again, once.

        Returns:
            Bytes as sent, of both attempts.

        Args:
            offset: A multiple of the lease's chunk size.
            into: As long as the chunk; its content means nothing after an error.

        Raises:
            UnauthorizedError: The token is not the lease's (definite).
            LeaseGoneError: The lease has expired (definite).
            FileChangedError: The donor no longer has this file (definite).
            DamagedChunkError: The digest was wrong twice in a row.
            TransportError: Any other failure: broken, silent, not understood.
        """
        query = urlencode({"table": table, "path": path, "offset": offset, "length": len(into)})
        wire, why = 0, ""
        for _ in range(2):
            took, why = self._fetch_once(f"{self._base}/chunks?{query}", into)
            wire += took
            if not why:
                return wire
        raise DamagedChunkError(
            f"{self._lease.url} sent {path} from byte {offset:,} on damaged, twice: {why}",
            hint="Copy from another site, and look at the disk and memory of this one.",
            table=table,
            path=path,
            offset=offset,
            node_id=self._lease.node_id,
        )

    def _fetch_once(self, target: str, into: memoryview) -> tuple[int, str]:
        """Return bytes received, and what is wrong with them, empty if nothing is."""
        reply = self._chunk(target, self._patience_s + len(into) / SLOWEST_BYTES_PER_S)
        coding = reply.headers.get("Content-Encoding", "")
        size = -1 if reply.size is None else reply.size
        expected = reply.headers.get(CHUNK_DIGEST_HEADER, "")
        compressed = coding == "zstd"
        if coding and not compressed:
            raise self._refused(f"sent a chunk as {coding[:20]!r}, expected 'zstd' or none")
        if not 0 <= size <= len(into):
            raise self._refused(f"sent {size:,} bytes for a chunk of {len(into):,}")
        body = self._buffer(size) if compressed else into[:size]
        reply.fill(body)
        if compressed:
            try:
                size_plain = _inflate(self._decompressor, body, into)
            except zstandard.ZstdError as error:
                return size, f"zstd: {error}"
        else:
            size_plain = size
        if size_plain != len(into):
            return size, f"{size_plain:,} bytes instead of {len(into):,}"
        digest = hashlib.sha256(into).hexdigest()
        if digest != expected:
            return size, f"SHA-256 is {digest}, the donor says {expected[:64]!r}"
        return size, ""

    def _chunk(self, target: str, total_s: float) -> Reply:
        """Ask for a chunk until the donor serves it: its own transactions go first."""
        until = time.monotonic() + YIELDING_S
        while True:
            try:
                return self._begin("GET", target, None, self._patience_s, total_s)
            except DonorYieldsError:
                if time.monotonic() > until:
                    raise

    def _buffer(self, size: int) -> memoryview:
        if self._packed is None or len(self._packed) < size:
            self._packed = memoryview(bytearray(max(size, self._lease.chunk_bytes)))
        return self._packed[:size]

    # -- digests and the lease ---------------------------------------------------------------------

    def digests(self, tasks: Sequence[FileTask]) -> dict[FileKey, list[str]]:
        """Return the SHA-256 of each chunk of some files, hexadecimal.

        Raises:
            UnauthorizedError, LeaseGoneError, FileChangedError, TransportError: As `fetch`.
        """
        found: dict[FileKey, list[str]] = {}
        for batch in digest_batches(tasks):
            keys = [task.key for task in batch]
            size_bytes = sum(task.size_bytes for task in batch)
            # The donor may have to read them.
            silence_s = self._patience_s + size_bytes / SLOWEST_HASH_BYTES_PER_S
            body = msgspec.json.encode({"files": keys})
            chunks = [chunk_count(task.size_bytes, self._lease.chunk_bytes) for task in batch]
            most = _MAX_REPLY_BYTES + DIGEST_CHARS * sum(chunks)
            data = self._begin("POST", f"{self._base}/digests", body, silence_s).read(most)
            try:
                theirs = msgspec.json.decode(data, type=_Digests).digests
            except msgspec.MsgspecError as error:
                raise self._refused(f"answered no digests: {error}") from error
            if [len(text) for text in theirs] != [DIGEST_CHARS * count for count in chunks]:
                raise self._refused(f"answered other digests than those of {len(keys)} files")
            for key, text in zip(keys, theirs, strict=True):
                found[key] = split_digests(text)
        return found

    def renew(self) -> None:
        """Keep the lease for another `lease_s`.  Errors as `fetch`."""
        self._begin("POST", f"{self._base}/renew", b"", self._patience_s).read(_MAX_REPLY_BYTES)

    def release(self) -> None:
        """Release the lease; the donor removes its pins.  Errors as `fetch`."""
        self._begin("DELETE", self._base, None, self._patience_s).read(_MAX_REPLY_BYTES)

    def _begin(
        self, method: str, target: str, body: bytes | None, silence_s: float, total_s: float = 0.0
    ) -> Reply:
        """Send a request and return its answer, of status 200 or 204, with the body unread."""
        limits = {"silence_s": silence_s, "total_s": max(silence_s, total_s)}
        reply = self.request(method, target, self._headers, body, **limits)
        if reply.status not in (200, 204):
            with closing(self):
                raise self._refusal(reply, method, target)
        return reply

    def _refused(self, what: str) -> TransportError:
        # The rest of the body would be read as the next answer.
        self.close()
        return TransportError(f"{self._lease.url} {what}", node_id=self._lease.node_id)

    def _refusal(self, reply: Reply, method: str, target: str) -> TxLogError:
        url, status = self._lease.url, reply.status
        found = error_of(reply.read(_MAX_REPLY_BYTES), status, url)
        what = f"{url} answered {status} to {method} {target[:300]}: {found.message}"
        fields: dict[str, Any] = {"node_id": self._lease.node_id, "status": status}
        if status in (401, 403):
            return UnauthorizedError(what, hint="Ask the own node for a new ticket.", **fields)
        if status == 404 or isinstance(found, FileChangedError):
            return FileChangedError(what, hint="Ask the own node for a new ticket.", **fields)
        if isinstance(found, DonorYieldsError):
            return DonorYieldsError(what, **fields)
        if status == 410:
            return LeaseGoneError(what, hint="Ask the own node for a new ticket.", **fields)
        return TransportError(what, **fields)


def _inflate(decompressor: zstandard.ZstdDecompressor, packed: memoryview, into: memoryview) -> int:
    """Decompress into the buffer; return the length, which is more than the buffer's if the
    content did not fit: then the rest was not decompressed.
    """
    # `decompress(max_output_size=…)` trusts the size that the frame declares; a stream does not.
    with decompressor.stream_reader(packed) as reader:
        done = 0
        while done < len(into):
            count = reader.readinto(into[done:])
            if not count:
                return done
            done += count
        return done + len(reader.read(1))


def digest_batches(tasks: Sequence[FileTask]) -> Iterator[list[FileTask]]:
    """Yield files in groups whose digests one request may ask for."""
    batch: list[FileTask] = []
    size = 0
    for task in tasks:
        if batch and (len(batch) == MAX_DIGESTS or size + task.size_bytes > _DIGEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += task.size_bytes
    if batch:
        yield batch


#: How often a lease is renewed within its duration.
_RENEWALS = 3
#: Longest silence of a donor at the release of its lease, seconds.
_RELEASE_S = 5.0


class LeaseKeeper:
    """Renews the lease of a copy until `release`, because other work may take long."""

    def __init__(self, lease: Lease) -> None:
        self._over = threading.Event()
        self._lease = lease
        self._link = DonorLink(lease)
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lease; if that fails, it will expire."""
        self._over.set()
        self._link.abort()
        self._thread.join()

    def _keep(self) -> None:
        node_id = self._lease.node_id
        with closing(self._link) as link:
            while not self._over.wait(self._lease.lease_s / _RENEWALS):
                try:
                    link.renew()
                except (LeaseGoneError, UnauthorizedError):
                    # Requests to this donor fail with the same error.
                    return
                except Exception as error:  # noqa: BLE001
                    # It may answer the next time.
                    if not self._over.is_set():
                        _logger.info("lease of %s: %s", node_id, foreseen(error).message)
        with closing(DonorLink(self._lease, silence_s=_RELEASE_S)) as last:
            try:
                last.release()
            except TxLogError as error:
                _logger.info("lease of %s is not given back: %s", node_id, error.message)
