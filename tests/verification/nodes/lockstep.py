"""Threads in lockstep: a node's own thread runs only while the loop stands still for it.

The publisher's thread waits on conditions and on futures of the loop.  Here such a wait gives the
baton back to the loop, and a notification, or virtual time, brings it back: at any moment one
thread runs, and which one follows from the seed.  A thread of a killed node is never run again.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.verification.nodes.virtual import LIFE, VirtualLoop, at_once

#: A thread wakes so long after the time it asked for, seconds: never before it by its own clock.
_LATE_S = 1e-4

_real_wait = threading.Condition.wait
_real_start = threading.Thread.start
_real_join = threading.Thread.join
_real_is_alive = threading.Thread.is_alive


class _Baton:
    """A lock that one thread waits for and another one gives; real, whatever is replaced."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def take(self) -> None:
        self._lock.acquire()

    def give(self) -> None:
        self._lock.release()


class _Steps:
    """One thread that runs in steps, each while the loop waits."""

    def __init__(self, lockstep: Lockstep, work: Callable[[], None], context: Context) -> None:
        self._lockstep = lockstep
        self._context = context
        self._work = work
        self._turn, self._back = _Baton(), _Baton()
        self.ended = False
        #: Who waits for the end.
        self.joining: list[_Waiter] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Let its first step run, now."""
        _real_start(self._thread)
        self.step()

    def step(self) -> None:
        """Let it run until it waits or ends; on the loop's thread."""
        self._lockstep.current = self
        self._turn.give()
        self._back.take()
        self._lockstep.current = None

    def _run(self) -> None:
        self._turn.take()
        try:
            self._context.run(self._work)
        except Exception as error:
            told = {"message": "a thread of a node failed", "exception": error}
            self._lockstep.loop.call_exception_handler(told)
        self.ended = True
        for waiter in self.joining:
            waiter.release()
        self._back.give()

    def pause(self, waiter: _Waiter, timeout: float | None) -> bool:
        """Give the baton back until the waiter is released, or time is over; return which."""
        loop = self._lockstep.loop
        timer = None if timeout is None else loop.call_later(timeout + _LATE_S, waiter.time_over)
        self._lockstep.current = None
        self._back.give()
        self._turn.take()
        if timer is not None:
            timer.cancel()
        return waiter.released


class _Waiter:
    """Stands for the lock that a real condition's waiter sleeps on."""

    def __init__(self, steps: _Steps, loop: VirtualLoop) -> None:
        self._steps = steps
        self._loop = loop
        self._context = copy_context()
        self.released = False
        self._woken = False

    def release(self) -> None:
        """Wake the thread, once."""
        self.released = True
        self._wake()

    def time_over(self) -> None:
        """Wake the thread though nobody released it."""
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._steps.step, context=self._context)


class Lockstep:
    """Makes threads that are started within a life run in lockstep; one a process."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.current: _Steps | None = None
        self._of_thread: dict[threading.Thread, _Steps] = {}

    def install(self) -> None:
        """Replace waiting, starting and joining of threads, for the rest of this process."""
        patched: Any = threading
        wait, join, start, is_alive = self._wait, self._join, self._start, self._is_alive

        # Functions, not methods of this object: they become methods of what they are put into.
        def waits(condition: Any, timeout: float | None = None) -> bool:
            return wait(condition, timeout)

        def joins(thread: threading.Thread, timeout: float | None = None) -> None:
            join(thread, timeout)

        def starts(thread: threading.Thread) -> None:
            start(thread)

        def lives(thread: threading.Thread) -> bool:
            return is_alive(thread)

        patched.Condition.wait, patched.Thread.join = waits, joins
        patched.Thread.start, patched.Thread.is_alive = starts, lives
        self.loop.run_waiting = self.run_waiting

    def _wait(self, condition: Any, timeout: float | None) -> bool:
        steps = self.current
        if steps is None:
            return _real_wait(condition, timeout)
        waiter = _Waiter(steps, self.loop)
        condition._waiters.append(waiter)
        saved = condition._release_save()
        try:
            released = steps.pause(waiter, timeout)
        finally:
            condition._acquire_restore(saved)
        if not released:
            condition._waiters.remove(waiter)
        return released

    def _start(self, thread: threading.Thread) -> None:
        if LIFE.get() is None:
            _real_start(thread)
            return
        steps = self._of_thread[thread] = _Steps(self, thread.run, copy_context())
        self.loop.call_soon(steps.begin)

    def _join(self, thread: threading.Thread, timeout: float | None) -> None:
        steps = self._of_thread.get(thread)
        if steps is None:
            _real_join(thread, timeout)
        elif not steps.ended:
            assert self.current is not None, "only a thread waits for a thread"
            waiter = _Waiter(self.current, self.loop)
            steps.joining.append(waiter)
            self.current.pause(waiter, timeout)

    def _is_alive(self, thread: threading.Thread) -> bool:
        steps = self._of_thread.get(thread)
        return _real_is_alive(thread) if steps is None else not steps.ended

    def run_waiting(self, work: Callable[[], Any], ended: Callable[[Any, Any], None]) -> None:
        """Run work that may wait for another thread, in a thread of its own."""

        def run() -> None:
            at_once(work, tell)

        def tell(result: Any, error: BaseException | None) -> None:
            self.loop.call_soon_threadsafe(ended, result, error)

        self.loop.call_soon(_Steps(self, run, copy_context()).begin)
