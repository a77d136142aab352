"""What recounts found in this site's replica: kept until the tables are other ones (S2b).

A recount reads the rows, so it knows more than any report of the worker, which only adds up.  What
it found wrong is written into each later report of that replica, before the report is judged and
passed on: the replica is DIVERGED everywhere, and is copied.  What it found right is remembered,
so that no table is counted again and again.  The journal keeps it all; a copy, or a lake that was
made anew, is another replica and ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec

from sparktxlog.model.report import Recount, RecountedTable, WorkerReport
from sparktxlog.storage.interfaces import PutValue, Write

_NAME = "recount:own"
_MAX_TEXT = 2_000


class Recounts:
    """Recounts of this site's replica."""

    def __init__(self, saved: Mapping[str, bytes]) -> None:
        self._held: Recount | None = None
        #: Table → position of its newest recount; not kept over a restart.
        self._counted_at: dict[str, int] = {}
        if value := saved.get(_NAME):
            self._held = msgspec.msgpack.decode(value, type=Recount)

    def take(self, recount: Recount) -> list[Write]:
        """Take in a recount, in place of older ones of the same tables; return what to keep."""
        held = self._held
        if held is None or _replica(held) != _replica(recount):
            held = replace(recount, tables={})
            self._counted_at.clear()
        short = {
            name: replace(table, cause=table.cause[:_MAX_TEXT])
            for name, table in recount.tables.items()
        }
        self._counted_at |= dict.fromkeys(short, recount.position)
        self._held = replace(
            held, position=recount.position, tables=dict(sorted({**held.tables, **short}.items()))
        )
        return [PutValue(name=_NAME, value=msgspec.msgpack.encode(self._held))]

    def wrong(self, report: WorkerReport) -> dict[str, str]:
        """Return the tables of a report that a recount found wrong → what it found."""
        held = self._held
        if held is None or _replica(held) != _replica(report):
            return {}
        return {
            name: _text(table)
            for name, table in held.tables.items()
            if not table.sound and name in report.tables
        }

    def amend(self, report: WorkerReport) -> WorkerReport:
        """Return a report that says of the tables found wrong that they stand still."""
        wrong = self.wrong(report)
        tables = {
            name: replace(state, diverged=wrong[name])
            if name in wrong and not state.diverged
            else state
            for name, state in report.tables.items()
        }
        return replace(report, tables=tables) if wrong else report

    def uncounted(self, report: WorkerReport, tables: Iterable[str], position: int) -> list[str]:
        """Return which tables of a report were not counted at or after a position."""
        known = self._held is not None and _replica(self._held) == _replica(report)
        counted: Collection[str] = (
            [name for name, at in self._counted_at.items() if at >= position] if known else ()
        )
        return [name for name in tables if name in report.tables and name not in counted]


def _replica(of: Recount | WorkerReport) -> tuple[str, str, str]:
    return of.worker_id, of.node_id, of.copied_from


def _text(table: RecountedTable) -> str:
    found = f"a recount of version {table.version} counts {table.counted}, "
    if not table.counted:
        found = f"a recount cannot read all files of version {table.version}, "
    text = f"{found}recorded is {table.recorded}"
    return f"{text}: {table.cause}" if table.cause else text
