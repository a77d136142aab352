"""Delays a change that is not urgent, because nobody is missing, to a quiet moment (P13).

All members stop ordering during a change.  Transactions sent just before would have to be flushed
meanwhile, and writes that wait for the disk would delay the question.  So the change begins when
all known transactions are ordered and the node has nothing to write or to send.
"""

from __future__ import annotations


class Rest:
    """Waits for a quiet moment, once an epoch and not for long: a busy log may have none.

    Args:
        most_us: Longest wait, microseconds.
    """

    __slots__ = ("_by", "_most_us", "here", "wanted")

    def __init__(self, most_us: int) -> None:
        self._most_us = most_us
        #: Until when it waits; None = it did not in this epoch.
        self._by: int | None = None
        #: Whether the shell shall report when it has nothing to do.
        self.wanted = False
        #: True: it has reported so in this batch.
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
