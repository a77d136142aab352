"""The executor: order of actions, group commit, full disks (persist before you speak)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.storage_samples import TemporaryJournal

from sparktxlog.codec.containers.payload import encode_payload
from sparktxlog.errors import DiskFullError, InternalError, StorageError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunManifest
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistForeignRun,
    PersistOwnRun,
    PersistReservation,
    TellAccepted,
)
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.commit import executor as module
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit.holdings import Holdings, OwnRun
from sparktxlog.storage.interfaces import PutRun, PutValue, Write


def header(seq: int, origin: str = "A") -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=seq,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=1,
        digest=bytes([seq]) * 32,
        size_bytes=3,
    )


def payload(seq: int) -> bytes:
    return encode_payload(RunManifest(n=1, ids=bytes([seq]) * 16, blocks=(), submitted_at=1), [])


class GatedJournal(TemporaryJournal):
    """A journal whose writes wait for the test, and fail when it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Write]] = []
        self.gate = threading.Event()
        self.errors: list[Exception] = []

    def write(self, writes: Sequence[Write]) -> None:
        assert self.gate.wait(10)
        self.batches.append(list(writes))
        if self.errors:
            raise self.errors.pop(0)
        super().write(writes)


class Bench:
    """An executor with everything around it watched."""

    def __init__(self) -> None:
        self.journal = GatedJournal()
        self.holdings = Holdings(foreign_limit_bytes=1 << 20, cache_limit_bytes=1 << 20)
        self.told: list[Any] = []
        #: How much had been told at each moment of rest.
        self.rests: list[int] = []
        self.executor = Executor(self.journal, self.holdings, node_id=NodeId("A"))

    def deliver(self, action: Action, at: int) -> None:
        self.told.append(action)

    def wrote(self, seconds: float) -> None:
        self.told.append("wrote")

    def rested(self) -> None:
        self.rests.append(len(self.told))

    def own(self, seq: int) -> PersistOwnRun:
        run = OwnRun(digest=bytes([seq]) * 32, payload=payload(seq))
        self.holdings.put_own(seq, run)
        return PersistOwnRun(ticket=seq, header=header(seq))

    def told_tickets(self) -> list[int]:
        return [item.ticket for item in self.told if isinstance(item, TellAccepted)]


def accepted(ticket: int) -> Action:
    return TellAccepted(ticket=ticket, header=None)


async def settle(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_nothing_behind_a_persist_is_told_before_it_is_durable() -> None:
    async def main() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.executor.run(bench))
        bench.executor.put([accepted(1), bench.own(2), accepted(2)])
        await settle()
        assert bench.told_tickets() == [1]
        assert bench.executor.writing
        bench.journal.gate.set()
        await until(lambda: bench.told_tickets() == [1, 2])
        assert bench.journal.read_payload("A", 1, 2) == payload(2)
        assert bench.holdings.find(bytes([2]) * 32) == payload(2)
        task.cancel()
        bench.executor.close()

    asyncio.run(main())


def test_what_gathers_during_a_write_becomes_one_write() -> None:
    async def main() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.executor.run(bench))
        bench.executor.put([bench.own(1), accepted(1)])
        await settle()
        for seq in range(2, 6):
            bench.executor.put([bench.own(seq), accepted(seq)])
        done = bench.executor.write([PutValue(name="x", value=b"1")])
        bench.executor.put([PersistReservation(counter=9)])
        bench.journal.gate.set()
        await done
        await until(lambda: bench.executor.depth == 0 and not bench.executor.writing)
        assert [len(batch) for batch in bench.journal.batches] == [1, 6]
        assert bench.told_tickets() == [1, 2, 3, 4, 5]
        assert bench.told.count("wrote") == 2
        assert set(bench.rests) == {len(bench.told)}, "none between the two"
        task.cancel()
        bench.executor.close()

    asyncio.run(main())


def test_a_full_disk_gets_the_reserve_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 3_600)

    async def main() -> None:
        bench, taken = Bench(), [True]
        bench.executor.make_room = lambda: bool(taken and taken.pop())
        bench.journal.errors = [DiskFullError("full")]
        bench.journal.gate.set()
        task = asyncio.create_task(bench.executor.run(bench))
        bench.executor.put([bench.own(1), accepted(1)])
        await until(lambda: bench.told_tickets() == [1])
        task.cancel()
        bench.executor.close()

    asyncio.run(main())


def test_a_full_disk_delays_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.001)

    async def main() -> None:
        bench = Bench()
        bench.journal.errors = [DiskFullError("full"), DiskFullError("full")]
        bench.journal.gate.set()
        task = asyncio.create_task(bench.executor.run(bench))
        bench.executor.put([bench.own(1), accepted(1)])
        await until(lambda: bench.executor.disk_full)
        assert bench.told_tickets() == []
        await until(lambda: bench.told_tickets() == [1])
        assert not bench.executor.disk_full
        assert len(bench.journal.batches) == 3
        task.cancel()
        bench.executor.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "told"),
    [(StorageError("I/O error"), StorageError), (RuntimeError("I/O error"), InternalError)],
)
def test_an_unknown_state_of_the_storage_ends_the_executor(
    error: Exception, told: type[TxLogError]
) -> None:
    async def main() -> None:
        bench = Bench()
        bench.journal.errors = [error]
        bench.journal.gate.set()
        bench.executor.put([bench.own(1), accepted(1)])
        waiting = bench.executor.write([PutValue(name="x", value=b"1")])
        with pytest.raises(told, match="I/O error"):
            await bench.executor.run(bench)
        assert bench.told_tickets() == []
        for late in (waiting, bench.executor.write([PutValue(name="x", value=b"2")])):
            with pytest.raises(told, match="I/O error"):
                await late
        bench.executor.close()

    asyncio.run(main())


def test_a_peers_payload_is_held_from_arrival_until_durable() -> None:
    async def main() -> None:
        bench = Bench()
        run = header(4, "B")
        assert bench.holdings.put_foreign(run, payload(4))
        bench.holdings.foreign_wanted(run)
        bench.executor.put([PersistForeignRun(header=run)])
        # The same run arrives once more, and the core does not want it again.
        assert bench.holdings.put_foreign(run, payload(4))
        bench.holdings.foreign_refused(run)
        bench.journal.gate.set()
        task = asyncio.create_task(bench.executor.run(bench))
        await until(lambda: bench.journal.batches and not bench.executor.writing)
        assert bench.journal.batches[0] == [PutRun(header=run, payload=payload(4))]
        assert bench.journal.read_payload("B", 1, 4) == payload(4)
        task.cancel()
        bench.executor.close()

    asyncio.run(main())
