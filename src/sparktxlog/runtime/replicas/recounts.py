"""Results of recounts of a replica of this site, kept until its tables are replaced (S2b).

A recount reads the rows; the worker's reports are only sums.  Tables that it found wrong are marked
in each later report of that replica, before the report is judged and passed on: so the replica is
DIVERGED at all sites, and is copied.  Tables that it found right are remembered, so that they are
not counted again and again.  The journal keeps the results until a copy or a new lake replaces the
replica.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec

from sparktxlog.model.report import Recount, RecountedTable, WorkerReport
from sparktxlog.storage.interfaces import PutValue, Write

_MAX_TEXT = 2_000


class Recounts:
    """Recounts of one replica of this site.

    Args:
        saved: Named values of the journal.
        name: Of the value that keeps them.
    """

    def __init__(self, saved: Mapping[str, bytes], name: str = "recount:own") -> None:
        self._name = name
        self._held: Recount | None = None
        #: Table → position of its newest recount; lost at a restart.
        self._counted_at: dict[str, int] = {}
        #: Tables that an operator wants counted; lost at a restart.
        self.asked: set[str] = set()
        if value := saved.get(name):
            self._held = msgspec.msgpack.decode(value, type=Recount)

    def take(self, recount: Recount) -> list[Write]:
        """Add a recount instead of older ones of the same tables; return the writes to keep it."""
        held = self._held
        if held is None or _replica(held) != _replica(recount):
            held = replace(recount, tables={})
            self._counted_at.clear()
        short = {
            name: replace(table, cause=table.cause[:_MAX_TEXT])
            for name, table in recount.tables.items()
        }
        self._counted_at |= dict.fromkeys(short, recount.position)
        # One without tables is that of scans that failed: they are not repeated endlessly.
        self.asked -= short.keys() if short else self.asked.copy()
        self._held = replace(
            held, position=recount.position, tables=dict(sorted({**held.tables, **short}.items()))
        )
        return [PutValue(name=self._name, value=msgspec.msgpack.encode(self._held))]

    def counted_at(self, table: str) -> int | None:
        """Return the position of a table's newest recount, None = there was none since a start."""
        return self._counted_at.get(table)

    def wrong(self, report: WorkerReport) -> dict[str, str]:
        """Return the tables of a report that a recount found wrong → its finding."""
        held = self._held
        if held is None or _replica(held) != _replica(report):
            return {}
        return {
            name: _text(table)
            for name, table in held.tables.items()
            if not table.sound and name in report.tables
        }

    def amend(self, report: WorkerReport) -> WorkerReport:
        """Return the report with the wrong tables marked as standing still."""
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
