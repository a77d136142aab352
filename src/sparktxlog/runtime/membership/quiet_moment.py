"""When a node asks to be admitted: at a moment of rest (protocol P21).

All members stand still for an admission until the node has answered twice.  While its publisher
works through what was missed it answers late, so it does not ask then; not for ever, since on a
busy log the publisher may never rest.
"""

from __future__ import annotations

from collections.abc import Callable

#: A node that follows the queue waits for a moment of rest so long, seconds.
_WAITS_S = 1.5


class Calm:
    """Decides when requests to join may leave.

    Args:
        is_busy: Returns whether this node would answer late.
        now: Seconds of any steady clock.
    """

    def __init__(self, is_busy: Callable[[], bool], now: Callable[[], float]) -> None:
        self._is_busy = is_busy
        self._now = now
        #: Until when it waits for a moment of rest; None = it has not begun to ask.
        self._until: float | None = None

    def begin(self) -> None:
        """Note that this node is no member any more."""
        self._until = None

    def may_ask(self) -> bool:
        """Return whether a request that is due may leave; another one follows soon."""
        if self._until is None:
            self._until = self._now() + _WAITS_S
        return not self._is_busy() or self._now() >= self._until
