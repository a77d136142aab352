"""Where two queues of one log part: bisection over chain hashes (protocol S1, P28).

A chain hash covers everything before it.  So two queues are equal up to a run end of both exactly
if the hashes there are equal, and what is equal is a prefix: its end is found by halving, with at
most one question to the other node for each halving.

Pure, like the whole room: who answers, and what it still keeps, is the caller's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """A run's place in a queue; equal in two queues only if all before it is equal."""

    #: Positions of its first and last transaction.
    first: int
    last: int
    #: Chain hash at `last`.
    chain_hash: bytes


def last_common(
    own: Callable[[int], QueueRun],
    other: Callable[[int], QueueRun | None],
    low: int,
    high: int,
) -> int:
    """Return the last position up to which two queues are equal; it is a run end of both.

    Args:
        own: Returns the own run that holds a position, for low < position <= high.
        other: Returns the other queue's first run that starts after a position, None if none
            does; asked at most once for each halving of high - low.
        low: A run end of both queues with equal hashes; 0 is one.
        high: The queues are not known to be equal beyond it, nor either of them to reach further;
            at least `low`.
    """
    # Invariant: equal up to `low`, a run end of both; not equal up to anything beyond `high`.
    while low < high:
        run = own((low + high) // 2 + 1)
        # A run that ends beyond `high` is no common one, so neither is any end inside it.
        if run.last <= high and other(run.first - 1) == run:
            low = run.last
        else:
            high = run.first - 1
    return low
