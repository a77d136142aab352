"""Clock, progress, and the bound of one publish."""

from __future__ import annotations

import asyncio

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.messages import QueueEntry, RunHeader
from sparktxlog.runtime.clock import Clock
from sparktxlog.runtime.log.publisher import bounded
from sparktxlog.runtime.reached_position import ReachedPosition
from sparktxlog.storage.interfaces import StoredEntry


def test_the_log_clock_starts_at_the_greater_and_never_falls_or_stands() -> None:
    steady = [7_000_000]
    for floor, wall in ((5_000, 9_000), (9_000, 5_000)):
        clock = Clock(floor, wall=lambda wall=wall: wall, steady_ns=lambda: steady[0])
        assert clock.now() == 9_000
        steady[0] += 2_000_000
        assert clock.now() == 11_000
        assert clock.seconds_until(1_011_000) == 1.0
        assert clock.seconds_until(0) == 0.0


def test_progress_wakes_in_time_and_gives_up_in_time() -> None:
    async def main() -> None:
        progress = ReachedPosition(3)
        assert await progress.reach(2, 1) == 3
        assert await progress.reach(9, 0) == 3
        waits = [asyncio.create_task(progress.reach(goal, 5)) for goal in (6, 4)]
        await asyncio.sleep(0)
        progress.advance(4)
        assert await waits[1] == 4
        assert not waits[0].done()
        progress.advance(2)
        assert progress.value == 4
        assert await progress.reach(9, 0.001) == 4
        progress.release()
        assert await waits[0] == 4

    asyncio.run(main())


def test_a_publish_is_bounded_but_takes_one_run_at_least() -> None:
    def stored(n: int) -> StoredEntry:
        header = RunHeader(
            epoch=1, ts=1, origin=NodeId("A"), incarnation=1, seq=1, n=n, digest=b"", size_bytes=1
        )
        entry = QueueEntry(position=1, header=header, previous_hash=b"", chain_hash=b"")
        return StoredEntry(entry=entry, ids=b"", ordered_at=1)

    assert len(bounded([stored(28_000), stored(2_000), stored(1)])) == 2
    assert len(bounded([stored(30_001), stored(1)])) == 1
    assert bounded([]) == []
