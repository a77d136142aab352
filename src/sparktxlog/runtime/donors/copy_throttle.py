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
import time
from collections import deque
from collections.abc import Callable

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

#: Runs a function after some seconds; what it returns can be cancelled.
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class CopyThrottle:
    """Gives turns; belongs to the event loop.

    Args:
        share: Part of the time that copies get while own transactions are on their way,
            0 < share <= 1; 1 = they never yield.
    """

    def __init__(
        self,
        share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self._share = share
        self._clock = clock
        self._later = later
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = 0
        self._busy = False
        #: Time at which the last own transaction was ordered.
        self._quiet_from = -math.inf
        #: No turn begins earlier while own transactions wait.
        self._pause_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def busy(self, busy: bool) -> None:
        """Note whether own transactions wait to be ordered from now on."""
        self._busy = busy
        self._quiet_from = self._clock()
        self._look()

    async def take(self) -> Turn:
        """Wait for a turn.

        **After calling**: `end` it.

        Raises:
            DonorYieldsError: No turn within HOLD_S; ask again (definite).
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._look()
        try:
            async with asyncio.timeout(HOLD_S):
                await future
        except TimeoutError:
            if future.cancelled():  # otherwise it was given at this very moment
                raise DonorYieldsError(
                    "transactions of this node go first", hint="Ask for the chunk again."
                ) from None
        except asyncio.CancelledError:
            if not future.cancelled():
                self._ended(0.0)
            raise
        turn = Turn(self._clock, self._ended)
        turn.timer = self._call_later(LONGEST_TURN_S, turn.end)
        return turn

    def _yielding(self, now: float) -> bool:
        return self._busy_within(QUIET_S, now)

    def _busy_within(self, seconds: float, now: float) -> bool:
        return self._share < 1 and (self._busy or now < self._quiet_from + seconds)

    def _ended(self, seconds: float) -> None:
        self._running -= 1
        now = self._clock()
        if self._yielding(now):
            pause = min(seconds * (1 / self._share - 1), LONGEST_PAUSE_S)
            # Turns that began before there were transactions ran at the same time.
            self._pause_ends = max(self._pause_ends, now + pause)
        self._look()

    def _look(self) -> None:
        """Start the turns that may begin, and look again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            if self._waiting[0].done():  # given up
                self._waiting.popleft()
                continue
            now = self._clock()
            if self._running >= (1 if self._busy_within(RECENT_S, now) else AT_ONCE):
                return  # the end of a running turn looks again
            if self._yielding(now) and now < self._pause_ends:
                self._set_timer(now)
                return
            self._waiting.popleft().set_result(None)
            self._running += 1

    def _set_timer(self, now: float) -> None:
        quiet = math.inf if self._busy else self._quiet_from + QUIET_S
        self._timer = self._call_later(max(min(quiet, self._pause_ends) - now, 0.0), self._look)

    def _call_later(self, seconds: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        return (self._later or asyncio.get_running_loop().call_later)(seconds, run)


class Turn:
    """A turn under way; it ends after LONGEST_TURN_S at the latest."""

    def __init__(self, clock: Callable[[], float], ended: Callable[[float], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._began = clock()
        self._over = False
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """End the turn; a second call changes nothing."""
        if not self._over:
            self._over = True
            if self.timer is not None:
                self.timer.cancel()
            self._ended(self._clock() - self._began)
