"""A summary goes to a node that joins, and on behind a cut (P21)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from sparktxlog.codec.wire import SummaryOffer
from sparktxlog.errors import NotFoundError, RemoteProtocolError, TransportError
from sparktxlog.files import sending
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.runtime.loop_threads import FileThreads
from sparktxlog.runtime.membership.queue_summaries import SummaryGiver, SummaryTaker
from sparktxlog.storage.interfaces import IdPieces, QueueSummary, StoredEntry
from sparktxlog.storage.journal.summary_files import open_summary, write_summary

T = TypeVar("T")
PIECE = bytes(range(256)) * 64


def summary_at(position: int, pieces: int = 8) -> QueueSummary:
    header = RunHeader(
        epoch=1, ts=1, origin=NodeId("A"), incarnation=1, seq=1, n=1, digest=bytes(32), size_bytes=1
    )
    entry = QueueEntry(
        position=position, header=header, previous_hash=bytes(32), chain_hash=b"h" * 32
    )
    return QueueSummary(
        last=StoredEntry(entry=entry, ids=bytes(16), ordered_at=1),
        watermarks={"A": position},
        recent_ids=IdPieces(lambda: ((1 + 1_024 * at, PIECE) for at in range(pieces))),
    )


class Way:
    """A giver, and the link to it."""

    node_id = "A"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "giver").mkdir()
        self.published = SimpleNamespace(value=0)
        self.summary = summary_at(9)
        self.asked: list[int] = []
        #: The link breaks at this offset; 0 = never.
        self.breaks_at = 0

    def restart(self) -> None:
        base: Any = SimpleNamespace(
            config=SimpleNamespace(data_dir=self.directory / "giver"),
            journal=self,
            published=self.published,
            run_blocking=lambda work, *args: asyncio.ensure_future(asyncio.to_thread(work, *args)),
        )
        self.loop = asyncio.get_running_loop()
        self.giver = SummaryGiver(base)

    def read_summary(self) -> QueueSummary:
        return self.summary

    async def summary_offer(self, has: str) -> SummaryOffer:
        self.published.value = self.summary.position
        return await self.giver.offer(has)

    def stream(self, file: StagedFile, offset: int, source: str) -> Iterator[bytes]:
        assert source == f"summaries/{file.digest}"
        self.asked.append(offset)

        def on_loop(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()

        async def next_piece() -> bytes:
            return await anext(pieces, b"")

        outgoing = on_loop(self.giver.outgoing(file))
        content = on_loop(outgoing.opened())
        assert content is not None
        pieces = outgoing.pieces(content, offset)
        while piece := on_loop(next_piece()):
            if self.breaks_at and offset >= self.breaks_at:
                raise TransportError("the link broke")
            offset += len(piece)
            yield piece

    async def take(self) -> QueueSummary:
        link: Any = self
        base: Any = SimpleNamespace(
            config=SimpleNamespace(data_dir=self.directory / "taker"),
            fetchers=FileThreads(1, "fetching"),
            ending=asyncio.Event(),
        )
        return await SummaryTaker(base).take(link)

    @property
    def came(self) -> list[Path]:
        """Files that the taker has, perhaps in part."""
        found = (self.directory / "taker" / "summaries").rglob("*")
        return [path for path in found if path.is_file()]


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    monkeypatch.setattr(sending, "_PIECE_BYTES", 20_000)
    return Way(tmp_path)


def told(way: Way, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        way.restart()
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


def same(one: QueueSummary, other: QueueSummary) -> bool:
    ids = tuple(one.recent_ids) == tuple(other.recent_ids)
    return ids and replace(one, recent_ids=()) == replace(other, recent_ids=())


def test_what_came_before_a_cut_is_not_asked_for_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        assert [path.stat().st_size for path in way.came] == [60_000]
        way.breaks_at, way.summary = 0, summary_at(99)
        way.asked.clear()
        taken = await way.take()  # a new process of the taker; the giver has published more
        assert way.asked == [60_000]
        assert same(taken, summary_at(9))

    told(way, scenario)


def test_a_summary_that_is_another_one_begins_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        way.breaks_at, way.summary = 0, summary_at(99)
        way.restart()
        way.asked.clear()
        assert same(await way.take(), summary_at(99))
        assert way.asked[0] == 0
        assert len(list((way.directory / "giver" / "summaries").iterdir())) == 1, (
            "what was left went"
        )
        assert len(way.came) == 1

    told(way, scenario)


def test_what_is_not_what_was_offered_is_refused_and_begins_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        (part,) = way.came
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        way.breaks_at = 0
        with pytest.raises(RemoteProtocolError, match="offered"):
            await way.take()
        way.asked.clear()
        assert same(await way.take(), summary_at(9))
        assert way.asked[0] == 0

    told(way, scenario)


def test_a_giver_keeps_few_and_makes_none_twice(way: Way) -> None:
    async def scenario() -> None:
        first = await way.summary_offer("any")
        assert await way.summary_offer("any") == first
        for position in range(20, 24):
            way.summary = summary_at(position)
            await way.summary_offer("any")
        with pytest.raises(NotFoundError):
            await way.giver.outgoing(
                StagedFile(path="", size_bytes=first.size_bytes, rows=0, digest=first.name)
            )
        assert len(list((way.directory / "giver" / "summaries").iterdir())) == 4

    told(way, scenario)


def test_a_file_that_is_torn_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_summary(summary_at(9), path)
    assert same(open_summary(path), summary_at(9))
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-5], whole[:9], b"", b"\xff" * 50, whole + b"\0\0\0\0"):
        path.write_bytes(data)
        with pytest.raises(RemoteProtocolError):
            open_summary(path)
