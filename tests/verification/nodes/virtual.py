"""Virtual time and chance: an event loop that never waits, and clocks that follow it.

`install` replaces the clocks and the source of random bytes of this process, like libfaketime, and
must run before anything of a node is imported: modules bind clocks at import.  Outside of a
simulated history, `enter` to `leave`, they are the real ones.  No code that ships knows of it.

Everything runs in a context that names the *life* of the node it belongs to (a node lives from a
start to its end), or none.  That tells whose clock is read, and what stands still after a kill.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

#: The wall clock when a history begins, nanoseconds since 1970 UTC.
EPOCH_NS = 1_790_000_000 * 10**9
_NS = 10**9


class Life:
    """A node between a start and its end, and its clocks.

    Args:
        name: The node.
        number: Counts its lives.
        wall_off_ns: The wall clock is ahead by so much.
        drift_ppm: Its clocks are fast by so many millionths.
    """

    def __init__(self, name: str, number: int, *, wall_off_ns: int = 0, drift_ppm: int = 0) -> None:
        self.name = name
        self.number = number
        self.wall_off_ns = wall_off_ns
        self.drift_ppm = drift_ppm
        #: False after a kill: nothing of it runs any more.
        self.runs = True
        self.paused = False
        #: What became due during a pause.
        self.held: list[asyncio.Handle] = []
        #: Tasks of its own; weak, as those of a loop are.
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        #: What must not be collected: the code of a killed node would run once more.
        self.remains: list[object] = []

    def kill(self) -> None:
        """Let nothing of it run any more, not even what cleans up."""
        self.runs = False
        self.remains += [list(self.tasks), list(self.held)]

    def context(self) -> Context:
        """Return a context of this life."""
        context = Context()
        context.run(LIFE.set, self)
        return context


_T = TypeVar("_T")
#: Whose code runs; None = the world's.
LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes only while nothing is ready.

    Args:
        lag: Returns after how many seconds the work of a thread is done, and after how many more
            its end is told.
    """

    def __init__(self, lag: Callable[[object], tuple[float, float]]) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._lag = lag
        #: Handles that ran.
        self.steps = 0
        #: Work of threads that was not done yet.
        self.waiting_work: dict[int, tuple[Life | None, Callable[..., Any], tuple[Any, ...]]] = {}
        self._work = 0
        #: Called with (life, function, arguments, error) when work of a thread was done.
        self.on_work: Callable[
            [Life | None, Callable[..., Any], tuple[Any, ...], BaseException | None], None
        ] = lambda life, work, arguments, error: None
        #: Runs what may wait for another thread; see `lockstep`.
        self.run_waiting: Callable[[Callable[[], Any], Callable[[Any, Any], None]], None] = at_once

    def time(self) -> float:
        """Return the virtual time, seconds since the history began."""
        return self._now

    def _write_to_self(self) -> None:
        """Wake nobody: threads run only while the loop waits for them."""

    def _process_events(self, event_list: object) -> None:
        """See no events: there are no sockets."""

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task; it belongs to the life of its context."""
        task = super().create_task(coro, **options)
        context = options.get("context")
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            life.tasks.add(task)
        return task

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._drop_cancelled(scheduled)
            if not scheduled:
                raise RuntimeError("nothing will ever happen again in this history")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())

    def _drop_cancelled(self, scheduled: list[Any]) -> None:
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count nothing: cancelled timers go when they are due."""

    def _run_handle(self, handle: Any) -> None:
        if handle._cancelled:
            return
        life = handle._context.get(LIFE)
        if life is not None:
            if not life.runs:
                life.remains.append(handle)
                return
            if life.paused:
                life.held.append(handle)
                return
        self.steps += 1
        handle._run()

    def resume(self, life: Life) -> None:
        """Go on with a node that was paused, with all that became due meanwhile."""
        life.paused = False
        held, life.held = life.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do a thread's work on the loop, after a while, and tell its end a while later.

        A kill before it begins loses the work; one behind it keeps what it did.
        """
        future: asyncio.Future[Any] = self.create_future()
        first, second = self._lag(executor)
        self._work += 1
        number, life = self._work, LIFE.get()
        self.waiting_work[number] = (life, func, args)

        def begin() -> None:
            if future.cancelled():  # a pool leaves out what nobody waits for any more
                del self.waiting_work[number]
                return
            # `asyncio.to_thread`, of the default pool, is where a node waits for its publisher.
            # One that reads a file waits for the wire.
            waits = executor is None or getattr(executor, "name", "") == "fetching"
            (self.run_waiting if waits else at_once)(lambda: func(*args), ended)

        def ended(result: Any, error: BaseException | None) -> None:
            self.waiting_work.pop(number, None)
            self.on_work(life, func, args, error)
            self.call_later(second, tell, result, error)

        def tell(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(first, begin)
        return future

    def own_task(
        self, life: Life, work: Coroutine[Any, Any, _T], name: str | None = None
    ) -> asyncio.Task[_T]:
        """Start a task of a node's life."""
        return self.create_task(work, name=name, context=life.context())


def at_once(work: Callable[[], Any], ended: Callable[[Any, Any], None]) -> None:
    """Do a thread's work on the loop, and tell how it ended: result and error."""
    try:
        result = work()
    except Exception as error:
        ended(None, error)
    else:
        ended(result, None)


class Clocks:
    """The clocks and random bytes of this process, replaced once by `install`."""

    def __init__(self) -> None:
        self._loop: VirtualLoop | None = None
        self._entropy = Random(0)
        self._real = {
            name: getattr(time, name)
            for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter",
                         "perf_counter_ns")
        }  # fmt: skip
        self._real_urandom = os.urandom

    def install(self) -> None:
        """Replace them; before anything that binds one of them is imported."""
        steady, wall = self._steady_ns, self._wall_ns
        replaced: dict[str, Callable[[], float | int]] = {
            "time": lambda: wall("time_ns") / _NS,
            "time_ns": lambda: wall("time_ns"),
            "monotonic": lambda: steady("monotonic_ns") / _NS,
            "monotonic_ns": lambda: steady("monotonic_ns"),
            "perf_counter": lambda: steady("perf_counter_ns") / _NS,
            "perf_counter_ns": lambda: steady("perf_counter_ns"),
        }
        for name, clock in replaced.items():
            setattr(time, name, clock)
        threading._time = time.monotonic  # type: ignore[attr-defined]
        os.urandom = self._urandom
        random._urandom = self._urandom  # type: ignore[attr-defined]

    @property
    def installed(self) -> bool:
        """Whether `install` was called."""
        return os.urandom == self._urandom

    def enter(self, loop: VirtualLoop, seed: int) -> None:
        """Begin a history."""
        if not self.installed:
            raise RuntimeError("virtual clocks must be installed before a node is imported")
        self._loop = loop
        self._entropy = Random(f"entropy:{seed}")
        random.seed(seed)

    def leave(self) -> None:
        """End the history: clocks are real again."""
        self._loop = None

    def _steady_ns(self, real: str) -> int:
        loop = self._loop
        if loop is None:
            return int(self._real[real]())
        now = int(loop.time() * _NS)
        life = LIFE.get()
        return now if life is None else now + now * life.drift_ppm // 1_000_000

    def _wall_ns(self, real: str) -> int:
        if self._loop is None:
            return int(self._real[real]())
        life = LIFE.get()
        ahead = 0 if life is None else life.wall_off_ns
        return EPOCH_NS + self._steady_ns(real) + ahead

    def _urandom(self, size: int) -> bytes:
        return self._real_urandom(size) if self._loop is None else self._entropy.randbytes(size)


#: Of this process.
CLOCKS = Clocks()


def in_life(life: Life | None) -> Context:
    """Return a context of a life, or of none."""
    if life is not None:
        return life.context()
    context = copy_context()
    context.run(LIFE.set, None)
    return context
