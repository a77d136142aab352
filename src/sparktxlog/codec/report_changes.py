"""Shortens reports: tables that did not change, and that the receiver keeps, are left out.

A sender labels the tables of a report.  A receiver that keeps them says so in its answer, and then
gets only changes.  A receiver that lost them, or is too old to answer, gets the whole report.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparktxlog.model.report import TableState, WorkerReport

#: Replicas whose tables a receiver keeps for this; other reports come whole.
_MAX_KEPT = 256


class ReportSender:
    """What one receiver keeps of the reports sent to it."""

    def __init__(self) -> None:
        #: Worker → label and whole report that the receiver keeps.
        self._kept: dict[str, tuple[str, WorkerReport]] = {}
        self._number = 0

    def shortened(self, report: WorkerReport) -> WorkerReport:
        """Return a report as it is to be sent, with a label."""
        base, kept = self._kept.get(report.worker_id, ("", report))
        if not base:
            return replace(report, label=self._new_label())
        changed = {
            name: table for name, table in report.tables.items() if kept.tables.get(name) != table
        }
        gone = tuple(name for name in kept.tables if name not in report.tables)
        label = self._new_label() if changed or gone else base
        return replace(report, tables=changed, gone=gone, base=base, label=label)

    def answered(self, report: WorkerReport, sent: WorkerReport, kept: Collection[str]) -> bool:
        """Note the labels of an answer; return whether the report counts as taken.

        Else the receiver could not complete it: send it whole.

        Args:
            report: The whole report.
            sent: The same as it was sent.
            kept: Labels that the receiver says that it keeps.
        """
        if sent.label in kept:
            self._kept[report.worker_id] = (sent.label, report)
            return True
        self._kept.pop(report.worker_id, None)
        return not sent.base

    def forget(self) -> None:
        """Send whole reports again: the receiver may be another one."""
        self._kept.clear()

    def _new_label(self) -> str:
        self._number += 1
        return str(self._number)


class ReportReceiver:
    """Completes reports by the tables that came before."""

    def __init__(self) -> None:
        #: Site and worker → label and tables.
        self._kept: dict[tuple[str, str], tuple[str, dict[str, TableState]]] = {}

    def complete(self, report: WorkerReport) -> WorkerReport | None:
        """Return the whole report, None if what it is based on is not kept here."""
        key, tables = (report.node_id, report.worker_id), report.tables
        label, kept = self._kept.pop(key, ("", {}))
        if report.base:
            if label != report.base:
                return None
            if tables or report.gone:
                gone = set(report.gone)
                kept = {name: table for name, table in kept.items() if name not in gone}
                tables = kept | tables
            else:
                tables = kept
        if report.label:
            self._kept[key] = (report.label, tables)
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return replace(report, tables=tables, gone=(), base="", label="")
