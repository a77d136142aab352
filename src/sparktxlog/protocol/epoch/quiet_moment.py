"""When a change begins that can wait, as nobody is missing: at a moment of rest (P13).

All members stand still for it.  What a client sent just before would have to be flushed while they
do, and what waits for the disk in front of the question delays that.  So it is asked when all known
transactions are ordered and the shell has nothing to write or to send.
"""

from __future__ import annotations


class Rest:
    """Waits for a moment of rest, once an epoch and not for long: a busy log may never rest.

    Args:
        most_us: Longest wait, microseconds.
    """

    __slots__ = ("_by", "_most_us", "here", "wanted")

    def __init__(self, most_us: int) -> None:
        self._most_us = most_us
        #: Until when it waits; None = it did not in this epoch.
        self._by: int | None = None
        #: Whether the shell shall tell when it has nothing to do.
        self.wanted = False
        #: True: it has told so in this batch.
        self.here = False

    def entered(self) -> None:
        """Begin a new epoch."""
        self._by = None

    def over(self) -> None:
        """End a batch: the moment is over."""
        self.here = False

    def until(self, busy: bool, now: int) -> int:
        """Return when to begin; `now` or earlier = at once.

        Args:
            busy: Transactions that this node knows of wait to be ordered.
        """
        if self._by is None:
            self._by = now + self._most_us
        if self.here and not busy:
            return now
        self.wanted = now < self._by and not busy
        return self._by
