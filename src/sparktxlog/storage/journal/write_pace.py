"""How long the journal recently took for writes: each commit waits for a few of every member."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

#: A write counts for so many seconds, and so many of them do.
_RECENT_S, _MOST = 60.0, 15
#: Fewer say nothing: one slow write is no slow disk.
_LEAST = 5
#: A write that is under way for longer says it alone.
_HANGS_S = 10.0


class WritePace:
    """Times writes; also one under way, so that a disk that hangs is noticed."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        #: When a write ended, and how long it took, seconds.
        self._took: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._since: float | None = None

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time a write; one that fails says nothing."""
        self._since = began = self._clock()
        try:
            yield
            self._took.append((self._clock(), self._clock() - began))
        finally:
            self._since = None

    @property
    def seconds(self) -> float | None:
        """Median of the last writes in seconds, None = there were too few recently."""
        now = self._clock()
        if self._since is not None and now - self._since > _HANGS_S:
            return now - self._since
        recent = [took for at, took in self._took if now - at <= _RECENT_S]
        return median(recent) if len(recent) >= _LEAST else None
