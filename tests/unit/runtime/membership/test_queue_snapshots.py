"""A snapshot goes to a node that joins part by part, and on behind a cut (P21)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.codec.wire import SnapshotOffer
from sparktxlog.errors import NotFoundError, RemoteProtocolError, TransportError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.runtime.membership import queue_snapshots as snapshots
from sparktxlog.runtime.membership.queue_snapshots import SnapshotGiver, SnapshotTaker
from sparktxlog.storage.interfaces import IdPieces, QueueSnapshot, StoredEntry
from sparktxlog.storage.journal.snapshot_files import open_snapshot, write_snapshot

PIECE = bytes(range(256)) * 64


def snapshot_at(position: int, pieces: int = 8) -> QueueSnapshot:
    header = RunHeader(
        epoch=1, ts=1, origin=NodeId("A"), incarnation=1, seq=1, n=1, digest=bytes(32), size_bytes=1
    )
    entry = QueueEntry(
        position=position, header=header, previous_hash=bytes(32), chain_hash=b"h" * 32
    )
    return QueueSnapshot(
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
        self.snapshot = snapshot_at(9)
        self.asked: list[int] = []
        #: The link breaks at this offset; 0 = never.
        self.breaks_at = 0
        self.restart()

    def restart(self) -> None:
        base: Any = SimpleNamespace(
            config=SimpleNamespace(data_dir=self.directory / "giver"),
            journal=self,
            published=self.published,
            run_blocking=lambda work, *args: asyncio.ensure_future(asyncio.to_thread(work, *args)),
        )
        self.giver = SnapshotGiver(base)

    def read_snapshot(self) -> QueueSnapshot:
        return self.snapshot

    async def get_snapshot(self) -> bytes:
        return await self.giver.whole()

    async def snapshot_offer(self, has: str) -> SnapshotOffer:
        self.published.value = self.snapshot.position
        return await self.giver.offer(has)

    async def snapshot_part(self, name: str, offset: int) -> bytes:
        if self.breaks_at and offset >= self.breaks_at:
            raise TransportError("the link broke")
        self.asked.append(offset)
        return await self.giver.part(name, offset)

    async def take(self) -> QueueSnapshot:
        link: Any = self
        return await SnapshotTaker(self.directory / "taker").take(link)


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    monkeypatch.setattr(snapshots, "PART_BYTES", 20_000)
    return Way(tmp_path)


def told(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))  # type: ignore[arg-type]


def same(one: QueueSnapshot, other: QueueSnapshot) -> bool:
    ids = tuple(one.recent_ids) == tuple(other.recent_ids)
    return ids and replace(one, recent_ids=()) == replace(other, recent_ids=())


def test_what_came_before_a_cut_is_not_asked_for_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        assert way.asked == [0, 20_000, 40_000]
        way.breaks_at, way.snapshot = 0, snapshot_at(99)
        way.asked.clear()
        taken = await way.take()  # a new process of the taker; the giver has published more
        assert way.asked == [60_000, 80_000, 100_000, 120_000]
        assert same(taken, snapshot_at(9))

    told(scenario)


def test_a_snapshot_that_is_another_one_begins_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        way.breaks_at, way.snapshot = 0, snapshot_at(99)
        way.restart()
        way.asked.clear()
        assert same(await way.take(), snapshot_at(99))
        assert way.asked[0] == 0
        assert len(list((way.directory / "giver" / "snapshots").iterdir())) == 1, (
            "what was left went"
        )
        assert len(list((way.directory / "taker").iterdir())) == 1

    told(scenario)


def test_what_is_not_what_was_offered_is_refused_and_begins_again(way: Way) -> None:
    async def scenario() -> None:
        way.breaks_at = 60_000
        with pytest.raises(TransportError):
            await way.take()
        (part,) = (way.directory / "taker").iterdir()
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        way.breaks_at = 0
        with pytest.raises(RemoteProtocolError, match="offered"):
            await way.take()
        way.asked.clear()
        assert same(await way.take(), snapshot_at(9))
        assert way.asked[0] == 0

    told(scenario)


def test_a_giver_keeps_few_and_makes_none_twice(way: Way) -> None:
    async def scenario() -> None:
        first = await way.snapshot_offer("any")
        assert await way.snapshot_offer("any") == first
        for position in range(20, 24):
            way.snapshot = snapshot_at(position)
            await way.snapshot_offer("any")
        with pytest.raises(NotFoundError):
            await way.giver.part(first.name, 0)
        assert len(list((way.directory / "giver" / "snapshots").iterdir())) == 4

    told(scenario)


def test_a_file_that_is_torn_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_snapshot(snapshot_at(9), path)
    assert same(open_snapshot(path), snapshot_at(9))
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-5], whole[:9], b"", b"\xff" * 50, whole + b"\0\0\0\0"):
        path.write_bytes(data)
        with pytest.raises(RemoteProtocolError):
            open_snapshot(path)
