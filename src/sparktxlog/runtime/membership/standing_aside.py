"""Which nodes have slow disks, and which of them stand aside (protocol P37).

Each node measures its own writes and says with its posts how long they take.  One whose writes take
longer than `slow-write-limit` asks the others not to wait for it, until they take less than half of
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from sparktxlog.model.ids import NodeId
from sparktxlog.model.site_data import SitePace
from sparktxlog.protocol.messages.events import StoodAside
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import PutValue

_log = structlog.get_logger("sparktxlog.disk")

#: Seconds between two looks.
_LOOK_S = 1.0
#: Written now and then while the node stands aside: else a disk without work would never be quick.
_PROBE = "write-pace"


class StandingAside:
    """What is known of the disks of all nodes; used on the event loop.

    Args:
        tell: Sends the own pace to all peers soon.
    """

    def __init__(self, base: Foundation, core: CoreLoop, tell: Callable[[], None]) -> None:
        self._base = base
        self._core = core
        self._tell = tell
        #: Peer → what it said, since its link came up.
        self.paces: dict[str, SitePace] = {}
        #: Whether this node stands aside.
        self.aside = False
        #: What was passed to the core last.
        self._told: frozenset[NodeId] = frozenset()

    def own(self) -> SitePace:
        """Return what this node says of its writes."""
        seconds = self._core.executor.pace.seconds
        return SitePace(write_us=None if seconds is None else int(seconds * 1e6), aside=self.aside)

    def shown(self) -> dict[str, Any]:
        """Return what the status says of this node's disk."""
        return {"write_s": self.own().write_s, "aside": self.aside}

    async def watch(self) -> None:
        """Decide on this node, and pass on what the others decided; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._decide()
            said = {NodeId(name) for name, pace in self.paces.items() if pace.aside}
            aside = frozenset(said | ({self._base.config.node_id} if self.aside else set()))
            if aside != self._told:
                self._told = aside
                self._core.cycle.tell_always(StoodAside(nodes=aside))

    def _decide(self) -> None:
        limit_s = self._base.settings.in_force.slow_write_limit
        seconds = self._core.executor.pace.seconds
        before = self.aside
        if not limit_s or self._base.master.phase is Phase.FOLLOWING:
            self.aside = False  # nobody waits for a follower
        elif seconds is not None:
            self.aside = seconds > (limit_s / 2 if before else limit_s)
        if self.aside and not self._core.executor.depth:
            self._core.executor.write([PutValue(name=_PROBE, value=b"")])
        if self.aside is not before:
            _log.warning(
                "the disk is slow: this node stands aside"
                if self.aside
                else "the disk is quick: this node asks to be a member again",
                write_s=seconds,
                limit_s=limit_s,
            )
        if self.aside or before:  # again and again: one that does not post is heard only so
            self._tell()
