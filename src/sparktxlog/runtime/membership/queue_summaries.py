"""Transfers of queue summaries to a node that joins (protocol P21).

The giver writes a summary to a file, and keeps the file while somebody fetches it.  The taker
keeps what came, and goes on after that when the link broke or it restarted.  If the giver does
not have that summary any more, the transfer begins again with another one.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from sparktxlog.codec.wire import SummaryOffer
from sparktxlog.errors import (
    ManifestMismatchError,
    NotFoundError,
    RemoteProtocolError,
    StorageError,
    TransportError,
)
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.foreign_files import ForeignFile, digest_of
from sparktxlog.files.sending import Outgoing
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import QueueSummary
from sparktxlog.storage.journal.summary_files import open_summary, write_summary
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.joining")

#: A summary that nobody fetched for so long is removed, seconds.
_IDLE_S = 600.0
#: Most files of a giver; the one that was not used for longest is removed.
_MOST_FILES = 4


@dataclass(slots=True)
class _Given:
    offer: SummaryOffer
    path: Path
    used_at: float

    def use(self, size: int = 0) -> None:
        """Note that somebody fetches it."""
        self.used_at = time.monotonic()


class SummaryGiver:
    """Summaries that others fetch; the first one removes files of an earlier process."""

    def __init__(self, base: Foundation) -> None:
        self._directory = base.config.data_dir / "summaries"
        self._journal = base.journal
        self._published = base.published
        self._run_blocking = base.run_blocking
        self._given: dict[str, _Given] = {}
        self._making = asyncio.Lock()

    async def offer(self, name: str) -> SummaryOffer:
        """Offer the summary of which a node has a part, or else one at the published end (P21).

        Args:
            name: Of the summary that the node has a part of; others = any.

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
            known.use()
            await self._run_blocking(self._remove_old)
            return known.offer

    async def outgoing(self, file: StagedFile) -> Outgoing:
        """Return a summary that was offered, by its digest.

        Raises:
            NotFoundError: It was removed: ask for a new offer (definite).
        """
        given = self._given.get(file.digest)
        if given is None:
            raise NotFoundError("no such summary of the queue is held here any more")
        given.use()
        return Outgoing(
            file=ForeignFile(str(self._directory), given.path.name),
            size_bytes=given.offer.size_bytes,
            run=self._run_blocking,
            sent=given.use,
        )

    def _make(self) -> _Given:
        summary = self._journal.read_summary()
        try:
            if not self._given:
                self._directory.mkdir(exist_ok=True)
                for left in self._directory.glob("*.given"):
                    left.unlink()
            path = self._directory / f"{summary.position}-{time.monotonic_ns()}.given"
            write_summary(summary, path)
            with path.open("rb") as content:
                name, size = digest_of(content, path), content.tell()
        except OSError as error:
            raise StorageError(f"a summary cannot be written: {error}") from error
        offer = SummaryOffer(name=name, position=summary.position, size_bytes=size)
        return _Given(offer, path, time.monotonic())

    def _remove_old(self) -> None:
        by_age = sorted(self._given.values(), key=lambda given: -given.used_at)
        for number, given in enumerate(by_age):
            if number >= _MOST_FILES or given.used_at < time.monotonic() - _IDLE_S:
                del self._given[given.offer.name]
                given.path.unlink(missing_ok=True)


class SummaryTaker:
    """Fetches a summary into a directory of its name."""

    def __init__(self, base: Foundation) -> None:
        self._directory = base.config.data_dir / "summaries"
        self._fetchers, self._ending = base.fetchers, base.ending
        #: Giver, fetched bytes, and all bytes; None = no transfer.
        self.progress: tuple[str, int, int] | None = None

    async def take(self, link: PeerLink) -> QueueSummary:
        """Fetch a peer's summary; its ids stay in the file, until `drop`.

        Raises:
            TransportError, UnauthorizedError: The peer cannot be reached; what came is kept.
            RemoteProtocolError: The answer is no summary (definite).
            StorageError: The disk failed.
        """
        try:
            return await self._take(link)
        except ManifestMismatchError as error:
            raise RemoteProtocolError("the fetched summary is not the offered one") from error
        except OSError as error:
            raise StorageError(f"a summary cannot be kept: {error}") from error
        finally:
            self.progress = None

    async def _take(self, link: PeerLink) -> QueueSummary:
        begun = await asyncio.to_thread(self._begun)
        offer = await link.summary_offer(begun)
        name, size = _checked(offer).name, offer.size_bytes
        if begun and begun != name:
            _log.warning("the peer offers another summary: it begins again", peer=link.node_id)
            await asyncio.to_thread(self.drop)
        file = StagedFile(path="summary", size_bytes=size, rows=0, digest=name)

        def sent(offset: int) -> Iterator[bytes]:
            _log.info("a queue summary is fetched", peer=link.node_id, bytes=offset, of=size)
            for block in link.stream(file, offset, f"summaries/{name}"):
                if self._ending.is_set():
                    raise TransportError("the node stops")
                offset += len(block)
                self.progress = (link.node_id, offset, size)
                yield block

        def fetched() -> Path:
            place = Arrivals(self._directory / name)
            place.fetch(file, sent)
            return Path(place.path(file.path))

        path = await self._fetchers.run(self._directory, fetched)
        # It reads all ids, which may take longer than a disk may be silent.
        return await asyncio.to_thread(open_summary, path)

    def _begun(self) -> str:
        """Return the name of the summary that is here, perhaps in part; empty = none is."""
        return next((one.name for one in sorted(self._directory.glob("*/"))), "")

    def drop(self) -> None:
        """Remove what was fetched; blocks."""
        for path in self._directory.glob("*/"):
            shutil.rmtree(path)


def _checked(offer: SummaryOffer) -> SummaryOffer:
    if len(offer.name) != 64 or not offer.name.isalnum() or not offer.name.isascii():
        raise RemoteProtocolError(f"{offer.name[:80]!r} is no name of a summary")
    return offer
