"""Turns of chunks: free without transactions, a share of the time with them, never none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.verification.nodes.virtual import VirtualLoop

from sparktxlog.errors import DonorYieldsError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.commit import receipts as receipts_module
from sparktxlog.runtime.commit.receipts import Receipts
from sparktxlog.runtime.donors.copy_throttle import (
    AT_ONCE,
    HOLD_S,
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


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in virtual time: a sleep takes no time of the machine."""
    loop = VirtualLoop(lambda work: (0.0, 0.0))
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def ask(turns: CopyThrottle) -> asyncio.Task[Turn]:
    """Wait for a turn, as often as it takes."""

    async def insist() -> Turn:
        while True:
            try:
                return await turns.take()
            except DonorYieldsError:
                continue

    return asyncio.get_running_loop().create_task(insist())


def test_without_transactions_all_go_at_once() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        taken = [await turns.take() for _ in range(AT_ONCE)]
        task = ask(turns)
        await asyncio.sleep(4.0)
        assert not task.done()
        taken[0].end()
        await asyncio.sleep(0.001)
        assert task.done()

    run(main)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_with_transactions_copies_get_their_share_in_the_order_they_asked(share: float) -> None:
    async def main() -> None:
        turns = CopyThrottle(share)
        turns.busy(True)
        asked = [ask(turns) for _ in range(3)]
        await asyncio.sleep(0.001)
        for number, task in enumerate(asked):
            assert [task.done() for task in asked] == [at <= number for at in range(3)]
            await asyncio.sleep(0.4)
            turn = task.result()
            took = asyncio.get_running_loop().time() - turn._began
            turn.end()
            turn.end()
            if number < 2:
                pause = took * (1 / share - 1)
                await asyncio.sleep(pause - 0.001)
                assert not asked[number + 1].done()
                await asyncio.sleep(0.002)

    run(main)


def test_turns_that_began_together_are_one_load() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        taken = [await turns.take() for _ in range(AT_ONCE)]
        turns.busy(True)
        task = ask(turns)
        await asyncio.sleep(1.0)
        for turn in taken:
            assert not task.done()
            turn.end()
            await asyncio.sleep(0)
        await asyncio.sleep(8.9)
        assert not task.done()
        await asyncio.sleep(0.2)
        assert task.done()

    run(main)


def test_when_transactions_are_through_all_go_on_after_a_moment() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        turns.busy(True)
        (await turns.take()).end()
        first = await turns.take()
        asked = [ask(turns) for _ in range(3)]
        await asyncio.sleep(4.0)
        first.end()
        turns.busy(False)
        await asyncio.sleep(QUIET_S / 2)
        # A writer that sends one after the other is not through between two of them.
        turns.busy(True)
        await asyncio.sleep(QUIET_S * 2)
        turns.busy(False)
        await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        await asyncio.sleep(QUIET_S * 1.01)
        assert [task.done() for task in asked] == [True, False, False]
        # Turns overlap again when no transactions were for a while.
        await asyncio.sleep(RECENT_S)
        asked[0].result().end()
        await asyncio.sleep(0.001)
        assert all(task.done() for task in asked)

    run(main)


def test_a_pause_is_bounded_and_a_share_of_one_yields_never() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.01)
        turns.busy(True)
        turn = await turns.take()
        await asyncio.sleep(50.0)
        turn.end()
        task = ask(turns)
        await asyncio.sleep(LONGEST_PAUSE_S - 1)
        assert not task.done()
        await asyncio.sleep(1.1)
        assert task.done()

        turns = CopyThrottle(1.0)
        turns.busy(True)
        assert [await turns.take() for _ in range(AT_ONCE)]

    run(main)


def test_a_target_that_takes_no_bytes_holds_up_nobody() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        stuck = [await turns.take() for _ in range(AT_ONCE)]
        task = ask(turns)
        await asyncio.sleep(LONGEST_TURN_S - 1)
        assert not task.done()
        await asyncio.sleep(2.0)
        assert task.done()
        stuck[0].end()
        assert [await turns.take() for _ in range(AT_ONCE - 1)]

    run(main)


def test_who_waits_for_long_is_told_to_ask_again() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        turns.busy(True)
        turn = await turns.take()
        began = asyncio.get_running_loop().time()
        with pytest.raises(DonorYieldsError):
            await turns.take()
        assert asyncio.get_running_loop().time() - began == pytest.approx(HOLD_S)
        gone = ask(turns)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        turn.end()
        turns.busy(False)
        await turns.take()  # those who went away hold no turn

    run(main)


def test_a_turn_for_somebody_who_just_went_away_is_not_lost() -> None:
    async def main() -> None:
        turns = CopyThrottle(0.1)
        turns.busy(True)
        turn = await turns.take()
        task = ask(turns)
        await asyncio.sleep(0)
        turn.end()
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert task.cancelled()
        await turns.take()

    run(main)


def test_transactions_are_under_way_until_they_are_ordered_or_a_member_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts_module, "ORDERING_S", 0.02)
    told: list[bool] = []

    async def main() -> None:
        receipts = Receipts(lambda sites: 0, told.append)
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

    asyncio.run(asyncio.wait_for(main(), 30))
