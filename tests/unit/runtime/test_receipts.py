"""Receipts: levels, waiting, timeouts, refusals, replicas (protocol §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sparktxlog.errors import (
    BusyError,
    CommitRejectedError,
    CommitStateUnknownError,
    InvalidRequestError,
    OversizeError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.receipt import Level
from sparktxlog.protocol.messages import QueueEntry, Rejection, RunHeader
from sparktxlog.runtime.receipts import Receipts, check_copies, rejection_error

IDS = b"".join(bytes([i]) * 16 for i in range(3))


def header(seq: int = 1, n: int = 3) -> RunHeader:
    return RunHeader(
        epoch=1, ts=5, origin=NodeId("A"), incarnation=1, seq=seq, n=n, digest=b"d" * 32,
        size_bytes=1,
    )  # fmt: skip


def entry(position: int = 11, *rejections: Rejection) -> QueueEntry:
    return QueueEntry(
        position=position, header=header(), previous_hash=bytes(32), chain_hash=b"h" * 32,
        rejections=rejections,
    )  # fmt: skip


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_levels_are_reached_in_order_and_each_waiter_gets_its_own() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS, singles=True)
        waits = [
            asyncio.create_task(receipts.wait(submission, index, level, 1, 5))
            for index, level in enumerate((Level.ACCEPTED, Level.ACQUIRED, Level.ORDERED))
        ]
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        assert (await waits[0]).level is Level.ACCEPTED
        assert not waits[1].done()
        receipts.acquired(header())
        assert (await waits[1]).position is None
        receipts.ordered(entry(11, Rejection(index=2, code="unknown-table", text="no")), 99)
        last = await waits[2]
        assert (last.position, last.outcome, last.ordered_at) == (13, "rejected", 99)
        assert [(r.index, r.code) for r in last.rejections] == [(0, "unknown-table")]
        assert len(receipts) == 0
        assert receipts.pending(IDS[:16]) is None

    run(main())


def test_a_runs_receipt_counts_its_rejections() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS, singles=False)
        assert receipts.pending(IDS[:16]) is not None
        assert receipts.pending(IDS[16:32]) is None  # ids of a batch cost nothing
        wait = asyncio.create_task(receipts.wait(submission, None, Level.ORDERED, 1, 5))
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        receipts.ordered(entry(1, Rejection(index=2, code="c", text="t")), 7)
        receipt = await wait
        assert (receipt.n, receipt.position, receipt.outcome) == (3, 1, None)
        assert [r.index for r in receipt.rejections] == [2]
        assert receipt.transaction_id is None

    run(main())


def test_a_level_not_reached_in_time_is_unknown_and_says_how_far_it_got() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        receipts.accepted(1, header(n=1))
        with pytest.raises(CommitStateUnknownError) as raised:
            await receipts.wait(submission, 0, Level.ORDERED, 1, 0.001)
        assert raised.value.fields["reached"] == "accepted"
        assert raised.value.fields["transaction_id"] == "00000000-0000-0000-0000-000000000000"
        assert not submission.waiters

    run(main())


def test_late_stamping_is_told_twice() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        receipts.accepted(1, None)
        assert (await receipts.wait(submission, 0, Level.ACCEPTED, 1, 1)).run is None
        receipts.accepted(1, header(n=1))
        found = await receipts.wait(submission, 0, Level.ACCEPTED, 1, 1)
        assert found.run is not None

    run(main())


def test_refusals_are_definite_errors_of_the_tree() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        wait = asyncio.create_task(receipts.wait(submission, 0, Level.ACCEPTED, 1, 5))
        await asyncio.sleep(0)
        receipts.rejected(1, "busy", "too much waits")
        with pytest.raises(BusyError, match="too much waits"):
            await wait
        assert receipts.pending(IDS[:16]) is None

    run(main())
    assert isinstance(rejection_error("oversize", "x"), OversizeError)
    assert isinstance(rejection_error("clock-skew", "x"), BusyError)
    assert isinstance(rejection_error("something-new", "x"), CommitRejectedError)
    assert rejection_error("something-new", "x").definite


def test_applied_waits_for_as_many_replicas_as_asked_for() -> None:
    async def main() -> None:
        applied = {1: 0, 2: 0}
        receipts = Receipts(lambda copies: applied[copies])
        submission = receipts.open(1, IDS, singles=True)
        one = asyncio.create_task(receipts.wait(submission, 0, Level.APPLIED, 1, 5))
        two = asyncio.create_task(receipts.wait(submission, 2, Level.APPLIED, 2, 5))
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        receipts.ordered(entry(11), 7)
        applied[1] = 11
        receipts.replicas_moved()
        assert (await one).level is Level.APPLIED
        applied[2] = 12
        receipts.replicas_moved()
        await asyncio.sleep(0)
        assert not two.done()
        applied[2] = 13
        receipts.replicas_moved()
        assert (await two).position == 13
        assert await receipts.wait_applied(13, 2, 0.001)
        assert not await receipts.wait_applied(14, 2, 0.001)

    run(main())


def test_those_who_gave_up_do_not_pile_up() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        for position in range(300):
            await receipts.wait_applied(position + 1, 1, 0)
        assert sum(len(heap) for heap in receipts._replicas.values()) < 150

    run(main())


def test_a_stop_answers_all() -> None:
    async def main() -> None:
        receipts = Receipts(lambda copies: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        waits = [
            asyncio.create_task(receipts.wait(submission, 0, Level.ORDERED, 1, 5)),
            asyncio.create_task(receipts.wait_applied(5, 1, 5)),
        ]
        await asyncio.sleep(0)
        receipts.close(CommitStateUnknownError("stopping"))
        for wait in waits:
            with pytest.raises(CommitStateUnknownError, match="stopping"):
                await wait

    run(main())


def test_copies_that_can_never_be_reached() -> None:
    check_copies(Level.ORDERED, 9, 3)
    check_copies(Level.APPLIED, 3, 3)
    for copies in (0, 4):
        with pytest.raises(InvalidRequestError):
            check_copies(Level.APPLIED, copies, 3)
