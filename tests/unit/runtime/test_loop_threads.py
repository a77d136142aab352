"""Threads that work for the event loop: results, errors, cancelled work, how many there are.

Those for shared files: what hangs at one place holds some of them, and is named.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparktxlog.errors import StuckFilesError
from sparktxlog.files.foreign_files import ForeignFile, goes_on, with_progress
from sparktxlog.runtime import loop_threads
from sparktxlog.runtime.loop_threads import FileThreads, LoopThreads


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


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "STUCK_S", 0.6)
    monkeypatch.setattr(loop_threads, "_LOOK_S", 0.1)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reads of the first one hang until something is written to the second."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_place_that_hangs_holds_some_threads_and_is_named(
    soon: None, pipe: tuple[int, int]
) -> None:
    async def main() -> None:
        threads = FileThreads(4, "t", 2)
        hung = [threads.run("/a/t", os.read, pipe[0], 1) for _ in range(10)]
        began = time.monotonic()
        assert await threads.run("/a/u", pow, 2, 3) == 8
        assert time.monotonic() - began < 0.5, "others have threads of their own"
        for one in hung:
            with pytest.raises(StuckFilesError, match=r"/a/t does not answer") as told:
                await one
            assert told.value.definite and told.value.fields["path"] == "/a/t"
        (stuck,) = threads.stuck()
        assert stuck["path"] == "/a/t" and stuck["seconds"] >= 0.6
        assert threads.hangs_at("/a/t") and threads.hangs_at("/a")
        assert not threads.hangs_at("/a/u") and not threads.hangs_at("/a/t2")
        began = time.monotonic()
        with pytest.raises(StuckFilesError):
            await threads.run("/a/t", pow, 2, 3)
        assert time.monotonic() - began < 0.5, "nobody waits for it a second time"
        os.write(pipe[1], b"xx")
        while threads.stuck():
            await asyncio.sleep(0.01)
        assert await threads.run("/a/t", pow, 2, 3) == 8
        threads.close()

    asyncio.run(main())


def test_a_process_that_stood_still_blames_no_place(soon: None) -> None:
    """It was paused, or its machine slept: the first look after that finds nothing that hangs."""

    async def main() -> None:
        threads, gate = FileThreads(2, "t"), threading.Event()
        waits = threads.run("/a/t", gate.wait, 10)
        time.sleep(1.2)
        await asyncio.sleep(0.2)
        assert not threads.hangs_at("/a/t")
        gate.set()
        assert await waits
        threads.close()

    asyncio.run(main())


def test_many_places_that_hang_leave_threads_for_others(soon: None, pipe: tuple[int, int]) -> None:
    async def main() -> None:
        threads = FileThreads(4, "t", 2)
        hung = [threads.run(f"/a/{i}", os.read, pipe[0], 1) for i in range(12)]
        assert await asyncio.wait_for(threads.run("/b", pow, 2, 3), 5) == 8
        found = await asyncio.gather(*hung, return_exceptions=True)
        assert all(isinstance(one, StuckFilesError) for one in found)
        os.write(pipe[1], b"x" * 12)
        threads.close()

    asyncio.run(main())


def test_what_goes_on_may_take_long(soon: None, tmp_path: Path) -> None:
    """Also if other threads do it."""

    async def main() -> None:
        threads, steps = FileThreads(2, "t"), 12

        def slow() -> int:
            for _ in range(steps):
                time.sleep(0.1)  # a large file
                goes_on(tmp_path)
            return steps

        def helped() -> int:
            with ThreadPoolExecutor(1) as others:
                return others.submit(with_progress(slow)).result()

        assert await threads.run(tmp_path, slow) == steps
        assert await threads.run(tmp_path, helped) == steps
        assert threads.stuck() == []
        threads.close()

    asyncio.run(main())


def test_what_ends_by_itself_may_take_as_long_as_it_says(soon: None) -> None:
    """As a request to a bucket, which is repeated for a minute."""

    async def main() -> None:
        threads, gate = FileThreads(2, "t"), threading.Event()

        def asks(most_s: float) -> bool:
            goes_on("s3://b/t/x", most_s)
            return gate.wait(10)

        longer, other = threads.run("s3://b/t", asks, 60.0), threads.run("s3://b/u", asks, 0.0)
        with pytest.raises(StuckFilesError, match="s3://b/t/x"):
            await other
        assert not longer.done()
        gate.set()
        assert await longer
        threads.close()

    asyncio.run(main())


def test_work_at_several_places_is_blamed_on_the_one_it_is_at(
    soon: None, tmp_path: Path, pipe: tuple[int, int]
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").write_bytes(b"x")

    async def main() -> None:
        threads = FileThreads(2, "t", 1)

        def several() -> None:
            ForeignFile(str(tmp_path), "t/f").read()
            os.read(pipe[0], 1)

        with pytest.raises(StuckFilesError, match="t/f"):
            await threads.run("", several)
        assert threads.hangs_at(tmp_path / "t") and not threads.hangs_at(tmp_path / "u")
        assert await threads.run(tmp_path / "u", pow, 2, 3) == 8
        # It ends with the process, not before.
        threads.close()
        os.write(pipe[1], b"x")

    asyncio.run(main())
