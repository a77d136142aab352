"""Throttles copies: their chunks wait for this node's own transactions.

A chunk is served in a *turn*: from reading its file until the connection has taken its last byte.
While own transactions wait to be ordered, the turn after one of t seconds waits until they are
ordered, or until t x (1 / share - 1) seconds have passed.  So a copy takes at most about `share` of
the time, but always goes on.  Turns overlap only if there were no transactions for a while:
otherwise the next transaction would share the link with several turns.  One object serves all
copies of a node, in the order of their requests.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from sparktxlog.errors import DonorYieldsError

#: Turns overlap after so many seconds without own transactions.
AT_ONCE = 4
RECENT_S = 1.0
#: Seconds without own transactions after which there are none: a writer that commits one after the
#: other pauses for less.
QUIET_S = 0.05
#: Longest pause after a turn, seconds; it bounds how slow a copy may get.
LONGEST_PAUSE_S = 60.0
#: Longest turn, seconds: a target that stops reading must not delay the others.
LONGEST_TURN_S = 60.0
#: Longest wait for a turn, seconds; well below the target's timeout.
HOLD_S = 5.0


class CopyThrottle:
    """Gives turns; belongs to the event loop.

    Args:
        share: Part of the time that copies get while own transactions are on their way,
            0 < share <= 1; 1 = they never yield.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        #: Held by the request whose turn is the next one; the others wait in their order.
        self._next = asyncio.Lock()
        #: Set when a turn has ended, or transactions came or went.
        self._changed = asyncio.Event()
        self._running = 0
        self._busy = False
        #: Time of the loop at which the last own transaction was ordered.
        self._quiet_from = -math.inf
        #: No turn begins earlier while own transactions wait.
        self._pause_ends = 0.0

    def busy(self, busy: bool) -> None:
        """Note whether own transactions wait to be ordered from now on."""
        self._busy = busy
        self._quiet_from = asyncio.get_running_loop().time()
        self._changed.set()

    async def take(self) -> Turn:
        """Wait for a turn.

        **After calling**: `end` it.

        Raises:
            DonorYieldsError: No turn within HOLD_S; ask again (definite).
        """
        try:
            async with asyncio.timeout(HOLD_S), self._next:
                while (wait_s := self._wait_s()) > 0:
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                            await self._changed.wait()
        except TimeoutError:
            raise DonorYieldsError(
                "transactions of this node go first", hint="Ask for the chunk again."
            ) from None
        self._running += 1
        return Turn(self)

    def _wait_s(self) -> float:
        """Return the seconds until a turn may begin, infinite = until another one ends."""
        now = asyncio.get_running_loop().time()
        if self._running >= (1 if self._busy_within(RECENT_S, now) else AT_ONCE):
            return math.inf
        if not self._busy_within(QUIET_S, now):
            return 0.0
        return min(math.inf if self._busy else self._quiet_from + QUIET_S, self._pause_ends) - now

    def _busy_within(self, seconds: float, now: float) -> bool:
        return self._share < 1 and (self._busy or now < self._quiet_from + seconds)

    def ended(self, seconds: float) -> None:
        """Note the end of a turn that took so many seconds."""
        self._running -= 1
        now = asyncio.get_running_loop().time()
        if self._busy_within(QUIET_S, now):
            pause = min(seconds * (1 / self._share - 1), LONGEST_PAUSE_S)
            # Turns that began before there were transactions ran at the same time.
            self._pause_ends = max(self._pause_ends, now + pause)
        self._changed.set()


class Turn:
    """A turn under way; it ends after LONGEST_TURN_S at the latest."""

    def __init__(self, throttle: CopyThrottle) -> None:
        self._throttle = throttle
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer = self._loop.call_later(LONGEST_TURN_S, self.end)
        self._over = False

    def end(self) -> None:
        """End the turn; a second call changes nothing."""
        if not self._over:
            self._over = True
            self._timer.cancel()
            self._throttle.ended(self._loop.time() - self._began)
