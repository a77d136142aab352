"""How a node was in the last day: a few figures, measured every ten seconds and kept in memory.

It is for people who look now.  A restart begins anew; what is kept for weeks is Prometheus' matter.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import inf, isnan, nan
from typing import Any

from prometheus_client import Counter, Histogram

from sparktxlog.health.verdicts import ClusterState, judge, replica_lines
from sparktxlog.model.answers import StatusAnswer
from sparktxlog.runtime.foundation import Foundation

#: Seconds between two samples of the last hour and of the last day, and how many are kept.
STEPS = {"hour": (10, 360), "day": (60, 1_440)}
#: What a minute keeps of its samples, so that no peak is lost; of other series it is the mean.
_KEPT: dict[str, Callable[[Sequence[float]], float]] = {
    "state": max,
    "commit_p99_s": max,
    "lag": max,
    "lag_s": max,
    "log_bytes": max,
    "disk_free_bytes": min,
}
_STATES = tuple(ClusterState)


class Ring:
    """Values of several series at a steady step; a new sample takes the place of the oldest.

    It takes 8 bytes for each slot and series.  A series without a value in all slots goes.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        #: How many samples were added.
        self.count = 0
        self._times = array("d", [nan]) * slots
        self._values: dict[str, array[float]] = {}
        #: Series → the sample that had a value last.
        self._last: dict[str, int] = {}

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Add a sample.

        Args:
            at: Seconds since 1970.
            values: Of each series that has one.
        """
        place = self.count % self._slots
        self._times[place] = at
        for name in values:
            self._last[name] = self.count
            if name not in self._values:
                self._values[name] = array("d", [nan]) * self._slots
        for name, kept in self._values.items():
            kept[place] = values.get(name, nan)
        for name in [one for one, last in self._last.items() if self.count - last >= self._slots]:
            del self._values[name], self._last[name]
        self.count += 1

    def show(self) -> dict[str, Any]:
        """Return `at`, seconds since 1970, ascending; `series`: name → values, None = unknown."""
        kept, end = min(self.count, self._slots), self.count % self._slots

        def turned(values: array[float]) -> list[float]:
            return [*values[end:kept], *values[:end]] if kept == self._slots else [*values[:kept]]

        return {
            "at": [round(one, 1) for one in turned(self._times)],
            "series": {
                name: [None if isnan(one) else float(f"{one:.6g}") for one in turned(values)]
                for name, values in sorted(self._values.items())
            },
        }


class NodeHistory:
    """Measures a node; belongs to the event loop.

    **After calling** the constructor: run `watch`.

    Args:
        status: Of the node.
        lag_seconds: Returns site → how long the oldest transaction has been ordered that it lacks.
    """

    def __init__(
        self,
        base: Foundation,
        status: Callable[[], StatusAnswer],
        lag_seconds: Callable[[], Mapping[str, float]],
    ) -> None:
        self._base = base
        self._status = status
        self._lag_seconds = lag_seconds
        self._rings = {span: Ring(slots) for span, (_, slots) in STEPS.items()}
        #: Samples of the minute that is not over.
        self._minute: list[dict[str, float]] = []
        #: Counters at the last sample, and when that was.
        self._counted: dict[str, float] = {}
        self._counted_at = 0.0
        self._buckets: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Take a sample every ten seconds, until cancelled."""

        async def watch() -> None:
            while True:
                self.sample()
                await asyncio.sleep(STEPS["hour"][0])

        await self._base.supervisor.keep("measuring the node", watch)

    def sample(self) -> None:
        """Take a sample."""
        status, metrics = self._status(), self._base.metrics
        values = {
            "state": float(_STATES.index(judge(status).state)),
            "log_bytes": float(status["log_bytes"]),
            "disk_free_bytes": float(self._base.reserve.free_bytes()),
        }
        counted = {"ordered_per_s": _count_of(metrics.ordered)}
        for peer in status["peers"]:
            received = peer["received_bytes"] + peer["fetched_bytes"]
            counted[f"received_bytes_per_s.{peer['id']}"] = received
            counted[f"sent_bytes_per_s.{peer['id']}"] = peer["sent_bytes"]
        for line in replica_lines(status):
            name = f"lag.{line['node_id']}"
            values[name] = min(float(line["behind"]), values.get(name, inf))
        values |= {f"lag_s.{site}": value for site, value in self._lag_seconds().items()}
        values |= self._rates(counted) | self._latencies(metrics.commit_seconds)
        at = status["wall"] / 1e6
        self._rings["hour"].add(at, values)
        self._minute.append(values)
        if len(self._minute) * STEPS["hour"][0] >= STEPS["day"][0]:
            self._rings["day"].add(at, _combined(self._minute))
            self._minute = []

    def samples(self, span: str) -> int:
        """Return how many samples of a span were taken: what was made of so many is still good."""
        return self._rings[span].count

    def show(self, span: str) -> dict[str, Any]:
        """Return the samples of a span of `STEPS`, as `Ring.show` does, and their `step_s`."""
        return {"span": span, "step_s": STEPS[span][0], **self._rings[span].show()}

    def _rates(self, counted: Mapping[str, float]) -> dict[str, float]:
        """Return how fast counters rose since the last sample; nothing of new ones."""
        before, now = self._counted, self._base.loop.time()
        passed, self._counted, self._counted_at = now - self._counted_at, dict(counted), now
        return {
            name: max(0.0, value - before[name]) / passed
            for name, value in counted.items()
            if name in before and passed > 0
        }

    def _latencies(self, seconds: Histogram) -> dict[str, float]:
        """Return two quantiles of what was observed since the last sample; nothing without any."""
        before, self._buckets = self._buckets, _buckets_of(seconds)
        old = [count for _, count in before] or [0.0] * len(self._buckets)
        new = [(top, count - was) for (top, count), was in zip(self._buckets, old, strict=True)]
        if not new[-1][1]:
            return {}
        return {"commit_p50_s": quantile(new, 0.5), "commit_p99_s": quantile(new, 0.99)}


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """Return an estimate of a quantile, as Prometheus makes it: even within a bucket.

    Args:
        buckets: Upper bound, ascending, the last one infinite; and how many are at most that.
        share: From 0 to 1.
    """
    wanted, low, below = share * buckets[-1][1], 0.0, 0.0
    for top, count in buckets:
        if count >= wanted and count > below:
            return low if top == inf else low + (top - low) * (wanted - below) / (count - below)
        low, below = top, count
    return low


def _count_of(counter: Counter) -> float:
    (family,) = counter.collect()
    return next(one.value for one in family.samples if one.name.endswith("_total"))


def _buckets_of(histogram: Histogram) -> list[tuple[float, float]]:
    (family,) = histogram.collect()
    found = [one for one in family.samples if one.name.endswith("_bucket")]
    return [(float(one.labels["le"]), one.value) for one in found]


def _combined(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for one in samples for name in one}
    found = {}
    for name in names:
        values = [one[name] for one in samples if name in one]
        keep = _KEPT.get(name.partition(".")[0])
        found[name] = keep(values) if keep is not None else sum(values) / len(values)
    return found
