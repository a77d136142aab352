"""Snapshots of a queue on their way to a node that joins, part by part (protocol P21).

The giver writes one to a file and keeps that as long as somebody asks for parts of it; the taker
keeps what it got, and goes on after that when the link broke or it was started again.  A snapshot
that the giver has no more, or that of another giver, begins anew.
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
from sparktxlog.protocol.words.versions import PARTS
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import QueueSnapshot
from sparktxlog.storage.journal.snapshot_files import (
    decode_whole,
    encode_whole,
    open_snapshot,
    write_snapshot,
)
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.joining")

#: Bytes of one part.
PART_BYTES = 1 << 20
#: A snapshot that nobody asked for so long is removed, seconds.
_IDLE_S = 600.0
#: Most files of a giver; the one asked for least lately goes.
_MOST_FILES = 4
#: Seconds between two lines of the log about one that is on its way.
_TOLD_S = 10.0


@dataclass(slots=True)
class _Given:
    offer: SnapshotOffer
    path: Path
    asked_at: float


class SnapshotGiver:
    """Snapshots that others fetch; what an earlier process left is removed with the first one."""

    def __init__(self, base: Foundation) -> None:
        self._directory = base.config.data_dir / "snapshots"
        self._journal = base.journal
        self._published = base.published
        self._run_blocking = base.run_blocking
        self._given: dict[str, _Given] = {}
        self._making = asyncio.Lock()

    async def offer(self, name: str) -> SnapshotOffer:
        """Return what may be fetched: the snapshot of which a node has a part, if it is here still.

        Else it is one at the end of what is published (P21).

        Args:
            name: Of that snapshot; any other text = none.

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
            NotFoundError: It is not here any more: ask for an offer (definite).
            StorageError: The disk failed.
        """
        given = self._given.get(name)
        if given is None:
            raise NotFoundError("no such snapshot is held here any more")
        given.asked_at = time.monotonic()
        part: bytes = await self._run_blocking(_read, given.path, offset)
        return part

    async def whole(self) -> bytes:
        """Return the present snapshot as one message, for nodes that know no parts."""
        read = self._journal.read_snapshot
        data: bytes = await self._run_blocking(lambda: encode_whole(read()))
        return data

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
    """Fetches a snapshot; what came is kept in a file.

    Args:
        directory: Where.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Giver, bytes that are here, and bytes of all; None = nothing is on its way.
        self.progress: tuple[str, int, int] | None = None

    async def take(self, link: PeerLink) -> QueueSnapshot:
        """Return a peer's snapshot; its ids lie in the file, until `drop`.

        Raises:
            TransportError: The peer cannot be reached; what came is kept.
            RemoteProtocolError: What came is no snapshot (definite).
            StorageError: The own disk failed.
        """
        try:
            if link.version < PARTS:
                return decode_whole(await link.get_snapshot())
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
            _log.warning("the snapshot is another one by now: it begins again", peer=link.node_id)
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
        """Remove what came; blocks."""
        for path in self._directory.glob("*.part"):
            path.unlink()


def _checked(offer: SnapshotOffer) -> SnapshotOffer:
    if len(offer.name) != 64 or not offer.name.isalnum() or not offer.name.isascii():
        raise RemoteProtocolError(f"{offer.name[:80]!r} is no name of a snapshot")
    return offer


def _open(path: Path, offer: SnapshotOffer) -> QueueSnapshot:
    """Return the snapshot in a file that is whole; remove one that is not what was offered."""
    if not path.exists() or _digest(path) != offer.name:
        path.unlink(missing_ok=True)
        raise RemoteProtocolError("the snapshot that came is not the one that was offered")
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
