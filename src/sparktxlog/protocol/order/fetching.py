"""Decides when to fetch which payload: a short wait for pushes, a bound, retries (P3a, P3b)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.order.origin_queues import Run

#: Runs with files that are fetched at once: a few more than the shell transfers side by side.  What
#: waits there would be in front of what is needed first, once an epoch began meanwhile.
_MOST_WITH_FILES = 32
#: Retries of one payload back off up to this many times the configured time.
_MAX_BACKOFF = 64


class Fetching:
    """Known payloads that are not held.

    Args:
        limit: Fetches in flight at once.
        retry_us: First pause after a failed fetch; doubles.
    """

    __slots__ = ("_count", "_due", "_failures", "_limit", "_retry_us", "_with_files", "in_flight")

    def __init__(self, *, limit: int, retry_us: int) -> None:
        self._limit = limit
        self._retry_us = retry_us
        #: (time, tie-break, run); runs acquired meanwhile are dropped when they come up.
        self._due: list[tuple[int, int, Run]] = []
        #: The same for runs with files: they have a bound of their own, and small ones pass them.
        self._with_files: list[tuple[int, int, Run]] = []
        self._count = 0
        self._failures: dict[bytes, int] = {}
        #: Digest → run; each ends with PayloadArrived or FetchFailed.
        self.in_flight: dict[bytes, Run] = {}

    def clear(self) -> None:
        """Drop all requests; fetches in flight may still arrive."""
        self._due.clear()
        self._with_files.clear()
        self._failures.clear()
        self.in_flight.clear()

    def want(self, run: Run, at: int) -> None:
        """Fetch the run's payload from time `at` on, unless it is pushed before."""
        run.wanted = True
        self._count += 1
        heapq.heappush(self._waiting(run), (at, self._count, run))

    def _waiting(self, run: Run) -> list[tuple[int, int, Run]]:
        return self._with_files if run.header.staged_bytes else self._due

    def forget(self, run: Run) -> None:
        """Drop the request for a run, because another one replaced it."""
        waiting = self._waiting(run)
        waiting[:] = [due for due in waiting if due[2] is not run]
        heapq.heapify(waiting)
        digest = run.header.digest
        if self.in_flight.get(digest) is run:
            del self.in_flight[digest]
        self._failures.pop(digest, None)

    def start(self, now: int) -> list[Run]:
        """Return the runs to fetch now; they count as in flight."""
        started: list[Run] = []
        flying = self.in_flight
        for due, most in self._lanes():
            while due and due[0][0] <= now and len(flying) < most:
                run = heapq.heappop(due)[2]
                if run.facts is not None:
                    continue
                digest = run.header.digest
                if digest in flying:
                    # Two runs with one manifest: the second waits for its own copy.
                    if flying[digest] is not run:
                        self.want(run, now + self._retry_us)
                    continue
                flying[digest] = run
                started.append(run)
        return started

    def _lanes(self) -> Iterator[tuple[list[tuple[int, int, Run]], int]]:
        """Yield what waits, and how many fetches there may be then, of all kinds."""
        yield self._due, self._limit
        if self._with_files:
            others = sum(not run.header.staged_bytes for run in self.in_flight.values())
            yield self._with_files, min(self._limit, others + _MOST_WITH_FILES)

    def arrived(self, header: RunHeader) -> None:
        """Note that a run's payload arrived, by push or fetch.

        One that came late, under an older stamp, or for another run with the same manifest, is
        refused, and ends no fetch: if that failed then, the run would never be asked for again.
        """
        run = self.in_flight.get(header.digest)
        if run is not None and run.header == header:
            del self.in_flight[header.digest]
            self._failures.pop(header.digest, None)

    def failed(self, digest: bytes, now: int) -> bool:
        """Plan the next attempt; return whether the digest was a fetch of this kind."""
        run = self.in_flight.pop(digest, None)
        if run is None:
            return False
        run.unsure = True
        failures = self._failures.get(digest, 0) + 1
        self._failures[digest] = failures
        self.want(run, now + self._retry_us * min(1 << (failures - 1), _MAX_BACKOFF))
        return True

    def hurry(self, now: int) -> None:
        """Retry failed fetches at once: a node that may have the data is back."""
        if self._failures:
            failed = (*self._due, *self._with_files)
            self._due.clear()
            self._with_files.clear()
            for at, _, run in failed:
                self.want(run, now if run.header.digest in self._failures else at)
            self._failures.clear()

    def next_deadline(self) -> int | None:
        """Return when the next fetch may start, None if nothing is wanted or all slots busy."""
        found: list[int] = []
        for due, most in self._lanes():
            while due and due[0][2].facts is not None:
                heapq.heappop(due)
            if due and len(self.in_flight) < most:
                found.append(due[0][0])
        return min(found, default=None)
