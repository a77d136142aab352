"""Clocks: the only place where time is read (protocol C1, C4)."""

from __future__ import annotations

import time
from collections.abc import Callable

_MICROSECONDS = 1_000_000


def wall_us() -> int:
    """Return the wall clock, microseconds since 1970 UTC: for display and retention only (C4)."""
    return time.time_ns() // 1_000


class LogClock:
    """The log clock: the greater of what was persisted and the wall clock at start, then steady.

    It never goes back, whatever happens to the wall clock, and never stands still, whatever
    value was persisted (C1).
    """

    def __init__(
        self,
        floor_us: int,
        *,
        wall: Callable[[], int] = wall_us,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._steady_ns = steady_ns
        self._offset_us = max(floor_us, wall()) - steady_ns() // 1_000

    def now(self) -> int:
        """Return the log time in microseconds."""
        return self._steady_ns() // 1_000 + self._offset_us

    def seconds_until(self, deadline_us: int) -> float:
        """Return how long until a log time, in seconds; 0 if it has passed."""
        return max(0.0, (deadline_us - self.now()) / _MICROSECONDS)
