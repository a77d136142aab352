"""What the order waited for: waits of a second and more are kept, for people who look later.

Shorter waits belong to every transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque

from sparktxlog.model.answers import KeptWait
from sparktxlog.protocol.order.status import Awaited
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.foundation import Foundation

#: Seconds between two looks; a wait that is younger is not kept.
_LOOK_S = 1.0
#: Waits that are kept, in memory.
_MOST = 1_000


class WaitHistory:
    """Notes which nodes the order waits for; belongs to the event loop.

    **After calling** the constructor: run `watch`.
    """

    def __init__(self, base: Foundation) -> None:
        self._base = base
        #: Waits that last, by node, reason and the time since when.
        self._lasting: dict[tuple[str, str, int], KeptWait] = {}
        self._ended: deque[KeptWait] = deque(maxlen=_MOST)

    async def watch(self) -> None:
        """Look each second, until cancelled."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(_LOOK_S)
                self.look()

        await self._base.supervisor.keep("watching waits", watch)

    def look(self) -> None:
        """Note what the order waits for now, and which waits have ended."""
        now, wall = self._base.clock.now(), wall_us()
        status = self._base.master.status()
        found = {_key(one): one for one in status.waiting_for if now - one.since >= _LOOK_S * 1e6}
        for key in self._lasting.keys() - found.keys():
            ended = self._lasting.pop(key)
            self._ended.append({**ended, "ended_at": wall})
        for key in found.keys() - self._lasting.keys():
            peer, why, since = key
            self._lasting[key] = {
                "peer": peer,
                "why": why,
                "began_at": wall - (now - since),
                "ended_at": None,
                "position": status.position + 1,
            }

    def latest(self, limit: int) -> list[KeptWait]:
        """Return waits that last and the last ones that ended, the newest first."""
        kept = [*self._ended, *self._lasting.values()]
        return sorted(kept, key=lambda one: one["began_at"], reverse=True)[:limit]


def _key(one: Awaited) -> tuple[str, str, int]:
    return one.peer, one.why.value, one.since
