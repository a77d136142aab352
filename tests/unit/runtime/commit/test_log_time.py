"""Who lets log time pass where prepared transactions expire, and when (P35)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import NoQuorumError, PausedError, TxLogError
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.runtime.commit import log_time
from sparktxlog.runtime.commit.log_time import LogTime
from sparktxlog.runtime.reached_position import ReachedPosition
from sparktxlog.supervision import Supervisor

NOW_US = 1_000_000_000


class Bench:
    """A node at a time, and what it commits."""

    def __init__(self, *until_us: int, own: str = "A", members: tuple[str, ...] = ("A", "B")):
        self.ordered = ReachedPosition(1)
        self.undecided = [self._one(until) for until in until_us]
        self.committed: list[PreparedTransaction] = []
        self.failures: list[TxLogError] = []
        self.halted: str | None = None
        self.next_stamp = NOW_US
        base: Any = SimpleNamespace(
            ordered=self.ordered,
            master=self,
            view=None,
            config=SimpleNamespace(node_id=own),
            clock=SimpleNamespace(wall=lambda: NOW_US),
            supervisor=Supervisor(),
        )
        self.view = SimpleNamespace(members=members)
        itself: Any = self
        self.log_time = LogTime(base, itself, itself)

    @staticmethod
    def _one(until: int) -> Undecided:
        return Undecided(
            transaction_id=bytes(16), position=1, participants=("p",), valid_until=until
        )

    async def submit(self, transaction: PreparedTransaction, **_: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(transaction)
        self.undecided.clear()
        self.ordered.advance(self.ordered.value + 1)

    async def watched(self, seconds: float) -> int:
        """Watch for some time; return how many transactions were committed."""
        task = asyncio.create_task(self.log_time.watch())
        await asyncio.wait([task], timeout=seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return len(self.committed)


def test_it_passes_once_something_has_expired() -> None:
    bench = Bench(NOW_US - 1, NOW_US + 10**9)
    assert asyncio.run(bench.watched(0.05)) == 1
    (one,) = bench.committed
    assert one.operations == () and len(one.transaction_id) == 16


@pytest.mark.parametrize(
    "bench",
    [
        Bench(),
        Bench(NOW_US + 10**9),
        Bench(NOW_US - 1, own="B"),
        Bench(NOW_US - 1, own="C"),
    ],
    ids=["nothing", "later", "not its turn", "no member"],
)
def test_nothing_is_committed_that_is_not_needed(bench: Bench) -> None:
    assert asyncio.run(bench.watched(0.05)) == 0


def test_a_log_clock_behind_is_waited_for() -> None:
    bench = Bench(NOW_US)
    assert asyncio.run(bench.watched(0.05)) == 0
    bench.next_stamp += 1
    assert asyncio.run(bench.watched(0.05)) == 1


def test_what_comes_later_is_seen_when_it_is_ordered() -> None:
    async def main() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.watched(0.1))
        await asyncio.sleep(0)
        bench.undecided.append(bench._one(NOW_US - 1))
        assert not bench.committed
        bench.ordered.advance(2)
        assert await task == 1

    asyncio.run(main())


def test_what_cannot_be_ordered_now_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_time, "_PAUSE_S", 0.01)
    bench = Bench(NOW_US - 1)
    bench.failures = [NoQuorumError("nobody answers") for _ in range(2)]
    assert asyncio.run(bench.watched(0.3)) == 1


def test_what_refuses_it_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_time, "_PAUSE_S", 0.01)
    bench = Bench(NOW_US - 1)
    missing = [NoQuorumError(f"{one} waits for B") for one in ("X", "Y")]
    bench.failures = [*missing, PausedError("an operator paused it"), missing[0]]
    with capture_logs() as logged:
        assert asyncio.run(bench.watched(0.3)) == 1
        bench.undecided.append(bench._one(NOW_US - 1))
        bench.failures = [missing[1]]
        assert asyncio.run(bench.watched(0.3)) == 2
    refused = [PausedError, NoQuorumError, NoQuorumError]
    codes = [NoQuorumError.code, *(one.code for one in refused)]
    assert [one["reason"].split("]")[0] for one in logged] == [f"[{code}" for code in codes]


def test_a_node_that_has_halted_does_not_try() -> None:
    bench = Bench(NOW_US - 1)
    bench.halted, bench.failures = "a peer contradicted itself", [NoQuorumError("it has halted")]
    assert asyncio.run(bench.watched(0.05)) == 0
    assert bench.failures, "it was not asked"
