"""What fails in a way nobody foresaw is noted, shown and tried again, ever more seldom."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from functools import partial
from typing import NoReturn

import pytest

from sparktxlog import supervision
from sparktxlog.errors import DiskFullError, InternalError, TransportError
from sparktxlog.supervision import SETTLED_S, KeyedTasks, Supervisor, beating


class PanicError(BaseException):
    """As libraries in Rust raise it: no Exception."""


def fail(error: BaseException) -> NoReturn:
    raise error


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_PAUSE_MIN_S", 0.001)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EMFILE, "too many open files"), "internal"),
        (PanicError("a library panicked"), "internal"),
        (DiskFullError("no space left"), "disk-full"),
    ],
)
def test_a_failure_holds_until_an_attempt_succeeds(
    error: BaseException, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    supervisor = Supervisor(lambda: now)
    with caplog.at_level(logging.ERROR):
        pauses = [supervisor.attempt("work", lambda: fail(error)) for _ in range(16)]
    assert pauses[:3] == [0.001, 0.002, 0.004] and pauses[-1] == 10.0
    now = 1_000.0
    (failing,) = supervisor.failing()
    assert (failing.name, failing.times, failing.error.code) == ("work", 16, code)
    assert str(error).split("] ")[-1] in str(supervisor.failure("work"))
    assert len(caplog.records) == supervisor.total == 16
    # What nobody foresaw is told with its trace.
    assert all(bool(record.exc_info) is (code == "internal") for record in caplog.records)
    assert supervisor.attempt("work", lambda: None) == 0.0
    assert supervisor.failing() == [] and supervisor.failure("work") is None
    assert supervisor.attempt("work", lambda: fail(error)) == 0.001


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_ends_that_somebody_wants_are_no_failures(end: type[BaseException]) -> None:
    supervisor = Supervisor()
    with pytest.raises(end):
        supervisor.attempt("work", lambda: fail(end()))
    assert supervisor.total == 0


def test_a_task_is_begun_anew_until_it_ends_or_is_cancelled() -> None:
    async def main() -> None:
        now, began, goes_on = 0.0, 0, asyncio.Event()
        supervisor = Supervisor(lambda: now)

        async def work() -> None:
            nonlocal began
            began += 1
            if began < 4:
                raise RuntimeError(f"failure {began}")
            goes_on.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(supervisor.keep("task", work))
        await goes_on.wait()
        (failing,) = supervisor.failing()
        assert (failing.times, str(failing.error)[:30]) == (3, "[internal] RuntimeError: failu")
        assert isinstance(failing.error, InternalError) and not failing.error.definite
        now += SETTLED_S + 1
        assert supervisor.failing() == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (began, supervisor.total, supervisor.failing()) == (4, 3, [])

        async def ends() -> None:
            return None

        await supervisor.keep("task", ends)

    asyncio.run(main())


def test_of_tasks_that_work_together_the_first_error_is_told() -> None:
    async def main() -> None:
        supervisor, failed = Supervisor(), asyncio.Event()
        supervisor.on_unforeseen = lambda name, error: failed.set()

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                raise RuntimeError("torn")

        task = asyncio.create_task(supervisor.keep("task", work))
        await failed.wait()
        (failing,) = supervisor.failing()
        assert "RuntimeError: torn" in str(failing.error)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_key_has_one_task_at_a_time_until_all_are_closed() -> None:
    begun: list[str] = []

    async def work(name: str, gate: asyncio.Event) -> None:
        begun.append(name)
        await gate.wait()

    async def main() -> None:
        tasks, gate = KeyedTasks[str](), asyncio.Event()
        tasks.start("a", partial(work, "first", gate))
        tasks.start("a", partial(work, "second", gate))
        tasks.start("b", partial(work, "other", gate))
        await asyncio.sleep(0)
        assert begun == ["first", "other"]
        gate.set()
        while "a" in tasks:
            await asyncio.sleep(0)
        tasks.start("a", partial(work, "third", asyncio.Event()))
        assert len(tasks) == 1
        await tasks.close()
        assert len(tasks) == 0

    asyncio.run(main())
    assert begun == ["first", "other"], "what was closed before its begin never began"


@pytest.mark.parametrize("error", [TransportError("away"), OSError(24, "too many open files")])
def test_the_heartbeat_outlives_failures_and_ends_with_its_context(error: Exception) -> None:
    beats, third = 0, threading.Event()

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            third.set()
        raise error

    with beating("heartbeat", beat, 0.001):
        assert third.wait(10)
    seen = beats
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())
    assert beats == seen
