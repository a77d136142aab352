"""Timestamp counter, its durable reservation and the log clock (protocol P1, P2, C1, C3).

Counter `c` = the largest timestamp stamped, promised to peers or used in an own ADD; new timestamps
exceed it.  `H` is reserved ahead of `c` and made durable before `c` is sent; a restart begins at
`H`, which is above every promise.

The log clock `L` gives the timestamps.  It is the node's wall clock, if that is trusted.  It is
raised to the timestamps of peers (P6), so that a node with a slow clock stamps after the runs that
it has seen.  Within an epoch it never falls: while it is ahead of the wall clock it runs at half
speed, until the wall clock has caught up.
"""

from __future__ import annotations

#: If the wall clock moved so much more, or less, than the steady one, it was set; microseconds.
_SET_US = 1_000_000


class WallClock:
    """The node's wall clock, and whether it is trusted (C3).

    A clock that was set is trusted once the members' clocks agree with it.  Until then time
    continues by the steady clock.  So a node that returns with a wrong clock gives no timestamps
    and promises that others would have to refuse.

    Args:
        floor: A time that passed before, as recovered; 0 at the very first start, when there is
            nothing to compare with.
        lead_us: How far ahead of this node's time a timestamp may be.
        now: Shell's time.
        wall: Microseconds since 1970 UTC.
    """

    __slots__ = ("_known", "lead_us", "now", "wall")

    def __init__(self, *, floor: int, lead_us: int, now: int, wall: int) -> None:
        #: Time by the steady clock since it was known last; 0 = never.  No peer's timestamp
        #: moves it.
        self._known = floor
        self.lead_us = lead_us
        self.now = now
        self.wall = wall

    def read(self, now: int, wall: int) -> bool:
        """Let time pass; return whether the wall clock was set meanwhile."""
        passed = now - self.now
        was_set = abs(wall - self.wall - passed) > _SET_US
        if self._known:
            self._known += passed
        self.now, self.wall = now, wall
        return was_set

    def believe(self) -> None:
        """Note that the members agree with it, or that there are no others."""
        self._known = max(self._known, self.wall)

    def begin_at(self, ts: int) -> None:
        """Note the timestamp at the end of a log that this node joins: time is at least that."""
        self._known = max(self._known, ts)

    @property
    def time(self) -> int:
        """Return the trusted time."""
        return min(self.wall, self._known) if self._known else self.wall

    @property
    def limit(self) -> int:
        """Return the greatest timestamp of a peer that can be right."""
        return max(self.time, self._known) + self.lead_us


class TimestampCounter:
    """Counter `c` of one node, and its log clock; `value` never falls, not even by a crash.

    Args:
        reserved: H as recovered, 0 at the very first start.
        floor: Largest timestamp found in recovered runs.
        reserve_us: How far ahead H is reserved, microseconds.
        lead_us: How far ahead of this node's clock a peer's timestamp may be.
        now: Shell's time.
        wall: The wall clock.
    """

    __slots__ = ("_raised", "_raised_at", "_reserve_us", "clock", "reserved", "value")

    def __init__(
        self, *, reserved: int, floor: int, reserve_us: int, lead_us: int, now: int, wall: int
    ) -> None:
        #: c.  Invariant: a counter that left this node is <= `reserved`.  One above the old H, so
        #: that each start reserves again before anything leaves, and no two starts look alike.
        self.value = max(reserved + 1, floor)
        #: H, as handed to the executor.
        self.reserved = reserved
        self._reserve_us = reserve_us
        self.clock = WallClock(floor=max(reserved, floor), lead_us=lead_us, now=now, wall=wall)
        #: Last timestamp that raised the log clock, and when.
        self._raised = self.value
        self._raised_at = now

    @property
    def log_time(self) -> int:
        """Return L."""
        return max(self.clock.time, self._raised + (self.clock.now - self._raised_at) // 2)

    @property
    def is_ahead(self) -> bool:
        """Return whether L is so far ahead of the wall clock that others may not use it (C3)."""
        return self.log_time > self.clock.wall + self.clock.lead_us

    def learn(self, ts: int) -> None:
        """Raise the log clock to a header's timestamp (P6)."""
        if ts >= self.log_time:
            self._raised, self._raised_at = ts, self.clock.now

    def begin_epoch(self) -> None:
        """Let the log clock fall back to what was promised: headers that raised it, and are in no
        final queue, are gone.
        """
        self._raised, self._raised_at = self.value, self.clock.now

    def stamp(self) -> int:
        """Return the timestamp of a new run: above everything promised or used before (P1)."""
        self.use(max(self.value + 1, self.log_time))
        return self.value

    def promise(self) -> int:
        """Advance c to the log clock and return it, for a post."""
        self.use(self.log_time)
        return self.value

    def use(self, ts: int) -> None:
        """Note that an own ADD used timestamps up to `ts`: it counts like a promise (P2)."""
        if ts > self.value:
            self.value = ts
            self.learn(ts)

    def reservation(self) -> int | None:
        """Return the H to persist before c may be sent, None if the present one suffices."""
        if self.value <= self.reserved:
            return None
        self.reserved = self.value + self._reserve_us
        return self.reserved
