"""Virtual time: what runs when, and what never runs after a kill."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import pytest
from tests.verification.nodes.lockstep import Lockstep
from tests.verification.nodes.virtual import Life, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(lambda executor: (0.25, 0.5))
    yield made
    made.close()


def test_an_hour_passes_at_once(loop: VirtualLoop) -> None:
    async def sleepers() -> list[float]:
        async def sleeper(delay: float) -> float:
            await asyncio.sleep(delay)
            return loop.time()

        return [*await asyncio.gather(sleeper(3_600), sleeper(0.5), sleeper(7))]

    began = perf_counter()
    assert loop.run_until_complete(sleepers()) == [3_600, 0.5, 7]
    assert perf_counter() - began < 5


def test_time_stands_still_while_something_is_ready(loop: VirtualLoop) -> None:
    async def busy() -> float:
        for _ in range(1_000):
            await asyncio.sleep(0)
        return loop.time()

    assert loop.run_until_complete(busy()) == 0


def test_a_history_without_a_future_is_an_error(loop: VirtualLoop) -> None:
    async def waits_for_nothing() -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        loop.run_until_complete(waits_for_nothing())


def test_work_of_a_thread_is_done_first_and_told_later(loop: VirtualLoop) -> None:
    done: list[float] = []

    async def work() -> tuple[str, float]:
        def note() -> str:
            done.append(loop.time())
            return threading.current_thread().name

        with ThreadPoolExecutor() as pool:
            name = await loop.run_in_executor(pool, note)
        return name, loop.time()

    assert loop.run_until_complete(work()) == (threading.main_thread().name, 0.75)
    assert done == [0.25]


@pytest.mark.parametrize(("killed_at", "kept"), [(0.1, False), (0.5, True), (1.0, True)])
def test_a_kill_keeps_or_loses_the_work_of_a_thread(
    loop: VirtualLoop, killed_at: float, kept: bool
) -> None:
    life, disk, told = Life("a", 1), list[str](), list[str]()
    pool = ThreadPoolExecutor()

    async def write() -> None:
        await loop.run_in_executor(pool, disk.append, "batch")
        told.append("batch")

    async def history() -> None:
        loop.own_task(life, write())
        await asyncio.sleep(killed_at)
        life.kill()
        await asyncio.sleep(10)

    loop.run_until_complete(history())
    assert (disk == ["batch"], told == ["batch"]) == (kept, killed_at > 0.75)


def test_nothing_of_a_killed_node_runs_not_even_what_cleans_up(loop: VirtualLoop) -> None:
    life, ran = Life("a", 1), list[str]()

    async def node() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ran.append("finally")

    async def history() -> None:
        loop.own_task(life, node())
        await asyncio.sleep(1)
        life.kill()
        await asyncio.sleep(100)

    loop.run_until_complete(history())
    assert ran == []
    assert len(life.remains) >= 1


def test_a_paused_node_goes_on_where_it_was(loop: VirtualLoop) -> None:
    life, ran = Life("a", 1), list[float]()

    async def node() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            ran.append(loop.time())

    async def history() -> None:
        loop.own_task(life, node())
        await asyncio.sleep(1.5)
        life.paused = True
        await asyncio.sleep(10)
        loop.resume(life)
        await asyncio.sleep(10)

    loop.run_until_complete(history())
    assert ran == [1, 11.5, 12.5]


class _Consumer:
    """A thread that waits for work, or a second; as a publisher does."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.changed = threading.Condition()
        self.goal = self.done = 0
        self.stops = False
        self.seen: list[tuple[float, int]] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stops:
            with self.changed:
                if not self.stops and self.goal == self.done:
                    self.changed.wait(timeout=1)
            answer = asyncio.run_coroutine_threadsafe(self.double(self.goal), self.loop).result()
            self.done = self.goal
            self.seen.append((round(self.loop.time(), 2), answer))

    async def double(self, value: int) -> int:
        await asyncio.sleep(0.5)
        return 2 * value

    def tell(self, goal: int) -> None:
        with self.changed:
            self.goal = goal
            self.changed.notify()

    def stop(self) -> None:
        with self.changed:
            self.stops = True
            self.changed.notify()
        if self.thread.is_alive():
            self.thread.join(timeout=30)


def test_a_thread_runs_in_lockstep_with_the_loop(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched: list[tuple[Any, str]] = [
        (threading.Condition, "wait"),
        (threading.Thread, "start"),
        (threading.Thread, "join"),
        (threading.Thread, "is_alive"),
    ]
    for owner, name in patched:  # put back in the end
        monkeypatch.setattr(owner, name, getattr(owner, name))
    Lockstep(loop).install()
    life, consumer = Life("a", 1), _Consumer(loop)

    async def node() -> float:
        consumer.thread.start()
        await asyncio.sleep(2.2)
        consumer.tell(21)
        await asyncio.sleep(2)
        await asyncio.to_thread(consumer.stop)
        return loop.time()

    async def history() -> float:
        return await loop.own_task(life, node())

    ended = loop.run_until_complete(history())
    assert consumer.seen[:3] == [(1.5, 0), (2.7, 42), (4.2, 42)]
    assert not consumer.thread.is_alive()
    assert ended < 7
