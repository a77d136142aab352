"""Transfers of queue snapshots, in parts, to a node that joins (protocol P21).

The giver writes a snapshot to a file, and keeps the file while somebody fetches it.  The taker
keeps the parts that it has, and goes on after them when the link broke or it restarted.  If the
giver does not have that snapshot any more, the transfer begins again with another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from sparktxlog.codec.wire import SnapshotOffer
from sparktxlog.errors import NotFoundError, RemoteProtocolError, StorageError
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import QueueSnapshot
from sparktxlog.storage.journal.snapshot_files import open_snapshot, write_snapshot
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.joining")

#: Bytes of one part.
PART_BYTES = 1 << 20
#: A snapshot that nobody fetched for so long is removed, seconds.
_IDLE_S = 600.0
#: Most files of a giver; the one that was not used for longest is removed.
_MOST_FILES = 4
#: Seconds between two log lines about a transfer.
_TOLD_S = 10.0


@dataclass(slots=True)
class _Given:
    offer: SnapshotOffer
    path: Path
    asked_at: float


class SnapshotGiver:
    """Snapshots that others fetch; the first one removes files of an earlier process."""

    def __init__(self, base: Foundation) -> None:
        self._directory = base.config.data_dir / "snapshots"
        self._journal = base.journal
        self._published = base.published
        self._run_blocking = base.run_blocking
        self._given: dict[str, _Given] = {}
        self._making = asyncio.Lock()

    async def offer(self, name: str) -> SnapshotOffer:
        """Offer the snapshot of which a node has a part, or else one at the published end (P21).

        Args:
            name: Of the snapshot that the node has a part of; empty = none.

        Raises:
            ExpiredError: There is none at the moment (definite).
            StorageError: The disk failed.
        """
        position = self._published.value
        async with self._making:
            known = self._given.get(name) or next(
                (given for given in self._given.values() if given.offer.position == position), None
            )
            if known is None:
                made: _Given = await self._run_blocking(self._make)
                known = self._given[made.offer.name] = made
            known.asked_at = time.monotonic()
            await self._run_blocking(self._remove_old)
            return known.offer

    async def part(self, name: str, offset: int) -> bytes:
        """Return the bytes of a snapshot from an offset on, a bounded number of them.

        Raises:
            NotFoundError: It was removed: ask for a new offer (definite).
            StorageError: The disk failed.
        """
        given = self._given.get(name)
        if given is None:
            raise NotFoundError("no such snapshot is held here any more")
        given.asked_at = time.monotonic()
        part: bytes = await self._run_blocking(_read, given.path, offset)
        return part

    def _make(self) -> _Given:
        snapshot = self._journal.read_snapshot()
        try:
            if not self._given:
                self._directory.mkdir(exist_ok=True)
                for left in self._directory.glob("*.given"):
                    left.unlink()
            path = self._directory / f"{snapshot.position}-{time.monotonic_ns()}.given"
            write_snapshot(snapshot, path)
            name, size = _digest(path), path.stat().st_size
        except OSError as error:
            raise StorageError(f"a snapshot cannot be written: {error}") from error
        offer = SnapshotOffer(name=name, position=snapshot.position, size_bytes=size)
        return _Given(offer, path, time.monotonic())

    def _remove_old(self) -> None:
        by_age = sorted(self._given.values(), key=lambda given: -given.asked_at)
        for number, given in enumerate(by_age):
            if number >= _MOST_FILES or given.asked_at < time.monotonic() - _IDLE_S:
                del self._given[given.offer.name]
                given.path.unlink(missing_ok=True)


class SnapshotTaker:
    """Fetches a snapshot into a file.

    Args:
        directory: Of the file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Giver, fetched bytes, and all bytes; None = no transfer.
        self.progress: tuple[str, int, int] | None = None

    async def take(self, link: PeerLink) -> QueueSnapshot:
        """Fetch a peer's snapshot; its ids stay in the file, until `drop`.

        Raises:
            TransportError: The peer cannot be reached; the fetched parts are kept.
            RemoteProtocolError: The answer is no snapshot (definite).
            StorageError: The disk failed.
        """
        try:
            return await self._take(link)
        except OSError as error:
            raise StorageError(f"a snapshot cannot be kept: {error}") from error
        finally:
            self.progress = None

    async def _take(self, link: PeerLink) -> QueueSnapshot:
        part = await asyncio.to_thread(self._find)
        offer = await link.snapshot_offer("" if part is None else part.stem)
        path = self._directory / f"{_checked(offer).name}.part"
        here = 0
        if part is not None and part != path:
            _log.warning("the peer offers another snapshot: it begins again", peer=link.node_id)
        elif part is not None:
            here = part.stat().st_size
            _log.info("the snapshot goes on", peer=link.node_id, bytes=here, of=offer.size_bytes)
        told = time.monotonic()
        if part != path:
            await asyncio.to_thread(self.drop)
        while here < offer.size_bytes:
            self.progress = (link.node_id, here, offer.size_bytes)
            if time.monotonic() > told + _TOLD_S:
                told = time.monotonic()
                _log.info("snapshot", peer=link.node_id, bytes=here, of=offer.size_bytes)
            data = await link.snapshot_part(offer.name, here)
            if not data:
                break
            await asyncio.to_thread(_append, path, data)
            here += len(data)
        return await asyncio.to_thread(_open, path, offer)

    def _find(self) -> Path | None:
        self._directory.mkdir(exist_ok=True)
        return next(iter(sorted(self._directory.glob("*.part"))), None)

    def drop(self) -> None:
        """Remove the fetched parts; blocks."""
        for path in self._directory.glob("*.part"):
            path.unlink()


def _checked(offer: SnapshotOffer) -> SnapshotOffer:
    if len(offer.name) != 64 or not offer.name.isalnum() or not offer.name.isascii():
        raise RemoteProtocolError(f"{offer.name[:80]!r} is no name of a snapshot")
    return offer


def _open(path: Path, offer: SnapshotOffer) -> QueueSnapshot:
    """Return the snapshot in a complete file; remove a file that is not the offered one."""
    if not path.exists() or _digest(path) != offer.name:
        path.unlink(missing_ok=True)
        raise RemoteProtocolError("the fetched snapshot is not the offered one")
    return open_snapshot(path)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PART_BYTES)
    except OSError as error:
        raise StorageError(f"a snapshot cannot be read: {error}") from error


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
