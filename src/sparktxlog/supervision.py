"""Long-lived tasks and threads: a failure is logged, shown, and retried after a pause.

If a task or thread ends by an unforeseen error (no file descriptor is left, a library panics), the
process goes on without it.  So each of them runs under a `Supervisor`.  A task whose state is
unknown after a failure, such as the core's, is not restarted: its process ends instead.

What is repeated while a block runs, such as a heartbeat, is `beating`.  Short tasks, of which a key
has one at a time, belong to `KeyedTasks`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sparktxlog.errors import InternalError, TxLogError

_logger = logging.getLogger(__name__)
_Key = TypeVar("_Key", bound=Hashable)

#: Pause after a failure, seconds; it doubles with each further one in a row.
_PAUSE_MIN_S = 0.1
_PAUSE_MAX_S = 10.0
#: A restarted task counts as working after so long, seconds.
SETTLED_S = 10.0
#: Longest wait for the end of a thread's last beat, seconds.
_JOIN_S = 5.0
#: Intended ends of a task or thread.
_WANTED_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a task or thread."""

    name: str
    error: TxLogError
    #: Failures in a row.
    times: int
    #: Seconds from the failure to the next attempt.
    pause_s: float
    #: Steady time of the failure, seconds.
    at: float
    #: True: it holds until an attempt succeeds; else until the task has settled.
    lasting: bool


class Supervisor:
    """Keeps tasks and threads at work, and knows what fails; may be used by any thread.

    Args:
        clock: Steady seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, Failure] = {}
        #: Failures since the start.
        self.total = 0
        #: Called with what fails and an unforeseen error, in the thread that it is of.
        self.on_unforeseen: Callable[[str, BaseException], None] = lambda name, error: None

    def attempt(self, name: str, work: Callable[[], object]) -> float:
        """Do a piece of work; return 0, or the seconds to wait before it is tried again."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a panic of a library is no Exception
            return self.note(name, error)
        self.clear(name)
        return 0.0

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of a long-lived task; restart it whenever it fails, until it ends."""
        try:
            while True:
                try:
                    await work()
                except BaseException as error:  # noqa: BLE001
                    pause_s = self.note(name, _first(error), lasting=False)
                else:
                    return
                await asyncio.sleep(pause_s)
        finally:
            self.clear(name)

    def clear(self, name: str) -> None:
        """Note that a task or thread works."""
        self._failures.pop(name, None)

    def failure(self, name: str) -> TxLogError | None:
        """Return what a task or thread fails of at the moment, None = it works."""
        return next((found.error for found in self.failing() if found.name == name), None)

    def failing(self) -> list[Failure]:
        """Return what fails at the moment, by name."""
        now = self._clock()
        found = [one for one in tuple(self._failures.values()) if self._holds(one, now)]
        return sorted(found, key=lambda one: one.name)

    @staticmethod
    def _holds(failure: Failure, now: float) -> bool:
        return failure.lasting or now - failure.at <= failure.pause_s + SETTLED_S

    def note(self, name: str, error: BaseException, *, lasting: bool = True) -> float:
        """Note a failure; return the seconds to wait before the next attempt."""
        if isinstance(error, _WANTED_ENDS):
            raise error
        now, before = self._clock(), self._failures.get(name)
        times = 1 + (before.times if before is not None and self._holds(before, now) else 0)
        pause_s = min(_PAUSE_MIN_S * 2.0 ** min(times - 1, 16), _PAUSE_MAX_S)
        known = foreseen(error)
        _logger.error(
            "%s failed, again in %g s: %s",
            name,
            pause_s,
            known,
            exc_info=error if known is not error else None,
        )
        if known is not error:
            self.on_unforeseen(name, error)
        self.total += 1
        self._failures[name] = Failure(
            name=name, error=known, times=times, pause_s=pause_s, at=now, lasting=lasting
        )
        return pause_s


@contextmanager
def beating(
    name: str, beat: Callable[[], object], interval_s: float, *, join_s: float | None = _JOIN_S
) -> Iterator[None]:
    """Call `beat` in a thread every so many seconds while the block runs; the next one tries again.

    Args:
        name: Of the thread, and of what fails.
        join_s: Longest wait for a beat that hangs at the end; None = until it has ended.
    """
    stop = threading.Event()

    def run() -> None:
        supervisor = Supervisor()
        while not stop.wait(interval_s):
            supervisor.attempt(name, beat)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=join_s)


class KeyedTasks(Generic[_Key]):
    """Short tasks, at most one at a time for each key; belongs to the event loop."""

    def __init__(self) -> None:
        self._tasks: dict[_Key, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    def start(self, key: _Key, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the work unless that of this key is under way; it handles its own errors."""
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has ended."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group of tasks; the others were cancelled for it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def foreseen(error: BaseException) -> TxLogError:
    """Return an error of the project as it is, and any other one as one of the project."""
    if isinstance(error, TxLogError):
        return error
    return InternalError(f"{type(error).__name__}: {str(error)[:500]}", hint="The log has more.")
