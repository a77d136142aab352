"""Waiting for a position: woken in time, given up in time."""

from __future__ import annotations

import asyncio

from sparktxlog.runtime.reached_position import ReachedPosition


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
