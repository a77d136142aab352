"""Clocks: the only place where time is read (protocol C1, C4)."""

from __future__ import annotations

import time
from collections.abc import Callable

_MICROSECONDS = 1_000_000


def wall_us() -> int:
    """Return the wall clock, microseconds since 1970 UTC; it may be wrong (C3)."""
    return time.time_ns() // 1_000


class Clock:
    """A steady clock for waits, and the wall clock.

    The steady clock begins at the greater of the last reservation and the wall clock.  From then on
    it always advances, whatever happens to the wall clock.  Timestamps follow the wall clock
    (`protocol.order.counter`).
    """

    def __init__(
        self,
        floor_us: int,
        *,
        wall: Callable[[], int] = wall_us,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.wall = wall
        self._steady_ns = steady_ns
        self._offset_us = max(floor_us, wall()) - steady_ns() // 1_000

    def now(self) -> int:
        """Return the steady time in microseconds."""
        return self._steady_ns() // 1_000 + self._offset_us

    def seconds_until(self, deadline_us: int) -> float:
        """Return how long until a steady time, in seconds; 0 if it has passed."""
        return max(0.0, (deadline_us - self.now()) / _MICROSECONDS)
