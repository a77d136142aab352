"""The order in which actions are carried out: nothing is sent before it is durable (P1b, P18).

There is one first-in-first-out stream.  Actions before the first one that must be durable are
carried out at once.  All waiting actions after that become one batch: those that must be durable
are written together, and only then the others are carried out, in their order.

    actions ──put──► ···· send │ persist send persist send ····
                  leading() ───┘ └── take(): one write, then the sends

A batch is bounded, so it may end between any two persists of the core.  A kill there is harmless
because of their order (P18): the final queue's entries first, as part of the old epoch, then the
view, then the new stamps; a start with the view and old stamps stamps again.  Entries that `force`
appends are final only with the forced view: no batch ends between these two (P23).

The node's executor and the simulation use the same stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from sparktxlog.protocol.messages.actions import PERSISTS, PersistView

#: Most items of one batch; it bounds the time until the first of them is sent.
MAX_BATCH = 4_096
_T = TypeVar("_T")


class ActionStream(Generic[_T]):
    """Actions that wait to be carried out.

    Args:
        durable: Types, in addition to the core's `Persist…`, whose items are written before later
            items.
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
        """Add items after all earlier ones."""
        self._queue.extend(items)

    def leading(self) -> Iterator[_T]:
        """Yield the items before the first one that must be durable, also those added meanwhile."""
        queue, durable = self._queue, self._durable
        while queue and type(queue[0]) not in durable:
            yield queue.popleft()

    def take(self) -> list[_T]:
        """Return the next batch; empty if nothing waits.

        **After calling**: write the items that `must_be_durable` together, then carry out the
        others in their order, then call it again.  Only one batch is carried out at a time.
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
        """Return whether an item must be written before later items are carried out."""
        return type(item) in self._durable

    def clear(self) -> None:
        """Drop all items: the process ends here."""
        self._queue.clear()
