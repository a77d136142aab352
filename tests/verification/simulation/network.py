"""The network between simulated nodes: delay, loss, duplicates, reordering, cuts, slow links."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Weather:
    """How bad the network is; all times in microseconds."""

    delay_min_us: int = 500
    delay_max_us: int = 5_000
    #: Chance that a message is late by up to `late_us`.
    late: float = 0.02
    late_us: int = 300_000
    lost: float = 0.0
    doubled: float = 0.0


class Network:
    """Decides when, and how often, a message arrives."""

    def __init__(self, random: Random, weather: Weather) -> None:
        self._random = random
        self.weather = weather
        #: Directed pairs (sender, receiver) over which nothing passes.
        self.cut: set[tuple[str, str]] = set()
        #: Directed pairs over which all is later than over the others: by how much, at most.
        self.slow_us: dict[tuple[str, str], int] = {}

    def passes(self, sender: str, receiver: str) -> bool:
        """Return whether messages of this direction arrive at all."""
        return (sender, receiver) not in self.cut

    def connected(self, a: str, b: str) -> bool:
        """Return whether a request and its answer pass."""
        return self.passes(a, b) and self.passes(b, a)

    def delays(self, sender: str, receiver: str) -> tuple[int, ...]:
        """Return after how many microseconds each copy of a message arrives; empty = lost."""
        weather, random = self.weather, self._random
        if weather.lost and random.random() < weather.lost:
            return ()
        slow_us = self.slow_us.get((sender, receiver), 0) if self.slow_us else 0
        if weather.doubled and random.random() < weather.doubled:
            again = self._delay(slow_us) + int(random.random() * 2_000_000)
            return (self._delay(slow_us), again)
        return (self._delay(slow_us),)

    def _delay(self, slow_us: int) -> int:
        weather, random = self.weather, self._random
        spread = weather.delay_max_us - weather.delay_min_us
        delay = weather.delay_min_us + int(random.random() * spread)
        if slow_us:
            delay += slow_us // 2 + int(random.random() * slow_us / 2)
        if weather.late and random.random() < weather.late:
            delay += int(random.random() * weather.late_us)
        return delay
