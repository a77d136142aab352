"""Threads that do blocking work for the event loop.

They do what `loop.run_in_executor` does, for less: a node that orders single commits gives its
threads several pieces of work for each of them.  What ends while the loop is busy wakes it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

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
        #: Whether the loop was told, and has not looked yet.
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
        if len(self._threads) < min(self._open, self._most):
            name = f"{self.name}_{len(self._threads)}"
            thread = Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((future, work, args))
        return future

    def close(self) -> None:
        """Wait until all that was begun or waits is done, and end the threads."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
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
    except BaseException as error:  # noqa: BLE001 - who waits gets it
        return future, None, error
