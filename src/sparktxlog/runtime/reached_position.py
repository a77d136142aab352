"""A position that only grows, and waits until it has reached a value."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class ReachedPosition:
    """A position that only grows; waiting costs one future and no polling."""

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tiebreak = itertools.count()

    def advance(self, value: int) -> None:
        """Raise the value and wake the waits that it reaches; a lower value changes nothing."""
        self.value = max(self.value, value)
        while self._waiting and self._waiting[0][0] <= self.value:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    async def reach(self, value: int, timeout_s: float) -> int:
        """Return the value once it is at least `value`, or as it is when the time is over."""
        if self.value >= value or timeout_s <= 0:
            return self.value
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (value, next(self._tiebreak), future)
        heapq.heappush(self._waiting, item)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            self._waiting = [other for other in self._waiting if other is not item]
            heapq.heapify(self._waiting)
        return self.value

    def release(self) -> None:
        """End all waits: the node stops."""
        for _, _, future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
