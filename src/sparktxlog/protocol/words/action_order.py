"""The order in which actions are carried out: nothing is said before it is durable (P1b, P18).

One first-in-first-out stream.  What stands before the first action that must be durable is carried
out at once; from there on everything that has gathered becomes one batch: all of it that must be
durable goes to the disk together, and only then is the rest carried out, in its order.

    actions ──put──► ···· say │ persist say persist say ····
                  leading() ──┘ └── take(): one write, then the says

A batch is bounded, so it may end between any two persists of the core.  A kill there is harmless
because they stand in this order (P18): the final queue's entries first, as part of the old epoch,
then the view, then the new stamps; a start with the view and old stamps stamps anew.  What `force`
appends is final only with the forced view: no batch ends between these two (P23).

The node's executor and the simulation work by the same stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from sparktxlog.protocol.words.actions import PERSISTS, PersistView

#: Most items of one batch: bounds the time until the first of them is told.
MAX_BATCH = 4_096
_T = TypeVar("_T")


class ActionStream(Generic[_T]):
    """Actions that wait to be carried out.

    Args:
        durable: Types, beside the core's `Persist…`, whose items are written before what follows.
        max_batch: Most items of one batch.
    """

    def __init__(self, durable: Iterable[type] = (), max_batch: int = MAX_BATCH) -> None:
        self._durable = frozenset((*PERSISTS, *durable))
        self._max_batch = max_batch
        self._queue: deque[_T] = deque()

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[_T]:
        """Return the items that wait, the first one first."""
        return iter(self._queue)

    def put(self, items: Iterable[_T]) -> None:
        """Add items behind all earlier ones."""
        self._queue.extend(items)

    def leading(self) -> Iterator[_T]:
        """Give the items before the first one that must be durable, those added meanwhile too."""
        queue, durable = self._queue, self._durable
        while queue and type(queue[0]) not in durable:
            yield queue.popleft()

    def take(self) -> list[_T]:
        """Return the next batch; empty if nothing waits.

        **After calling**: write the items that `must_be_durable` together, then carry out the
        others in their order, then ask again.  No two batches are on their way at once.
        """
        queue = self._queue
        if len(queue) > self._max_batch:
            return [queue.popleft() for _ in range(self._whole())]
        batch = list(queue)
        queue.clear()
        return batch

    def _whole(self) -> int:
        """Return how many items a batch takes that is not the last (to a forced view, if any)."""
        beyond = enumerate(islice(self._queue, self._max_batch, None), start=self._max_batch + 1)
        forced = (end for end, item in beyond if isinstance(item, PersistView) and item.forced)
        return max(forced, default=self._max_batch)

    def must_be_durable(self, item: _T) -> bool:
        """Return whether an item is to be written before what stands behind it is carried out."""
        return type(item) in self._durable

    def clear(self) -> None:
        """Forget what waits: the process ends here."""
        self._queue.clear()
