"""What the order waited for: waits of a second and more, and the rounds that they held up.

Shorter waits belong to every transaction.  A *round* here is the time from the first such wait to
the moment when there is none: in it the order stood.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from sparktxlog.model.answers import KeptRound, KeptWait
from sparktxlog.model.status_words import round_text
from sparktxlog.protocol.order.status import Awaited
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.foundation import Foundation

#: Seconds between two looks; a wait that is younger is not kept.
_LOOK_S = 1.0
#: Rounds that are kept in memory; all of them are in `log/rounds`.
MOST = 1_000


class WaitHistory:
    """Notes which nodes the order waits for; belongs to the event loop.

    **After calling** the constructor: run `watch`.

    Args:
        note: Takes rows for the table `rounds`: each round when it has ended.
    """

    def __init__(
        self, base: Foundation, note: Callable[[str, Sequence[Mapping[str, Any]]], None]
    ) -> None:
        self._base = base
        self._note = note
        #: Waits that last, by node, reason and the time since when.
        self._lasting: dict[tuple[str, str, int], KeptWait] = {}
        #: The round that lasts, without what follows from its waits; and those that ended.
        self._round: KeptRound | None = None
        self._rounds: deque[KeptRound] = deque(maxlen=MOST)

    def remember(self, rounds: Iterable[Mapping[str, Any]]) -> None:
        """Take the last rounds of the table, ascending, at the start."""
        self._rounds.extend(cast(KeptRound, dict(one)) for one in rounds)

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
            self._end(ended, wall)
        for key in found.keys() - self._lasting.keys():
            peer, why, since = key
            wait: KeptWait = {
                "peer": peer,
                "why": why,
                "began_at": wall - (now - since),
                "ended_at": None,
                "position": status.position + 1,
            }
            self._lasting[key] = wait
            self._begin(wait)
        if self._round is not None:
            waiting = max(self._round["transactions"], status.incoming_transactions)
            self._round["transactions"] = waiting
            if not self._lasting:
                self._round["ended_at"] = wall
                ended_round = _completed(self._round, wall)
                self._round = None
                self._rounds.append(ended_round)
                self._note("rounds", [ended_round])

    def _begin(self, wait: KeptWait) -> None:
        """Add a wait to the round that lasts, or begin one with it."""
        if self._round is None:
            last = self._rounds[-1]["round"] if self._rounds else 0
            self._round = {
                "round": max(last + 1, wait["began_at"]),
                "began_at": wait["began_at"],
                "ended_at": None,
                "position": wait["position"],
                "transactions": 0,
                "held_up_by": [],
                "waits": [],
                "sentence": "",
            }
        self._round["waits"].append(wait)
        self._round["began_at"] = min(self._round["began_at"], wait["began_at"])

    def _end(self, wait: KeptWait, wall: int) -> None:
        if self._round is not None:
            waits = self._round["waits"]
            waits[waits.index(wait)] = {**wait, "ended_at": wall}

    def rounds(self, limit: int) -> list[KeptRound]:
        """Return the round that lasts, if there is one, and the last ones, the newest first."""
        found = list(reversed(self._rounds))
        if self._round is not None:
            found.insert(0, _completed(self._round, wall_us()))
        return found[:limit]


def _key(one: Awaited) -> tuple[str, str, int]:
    return one.peer, one.why.value, one.since


def _completed(found: KeptRound, wall: int) -> KeptRound:
    """Return a round with what follows from its waits."""
    waits = sorted(found["waits"], key=lambda one: one["began_at"])
    held_up_by = sorted({one["peer"] for one in waits})
    completed: KeptRound = {**found, "waits": waits, "held_up_by": held_up_by}
    completed["sentence"] = round_text(completed, wall)
    return completed
