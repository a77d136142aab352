"""Receipts: levels, waiting, timeouts, refusals, replicas."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from sparktxlog.errors import (
    BusyError,
    CommitRejectedError,
    CommitStateUnknownError,
    InvalidRequestError,
    NotMemberError,
    OversizeError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.receipt import Appliers, Level
from sparktxlog.protocol.messages.posts import QueueEntry, Rejection, RunHeader
from sparktxlog.runtime.commit import receipts as receipts_module
from sparktxlog.runtime.commit.receipts import Receipts, check_sites, done_until, rejection_error

IDS = b"".join(bytes([i]) * 16 for i in range(3))


def header(seq: int = 1, n: int = 3) -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=5,
        origin=NodeId("A"),
        incarnation=1,
        seq=seq,
        n=n,
        digest=b"d" * 32,
        size_bytes=1,
    )


def entry(position: int = 11, *rejections: Rejection) -> QueueEntry:
    return QueueEntry(
        position=position,
        header=header(),
        previous_hash=bytes(32),
        chain_hash=b"h" * 32,
        rejections=rejections,
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_levels_are_reached_in_order_and_each_waiter_gets_its_own() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=True)
        waits = [
            asyncio.create_task(receipts.wait(submission, index, level, Appliers(), 5))
            for index, level in enumerate((Level.ACCEPTED, Level.ACQUIRED, Level.ORDERED))
        ]
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        assert (await waits[0]).level is Level.ACCEPTED
        assert not waits[1].done()
        receipts.acquired(header())
        assert (await waits[1]).position is None
        receipts.ordered(entry(11, Rejection(index=2, code="unknown-table", text="no")), 99, 3)
        last = await waits[2]
        assert (last.position, last.outcome, last.ordered_at) == (13, "rejected", 99)
        assert [(r.index, r.code) for r in last.rejections] == [(0, "unknown-table")]
        assert len(receipts) == 0
        assert receipts.pending(IDS[:16]) is None

    run(main())


def test_a_runs_receipt_counts_its_rejections() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=False)
        assert receipts.pending(IDS[:16]) is not None
        assert receipts.pending(IDS[16:32]) is None  # ids of a batch cost nothing
        wait = asyncio.create_task(receipts.wait(submission, None, Level.ORDERED, Appliers(), 5))
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        receipts.ordered(entry(1, Rejection(index=2, code="c", text="t")), 7, 3)
        receipt = await wait
        assert (receipt.n, receipt.position, receipt.outcome) == (3, 1, None)
        assert [r.index for r in receipt.rejections] == [2]
        assert receipt.transaction_id is None

    run(main())


def test_a_level_not_reached_in_time_is_unknown_and_says_how_far_it_got() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        receipts.accepted(1, header(n=1))
        with pytest.raises(CommitStateUnknownError) as raised:
            await receipts.wait(submission, 0, Level.ORDERED, Appliers(), 0.001)
        assert raised.value.fields["reached"] == "accepted"
        assert raised.value.fields["transaction_id"] == "00000000-0000-0000-0000-000000000000"
        assert not submission.waiters

    run(main())


def test_a_level_that_is_late_once_ordered_is_a_receipt_that_says_so() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=True)
        receipts.accepted(1, header())
        receipts.ordered(entry(11), 7, 3)
        for index, position in ((1, 12), (None, 11)):
            told = await receipts.wait(submission, index, Level.APPLIED, Appliers(), 0.001)
            assert (told.level, told.late, told.position) == (Level.ORDERED, True, position)
        told = await receipts.wait(submission, 1, Level.ORDERED, Appliers(), 0.001)
        assert not told.late

    run(main())


def test_runs_with_fewer_holders_than_they_need_are_remembered_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receipts_module, "_MOST_FEWER", 2)

    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        for seq, (needed, held) in enumerate(((3, 2), (2, 2), (0, 1), (3, 1), (2, 1)), start=1):
            receipts.open(seq, IDS, singles=False, holders=needed)
            receipts.accepted(seq, header(seq))
            receipts.ordered(replace(entry(10 * seq), header=header(seq)), 5, held)
            if seq == 1:
                assert receipts.fewer_holders(10) == 2
        found = [receipts.fewer_holders(10 * seq) for seq in range(1, 6)]
        assert found == [None, None, None, 1, 1]

    run(main())


def test_late_stamping_is_told_twice() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        receipts.accepted(1, None)
        assert (await receipts.wait(submission, 0, Level.ACCEPTED, Appliers(), 1)).run is None
        receipts.accepted(1, header(n=1))
        found = await receipts.wait(submission, 0, Level.ACCEPTED, Appliers(), 1)
        assert found.run is not None

    run(main())


def test_each_transaction_of_a_durable_run_is_found_before_its_stamp() -> None:
    """After a restart nobody knows whether its clients submitted them one by one (P25c)."""
    receipts = Receipts(lambda sites: 0)
    submission = receipts.open(1, IDS, singles=False)
    assert receipts.pending(IDS[16:32]) is None, "nothing is durable yet"
    receipts.accepted(1, None)
    found = [receipts.pending(IDS[16 * at : 16 * at + 16]) for at in range(3)]
    assert found == [(submission, 0), (submission, 1), (submission, 2)]
    assert receipts.pending(IDS[8:24]) is None, "in the middle of two ids"
    receipts.accepted(1, header())
    assert receipts.pending(IDS[16:32]) is None, "now the journal finds it"
    receipts.open(2, IDS, singles=False)
    receipts.accepted(2, None)
    receipts.rejected(2, "payload-store", "its files are lost")
    assert receipts.pending(IDS[16:32]) is None


def test_refusals_are_definite_errors_of_the_tree() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        wait = asyncio.create_task(receipts.wait(submission, 0, Level.ACCEPTED, Appliers(), 5))
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
        receipts = Receipts(lambda sites: applied[sites.sites])
        submission = receipts.open(1, IDS, singles=True)
        one = asyncio.create_task(receipts.wait(submission, 0, Level.APPLIED, Appliers(), 5))
        two = asyncio.create_task(receipts.wait(submission, 2, Level.APPLIED, Appliers(2), 5))
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        receipts.ordered(entry(11), 7, 3)
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
        assert await receipts.wait_applied(13, Appliers(2), 0.001)
        assert not await receipts.wait_applied(14, Appliers(2), 0.001)

    run(main())


def test_who_waits_is_answered_once_replicas_passed_it_with_a_table_that_stands_still() -> None:
    async def main() -> None:
        passed = 0
        receipts = Receipts(lambda sites: 0, passed=lambda sites: passed)
        waits = [asyncio.create_task(receipts.wait_applied(at, Appliers(), 60)) for at in (4, 5)]
        await asyncio.sleep(0)
        passed = 4
        receipts.replicas_moved()
        assert not await waits[0] and not waits[1].done()
        assert not await receipts.wait_applied(4, Appliers(), 60)
        waits[1].cancel()

    run(main())


def test_those_who_gave_up_do_not_pile_up() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        for position in range(300):
            await receipts.wait_applied(position + 1, Appliers(), 0)
        assert sum(len(heap) for heap in receipts._replicas.values()) < 150

    run(main())


def test_a_stop_answers_all() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS[:16], singles=True)
        waits = [
            asyncio.create_task(receipts.wait(submission, 0, Level.ORDERED, Appliers(), 5)),
            asyncio.create_task(receipts.wait_applied(5, Appliers(), 5)),
        ]
        ordered = receipts.open(2, bytes([9]) * 16, singles=True)
        receipts.accepted(2, header(5, n=1))
        receipts.ordered(replace(entry(4), header=header(5, n=1)), 1, 3)
        late = asyncio.create_task(receipts.wait(ordered, 0, Level.APPLIED, Appliers(), 5))
        await asyncio.sleep(0)
        receipts.close(CommitStateUnknownError("stopping"))
        for wait in waits:
            with pytest.raises(CommitStateUnknownError, match="stopping"):
                await wait
        assert ((await late).position, (await late).late) == (4, True)

    run(main())


def test_sites_that_can_never_be_reached() -> None:
    check_sites(Level.ORDERED, 9, 3)
    check_sites(Level.APPLIED, 3, 3)
    for sites in (0, 4):
        with pytest.raises(InvalidRequestError):
            check_sites(Level.APPLIED, sites, 3)


def restamped(seq: int = 1) -> RunHeader:
    """The header of the run in the next epoch: same origin, sequence number and content (P20)."""
    return replace(header(seq), epoch=2, ts=77)


def test_a_run_that_is_stamped_anew_still_gets_there() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=True)
        waits = [
            asyncio.create_task(receipts.wait(submission, index, level, Appliers(), 5))
            for index, level in enumerate((Level.ACCEPTED, Level.ACQUIRED, Level.ORDERED))
        ]
        await asyncio.sleep(0)
        receipts.accepted(1, header())
        receipts.acquired(restamped())
        receipts.ordered(replace(entry(11), header=restamped()), 99, 3)
        found = [await wait for wait in waits]
        assert [receipt.level for receipt in found] == [
            Level.ACCEPTED,
            Level.ACQUIRED,
            Level.ORDERED,
        ]
        assert {receipt.run for receipt in found} == {found[0].run}
        assert found[2].position == 13
        assert len(receipts) == 0

    run(main())


def test_acquired_in_one_epoch_and_ordered_in_the_next() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=False)
        receipts.accepted(1, header())
        receipts.acquired(header())
        wait = asyncio.create_task(receipts.wait(submission, None, Level.ORDERED, Appliers(), 5))
        await asyncio.sleep(0)
        # Told again in the new epoch: a level that was reached never falls.
        receipts.acquired(restamped())
        receipts.ordered(replace(entry(1), header=restamped()), 7, 3)
        assert (await wait).position == 1

    run(main())


def test_detached_clients_learn_that_the_outcome_is_open() -> None:
    async def main() -> None:
        busy: list[bool] = []
        receipts = Receipts(lambda sites: 0, busy.append)
        stamped = receipts.open(1, IDS, singles=True)
        late = receipts.open(2, bytes([8]) * 16, singles=True)
        ordered = receipts.open(3, bytes([9]) * 32, singles=False)
        receipts.accepted(1, header())
        receipts.accepted(2, None)
        receipts.accepted(3, header(9, 2))
        receipts.ordered(replace(entry(20), header=header(9, 2)), 5, 3)
        waits = [
            asyncio.create_task(receipts.wait(stamped, 1, Level.ORDERED, Appliers(), 5)),
            asyncio.create_task(receipts.wait(late, None, Level.ACQUIRED, Appliers(), 5)),
            asyncio.create_task(receipts.wait(ordered, None, Level.APPLIED, Appliers(2), 5)),
        ]
        reader = asyncio.create_task(receipts.wait_applied(21, Appliers(2), 5))
        await asyncio.sleep(0)
        receipts.detach("this node is IDLE: epoch 2 goes on without it")
        wanted = [
            (IDS[16:32], "accepted"),
            (bytes([8]) * 16, "accepted"),
        ]
        for wait, (first, reached) in zip(waits[:2], wanted, strict=True):
            with pytest.raises(CommitStateUnknownError, match="epoch 2 goes on") as caught:
                await wait
            assert not caught.value.definite
            assert caught.value.fields["transaction_id"] == str(uuid.UUID(bytes=first))
            assert caught.value.fields["reached"] == reached
        told = await waits[2]
        assert (told.level, told.late, told.position) == (Level.ORDERED, True, 20)
        assert not reader.done()
        # Nobody's traffic is under way any more: copies need not yield to it.
        assert busy == [True, False]
        # The run is found by its id, and ordered later after all.
        assert receipts.pending(IDS[:16]) == (stamped, 0)
        again = asyncio.create_task(receipts.wait(stamped, 0, Level.ORDERED, Appliers(), 5))
        await asyncio.sleep(0)
        receipts.detach("twice")
        with pytest.raises(CommitStateUnknownError, match="twice"):
            await again
        third = asyncio.create_task(receipts.wait(stamped, 0, Level.ORDERED, Appliers(), 5))
        await asyncio.sleep(0)
        receipts.ordered(replace(entry(30), header=restamped()), 6, 3)
        assert (await third).position == 30
        reader.cancel()

    run(main())


def test_a_submit_that_the_core_has_not_seen_is_refused_not_unknown() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=False)
        wait = asyncio.create_task(receipts.wait(submission, None, Level.ACCEPTED, Appliers(), 5))
        await asyncio.sleep(0)
        receipts.detach("this node is JOINING")
        await asyncio.sleep(0)
        assert not wait.done()
        receipts.rejected(1, "not-a-member", "this node is JOINING: it takes no transactions")
        with pytest.raises(CommitRejectedError) as caught:
            await wait
        assert caught.value.definite

    run(main())


def test_a_refusal_before_anybody_waits_is_told_to_who_comes_later() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        submission = receipts.open(1, IDS, singles=True)
        receipts.rejected(1, "not-a-member", "this node is JOINING")
        with pytest.raises(NotMemberError) as caught:
            await receipts.wait(submission, 0, Level.ORDERED, Appliers(), 5)
        assert (caught.value.http_status, caught.value.definite) == (503, True)
        assert "another site" in caught.value.hint

    asyncio.run(main())


def test_who_waits_for_a_run_that_a_new_view_left_out_is_told_so() -> None:
    async def main() -> None:
        receipts = Receipts(lambda sites: 0)
        kept = replace(header(1), origin=NodeId("B"))
        dropped = replace(header(7), origin=NodeId("C"))
        other_ids = b"".join(bytes([i]) * 16 for i in range(7, 10))
        waits = [
            asyncio.create_task(
                receipts.wait(receipts.adopt(found, ids, 0), 0, Level.ORDERED, Appliers(), 5)
            )
            for found, ids in ((kept, IDS), (dropped, other_ids))
        ]
        await asyncio.sleep(0)
        receipts.forget(lambda first_id: first_id == other_ids[:16])
        with pytest.raises(CommitStateUnknownError) as caught:
            await waits[1]
        assert caught.value.fields["reached"] == "accepted"
        receipts.ordered(replace(entry(), header=kept), 1, 3)
        assert (await waits[0]).position == 11
        assert len(receipts) == 0

    run(main())


def test_a_shared_future_is_waited_for_until_a_time_and_stays() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        shared: asyncio.Future[int] = loop.create_future()
        waits = [asyncio.create_task(done_until(shared, loop.time() + 60)) for _ in range(3)]
        assert not await done_until(shared, loop.time())
        waits[0].cancel()
        await asyncio.sleep(0)
        shared.set_result(7)
        assert await asyncio.gather(*waits[1:]) == [True, True]
        assert waits[0].cancelled()
        assert await done_until(shared, loop.time())
        assert shared.result() == 7

    run(main())
