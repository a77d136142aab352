"""Threads that do blocking work for the event loop.

They do what `loop.run_in_executor` does, for less: a node that orders single commits gives its
threads several pieces of work for each of them.  What ends while the loop is busy wakes it once.

Some work on files that others share: a mount that does not answer holds some threads, not all.
A thread in a call of the system cannot be ended.  So work on a place gets a part of the threads
only.  A waiter for work that makes no progress gets an error.  The thread of that work is replaced,
and is named until the call returns.  Meanwhile nothing else is begun at that place (decision 77).
A step that ends by itself, as a request to a bucket, may take longer: it says so by `goes_on`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import structlog

from sparktxlog.errors import StuckFilesError
from sparktxlog.files.foreign_files import Progress
from sparktxlog.model.answers import OperatorWarning, StuckFiles

_log = structlog.get_logger("sparktxlog.files")

#: Seconds without progress after which nobody waits for work any more.
STUCK_S = 30.0
#: Seconds between two looks; after so long without progress another thread is started.
_LOOK_S = 1.0
#: Looks that are missing if the process itself stood still: paused, or with a machine that slept.
_MISSED_LOOKS = 10
#: Most threads, whatever hangs.
_MOST_THREADS = 64
_Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class LoopThreads:
    """A few threads; belongs to the event loop.  **After calling** `run`: `close` in the end.

    Args:
        most: As many threads are started, if there is work for them.
        name: Of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self.name = most, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        #: Future, result and error of jobs that ended.
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        #: Whether the loop was woken, and has not looked yet.
        self._told = False
        self._threads: list[Thread] = []
        #: Jobs of which the loop does not know that they ended.
        self._open = 0
        self._closed = False

    def run(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do work in a thread; what is cancelled before it begins is not done.

        Raises:
            RuntimeError: The threads were closed.
        """
        if self._closed:
            raise RuntimeError(f"the threads {self.name!r} were closed")
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        self._open += 1
        self._start_threads()
        self._jobs.put((future, work, args))
        return future

    def allow(self, most: int) -> None:
        """Start as many threads from now on, if there is work for them; none is ended."""
        self._most = most
        self._start_threads()

    def _start_threads(self) -> None:
        while len(self._threads) < min(self._open, self._most):
            name = f"{self.name}_{len(self._threads)}"
            thread = Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, *, wait: bool = True) -> None:
        """End the threads once all that was begun or waits is done.

        Args:
            wait: Until then; False where some of it may never be done.
        """
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _serve(self) -> None:
        """Do jobs, in a thread."""
        while (job := self._jobs.get()) is not None:
            self._ended.append(_done(*job))
            del job
            if not self._told:  # else the loop looks after this, and finds it
                self._told = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """Set the futures of what ended."""
        self._told = False
        while self._ended:
            future, result, error = self._ended.popleft()
            self._open -= 1
            if future.done():
                continue  # it was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _done(
    future: asyncio.Future[Any], work: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[asyncio.Future[Any], Any, BaseException | None]:
    """Do a job, unless nobody waits for it; return its future, result and error."""
    if future.cancelled():
        return future, None, None
    try:
        return future, work(*args), None
    except BaseException as error:  # noqa: BLE001 - the waiter gets it
        return future, None, error


@dataclass(slots=True, eq=False)
class _Work:
    future: asyncio.Future[Any]
    work: Callable[..., Any]
    args: tuple[Any, ...]
    #: Where it works; empty = at several places.
    place: str
    asked: float
    #: None = no thread has begun it.
    progress: Progress | None = None
    is_stuck: bool = False

    def __call__(self) -> Any:
        """Do it, in a thread."""
        if self.future.done():
            return None  # nobody waits
        self.progress = Progress.begin(self.place)
        return self.work(*self.args)

    def idle_s(self, now: float) -> float:
        """Return for how long it has made no progress, seconds."""
        return now - (self.asked if self.progress is None else self.progress.at)

    def may_take_s(self) -> float:
        """Return for how long it may make no progress until nobody waits for it, seconds."""
        return STUCK_S if self.progress is None else max(STUCK_S, self.progress.may_take_s)

    def begin_again(self, now: float) -> None:
        """Count from now on: until now it could make no progress."""
        self.asked = now
        if self.progress is not None:
            self.progress.at = now

    def concerns(self, place: str) -> bool:
        """Return whether it hangs at a place, or below it."""
        path = Path(self.place if self.progress is None else self.progress.path)
        return self.place == place or path.is_relative_to(place)


@dataclass(slots=True)
class _Place:
    """What is under way at a place, and what waits for that."""

    begun: int = 0
    waiting: deque[_Work] = field(default_factory=deque)


class FileThreads:
    """Does blocking work on shared files; belongs to the event loop.

    Args:
        most: Threads while all of them make progress.
        name: Of the threads.
        at_one_place: As many of them work at one place; default: all.
    """

    def __init__(self, most: int, name: str, at_one_place: int | None = None) -> None:
        self._threads = LoopThreads(most, name)
        self._most, self._at_one_place = most, at_one_place or most
        self._places: defaultdict[str, _Place] = defaultdict(_Place)
        self._begun: set[_Work] = set()
        self._look: asyncio.TimerHandle | None = None
        self._looked = 0.0

    def run(self, place: str | Path, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do work in a thread; what is cancelled before it begins is not done.

        Args:
            place: The directory that it works in; empty = several, which the caller looks at by
                `hangs_at`.

        Returns:
            Its result, or `StuckFilesError`.
        """
        loop = asyncio.get_running_loop()
        one = _Work(loop.create_future(), work, args, str(place), time.monotonic())
        found = self._places[one.place]
        if one.place and self.hangs_at(one.place):
            one.future.set_exception(_stuck(one.place))
        elif one.place and found.begun >= self._at_one_place:
            found.waiting.append(one)
        else:
            self._begin(one, found)
        if self._look is None and self._begun:
            self._looked = time.monotonic()
            self._look = loop.call_later(_LOOK_S, self._look_at_all)
        return one.future

    def hangs_at(self, place: str | Path) -> bool:
        """Return whether work at a place, or below it, does not come back."""
        return any(one.is_stuck and one.concerns(str(place)) for one in self._begun)

    def stuck(self) -> list[StuckFiles]:
        """Return where work does not come back, each path once, the longest first."""
        now, found = time.monotonic(), dict[str, float]()
        for one in self._begun:
            if one.is_stuck:
                found[_path(one)] = max(one.idle_s(now), found.get(_path(one), 0.0))
        longest = sorted(found.items(), key=lambda one: -one[1])
        return [{"path": path, "seconds": round(seconds, 1)} for path, seconds in longest]

    def close(self) -> None:
        """Wait until all that was begun has ended, but for what hangs."""
        if self._look is not None:
            self._look.cancel()
        now = time.monotonic()
        self._threads.close(
            wait=not any(one.is_stuck or one.idle_s(now) > _LOOK_S for one in self._begun)
        )

    def _begin(self, one: _Work, place: _Place) -> None:
        place.begun += 1
        self._begun.add(one)
        self._threads.run(one).add_done_callback(partial(self._ended, one))

    def _ended(self, one: _Work, done: asyncio.Future[Any]) -> None:
        """Give the result to the waiter, and begin what waited for the end of this work."""
        self._begun.discard(one)
        error = done.exception()
        if one.is_stuck:
            _log.info("work on files came back", path=_path(one))
        elif not one.future.done():
            one.future.set_exception(error) if error else one.future.set_result(done.result())
        place = self._places[one.place]
        place.begun -= 1
        while place.waiting and place.begun < self._at_one_place:
            self._begin(place.waiting.popleft(), place)
        if not place.begun:
            del self._places[one.place]

    def _look_at_all(self) -> None:
        """Find work without progress, and start threads for what waits after it."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        self._look = loop.call_later(_LOOK_S, self._look_at_all) if self._begun else None
        if now - self._looked > _MISSED_LOOKS * _LOOK_S:
            for one in self._begun:
                if not one.is_stuck:
                    one.begin_again(now)
        self._looked = now
        slow = [one for one in self._begun if one.idle_s(now) >= _LOOK_S]
        held = sum(one.progress is not None for one in slow)
        self._threads.allow(min(self._most + held, _MOST_THREADS))
        for one in slow:
            if one.is_stuck or one.idle_s(now) < one.may_take_s():
                continue
            one.is_stuck = one.progress is not None
            path = _path(one)
            _log.error("work on files does not come back", path=path, seconds=one.may_take_s())
            _fail(one, path)
            for place, found in self._places.items():
                if place and one.concerns(place):
                    while found.waiting:
                        _fail(found.waiting.popleft(), path)


def stuck_warnings(found: Iterable[StuckFiles]) -> list[OperatorWarning]:
    """Return what an operator should know of places where work does not come back."""
    return [
        {
            "code": "files-stuck",
            "text": f"{one['path']} has not answered for {one['seconds']:,.0f} s: its disk or "
            "mount hangs; what needs other places goes on",
        }
        for one in found
    ]


def _path(one: _Work) -> str:
    return one.place if one.progress is None else one.progress.path


def _fail(one: _Work, path: str) -> None:
    if not one.future.done():
        one.future.set_exception(_stuck(path))


def _stuck(path: str) -> StuckFilesError:
    return StuckFilesError(
        f"{path} does not answer: its disk or mount hangs",
        hint="Look at the mount at this node; it goes on by itself once that answers.",
        path=path,
    )
