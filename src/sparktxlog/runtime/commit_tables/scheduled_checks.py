"""Recounts of commit tables on a schedule: one for each table every `verify-interval`.

Row tables are recounted by a worker that follows (S2b), as that needs Spark; here the node does it.
One table is read at a time: the one whose last recount is oldest.  After each page of versions it
rests as long as the page took, so it reads half of the time at most.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from sparktxlog.config.maintenance_times import is_open
from sparktxlog.errors import TxLogError
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table_checks import CommitTableCheckRequest
from sparktxlog.runtime.commit.executor import Executor
from sparktxlog.runtime.commit_tables.table_recounts import TableRecounts
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import PutValue

_log = structlog.get_logger("sparktxlog.recounts")

_VALUE = "recounted-commit-tables"
#: Seconds until the node looks for new tables again, at most.
_LOOK_S = 60.0
#: A recount that failed is made again after this part of the interval.
_AGAIN = 0.1


class ScheduledChecks:
    """Knows which table is due, and recounts it; belongs to the event loop.

    Args:
        executor: Keeps when each table was recounted.
    """

    def __init__(
        self,
        base: Foundation,
        executor: Executor,
        recounts: TableRecounts,
    ) -> None:
        self._base = base
        self._executor = executor
        self._recounts = recounts
        self._interval_us = int(base.config.verify_interval * 3_600_000_000)
        kept = base.state.values.get(_VALUE, b"{}")
        #: UUID → when the last recount ended, or when the table was first seen, wall clock in us.
        self._counted = msgspec.json.decode(kept, type=dict[str, int])

    async def watch(self) -> None:
        """Recount what is due, until cancelled."""
        if not self._interval_us:
            await self._base.loop.create_future()
        while True:
            table = await self._oldest()
            left = _LOOK_S
            if table is not None:
                due = self._counted[table.uuid] + self._interval_us
                left = (due - self._base.clock.wall()) / 1e6
                windows = self._base.settings.in_force.maintenance_windows
                if left <= 0 and is_open(windows, self._base.clock.wall()):
                    await self._recount(table)
                    continue
            await asyncio.sleep(min(left, _LOOK_S) if left > 0 else _LOOK_S)

    async def _oldest(self) -> CommitTable | None:
        """Return the table whose last recount is oldest; a new one counts from now on."""
        tables = self._base.master.commit_tables
        now = self._base.clock.wall()
        known = {uuid: min(now, self._counted.get(uuid, now)) for uuid in tables}
        if known != self._counted:
            await self._keep(known)
        uuid = min(known, key=lambda one: known[one], default="")
        return tables.get(uuid)

    async def _recount(self, table: CommitTable) -> None:
        _log.info("commit table is recounted: verify-interval is over", table=table.name)
        failed = False
        try:
            await self._read_all(table.name)
        except TxLogError as error:
            failed = True
            _log.warning("commit table is not recounted", table=table.name, reason=str(error))
        earlier = int(self._interval_us * (1 - _AGAIN)) if failed else 0
        await self._keep(self._counted | {table.uuid: self._base.clock.wall() - earlier})

    async def _read_all(self, name: str) -> None:
        """Recount all versions of a table; what is found is in the status.

        Raises:
            TxLogError: It was dropped, is being fetched, or cannot be read.
        """
        after = -1
        while True:
            began = self._base.loop.time()
            found = await self._recounts.check(CommitTableCheckRequest(table=name, after=after))
            if found.checked >= found.placed:
                return
            after = found.checked
            await asyncio.sleep(self._base.loop.time() - began)

    async def _keep(self, counted: dict[str, int]) -> None:
        await self._executor.write([PutValue(name=_VALUE, value=msgspec.json.encode(counted))])
        self._counted = counted
