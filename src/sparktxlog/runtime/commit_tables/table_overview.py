"""What this site says of its commit tables: how far each is, and what it lacks and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sparktxlog.errors import NotFoundError, TxLogError
from sparktxlog.health.verdicts import SiteState, table_state
from sparktxlog.model.answers import CommitTableLine, CommitTablesState, OperatorWarning
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.commit_tables.reader_tables import ReaderTables
from sparktxlog.runtime.commit_tables.table_fetcher import TableFetcher, TableTransfer
from sparktxlog.runtime.commit_tables.table_recounts import TableRecounts
from sparktxlog.runtime.foundation import Foundation, in_slices

#: Most tables that a status lists, which is asked for often.
_MOST_LISTED = 100


class TableOverview:
    """Combines what the owners of commit tables know; used on the event loop."""

    def __init__(
        self,
        base: Foundation,
        placer: CommitPlacer,
        fetcher: TableFetcher,
        recounts: TableRecounts,
        reader_tables: ReaderTables,
    ) -> None:
        self._base = base
        self._placer = placer
        self._fetcher = fetcher
        self._recounts = recounts
        self._reader_tables = reader_tables

    # -- warnings ----------------------------------------------------------------------------------

    def warnings(self) -> list[OperatorWarning]:
        """Return the tables that are not placed or differ, with what is done about each."""
        found: list[OperatorWarning] = [
            {"code": "commit-table-not-placed", "text": self._explained(uuid, error)}
            for uuid, error in self._placer.failures().items()
        ]
        tables = self._base.master.commit_tables
        for uuid in self._recounts.findings:
            if (table := tables.get(uuid)) is not None:
                undecided = any(one.is_undecided for one in self._recounts.findings[uuid])
                right = " --right SITE" if undecided else ""
                text = f"{self._differs(uuid)}.  Run `sparktxlog repair {table.name}{right}`."
                found.append({"code": "commit-table-diverged", "text": text})
        return [*found, *self._reader_tables.warnings()]

    def _differs(self, uuid: str) -> str:
        first, *more = self._recounts.findings[uuid]
        return f"{first.text}, and {len(more):,} more" if more else first.text

    def _explained(self, uuid: str, error: TxLogError) -> str:
        transfer = self._transfer_of(uuid)
        if transfer is not None:
            return f"{error.message}  They are being fetched: {transfer.text}."
        failures = self._fetcher.failures.get(uuid, {})
        refused = _refused(failures) if failures else ""
        return "  ".join(part for part in (error.message, error.hint, refused) if part)

    def _transfer_of(self, uuid: str) -> TableTransfer | None:
        """Return the transfer of a table, None = none is known to have what is missing."""
        transfer = self._fetcher.transfers.get(uuid)
        if transfer is not None and not transfer.of_files and uuid in self._fetcher.failures:
            return None  # a peer that refused is asked again
        return transfer

    def lacking(self) -> set[str]:
        """Return the UUIDs of tables that are not whole at this site."""
        tables = self._base.master.commit_tables
        return self._placer.lacking().union(filter(tables.__contains__, self._recounts.findings))

    # -- lines -------------------------------------------------------------------------------------

    def show(self, *, tables: bool) -> CommitTablesState:
        """Return how many tables are in which state, and lines of some.

        Args:
            tables: Of all; else of those that are not in sync, and only these are looked at.
        """
        behind, failures = self._placer.behind(), self._placer.failures()
        there = self._base.master.commit_tables
        odd = {*behind, *failures, *self._recounts.findings, *self._fetcher.transfers}
        known = sorted(filter(None, map(there.get, odd)), key=lambda one: one.name.lower())
        states = Counter(dict.fromkeys((state.value for state in SiteState), 0))
        listed: list[CommitTableLine] = []
        for table in there.values() if tables else known:
            state = self._state_of(table, failures)
            is_odd = state is not SiteState.IN_SYNC
            states[state.value] += is_odd
            if tables or (is_odd and len(listed) < _MOST_LISTED):
                listed.append(self._line(table, state, failures))
        total = len(there)
        states[SiteState.IN_SYNC.value] = total - states.total()
        return {"total": total, "states": states, "behind": sum(behind.values()), "tables": listed}

    async def listed(self) -> list[CommitTableLine]:
        """Return all tables, by name, some at a time: there may be 10,000, and others wait."""
        found: list[CommitTableLine] = []
        tables = list(self._base.master.commit_tables.values())
        failures = self._placer.failures()
        async for some in in_slices(tables):
            found += (self._line(one, self._state_of(one, failures), failures) for one in some)
        return found

    def _state_of(self, table: CommitTable, failures: dict[str, TxLogError]) -> SiteState:
        return table_state(
            self._placer.lag_of(table),
            differs=table.uuid in self._recounts.findings,
            is_fetched=self._transfer_of(table.uuid) is not None,
            failed=table.uuid in failures,
        )

    def _line(
        self, table: CommitTable, state: SiteState, failures: dict[str, TxLogError]
    ) -> CommitTableLine:
        uuid, error = table.uuid, failures.get(table.uuid)
        transfer = self._transfer_of(uuid)
        plan, reason = "up-to-date", None if error is None else self._explained(uuid, error)
        if state is SiteState.DIVERGED:
            plan, reason = "copy", self._differs(uuid)
        elif state is not SiteState.IN_SYNC:
            # What a directory lacks comes from a peer; all else is in the payload store.
            plan = "copy" if error is not None and "first" in error.fields else "replay"
        return {
            "name": table.name,
            "uuid": uuid,
            "version": self._placer.versions.get(uuid),
            "ordered": table.version,
            "lag": self._placer.lag_of(table),
            "state": state.value,
            "plan": plan,
            "peer": None if transfer is None else transfer.peer or None,
            "reason": reason,
        }


def _refused(failures: Mapping[str, TxLogError]) -> str:
    """Say why no peer could give what a table lacks, and whether anybody may have it."""
    said = "; ".join(f"{peer}: {error.message}" for peer, error in failures.items())
    may = sorted(peer for peer, error in failures.items() if not _lacks(error))
    if len(may) == len(failures):
        return f"No peer could give them yet: {said}."
    if may:
        wait = f"{', '.join(may)} may have them: they are fetched once it answers"
        return f"No site that answers has them, {wait}.  {said}."
    return (
        f"No site that answers has them: {said}.  They are lost unless a site comes back with its "
        "disk, or the table's directory is restored here from a backup or a copy."
    )


def _lacks(error: TxLogError) -> bool:
    """Return whether a peer answered that it does not have it."""
    return NotFoundError.http_status in (error.http_status, error.fields.get("status"))
