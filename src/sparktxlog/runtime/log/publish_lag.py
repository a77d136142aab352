"""How long what is ordered waits to be published, and back-pressure while that is too long.

Ordering may be faster than publishing: then workers and readers see a state that is ever older,
and the journal grows.  So a node whose oldest unpublished run has waited a second longer than it
may wait for the next publish holds up new transactions of its clients for up to a second: writers
feel it before readers are far behind.  After `publish-lag-limit` it refuses them as busy if that
does not end soon.  Nothing else waits: it orders what its peers took, and publishes.

Each node judges only itself: clients of a node wait for that node's readers, and a site with a slow
disk slows down no other one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sparktxlog.errors import BusyError, DiskFullError, TxLogError

#: Runs ordered within so long count as one, microseconds.
_STEP_US = 100_000
#: Writers are held up, and not refused yet, once what is ordered has waited so much longer than
#: publishing takes its time, seconds.
_FELT_S = 1.0
#: A submit waits so long at most before it is refused, seconds; and so many wait, because each
#: holds its rows in memory.
_PATIENCE_S = 1.0
_MOST_WAITING = 64


class PublishLag:
    """Measures how long ordered runs wait to be published; belongs to the event loop.

    Args:
        now: Steady clock, microseconds.
        limit_s: Returns how long they may wait, seconds.
        failure: Returns why publishing fails at the moment, None = it does not.
        interval_s: Time between two publishes, seconds.
    """

    def __init__(
        self,
        now: Callable[[], int],
        limit_s: Callable[[], float],
        failure: Callable[[], TxLogError | None],
        interval_s: float,
    ) -> None:
        self._now = now
        self._limit_s = limit_s
        self._failure = failure
        self._felt_s = interval_s + _FELT_S
        #: (position, when the first run of this step was ordered), ascending; not published yet.
        self._steps: deque[tuple[int, int]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()

    def ordered(self, position: int) -> None:
        """Note the new end of the queue."""
        now = self._now()
        if self._steps and now - self._steps[-1][1] < _STEP_US:
            now = self._steps.pop()[1]
        self._steps.append((position, now))

    def published(self, position: int) -> None:
        """Note the new end of its published part, and let those go on that wait for it."""
        while self._steps and self._steps[0][0] <= position:
            self._steps.popleft()
        if not self._is_felt():
            self.release()

    def release(self) -> None:
        """Let all go on that wait: the limit is another one, or the node stops."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    @property
    def age_us(self) -> int:
        """How long the oldest run has waited to be published, microseconds; 0 = none waits."""
        return self._now() - self._steps[0][1] if self._steps else 0

    @property
    def waiting(self) -> int:
        """How many submits wait here."""
        return len(self._waiting)

    def _is_too_long(self) -> bool:
        return self.age_us > 1_000_000 * self._limit_s()

    def _is_felt(self) -> bool:
        return self.age_us > 1_000_000 * min(self._felt_s, self._limit_s())

    def warnings(self) -> list[dict[str, str]]:
        """Return what an operator should know."""
        if not self._is_too_long():
            return []
        return [{"code": "publishing-late", "text": f"new transactions wait: {self._text()}"}]

    def _text(self) -> str:
        text = (
            f"what is ordered has waited {self.age_us / 1e6:,.1f} s to be published, "
            f"{self._limit_s():g} s are allowed (publish-lag-limit)"
        )
        failure = self._failure()
        return text if failure is None else f"{text}; publishing fails: {failure.message}"

    async def admit(self, timeout_s: float) -> float:
        """Wait until a new transaction may come, a second at most; return for how many seconds.

        The wait takes at most half of its time: its client still waits for the answer then.  After
        a wait another copy of it may have come.

        Raises:
            BusyError, DiskFullError: Publishing is still too late; nothing happened (definite).
        """
        if not self._is_felt():
            return 0.0
        waited_s = 0.0
        if len(self._waiting) < _MOST_WAITING and self._failure() is None:
            waited_s = await self._wait(min(timeout_s / 2, _PATIENCE_S))
        if not self._is_too_long():
            return waited_s
        kind = DiskFullError if isinstance(self._failure(), DiskFullError) else BusyError
        raise kind(
            self._text(),
            hint="Submit again in a moment, or at another site; see `sparktxlog status`.",
            lag_s=round(self.age_us / 1e6, 1),
            limit_s=self._limit_s(),
        )

    async def _wait(self, longest_s: float) -> float:
        """Wait until publishing has caught up; return for how many seconds."""
        loop = asyncio.get_running_loop()
        future, since = loop.create_future(), loop.time()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(longest_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)
        return loop.time() - since
