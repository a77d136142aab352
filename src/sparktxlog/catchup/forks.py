"""Finds where two queues of one log fork, by bisection over chain hashes (protocol S1, P28).

A chain hash covers everything before it.  So two queues are equal up to a run end of both if and
only if the hashes there are equal.  Bisection finds the end of the common prefix, with at most one
request to the other node for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """A run's place in a queue; it is equal in two queues only if everything before it is equal."""

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
        high: Upper bound of the result: after it nothing is known to be equal, or to exist;
            at least `low`.
    """
    # Invariant: equal up to `low`, a run end of both; not equal up to anything beyond `high`.
    while low < high:
        run = own((low + high) // 2 + 1)
        # A run that ends after `high` is not common, so no run ends at a common position inside it.
        if run.last <= high and other(run.first - 1) == run:
            low = run.last
        else:
            high = run.first - 1
    return low
