"""Log time in an idle log: prepared transactions expire by the timestamps of others (P35).

Where nobody commits, a member commits a transaction without operations.  One suffices: the first
member in precedence does it at once, each next one a second later, if it is still needed then.
"""

from __future__ import annotations

import os

import structlog

from sparktxlog.codec.containers.assembly import as_ids
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import TxLogError
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.commit.acceptance import MAX_WAIT_S, Submits
from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.foundation import Foundation

_log = structlog.get_logger("sparktxlog.log_time")

#: Seconds between one member and the next; also until the log clock is looked at again.
_STEP_S = 1.0
#: Pause after a commit that this node refused, or that was not ordered in time, seconds.
_PAUSE_S = 10.0


class LogTime:
    """Watches when prepared transactions expire; belongs to the event loop."""

    def __init__(self, base: Foundation, cycle: Cycle, submits: Submits) -> None:
        self._base = base
        self._cycle = cycle
        self._submits = submits
        #: Code of what refused the last commit; empty = nothing did.  Texts name a fresh id.
        self._refused = ""

    async def watch(self) -> None:
        """Let time pass for what expires, until cancelled."""
        await self._base.supervisor.keep("log time", self._watch)

    async def _watch(self) -> None:
        ordered, master = self._base.ordered, self._base.master
        while True:
            seen = ordered.value
            until = min((one.valid_until for one in master.undecided), default=None)
            if until is None or self._cycle.halted is not None:
                await ordered.reach(seen + 1, MAX_WAIT_S)
            elif (left := self._seconds_after(until)) > 0:
                await ordered.reach(seen + 1, left)
            elif master.next_stamp <= until:
                await ordered.reach(seen + 1, _STEP_S)
            elif not await self._pass():
                await ordered.reach(seen + 1, _PAUSE_S)

    def _seconds_after(self, until: int) -> float:
        """Return the seconds until it is this member's turn to let a time be over."""
        members = list(self._base.master.view.members)
        own = self._base.config.node_id
        turn = members.index(own) if own in members else len(members)
        return (until - self._base.clock.wall()) / 1_000_000 + turn * _STEP_S

    async def _pass(self) -> bool:
        """Commit a transaction that does nothing; False: it cannot be ordered now."""
        nothing = PreparedTransaction(transaction_id=as_ids(os.urandom(16)), operations=())
        try:
            await self._submits.submit(nothing, level=Level.ORDERED, timeout=MAX_WAIT_S)
        except TxLogError as error:
            if error.code != self._refused:
                _log.info("prepared transactions do not expire yet", reason=str(error))
            self._refused = error.code
            return False
        self._refused = ""
        return True
