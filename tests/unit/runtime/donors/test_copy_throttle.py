"""Turns of chunks: free without transactions, a share of the time with them, never none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sparktxlog.errors import DonorYieldsError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.commit import receipts as receipts_module
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.donors import copy_throttle as module
from sparktxlog.runtime.donors.copy_throttle import (
    AT_ONCE,
    LONGEST_PAUSE_S,
    LONGEST_TURN_S,
    QUIET_S,
    RECENT_S,
    CopyThrottle,
    Turn,
)

HEADER = RunHeader(
    epoch=1, ts=5, origin=NodeId("A"), incarnation=1, seq=1, n=1, digest=b"d" * 32, size_bytes=1
)


class _Timer:
    def __init__(self, at: float, run: Callable[[], None]) -> None:
        self.at, self.run, self.cancelled = at, run, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """Turns under a clock that only `pass_s` moves."""

    def __init__(self, share: float = 0.1) -> None:
        self.now = 100.0
        self.timers: list[_Timer] = []
        self.turns = CopyThrottle(share, clock=lambda: self.now, later=self._later)  # type: ignore[arg-type]

    def _later(self, seconds: float, run: Callable[[], None]) -> _Timer:
        self.timers.append(_Timer(self.now + seconds, run))
        return self.timers[-1]

    async def pass_s(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [t for t in self.timers if not t.cancelled and t.at <= end]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.run()
            await settle()
        self.now = end
        await settle()

    async def pass_timer(self) -> float:
        """Go to the moment of the first timer; return the seconds until there."""
        seconds = min(timer.at for timer in self.timers if not timer.cancelled) - self.now
        await self.pass_s(seconds)
        return seconds

    def ask(self) -> asyncio.Task[Turn]:
        return asyncio.get_running_loop().create_task(self.turns.take())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(bounded())


def test_without_transactions_all_go_at_once() -> None:
    async def main() -> None:
        world = World()
        taken = [await world.turns.take() for _ in range(AT_ONCE)]
        task = world.ask()
        await world.pass_s(4.0)
        assert not task.done()
        for turn in taken:
            turn.end()
        await settle()
        assert task.done()

    run(main)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_with_transactions_copies_get_their_share_in_the_order_they_asked(share: float) -> None:
    async def main() -> None:
        world = World(share)
        world.turns.busy(True)
        asked = [world.ask() for _ in range(3)]
        await settle()
        for number, task in enumerate(asked):
            assert [task.done() for task in asked] == [at <= number for at in range(3)]
            await world.pass_s(0.4)
            task.result().end()
            task.result().end()
            await settle()
            if number < 2:
                assert await world.pass_timer() == pytest.approx(0.4 * (1 / share - 1))

    run(main)


def test_turns_that_began_together_are_one_load() -> None:
    async def main() -> None:
        world = World()
        taken = [await world.turns.take() for _ in range(AT_ONCE)]
        world.turns.busy(True)
        task = world.ask()
        await world.pass_s(1.0)
        for turn in taken:
            assert not task.done()
            turn.end()
            await settle()
        await world.pass_s(8.9)
        assert not task.done()
        await world.pass_s(0.2)
        assert task.done()

    run(main)


def test_when_transactions_are_through_all_go_on_after_a_moment() -> None:
    async def main() -> None:
        world = World()
        world.turns.busy(True)
        (await world.turns.take()).end()
        first = await world.turns.take()
        asked = [world.ask() for _ in range(3)]
        await world.pass_s(5.0)
        first.end()
        world.turns.busy(False)
        await world.pass_s(QUIET_S / 2)
        # A writer that sends one after the other is not through between two of them.
        world.turns.busy(True)
        await world.pass_s(QUIET_S * 2)
        world.turns.busy(False)
        assert not any(task.done() for task in asked)
        await world.pass_s(QUIET_S * 1.01)
        assert [task.done() for task in asked] == [True, False, False]
        # Turns overlap again when no transactions were for a while.
        await world.pass_s(RECENT_S)
        asked[0].result().end()
        await settle()
        assert all(task.done() for task in asked)

    run(main)


def test_a_pause_is_bounded_and_a_share_of_one_yields_never() -> None:
    async def main() -> None:
        world = World(0.01)
        world.turns.busy(True)
        turn = await world.turns.take()
        await world.pass_s(50.0)
        turn.end()
        task = world.ask()
        await world.pass_s(LONGEST_PAUSE_S - 1)
        assert not task.done()
        await world.pass_s(1.1)
        assert task.done()

        world = World(1.0)
        world.turns.busy(True)
        assert [await world.turns.take() for _ in range(AT_ONCE)]

    run(main)


def test_a_target_that_takes_no_bytes_holds_up_nobody() -> None:
    async def main() -> None:
        world = World()
        stuck = [await world.turns.take() for _ in range(AT_ONCE)]
        task = world.ask()
        await world.pass_s(LONGEST_TURN_S - 1)
        assert not task.done()
        await world.pass_s(2.0)
        assert task.done()
        stuck[0].end()
        assert [await world.turns.take() for _ in range(AT_ONCE - 1)]

    run(main)


def test_who_waits_for_long_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.02)

    async def main() -> None:
        world = World()
        world.turns.busy(True)
        turn = await world.turns.take()
        with pytest.raises(DonorYieldsError):
            await world.turns.take()
        gone = world.ask()
        await settle()
        gone.cancel()
        await settle()
        turn.end()
        await world.pass_s(0.0)
        await world.turns.take()  # those who went away hold no turn

    run(main)


def test_a_turn_given_to_somebody_who_just_went_away_is_not_lost() -> None:
    async def main() -> None:
        world = World()
        world.turns.busy(True)
        turn = await world.turns.take()
        task = world.ask()
        await settle()
        turn.end()
        task.cancel()
        await settle()
        assert task.cancelled()
        await world.turns.take()

    run(main)


def test_transactions_are_under_way_until_they_are_ordered_or_a_member_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts_module, "ORDERING_S", 0.02)
    told: list[bool] = []

    async def main() -> None:
        receipts = Receipts(lambda copies: 0, told.append)
        receipts.open(1, bytes(16), singles=True)
        receipts.open(2, bytes(range(16)), singles=True)
        receipts.rejected(1, "busy", "")
        assert told == [True]
        receipts.rejected(2, "busy", "")
        receipts.rejected(2, "busy", "")
        assert told == [True, False]
        receipts.open(3, bytes(range(16)), singles=True)
        receipts.accepted(3, HEADER)
        receipts.acquired(HEADER)
        assert told == [True, False, True]
        while len(told) < 4:
            await asyncio.sleep(0.005)

    run(main)
