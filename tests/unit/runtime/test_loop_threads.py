"""Threads that work for the event loop: results, errors, cancelled work, how many there are."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sparktxlog.runtime.loop_threads import LoopThreads


def test_results_and_errors_reach_who_waits() -> None:
    async def main() -> None:
        threads = LoopThreads(2, "t")
        found = await asyncio.gather(*(threads.run(pow, 2, n) for n in range(200)))
        assert found == [2**n for n in range(200)]
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        assert await threads.run(threading.current_thread) is not threading.current_thread()
        threads.close()
        with pytest.raises(RuntimeError, match="'t' were closed"):
            threads.run(pow, 2, 2)

    asyncio.run(main())


def test_as_many_threads_work_as_there_is_work_for_up_to_a_bound() -> None:
    async def main() -> None:
        threads, both, seen = LoopThreads(2, "t"), threading.Barrier(2), set[int]()

        def note() -> None:
            seen.add(threading.get_ident())

        for _ in range(5):
            await threads.run(note)
        assert len(seen) == 1, "one after the other needs one"
        await asyncio.gather(*(threads.run(both.wait, 10) for _ in range(2)))
        await asyncio.gather(*(threads.run(note) for _ in range(50)))
        assert len(seen) <= 2
        threads.close()

    asyncio.run(main())


def test_what_is_cancelled_before_it_begins_is_not_done() -> None:
    async def main() -> None:
        threads, gate, done = LoopThreads(1, "t"), threading.Event(), list[int]()
        first = threads.run(gate.wait, 10)
        second, third = threads.run(done.append, 2), threads.run(done.append, 3)
        second.cancel()
        gate.set()
        assert await first
        await third
        assert done == [3]
        threads.close()

    asyncio.run(main())


def test_closing_waits_for_what_was_given() -> None:
    async def main() -> list[int]:
        threads, done = LoopThreads(1, "t"), list[int]()
        for n in range(100):
            threads.run(done.append, n)
        threads.close()
        return done

    assert asyncio.run(main()) == list(range(100))
