"""Threads for shared files: what hangs at one place holds some of them, and is named."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparktxlog.errors import StuckFilesError
from sparktxlog.runtime import loop_threads
from sparktxlog.runtime.loop_threads import FileThreads
from sparktxlog.storage.foreign_files import ForeignFile, goes_on, with_progress


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "STUCK_S", 0.6)
    monkeypatch.setattr(loop_threads, "_LOOK_S", 0.1)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reads of the first one hang until something is written to the second."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_place_that_hangs_holds_some_threads_and_is_named(pipe: tuple[int, int]) -> None:
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


def test_many_places_that_hang_leave_threads_for_others(pipe: tuple[int, int]) -> None:
    async def main() -> None:
        threads = FileThreads(4, "t", 2)
        hung = [threads.run(f"/a/{i}", os.read, pipe[0], 1) for i in range(12)]
        assert await asyncio.wait_for(threads.run("/b", pow, 2, 3), 5) == 8
        found = await asyncio.gather(*hung, return_exceptions=True)
        assert all(isinstance(one, StuckFilesError) for one in found)
        os.write(pipe[1], b"x" * 12)
        threads.close()

    asyncio.run(main())


def test_what_goes_on_may_take_long(tmp_path: Path) -> None:
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


def test_work_at_several_places_is_blamed_on_the_one_it_is_at(
    tmp_path: Path, pipe: tuple[int, int]
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
