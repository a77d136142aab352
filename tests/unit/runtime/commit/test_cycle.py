"""The cycle tells the core of moments of rest that it waits for (protocol P13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparktxlog.protocol.words.actions import Action
from sparktxlog.protocol.words.events import Event, Rested
from sparktxlog.runtime.commit.cycle import Cycle


class WaitingCore:
    """A core that waits for a moment of rest, until it is told of one."""

    def __init__(self) -> None:
        self.wants_rest = True
        self.view = None
        self.events: list[Event] = []

    def next_deadline(self) -> int | None:
        return None

    def handle_all(self, events: Sequence[Event], now: int, wall: int) -> list[Action]:
        self.events += events
        self.wants_rest = not any(isinstance(event, Rested) for event in events)
        return []


def cycle_of(core: WaitingCore, executor: object) -> Cycle:
    base: Any = SimpleNamespace(
        master=core,
        clock=SimpleNamespace(now=lambda: 0, wall=lambda: 0),
        config=SimpleNamespace(run_limit_transactions=1, run_limit_bytes=1, id_window=1),
        state=SimpleNamespace(core=SimpleNamespace(announcements=()), values={}),
    )
    unused: Any = None
    return Cycle(base, cast(Any, executor), unused, unused)


@pytest.mark.parametrize("hindrance", ["writing", "depth", "publisher"])
def test_the_core_is_told_once_nothing_hinders(hindrance: str) -> None:
    async def main() -> None:
        core, busy = WaitingCore(), {hindrance: True}
        executor = SimpleNamespace(
            writing=hindrance == "writing", depth=int(hindrance == "depth"), put=lambda items: None
        )
        cycle = cycle_of(core, executor)
        follower: Any = SimpleNamespace(is_busy=lambda: "publisher" in busy)
        task = asyncio.create_task(cycle.run(follower))
        for _ in range(5):
            cycle.look_for_rest()
            await asyncio.sleep(0)
        assert core.events == []
        busy.clear()
        executor.writing, executor.depth = False, 0
        for _ in range(5):
            cycle.look_for_rest()
            await asyncio.sleep(0)
        assert core.events == [Rested()]
        task.cancel()

    asyncio.run(main())
