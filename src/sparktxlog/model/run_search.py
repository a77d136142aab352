"""Finds runs of the queue, which is read by the positions at which they begin.

A run has one to `LONGEST_RUN` transactions, so both searches read a short piece first, and longer
ones as long as that does not do.  `read` is `GET /v1/queue`, or what answers it: it returns runs
after a position, ascending, at most so many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sparktxlog.model.transactions.operation import LONGEST_RUN

#: Most runs in one answer of a node.
PAGE = 1_000
#: How much longer the next piece is.
_LONGER = 16

Run = TypeVar("Run", bound=Any)


def last_runs(
    read: Callable[[int, int], Sequence[Run]], position: int, kept_after: int, limit: int
) -> list[Run]:
    """Return the last runs of a queue, ascending.

    Args:
        read: Takes a position and a number of runs.
        position: End of the queue.
        kept_after: The log has only what is after it.
        limit: Runs at most.
    """
    width = limit
    while True:
        after = max(kept_after, position - width)
        runs = deque(_runs_after(read, after), maxlen=limit)
        if len(runs) >= limit or after <= kept_after or width >= LONGEST_RUN:
            return list(runs)
        width *= _LONGER


def _runs_after(read: Callable[[int, int], Sequence[Run]], after: int) -> Iterator[Run]:
    """Yield all runs that begin after a position: a piece may have more than a page."""
    while page := read(after, PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]["position"]


def run_at(
    read: Callable[[int, int], Sequence[Run]], wanted: int, position: int, kept_after: int
) -> Run | None:
    """Return the run that has a position, None = the node has none; arguments as `last_runs`."""
    width = 1
    while kept_after < wanted <= position:
        after = max(kept_after, wanted - width)
        held = None
        while page := read(after, 1 if width == 1 else PAGE):
            held = next((run for run in page if run["position"] + run["n"] > wanted), None)
            if held is not None:
                break
            after = page[-1]["position"]
        if held is not None and held["position"] <= wanted:
            return held
        if after == kept_after or width > LONGEST_RUN:
            return None
        width *= _LONGER
    return None
