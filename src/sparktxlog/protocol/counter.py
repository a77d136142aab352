"""Timestamp counter, its durable reservation and the log clock (protocol P1, P2, C1).

Log clock `L` = the shell's clock plus a lead that header timestamps of peers push up (P6), so that
a node whose clock is behind stamps after what it has seen.  Counter `c` = the largest timestamp
stamped, promised to peers or used in an own ADD; new timestamps exceed it.  `H` is reserved ahead
of `c` and made durable before `c` gets out; a restart begins at `H`, above all that was promised.
"""

from __future__ import annotations


class TimestampCounter:
    """Counter `c` of one node; `value` never falls, not even by a crash.

    Args:
        reserved: H as recovered, 0 at the very first start.
        floor: Largest timestamp found in recovered runs.
        reserve_us: How far ahead H is reserved, microseconds.
    """

    __slots__ = ("_lead_us", "_reserve_us", "reserved", "value")

    def __init__(self, *, reserved: int, floor: int, reserve_us: int) -> None:
        #: c.  Invariant: a counter that left this node is <= `reserved`.  One above the old H, so
        #: that each start reserves anew before anything leaves, and no two starts look alike.
        self.value = max(reserved + 1, floor)
        #: H, as handed to the executor.
        self.reserved = reserved
        self._reserve_us = reserve_us
        self._lead_us = 0

    def log_time(self, now: int) -> int:
        """Return L at the shell's time `now`, microseconds."""
        return now + self._lead_us

    def learn(self, ts: int, now: int) -> None:
        """Raise the log clock to a header's timestamp (P6)."""
        if ts > now + self._lead_us:
            self._lead_us = ts - now

    def stamp(self, now: int) -> int:
        """Return the timestamp of a new run: above everything promised or used before (P1)."""
        self.value = max(self.value + 1, now + self._lead_us)
        return self.value

    def promise(self, now: int) -> int:
        """Advance c to the log clock and return it, for a post."""
        self.value = max(self.value, now + self._lead_us)
        return self.value

    def use(self, ts: int) -> None:
        """Note that an own ADD went up to `ts`: it counts like a promise (P2)."""
        self.value = max(self.value, ts)

    def reservation(self) -> int | None:
        """Return the H to persist before c may get out, None if the present one suffices."""
        if self.value <= self.reserved:
            return None
        self.reserved = self.value + self._reserve_us
        return self.reserved
